#include "cli/flags/memory_limit.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>
#include <new>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>

#include "backend/measure/profile.h"
#include "cli/verbs/verbs.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

// What is left are the system's caches, without which files are read again and again.
constexpr double kDefaultShare = 0.9;
constexpr int64_t kLeast = int64_t{16} << 20;  // the program itself

// The line to end with, made while there is memory.
std::array<char, 512> last_line{"ballast: memory: the system refused more of it\n"};

void say_at_the_end(const std::string& why) {
  const std::string line =
      "ballast: memory: " + why + "; use a smaller model, a smaller batch or larger buckets\n";
  last_line.fill('\0');
  std::copy_n(line.begin(), std::min(line.size(), last_line.size() - 1), last_line.begin());
}

struct SizeUnit {
  std::string_view name;
  double bytes;
};
constexpr auto kSizeUnits = std::to_array<SizeUnit>({{"KB", 1e3},
                                                     {"MB", 1e6},
                                                     {"GB", 1e9},
                                                     {"TB", 1e12},
                                                     {"KiB", 1024.0},
                                                     {"MiB", 1048576.0},
                                                     {"GiB", 1073741824.0}});

}  // namespace

void end_without_memory() {
  // Where not even that can be said there is nothing left to do.
  [[maybe_unused]] const ssize_t said =
      ::write(STDERR_FILENO, last_line.data(), std::strlen(last_line.data()));
  ::_exit(kBadInput);
}

void end_where_memory_ends() {
  say_at_the_end("the system refused more of it");
  std::set_new_handler(end_without_memory);
}

std::optional<Bytes> size_meant(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str()) return std::nullopt;
  const std::string_view unit = end;
  for (const SizeUnit& one : kSizeUnits) {
    const double bytes = number * one.bytes;
    if (unit == one.name && bytes >= 1 && bytes <= 1e18) {
      return Bytes{static_cast<int64_t>(bytes)};
    }
  }
  return std::nullopt;
}

Bytes memory_limit_of(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  double bytes = 0;
  if (end != text.c_str() && end == std::string_view("%") && number <= 100) {
    bytes = number / 100 * static_cast<double>(host_facts().memory.count);
  }
  if (const auto size = size_meant(text)) bytes = static_cast<double>(size->count);
  if (!(bytes >= static_cast<double>(kLeast)) || bytes > 1e18) {
    throw Error("--memory-limit", "'" + one_line(text) + "' is no size from 16MiB on",
                "give one like 4GB, 512MB, 2GiB, or 50% of what there is");
  }
  return {static_cast<int64_t>(bytes)};
}

void limit_memory(Bytes most, const std::string& said_by) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // the shadow of all memory counts as data: nothing more could be mapped
#endif
  // Of two limits that this program sets the later one counts.
  static rlim_t of_the_system = [] {
    rlimit limit{};
    return ::getrlimit(RLIMIT_DATA, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
  }();
  rlimit limit{};
  if (::getrlimit(RLIMIT_DATA, &limit) != 0) return;
  limit.rlim_cur = std::min(of_the_system, static_cast<rlim_t>(most.count));
  if (::setrlimit(RLIMIT_DATA, &limit) != 0) return;
  say_at_the_end(fmt::format("the limit of {:.0f} MB ({}) does not hold what was asked for",
                             static_cast<double>(limit.rlim_cur) * 1e-6,
                             limit.rlim_cur == of_the_system ? "ulimit -d" : said_by));
}

void limit_memory_by_default() {
  const double memory = static_cast<double>(host_facts().memory.count);
  if (memory <= 0) return;
  limit_memory({static_cast<int64_t>(kDefaultShare * memory)},
               fmt::format("{:.0f} % of what there is; --memory-limit", 100 * kDefaultShare));
}

}  // namespace ballast
