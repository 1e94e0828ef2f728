// Norms that a resumed training sums again (run_norms): of what lies in CPU memory by then.
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "backend/train/training_device.h"
#include "sim/graph/build.h"
#include "sim/graph/report/memory.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int32_t kStepsInAll = 6;
constexpr int32_t kResumedFrom = 4;

// Every step is clipped, so that a wrong norm shows in all parameters.
TrainerOptions clipped_options(const std::string& folder) {
  TrainerOptions options = tiny::options_for(kStepsInAll);
  options.checkpoint_folder = folder;
  options.checkpoint_period_steps = kResumedFrom;
  options.resume = true;
  options.optimizer.clip_norm = 0.05;
  return options;
}

// What is brought back for norms that are summed again lies where nothing lies that the checkpoint
// gave: whatever memory tensors share.
TEST(resume, what_is_summed_again_is_brought_to_where_nothing_else_is) {
  int64_t brought = 0;
  for (const StateTransfers transfers : {StateTransfers::kCopies, StateTransfers::kDirect}) {
    for (const CastPlacement cast : {CastPlacement::kGpu, CastPlacement::kCpu}) {
      for (const MemoryReuse reuse : {MemoryReuse::kApart, MemoryReuse::kAtOnce}) {
        for (const int64_t on_gpu : {0, 1, 3, 5}) {
          Plan plan = tiny::plan_of_both_homes(SyncMode::kDelay);
          plan.optimizer.bucket_bytes = {kSegment * 4};
          plan.optimizer.gpu_buckets = on_gpu;
          plan.optimizer.cast = cast;
          plan.optimizer.transfers = transfers;
          plan.memory_reuse = reuse;
          const Graph graph = build(tiny::gpt2_model(), plan);
          const std::vector<Life> lives = lives_of(graph);
          const auto begin = [&](TensorId id) {
            return graph.arenas.offset[static_cast<size_t>(id)];
          };
          const auto end = [&](TensorId id) {
            return begin(id) + graph.tensor(id).all_bytes().count;
          };
          run_norms(graph, [&](const Op& op) {
            for (const Access& access : op.accesses) {
              const Tensor& tensor = graph.tensor(access.tensor);
              if (access.role != Role::kDestination || tensor.place != Place::kHbm) continue;
              ++brought;
              for (size_t t = 0; t < lives.size(); ++t) {
                const auto other = static_cast<TensorId>(t);
                const bool apart = graph.tensors[t].place != tensor.place || !lives[t].carried ||
                                   other == access.tensor || end(other) <= begin(access.tensor) ||
                                   end(access.tensor) <= begin(other);
                EXPECT_TRUE(apart) << describe(tensor) << " and " << describe(graph.tensors[t]);
              }
            }
          });
        }
      }
    }
  }
  EXPECT_GT(brought, 100);
}

// Norms of gradients that a kernel packed into CPU memory are summed again after a resume. Buckets
// of one segment, which cut modules, most of them the CPU's; every step is clipped, so that a wrong
// norm shows in all parameters.
TEST(resume, norms_of_what_kernels_packed_are_those_before) {
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    for (const CastPlacement cast : {CastPlacement::kGpu, CastPlacement::kCpu}) {
      Plan plan = tiny::plan_of_both_homes(sync);
      plan.optimizer.bucket_bytes = {kSegment * 4};
      plan.optimizer.gpu_buckets = 2;
      plan.optimizer.cast = cast;
      plan.optimizer.transfers = StateTransfers::kDirect;
      const auto parameters_after = [&](const std::string& folder, int32_t steps) {
        Trainer trainer(tiny::gpt2_model(), plan, clipped_options(folder));
        trainer.train(steps, nullptr);
        return trainer.parameters();
      };
      const TemporaryFolder whole, parts;
      const std::vector<float> straight = parameters_after(whole.path(), kStepsInAll);
      parameters_after(parts.path(), kResumedFrom);
      EXPECT_TRUE(tiny::same_bits(straight, parameters_after(parts.path(), kStepsInAll)))
          << to_string(sync) << " " << to_string(cast);
    }
  }
}

}  // namespace
}  // namespace ballast
