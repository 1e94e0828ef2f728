#include "backend/measure/disk_times.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "backend/measure/profile_probes.h"

namespace ballast {
namespace {

constexpr int64_t kSmallestMove = int64_t{1} << 20;
constexpr int kMostDepth = 16;

// Two regions of each size: one that is written while the other is read.
class TimedDisk {
 public:
  TimedDisk(const DiskOptions& options, const std::vector<int64_t>& sizes,
            const ProbeLimits& limits)
      : limits_(limits),
        file_(regions_of(sizes), options),
        read_(static_cast<size_t>(sizes.back())),
        written_(static_cast<size_t>(sizes.back())) {
    // Not zeros, which some disks do not write.
    std::minstd_rand random(1);
    for (std::byte& one : written_) one = static_cast<std::byte>(random() >> 8);
    for (size_t i = 0; i < sizes.size(); ++i) write(2 * i, sizes[i]);
  }

  // Of the size with this index.
  Timing time(DiskUse use, size_t index, int64_t bytes) {
    return time_alone(
        [&](int) {
          if (use == DiskUse::kWrite) return write(2 * index + 1, bytes);
          if (use == DiskUse::kRead) return read(2 * index, bytes);
          const std::jthread beside([&] { write(2 * index + 1, bytes); });
          read(2 * index, bytes);
        },
        limits_);
  }

  const StateFile& file() const { return file_; }

 private:
  static std::vector<Bytes> regions_of(const std::vector<int64_t>& sizes) {
    std::vector<Bytes> regions;
    for (const int64_t size : sizes) regions.insert(regions.end(), 2, Bytes{size});
    return regions;
  }
  void read(size_t region, int64_t bytes) {
    file_.read(region, {std::span(read_).first(static_cast<size_t>(bytes))});
  }
  void write(size_t region, int64_t bytes) {
    file_.write(region, {std::span<const std::byte>(written_).first(static_cast<size_t>(bytes))});
  }

  ProbeLimits limits_;
  StateFile file_;
  std::vector<std::byte> read_, written_;
};

// Of what a size takes beyond the latency, which a prediction adds.
Curve curve_of(const std::vector<DiskTime>& times, DiskUse use, int depth, Duration latency,
               const std::string& source) {
  Curve curve;
  curve.measured = true;
  curve.source = source;
  for (const DiskTime& one : times) {
    if (one.use != use || one.depth != depth || one.bytes.count < kSmallestMove) continue;
    const Duration moving = std::max(one.time.median - latency, Duration{1});
    const auto bytes = static_cast<double>(one.bytes.count);
    curve.points.push_back({bytes, bytes / moving.seconds()});
  }
  return curve;
}

// Of the largest size.
Duration largest(const std::vector<DiskTime>& times, DiskUse use, int depth) {
  const DiskTime* found = nullptr;
  for (const DiskTime& one : times) {
    if (one.use == use && one.depth == depth) found = &one;
  }
  CHECK(found != nullptr);
  return found->time.median;
}

}  // namespace

// While both are under way each has half of what they reach in sum, then the longer one all.
double both_share_of(Duration read, Duration write, Duration both) {
  const Duration shorter = std::min(read, write);
  const Duration longer = std::max(read, write);
  if (shorter.ps <= 0) return 1;
  const double held_up = (both - longer).seconds() / shorter.seconds();
  return 2 / (1 + std::clamp(held_up, 0.0, 1.0));
}

std::string_view to_string(DiskUse use) {
  return use == DiskUse::kRead ? "read" : use == DiskUse::kWrite ? "write" : "both";
}

DiskProfile time_disk(const DiskOptions& options, ProfileEffort effort, const std::string& when) {
  const bool quick = effort == ProfileEffort::kQuick;
  const ProbeLimits limits = quick ? ProbeLimits{2, 3, 0.1, 0.05} : ProbeLimits{5, 20, 0.5, 0.01};
  std::vector<int64_t> sizes = sizes_from(kSmallestMove, int64_t{1} << (quick ? 26 : 28));
  sizes.insert(sizes.begin(), kDiskBlock);  // which takes the latency and hardly more
  const size_t last = sizes.size() - 1;
  DiskProfile found;
  std::vector<int> depths = {options.depth};
  for (int depth = 1; depth <= kMostDepth; depth *= 2) {
    if (depth != options.depth) depths.push_back(depth);
  }
  for (const int depth : depths) {
    DiskOptions here = options;
    here.depth = depth;
    TimedDisk disk(here, sizes, limits);
    found.engine = disk.file().described();
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (const DiskUse use : {DiskUse::kRead, DiskUse::kWrite, DiskUse::kBoth}) {
        if (i < last && (depth != options.depth || use == DiskUse::kBoth)) continue;
        const int64_t moved = use == DiskUse::kBoth ? 2 * sizes[i] : sizes[i];
        found.times.push_back({use, {moved}, depth, disk.time(use, i, sizes[i])});
      }
    }
  }
  const Duration latency = found.times.front().time.median;
  ProfileOptions dated;
  dated.when = when;
  const std::string source = measurement_source(dated);
  Nvme& nvme = found.nvme;
  nvme.latency = {latency, true, source};
  nvme.read = curve_of(found.times, DiskUse::kRead, options.depth, latency, source);
  nvme.write = curve_of(found.times, DiskUse::kWrite, options.depth, latency, source);
  nvme.both_share = {both_share_of(largest(found.times, DiskUse::kRead, options.depth),
                                   largest(found.times, DiskUse::kWrite, options.depth),
                                   largest(found.times, DiskUse::kBoth, options.depth)),
                     true, source};
  const std::string folder = options.folder.empty() ? "/tmp" : options.folder;
  const auto room = static_cast<int64_t>(std::filesystem::space(folder).available);
  nvme.capacity = {Bytes{room}, true, source};
  return found;
}

}  // namespace ballast
