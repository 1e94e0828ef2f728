#include "backend/cuda/staging_ring.h"

#include <chrono>
#include <cstring>
#include <gtest/gtest.h>
#include <thread>

#include "backend/cuda/cuda_memory.h"
#include "tests/backend/thread_cuda.h"

namespace ballast {
namespace {

using tests::CudaCall;
using tests::CudaLog;
using tests::ThreadCuda;

TEST(StagingRing, a_buffer_is_not_filled_again_before_its_copy_is_done) {
  // Ring of 2, 20 batches of 64 values; every copy is late. Batch i is 64 times i.
  const auto log = std::make_shared<CudaLog>();
  ThreadCuda runtime(log, {.dawdle_one_in = 1});
  const CudaStream stream = runtime.create_stream("copy-in", StreamPriority::kLow);
  {
    const CudaMemory device(runtime, CudaMemoryKind::kDevice, {20 * 256}, "batches");
    StagingRing ring(runtime, {2, {256}}, stream);
    for (int32_t batch = 0; batch < 20; ++batch) {
      const std::span<std::byte> buffer = ring.take();
      ASSERT_EQ(buffer.size(), 256U);
      for (size_t i = 0; i < 64; ++i) std::memcpy(buffer.data() + 4 * i, &batch, 4);
      ring.send(device.data() + batch * 256, {256});
    }
    runtime.synchronize(stream);
    for (int32_t batch = 0; batch < 20; ++batch) {
      for (int64_t i = 0; i < 64; ++i) {
        int32_t value = -1;
        std::memcpy(&value, device.data() + batch * 256 + 4 * i, 4);
        ASSERT_EQ(value, batch);
      }
    }
  }
  EXPECT_EQ(log->count(CudaCall::kAllocatePinned), 1);
  EXPECT_EQ(log->count(CudaCall::kCreateEvent), 2);
  EXPECT_GE(log->count(CudaCall::kSynchronizeEvent), 16);  // it had to wait nearly every time
  runtime.destroy(stream);
}

TEST(StagingRing, it_does_not_wait_while_a_buffer_is_free) {
  const auto log = std::make_shared<CudaLog>();
  ThreadCuda runtime(log, {});
  const CudaStream stream = runtime.create_stream("copy-in", StreamPriority::kLow);
  {
    const CudaMemory device(runtime, CudaMemoryKind::kDevice, {256}, "batches");
    StagingRing ring(runtime, {4, {256}}, stream);
    for (int batch = 0; batch < 4; ++batch) {
      ring.take();
      ring.send(device.data(), {256});
    }
    EXPECT_EQ(log->count(CudaCall::kSynchronizeEvent), 0);
    runtime.synchronize(stream);
  }
  runtime.destroy(stream);
}

}  // namespace
}  // namespace ballast
