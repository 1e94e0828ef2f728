// Ranks that are threads, each with a GPU of its own that is a runtime of threads
// (tests/backend/thread_cuda.h), and the library that stands in for NCCL between them.
#pragma once

#include <algorithm>
#include <dlfcn.h>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/comm/local_ranks.h"
#include "backend/cuda/libraries/nccl_ranks.h"
#include "sim/base/error.h"
#include "tests/backend/thread_cuda.h"
#include "tests/cuda/nccl/stand_in.h"

namespace ballast::tests {

// A runtime whose streams the stand-in finds by their native part.
class RankCuda : public ThreadCuda {
 public:
  using ThreadCuda::ThreadCuda;
  CudaStream create_stream(const char* name, StreamPriority priority) override {
    const CudaStream stream = ThreadCuda::create_stream(name, priority);
    const std::scoped_lock lock(mutex());
    known()[stream.native] = {this, stream};
    return stream;
  }
  // Forgotten first: another runtime's next stream may lie where this one did.
  void destroy(CudaStream stream) override {
    {
      const std::scoped_lock lock(mutex());
      known().erase(stream.native);
    }
    ThreadCuda::destroy(stream);
  }
  using ThreadCuda::destroy;

  static void enqueue_known(void* native, void (*work)(void*), void* data) {
    std::pair<ThreadCuda*, CudaStream> its;
    {
      const std::scoped_lock lock(mutex());
      its = known().at(native);
    }
    its.first->enqueue(its.second, "NCCL", [work, data] { work(data); });
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::map<void*, std::pair<ThreadCuda*, CudaStream>>& known() {
    static std::map<void*, std::pair<ThreadCuda*, CudaStream>> all;
    return all;
  }
};

class RankGpu {
 public:
  explicit RankGpu(uint32_t dawdle_one_in)
      : cuda_(std::make_shared<CudaLog>(), options(dawdle_one_in)) {}
  ~RankGpu() {
    // Streams first: each ends what was enqueued, events too.
    for (const CudaStream stream : streams_) cuda_.destroy(stream);
    for (const CudaEvent event : events_) cuda_.destroy(event);
    for (void* const memory : memory_) cuda_.free(memory);
  }
  ThreadCuda& cuda() { return cuda_; }
  CudaStream stream(const char* name) {
    return streams_.emplace_back(cuda_.create_stream(name, StreamPriority::kHigh));
  }
  // From any thread.
  CudaEvent event(CudaStream stream) {
    const std::scoped_lock lock(mutex_);
    return events_.emplace_back(cuda_.create_event(stream));
  }
  std::byte* memory(int64_t bytes) {
    memory_.push_back(cuda_.allocate(Bytes{bytes}, "test"));
    return static_cast<std::byte*>(memory_.back());
  }
  template <class T>
  T* values(const std::vector<T>& values) {
    auto* const memory = reinterpret_cast<T*>(this->memory(std::ssize(values) * sizeof(T)));
    std::ranges::copy(values, memory);
    return memory;
  }

 private:
  static ThreadCudaOptions options(uint32_t dawdle_one_in) {
    ThreadCudaOptions options;
    options.dawdle_one_in = dawdle_one_in;
    return options;
  }

  RankCuda cuda_;
  std::mutex mutex_;  // guards events_
  std::vector<CudaStream> streams_;
  std::vector<CudaEvent> events_;
  std::vector<void*> memory_;
};

class NcclOnThreads : public testing::Test {
 protected:
  NcclOnThreads() : functions_(load_nccl(BALLAST_NCCL_STAND_IN)) { reset(false); }
  // Whatever happened, nothing of NCCL's was left behind.
  ~NcclOnThreads() override {
    EXPECT_EQ(control<nccl_stand_in::Living>("nccl_stand_in_living")(), 0);
  }

  void reset(bool errors_are_remote, nccl_stand_in::Streams streams = {RankCuda::enqueue_known}) {
    control<nccl_stand_in::Reset>("nccl_stand_in_reset")(streams, errors_are_remote);
  }
  void fail(const nccl_stand_in::Failure& failure) {
    control<nccl_stand_in::Fail>("nccl_stand_in_fail")(failure);
  }
  std::vector<nccl_stand_in::Noted> take_noted() {
    std::vector<nccl_stand_in::Noted> noted;
    control<nccl_stand_in::TakeNoted>("nccl_stand_in_take_noted")(noted);
    return noted;
  }

  // What each rank throws; empty where it throws nothing.
  using Work = std::function<void(Communicator& host, RankGpu& gpu)>;
  std::vector<std::string> on_ranks(int ranks, const Work& work) {
    LocalRanks all(ranks);
    std::vector<std::string> thrown(static_cast<size_t>(ranks));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        RankGpu gpu(dawdle_one_in_);
        try {
          work(all.of(rank), gpu);
        } catch (const Error& error) {
          thrown[static_cast<size_t>(rank)] = error.what();
          all.of(rank).fail(error.what());
        }
      });
    }
    threads.clear();
    return thrown;
  }
  void expect_none_throws(int ranks, const Work& work) {
    for (const std::string& thrown : on_ranks(ranks, work)) EXPECT_EQ(thrown, "");
  }

  NcclFunctions functions_;
  uint32_t dawdle_one_in_ = 3;

 private:
  template <class Function>
  static Function control(const char* name) {
    void* const library = dlopen(BALLAST_NCCL_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    auto* const function = reinterpret_cast<Function>(dlsym(library, name));
    CHECK(function != nullptr);
    return function;
  }
};

// Returns when what is in the stream is done.
inline void wait_for(NcclRanks& ranks, RankGpu& gpu, CudaStream stream) {
  const CudaEvent event = gpu.event(stream);
  gpu.cuda().record(event, stream);
  ranks.wait(event);
}

}  // namespace ballast::tests
