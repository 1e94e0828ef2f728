#include "cli/run/metrics_file.h"

#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <sys/stat.h>

#include "cli/terminal/interrupt.h"
#include "cli/terminal/standard_error.h"
#include "sim/base/error.h"
#include "sim/base/fault.h"

namespace ballast {
namespace {

constexpr size_t kBlock = 4096;  // bytes: more than the rest of a block that a file has already

// The step of a line; nothing where it is no line of metrics.
std::optional<int64_t> step_of(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("step")) return std::nullopt;
  const auto& step = json["step"];
  return step.is_number_integer() ? std::optional(step.get<int64_t>()) : std::nullopt;
}

}  // namespace

MetricsFile::MetricsFile(const std::optional<std::string>& path, Mode mode, int64_t first_step,
                         Files& files)
    : files_(files), path_(path.value_or("")) {
  if (!path) return;
  descriptor_ = files_.open(path_, O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (descriptor_ < 0) fail(errno);
  struct stat found{};
  is_regular_ = files_.status(descriptor_, found) == 0 && S_ISREG(found.st_mode);
  try {
    if (is_regular_) {
      mode == Mode::kContinue ? cut_from(first_step) : replace();
      try_to_grow();
    } else {
      ignore_broken_pipes();  // a reader that goes away costs the metrics
      if (files_.write(descriptor_, {}) < 0) fail(errno);
    }
  } catch (...) {
    files_.close(descriptor_);
    throw;
  }
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) files_.close(descriptor_);
}

std::string MetricsFile::content() const {
  const int descriptor = files_.open(path_, O_RDONLY, 0);
  if (descriptor < 0) fail(errno);
  std::string text;
  std::string part(1 << 16, '\0');
  ssize_t taken = 0;
  while (true) {
    taken = files_.read_at(descriptor, std::ssize(text), std::as_writable_bytes(std::span(part)));
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) break;
    text.append(part, 0, static_cast<size_t>(taken));
  }
  const int code = errno;
  files_.close(descriptor);
  if (taken < 0) fail(code);
  return text;
}

void MetricsFile::tell_that_it_replaces() const {
  print_to_stderr("note: --metrics {} replaces the metrics of an earlier run\n", path_);
}

// Of an earlier run, whose only line may have been cut short; a file that holds something else was
// named by mistake.
void MetricsFile::replace() {
  const std::string text = content();
  if (text.empty()) return;
  const std::string line = text.substr(0, text.find('\n'));
  const bool is_cut = line.size() == text.size() && text.starts_with("{\"step\"");
  const bool is_lost = line.find('\0') != std::string::npos;
  if (!step_of(line) && !is_cut && !is_lost) {
    throw Error("--metrics " + path_, "it holds something else than metrics",
                "name another file, or remove it");
  }
  if (files_.truncate(descriptor_, 0) != 0) fail(errno);
  tell_that_it_replaces();
}

// Keeps the lines before that step. The last may have been cut short by whatever ended that run; a
// power cut may also have left zeros where blocks were not on the disk yet, and nothing is believed
// from there on.
void MetricsFile::cut_from(int64_t first_step) {
  std::istringstream file(content());
  std::string line;
  int64_t next = 0;  // after the last step that stays
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (file.eof() || line.empty() || line.find('\0') != std::string::npos) break;
    const std::optional<int64_t> step = step_of(line);
    if (!step) {
      throw Error(fmt::format("--metrics {}, line {}", path_, number), "it is no line of metrics",
                  "name another file, or that of the run that goes on");
    }
    if (*step >= first_step) break;
    bytes_ += std::ssize(line) + 1;
    next = *step + 1;
  }
  if (files_.truncate(descriptor_, bytes_) != 0) fail(errno);
  if (first_step == 0 && step_of(line)) tell_that_it_replaces();
  if (bytes_ > 0 && next < first_step) {
    print_to_stderr("note: --metrics {} lacks steps {} to {}; it goes on with step {}\n", path_,
                    next, first_step - 1, first_step);
  }
}

// A block more than there is, put onto the disk and taken back: only there a quota is asked. That
// it is taken back is put there too, or a power cut would leave lines among the rest of the block.
void MetricsFile::try_to_grow() {
  int code = put(std::string(kBlock, '\n'));
  if (code == 0 && files_.synchronise(descriptor_) != 0) code = errno;
  if (files_.truncate(descriptor_, bytes_) != 0 && code == 0) code = errno;
  if (code == 0 && files_.synchronise(descriptor_) != 0) code = errno;
  if (code != 0) fail(code);
}

void MetricsFile::fail(int code) const {
  throw Error("--metrics " + path_, "cannot be written: " + fault_name(code), fault_remedy(code));
}

int MetricsFile::put(const std::string& text) {
  return write_all(files_, descriptor_, std::as_bytes(std::span(text)));
}

void MetricsFile::add(int64_t step, const std::string& line) {
  if (descriptor_ < 0 || failure_) return;
  const int code = put(line + '\n');
  if (code == 0) {
    bytes_ += std::ssize(line) + 1;
    return;
  }
  failure_ = {step, code};
  // What cannot be cut either is cut by the run that goes on with the file.
  if (is_regular_ && files_.truncate(descriptor_, bytes_) != 0) failure_->code = errno;
  print_to_stderr("note: --metrics {} cannot be written from step {} on: {}; training goes on\n",
                  path_, step, fault_name(failure_->code));
}

void MetricsFile::require_whole() const {
  if (!failure_) return;
  throw Error("--metrics " + path_,
              fmt::format("the steps from {} on are missing: {}", failure_->step,
                          fault_name(failure_->code)),
              fault_remedy(failure_->code));
}

}  // namespace ballast
