#include "backend/measure/cuda/profile_cuda_copies.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>

#include "sim/base/error.h"

namespace ballast {

namespace {

constexpr int64_t kSmallestCopy = 4096;

const char* name_of(CopyDirection direction) {
  return direction == CopyDirection::kHostToDevice ? "host to device" : "device to host";
}

// One copy of a run, in seconds from its beginning.
struct Stay {
  double begin = 0;
  double end = 0;
};

// Bytes per second that this direction moved between the two times.
double rate_within(const std::vector<Stay>& stays, const Stay& window, Bytes each) {
  double copies = 0;
  for (const Stay& stay : stays) {
    const double inside = std::min(stay.end, window.end) - std::max(stay.begin, window.begin);
    if (inside > 0) copies += inside / (stay.end - stay.begin);
  }
  return copies * static_cast<double>(each.count) / (window.end - window.begin);
}

// Copies of one stream, each between two events, on a clock of two streams.
class Marked {
 public:
  Marked(CudaRuntime& runtime, CudaStream stream, int count) : runtime_(runtime), stream_(stream) {
    for (int i = 0; i <= count; ++i) events_.emplace_back(runtime, runtime.create_event(stream));
  }

  void mark() { runtime_.record(events_[next_++].get(), stream_); }
  CudaEvent first() const { return events_.front().get(); }
  CudaEvent last() const { return events_.back().get(); }
  std::vector<Stay> stays(CudaEvent anchor) {
    std::vector<Stay> result;
    for (size_t i = 1; i < events_.size(); ++i) {
      result.push_back({runtime_.milliseconds(anchor, events_[i - 1].get()) * 1e-3,
                        runtime_.milliseconds(anchor, events_[i].get()) * 1e-3});
    }
    return result;
  }

