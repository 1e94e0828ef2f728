// Trainings of ranks that each have a GPU: the CUDA device on threads for streams, NCCL's stand-in
// between them, and the CPU's kernels.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/device_cuda.h"
#include "backend/execute/rank_place.h"
#include "tests/backend/disturbed_training.h"
#include "tests/cuda/nccl/ranks.h"

namespace ballast::tests {

constexpr int kSteps = 9;  // past the first steps that clip and that are skipped

class nccl_training : public NcclOnThreads {
 protected:
  TrainerOptions on_gpus(TrainerOptions options, Communicator& ranks,
                         std::shared_ptr<CudaLog> log = std::make_shared<CudaLog>()) {
    options.ranks = &ranks;
    options.make_device = [this, &ranks, log](const Training& training, const DeviceOptions& with,
                                              const ControlState& state) {
      ThreadCudaOptions dawdles;
      dawdles.dawdle_one_in = dawdle_one_in_;
      auto runtime = std::make_unique<RankCuda>(log, dawdles);
      auto math = std::make_unique<ThreadCudaMath>(training, *runtime,
                                                   place_of(training.plan, ranks.rank()));
      const Bytes before = runtime->free_memory();
      return std::make_unique<CudaDevice>(
          training, with, state,
          CudaParts{std::move(runtime), std::move(math), before, functions_});
    };
    return options;
  }

  // Of every rank.
  struct Trained {
    std::vector<tiny::Outcome> ranks;
    std::vector<std::string> thrown;
    std::vector<std::shared_ptr<CudaLog>> logs;
  };
  using Change = std::function<void(int rank, TrainerOptions& options)>;
  Trained train(const Model& model, const Plan& plan, const TrainerOptions& options,
                const Change& change = {}, int64_t steps = kSteps) {
    const auto count = static_cast<size_t>(rank_count(plan));
    Trained trained;
    trained.ranks.resize(count);
    for (size_t i = 0; i < count; ++i) trained.logs.push_back(std::make_shared<CudaLog>());
    trained.thrown = on_ranks(static_cast<int>(count), [&](Communicator& host, RankGpu&) {
      const auto rank = static_cast<size_t>(host.rank());
      TrainerOptions own = on_gpus(options, host, trained.logs[rank]);
      if (change) change(host.rank(), own);
      trained.ranks[rank] = tiny::train(model, plan, own, steps, false);
    });
    return trained;
  }
};

}  // namespace ballast::tests
