#include "backend/measure/profile.h"

#include <algorithm>
#include <ctime>
#include <fmt/format.h>
#include <map>

#include "sim/base/error.h"

namespace ballast {

namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

}  // namespace

void check_compute_threads(int64_t threads, const HostFacts& facts) {
  if (threads <= facts.cores) return;
  throw Error("--compute-threads",
              fmt::format("{} threads on {} usable cores", threads, facts.cores), "use fewer");
}

int optimizer_threads(const ProfileOptions& options, const HostFacts& facts) {
  const int64_t left = facts.cores - options.compute_threads;
  const int64_t threads =
      options.optimizer_threads > 0 ? options.optimizer_threads : std::max<int64_t>(left, 1);
  if (threads > facts.cores) {
    throw Error("--threads",
                fmt::format("{} optimizer threads on {} usable cores", threads, facts.cores),
                "use fewer");
  }
  return static_cast<int>(threads);
}

std::string measurement_source(const ProfileOptions& options) {
  return fmt::format("measured {} by ballast profile",
                     options.when.empty() ? today() : options.when);
}

std::vector<ProbeReport> run_probes(const std::vector<Probe>& probes,
                                    const std::function<void(const ProbeReport&)>& on_probe) {
  std::vector<ProbeReport> reports;
  int index = 0;
  for (const Probe& probe : probes) {
    ProbeReport report{probe.name, ++index, static_cast<int>(probes.size()), "", true};
    try {
      report.result = probe.run();
    } catch (const Error& error) {
      report.result = error.what();
      report.ran = false;
    }
    if (on_probe) on_probe(report);
    reports.push_back(std::move(report));
  }
  return reports;
}

void keep_newest(std::vector<OperationTime>& operations) {
  std::map<std::string, OperationTime> by_key;
  for (OperationTime& time : operations) {
    by_key.insert_or_assign(cost_key(time.op), std::move(time));
  }
  operations.clear();
  for (auto& [key, time] : by_key) operations.push_back(std::move(time));
}

std::vector<int64_t> sizes_from(int64_t smallest, int64_t largest) {
  std::vector<int64_t> sizes;
  for (int64_t size = smallest; size <= largest; size *= 4) sizes.push_back(size);
  return sizes;
}

std::string percent(const Timing& timing) {
  const double share =
      static_cast<double>(timing.deviation.ps) / static_cast<double>(timing.median.ps);
  return fmt::format("+-{:.1f} %", 100 * share);
}

}  // namespace ballast