 private:
  CudaRuntime& runtime_;
  CudaStream stream_;
  std::deque<CudaOwned<CudaEvent>> events_;
  size_t next_ = 0;
};

}  // namespace

CudaCopies::CudaCopies(CudaRuntime& runtime, CudaStopwatch& watch, const Extent& extent)
    : runtime_(runtime),
      watch_(watch),
      extent_(extent),
      device_(runtime, CudaMemoryKind::kDevice, extent.largest, "copies"),
      pinned_from_(runtime, CudaMemoryKind::kPinned, extent.largest, "copies"),
      pinned_to_(runtime, CudaMemoryKind::kPinned, extent.largest, "copies"),
      in_(runtime, runtime.create_stream("copy-in", StreamPriority::kLow)),
      out_(runtime, runtime.create_stream("copy-out", StreamPriority::kLow)) {
  fill_pattern(pinned_from_.data(), extent.largest.count);
}

Bytes CudaCopies::place(Bytes bytes, int repeat) const {
  const int64_t places = extent_.largest.count / bytes.count;
  return {(repeat + 1) % places * bytes.count};
}

CudaCopies::Buffers CudaCopies::buffers(CopyDirection direction, HostMemory host) {
  if (host == HostMemory::kPageable && !pageable_) {
    pageable_ = std::make_unique<Arena>("profile pageable", extent_.largest);
  }
  const bool pageable = host == HostMemory::kPageable;
  if (direction == CopyDirection::kDeviceToHost) {
    return {device_.data(), pageable ? pageable_->at(0) : pinned_to_.data(),
            CopyKind::kDeviceToHost};
  }
  if (pageable) fill_pattern(pageable_->at(0), extent_.largest.count);
  return {pageable ? pageable_->at(0) : pinned_from_.data(), device_.data(),
          CopyKind::kHostToDevice};
}

void CudaCopies::clear(CopyDirection direction, const Buffers& buffers, Bytes at, Bytes bytes) {
  if (direction == CopyDirection::kDeviceToHost) {
    std::memset(buffers.to + at.count, 0, static_cast<size_t>(bytes.count));
    return;
  }
  runtime_.clear(buffers.to + at.count, bytes, watch_.stream());
}

bool CudaCopies::arrived(CopyDirection direction, const Buffers& buffers, Bytes at, Bytes bytes) {
  const std::byte* found = buffers.to + at.count;
  if (direction == CopyDirection::kHostToDevice) {
    runtime_.copy({pinned_to_.data(), found, bytes, CopyKind::kDeviceToHost}, watch_.stream());
    runtime_.synchronize(watch_.stream());
    found = pinned_to_.data();
  }
  return std::memcmp(found, pinned_from_.data() + at.count, static_cast<size_t>(bytes.count)) == 0;
}

std::vector<CudaCopies::SizeTime> CudaCopies::times_of(CopyDirection direction, HostMemory host,
                                                       double deadline, const Move& move) {
  const Buffers here = buffers(direction, host);
  if (direction == CopyDirection::kDeviceToHost) {
    runtime_.copy({device_.data(), pinned_from_.data(), extent_.largest, CopyKind::kHostToDevice},
                  watch_.stream());
  }
  const Bytes largest = host == HostMemory::kPageable ? extent_.largest_pageable : extent_.largest;
  std::vector<SizeTime> times;
  for (int64_t size = kSmallestCopy; size <= largest.count; size *= 4) {
    if (!times.empty() && watch_.now() > deadline) break;
    const Bytes bytes{size};
    clear(direction, here, {}, extent_.largest);
    runtime_.synchronize(watch_.stream());
    int last = -1;
    const auto body = [&](int repeat) {
      last = repeat;
      const int64_t at = place(bytes, repeat).count;
      move({here.to + at, here.from + at, bytes, here.kind});
    };
    const Timing timing = watch_.time(body, extent_.limits);
    if (!arrived(direction, here, place(bytes, last), bytes)) {
      throw Error(fmt::format("copy {}", name_of(direction)),
                  fmt::format("{} bytes did not arrive", size), "check the device's memory");
    }
    times.push_back({bytes, timing});
  }
  return times;
}

std::vector<OperationTime> CudaCopies::by_size(CopyDirection direction, HostMemory host,
                                               double deadline) {
  const auto copy = [&](const CudaCopy& asked) { runtime_.copy(asked, watch_.stream()); };
  std::vector<OperationTime> times;
  for (const SizeTime& one : times_of(direction, host, deadline, copy)) {
    Op op;
    op.kind = OpKind::kCopy;
    op.phase = Phase::kOptimizer;
    op.lane = lane_of(
        0, direction == CopyDirection::kHostToDevice ? LaneKind::kCopyIn : LaneKind::kCopyOut);
    op.work = CopyWork{one.bytes, direction, host, 1};
    times.push_back({std::move(op), one.timing.median, one.timing.deviation});
  }
  return times;
}

std::vector<Curve::Point> CudaCopies::by_kernel(CopyDirection direction, Duration start,
                                                CudaProbeKernels& probes, double deadline) {
  const auto cast = [&](const CudaCopy& asked) {
    constexpr auto kWords = kernels::Format::kF32;
    probes.cast_across_link({{asked.from, kWords}, {asked.to, kWords}, asked.bytes.count / 4},
                            watch_.stream());
  };
  std::vector<Curve::Point> points;
  for (const SizeTime& one : times_of(direction, HostMemory::kPinned, deadline, cast)) {
    // Of what takes hardly longer than a start the rest is noise.
    const Duration least{one.timing.median.ps / 2};
    const Duration taken = std::max(one.timing.median - start, least);
    const auto size = static_cast<double>(one.bytes.count);
    points.push_back({size, size / taken.seconds()});
  }
  return points;
}

// Both queues are filled before either can end, and only the time counts while both are at work.
CudaCopies::BothWays CudaCopies::both_ways() {
  constexpr int kCopies = 16;
  BothWays result;
  result.each = {extent_.largest.count / 4};
  Marked in(runtime_, in_.get(), kCopies);
  Marked out(runtime_, out_.get(), kCopies);
  in.mark();
  runtime_.wait(out_.get(), in.first());
  out.mark();
  for (int i = 0; i < kCopies; ++i) {
    // Into the first half of the device's buffer, and out of the second.
    const int64_t at = i % 2 * result.each.count;
    const int64_t there = 2 * result.each.count + at;
    runtime_.copy(
        {device_.data() + at, pinned_from_.data() + at, result.each, CopyKind::kHostToDevice},
        in_.get());
    in.mark();
    runtime_.copy(
        {pinned_to_.data() + there, device_.data() + there, result.each, CopyKind::kDeviceToHost},
        out_.get());
    out.mark();
  }
  runtime_.synchronize(in.last());
  runtime_.synchronize(out.last());
  const std::vector<Stay> into = in.stays(in.first());
  const std::vector<Stay> out_of = out.stays(in.first());
  const Stay window{std::max(into.front().begin, out_of.front().begin),
                    std::min(into.back().end, out_of.back().end)};
  if (window.end <= window.begin) {
    throw Error("copies both ways", "the two directions were never at work at once",
                "check that the device has two copy engines");
  }
  result.in = rate_within(into, window, result.each);
  result.out = rate_within(out_of, window, result.each);
  return result;
}

void CudaCopies::copy_and_wait(CopyDirection direction, Bytes bytes, int repeat) {
  runtime_.bind_thread();
  const int64_t at = place(bytes, repeat).count;
  const bool in = direction == CopyDirection::kHostToDevice;
  runtime_.copy({in ? device_.data() + at : pinned_to_.data() + at,
                 in ? pinned_from_.data() + at : device_.data() + at, bytes,
                 in ? CopyKind::kHostToDevice : CopyKind::kDeviceToHost},
                stream(direction));
  runtime_.synchronize(stream(direction));
}

}  // namespace ballast
