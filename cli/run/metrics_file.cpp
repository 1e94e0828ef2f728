#include "cli/run/metrics_file.h"

#include <cerrno>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/terminal/interrupt.h"
#include "sim/base/error.h"
#include "sim/base/fault.h"
#include "sim/base/files.h"

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

MetricsFile::MetricsFile(const std::optional<std::string>& path, Mode mode, int64_t first_step)
    : path_(path.value_or("")) {
  if (!path) return;
  const int cut = mode == Mode::kNew ? O_TRUNC : 0;
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | cut, 0666);
  if (descriptor_ < 0) fail(errno);
  struct stat found{};
  is_regular_ = ::fstat(descriptor_, &found) == 0 && S_ISREG(found.st_mode);
  try {
    if (is_regular_) {
      if (mode == Mode::kContinue) cut_from(first_step);
      try_to_grow();
    } else {
      ignore_broken_pipes();  // a reader that goes away costs the metrics
      if (::write(descriptor_, "", 0) < 0) fail(errno);
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// Keeps the lines before that step. The last may have been cut short by whatever ended that run.
void MetricsFile::cut_from(int64_t first_step) {
  std::ifstream file(path_, std::ios::binary);
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (file.eof() || line.empty()) break;
    const std::optional<int64_t> step = step_of(line);
    if (!step) {
      throw Error(fmt::format("--metrics {}, line {}", path_, number), "it is no line of metrics",
                  "name another file, or that of the run that goes on");
    }
    if (*step >= first_step) break;
    bytes_ += std::ssize(line) + 1;
  }
  if (::ftruncate(descriptor_, bytes_) != 0) fail(errno);
}

// A block more than there is, put onto the disk and taken back: only there a quota is asked.
void MetricsFile::try_to_grow() {
  int code = put(std::string(kBlock, '\n'));
  if (code == 0 && ::fsync(descriptor_) != 0) code = errno;
  if (::ftruncate(descriptor_, bytes_) != 0 && code == 0) code = errno;
  if (code != 0) fail(code);
}

void MetricsFile::fail(int code) const {
  throw Error("--metrics " + path_, "cannot be written: " + fault_name(code), fault_remedy(code));
}

int MetricsFile::put(const std::string& text) {
  return write_all(system_files(), descriptor_, std::as_bytes(std::span(text)));
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
  if (is_regular_ && ::ftruncate(descriptor_, bytes_) != 0) failure_->code = errno;
  fmt::print(stderr, "note: --metrics {} cannot be written from step {} on: {}; training goes on\n",
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
