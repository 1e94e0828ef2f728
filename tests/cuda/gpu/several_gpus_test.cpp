// NCCL itself between GPUs of this machine, each with a rank that is a thread: what tests/cuda/nccl
// holds of the library that stands in for it. Skipped by name where there are fewer than two GPUs.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <thread>

#include "backend/comm/local_ranks.h"
#include "backend/cuda/libraries/nccl_ranks.h"
#include "sim/base/error.h"
#include "tests/cuda/machine.h"

namespace ballast {
namespace {

constexpr LaneId kData = lane_of(0, LaneKind::kDataNetwork);
constexpr LaneId kTensor = lane_of(0, LaneKind::kTensorNetwork);

class several_gpus : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = kernels::cuda::testing::missing_machine();
    if (!missing.empty()) GTEST_SKIP() << missing;
    cudaGetDeviceCount(&gpus_);
    if (gpus_ < 2) GTEST_SKIP() << "fewer than two GPUs";
    functions_ = load_nccl(nccl_library_name());
  }

  // What each rank throws; empty where it throws nothing.
  using Work = std::function<void(Communicator& host, CudaRuntime& gpu)>;
  std::vector<std::string> on_gpus(const Work& work) {
    LocalRanks all(gpus_);
    std::vector<std::string> thrown(static_cast<size_t>(gpus_));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < gpus_; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          const std::unique_ptr<CudaRuntime> gpu = open_cuda_runtime(rank);
          gpu->bind_thread();
          work(all.of(rank), *gpu);
        } catch (const Error& error) {
          thrown[static_cast<size_t>(rank)] = error.what();
          all.of(rank).fail(error.what());
        }
      });
    }
    threads.clear();
    return thrown;
  }

  int gpus_ = 0;
  NcclFunctions functions_;
};

// Memory of a GPU, with a stream and an event to wait for it.
class Buffer {
 public:
  Buffer(CudaRuntime& gpu, const std::vector<float>& values)
      : gpu_(gpu),
        bytes_{static_cast<int64_t>(values.size() * sizeof(float))},
        memory_(gpu.allocate(bytes_, "test")),
        stream_(gpu.create_stream("network", StreamPriority::kHigh)),
        event_(gpu.create_event(stream_)) {
    gpu_.copy({memory_, values.data(), bytes_, CopyKind::kHostToDevice}, stream_);
    gpu_.synchronize(stream_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    gpu_.destroy(event_);
    gpu_.destroy(stream_);
    gpu_.free(memory_);
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  CudaStream stream() const { return stream_; }
  void wait(NcclRanks& ranks) {
    gpu_.record(event_, stream_);
    ranks.wait(event_);
  }
  std::vector<float> get() {
    std::vector<float> values(static_cast<size_t>(bytes_.count) / sizeof(float));
    gpu_.copy({values.data(), memory_, bytes_, CopyKind::kDeviceToHost}, stream_);
    gpu_.synchronize(stream_);
    return values;
  }

 private:
  CudaRuntime& gpu_;
  Bytes bytes_;
  void* memory_;
  CudaStream stream_;
  CudaEvent event_;
};

// Small integers: sums are exact in every order. Two communicators of the same ranks, in turn.
TEST_F(several_gpus, sum_gather_and_exchange) {
  const RankGroup everyone{gpus_, 1};
  const auto thrown = on_gpus([&](Communicator& host, CudaRuntime& gpu) {
    const NcclGroup data{kData, everyone}, tensor{kTensor, everyone};
    NcclRanks ranks(functions_, gpu, host, {tensor, data});
    const auto n = static_cast<size_t>(gpus_);
    const auto self = static_cast<size_t>(host.rank());
    std::vector<float> values(n * 1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(self + i % 5);
    const auto sum = [&](size_t i) { return static_cast<float>(n * (n - 1) / 2 + n * (i % 5)); };
    Buffer own(gpu, values), share(gpu, std::vector<float>(1000));
    Buffer summed(gpu, values), whole(gpu, std::vector<float>(n * 1000));
    ranks.all_reduce(tensor, summed.data(), summed.data(), std::ssize(values),
                     kernels::Format::kF32, summed.stream());
    summed.wait(ranks);
    ranks.reduce_scatter(data, own.data(), share.data(), 1000, kernels::Format::kF32,
                         share.stream());
    ranks.all_gather(data, share.data(), whole.data(), 4000, share.stream());
    share.wait(ranks);
    const std::vector<float> of_all = summed.get(), gathered = whole.get();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(of_all[i], sum(i)) << i;
      ASSERT_EQ(gathered[i], sum(i)) << i;
    }
    const CollectiveWork exchange{CollectiveKind::kAllToAll, Bytes{static_cast<int64_t>(n) * 4000},
                                  gpus_, 1};
    ranks.run(kData, exchange, {own.data(), whole.data(), kernels::Format::kF32}, own.stream());
    own.wait(ranks);
    const std::vector<float> exchanged = whole.get();
    for (size_t i = 0; i < values.size(); ++i) {
      // Of rank i / 1000 what lies at this rank's part of it.
      ASSERT_EQ(exchanged[i], static_cast<float>(i / 1000 + (self * 1000 + i % 1000) % 5)) << i;
    }
    ranks.close();
  });
  for (const std::string& one : thrown) EXPECT_EQ(one, "");
}

// The last rank never comes to the sum: the others' kernels wait for it until they are aborted.
TEST_F(several_gpus, a_rank_that_fails_ends_those_that_wait) {
  const auto thrown = on_gpus([&](Communicator& host, CudaRuntime& gpu) {
    const NcclGroup data{kData, {gpus_, 1}};
    NcclRanks ranks(functions_, gpu, host, {data});
    if (host.rank() == gpus_ - 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      throw Error("rank", "its disk is full", "end");
    }
    Buffer buffer(gpu, std::vector<float>(1000));
    ranks.all_reduce(data, buffer.data(), buffer.data(), 1000, kernels::Format::kF32,
                     buffer.stream());
    buffer.wait(ranks);
  });
  for (const std::string& one : thrown) {
    EXPECT_NE(one.find("its disk is full"), std::string::npos) << one;
  }
}

}  // namespace
}  // namespace ballast
