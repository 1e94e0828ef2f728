#include "backend/cuda/staging_ring.h"

#include <utility>

#include "sim/base/error.h"

namespace ballast {

StagingRing::StagingRing(CudaRuntime& runtime, const Size& size, CudaStream stream, CudaWait wait)
    : runtime_(runtime), each_(size.each), stream_(stream), wait_(std::move(wait)) {
  CHECK(size.buffers > 0 && size.each.count > 0);
  const Bytes all = each_ * static_cast<int64_t>(size.buffers);
  memory_ = static_cast<std::byte*>(runtime.allocate_pinned(all, "batches on their way"));
  for (size_t i = 0; i < size.buffers; ++i) {
    buffers_.push_back(
        {memory_ + static_cast<int64_t>(i) * each_.count, runtime.create_event(stream)});
  }
}

StagingRing::~StagingRing() {
  try {
    for (const Buffer& buffer : buffers_) runtime_.destroy(buffer.copied);
    runtime_.free_pinned(memory_);
  } catch (const Error&) {
    // The device has failed, which whoever used it was told.
  }
}

std::span<std::byte> StagingRing::take() {
  const Buffer& buffer = buffers_[next_];
  if (buffer.used && !runtime_.done(buffer.copied)) {
    wait_ ? wait_(buffer.copied) : runtime_.synchronize(buffer.copied);
  }
  return {buffer.memory, static_cast<size_t>(each_.count)};
}

void StagingRing::send(void* to, Bytes bytes) {
  Buffer& buffer = buffers_[next_];
  CHECK(bytes.count <= each_.count);
  runtime_.copy({to, buffer.memory, bytes, CopyKind::kHostToDevice}, stream_);
  runtime_.record(buffer.copied, stream_);
  buffer.used = true;
  next_ = (next_ + 1) % buffers_.size();
}

}  // namespace ballast
