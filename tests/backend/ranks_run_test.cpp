// Ranks of data parallelism that run: each trains on its share of the batch and steps its share of
// the parameters, and together they have the bits of one rank that accumulates the same
// micro-batches, wherever arithmetic allows it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/comm/local_ranks.h"
#include "backend/cuda/device_cuda.h"
#include "backend/host/device_host.h"
#include "backend/train/make_device.h"
#include "tests/backend/disturbed_training.h"
#include "tests/backend/plain_loop.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

using tiny::furthest_apart;
using tiny::Homes;
using tiny::kHomes;
using tiny::kSteps;
using tiny::kSyncs;
using tiny::plan_of;
using tiny::text_of;

struct RankShape {
  int64_t ranks, micro_batches;
};
constexpr RankShape kRankShapes[] = {{2, 4}, {3, 3}, {4, 8}};

// ZeRO stages and homes that go together: ranks that step on their CPUs share the state.
template <class Visit>
void for_every_split(const Visit& visit) {
  for (const int64_t zero_stage : {0, 1, 2, 3}) {
    for (const Homes homes : kHomes) {
      if (zero_stage > 0 || homes == Homes::kGpu) visit(zero_stage, homes);
    }
  }
}

// ZeRO 3 sums over ranks after every micro-batch, the others after the last: what has the same bits
// among plans of the same batch, 0 or 1.
size_t order_of_sums(const Plan& plan) {
  return plan.zero_stage == 3 && plan.accumulation() > 1 ? 1 : 0;
}
// A plan of each kind, of `plan`.
std::array<Plan, 2> plans_by_order(Plan plan) {
  plan.zero_stage = 0;
  Plan split = plan;
  split.zero_stage = 3;
  return {plan, split};
}

// What is scattered among ranks before it leaves is sent by a kernel of its own, the rest by the
// one that packs it.
TEST(ranks, kernels_that_move_state_give_the_bits_of_copies) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::options_for(kSteps);
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate}) {
    for_every_split([&](int64_t zero_stage, Homes homes) {
      Plan plan = plan_of(2, 4, zero_stage, sync, homes, DType::kBf16);
      if (plan.optimizer.placement == OptimizerPlacement::kGpu) return;
      const tiny::Outcome copies = tiny::train(model, plan, options, kSteps, false);
      plan.optimizer.transfers = StateTransfers::kDirect;
      const tiny::Outcome direct = tiny::train(model, plan, options, kSteps, false);
      EXPECT_TRUE(tiny::same_bits(direct.parameters, copies.parameters)) << text_of(plan);
    });
  }
}

// The whole arithmetic, written out apart from graphs and devices: what each rank accumulates is
// summed in the order of the ranks, in fp32, and rounded once.
TEST(ranks, every_split_and_sync_agrees_with_the_plain_loop) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::options_for(kSteps);
  int trained = 0;
  for (const RankShape& shape : kRankShapes) {
    for (const SyncMode sync : kSyncs) {
      const Plan first =
          plan_of(shape.ranks, shape.micro_batches, 0, sync, Homes::kGpu, DType::kBf16);
      std::array<std::vector<float>, 2> expected;
      for (const Plan& plan : plans_by_order(first)) {
        expected[order_of_sums(plan)] = tiny::plain_loop(model, plan, options, kSteps);
      }
      for_every_split([&](int64_t zero_stage, Homes homes) {
        const Plan plan =
            plan_of(shape.ranks, shape.micro_batches, zero_stage, sync, homes, DType::kBf16);
        const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, false);
        const std::vector<float>& plain = expected[order_of_sums(plan)];
        EXPECT_TRUE(tiny::same_bits(outcome.parameters, plain)) << text_of(plan);
        ++trained;
      });
    }
  }
  std::printf("%d plans of ranks with the bits of the plain loop over %d steps\n", trained,
              static_cast<int>(kSteps));
}

// State that rests in CPU memory and comes to the GPU to be stepped: each rank moves its share.
TEST(ranks, state_that_streams_in_has_the_same_bits) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  int trained = 0;
  for (const RankShape& shape : kRankShapes) {
    for (const int64_t zero_stage : {1, 2, 3}) {
      Plan plan = plan_of(shape.ranks, shape.micro_batches, zero_stage, SyncMode::kWait,
                          Homes::kOptimizerAway, DType::kF32);
      const tiny::Outcome reference = tiny::train(model, plan, options, kSteps, true);
      for (const double share : {0.5, 1.0}) {
        plan.optimizer.stream_share = share;
        const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, false);
        tiny::expect_same(outcome, reference, text_of(plan));
        ++trained;
      }
    }
  }
  std::printf("%d plans whose state streams in have the bits of those whose state stays\n",
              trained);
}

// A rank's part of a module's weights rests in its CPU memory, comes in before each use, and is
// gathered then. What flows is not late: with delay it is held against one rank whose weights flow.
TEST(ranks, split_weights_that_flow_train_as_those_that_stay) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  int trained = 0;
  double furthest = 0;
  for (const RankShape& shape : kRankShapes) {
    for (const SyncMode sync : kSyncs) {
      for (const Homes homes : {Homes::kOptimizerAway, Homes::kAllAway}) {
        const auto of = [&](int64_t ranks, double flow_share) {
          Plan plan =
              plan_of(ranks, shape.micro_batches, ranks > 1 ? 3 : 0, sync, homes, DType::kF32);
          plan.weights.flow_share = flow_share;
          plan.optimizer.gpu_buckets = 0;
          return plan;
        };
        const bool late = sync == SyncMode::kDelay;
        const tiny::Outcome stays = tiny::train(model, of(shape.ranks, 0), options, kSteps, true);
        for (const double share : {0.5, 1.0}) {
          const Plan plan = of(shape.ranks, share);
          const tiny::Outcome flows = tiny::train(model, plan, options, kSteps, false);
          if (!late) tiny::expect_same(flows, stays, text_of(plan));
          const tiny::Outcome alone = tiny::train(model, of(1, share), options, kSteps, true);
          furthest = std::max(furthest, furthest_apart(flows, alone));
          ++trained;
        }
      }
    }
  }
  EXPECT_LE(furthest, 1e-5);
  std::printf("%d plans whose split weights flow, losses at most %.1e from one rank's\n", trained,
              furthest);
}

// With clipped and poisoned steps: every way to split has the bits of ranks that keep all, whose
// verdicts are those of one rank that accumulates, and whose numbers are its but for rounding.
TEST(ranks, every_split_and_sync_comes_to_the_same_verdicts) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  int trained = 0;
  double furthest = 0;
  for (const RankShape& shape : kRankShapes) {
    for (const SyncMode sync : kSyncs) {
      const auto of = [&](int64_t ranks, int64_t zero_stage, Homes homes) {
        return plan_of(ranks, shape.micro_batches, zero_stage, sync, homes, DType::kF32);
      };
      std::array<tiny::Outcome, 2> references;
      for (const Plan& plan : plans_by_order(of(shape.ranks, 0, Homes::kGpu))) {
        references[order_of_sums(plan)] = tiny::train(model, plan, options, kSteps, true);
      }
      for_every_split([&](int64_t zero_stage, Homes homes) {
        const Plan plan = of(shape.ranks, zero_stage, homes);
        const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, false);
        tiny::expect_same(outcome, references[order_of_sums(plan)], text_of(plan));
        ++trained;
        if (sync == SyncMode::kSpeculate) EXPECT_GE(outcome.rollbacks, 3) << text_of(plan);
      });
      const tiny::Outcome alone = tiny::train(model, of(1, 0, Homes::kGpu), options, kSteps, true);
      furthest = std::max(furthest, furthest_apart(references[0], alone));
      if (!references[1].records.empty()) {
        furthest = std::max(furthest, furthest_apart(references[1], alone));
      }
    }
  }
  std::printf(
      "%d plans of ranks with the same bits over %d steps, losses at most %.1e from one "
      "rank's\n",
      trained, static_cast<int>(kSteps), furthest);
}

// --- ranks that each have a trainer of their own, as processes have ----------------------------

struct RankOutcome {
  TrainResult result;
  std::vector<float> parameters;
  std::string failure;
};

// `change`: what is other on a rank. `watch`: what a rank does once it has a trainer.
std::vector<RankOutcome> train_ranks(
    const Model& model, const Plan& plan, const TrainerOptions& options,
    const std::function<void(int rank, TrainerOptions& options)>& change,
    const std::function<void(int rank, Trainer& trainer, const StepRecord& record)>& watch = {}) {
  LocalRanks all(static_cast<int>(plan.data));
  std::vector<RankOutcome> outcomes(static_cast<size_t>(plan.data));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < plan.data; ++rank) {
      threads.emplace_back([&, rank] {
        RankOutcome& outcome = outcomes[static_cast<size_t>(rank)];
        TrainerOptions own = options;
        own.ranks = &all.of(rank);
        change(rank, own);
        try {
          Trainer trainer(model, plan, own);
          outcome.result = trainer.train(kSteps, [&](const StepRecord& record) {
            if (watch) watch(rank, trainer, record);
          });
          outcome.parameters = trainer.parameters();
        } catch (const Error& error) {
          outcome.failure = error.what();
          own.ranks->fail(error.what());
        }
      });
    }
  }
  return outcomes;
}

Plan three_ranks(int64_t zero_stage, SyncMode sync, Homes homes) {
  return plan_of(3, 6, zero_stage, sync, homes, DType::kBf16);
}

TEST(ranks, all_take_back_what_one_of_them_spoiled) {
  const Model model = tiny::gpt2_model();
  TrainerOptions options = tiny::options_for(kSteps);
  options.optimizer.clip_norm = 50;
  const auto spoil = [](int rank, TrainerOptions& own) {
    if (rank != 1) return;
    own.gradient_factor = [](int32_t step) {
      if (step == 3) return 1e4;
      return step == 6 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
    };
  };
  for (const SyncMode sync : kSyncs) {
    std::array<std::vector<float>, 2> references;
    for_every_split([&](int64_t zero_stage, Homes homes) {
      const Plan plan = three_ranks(zero_stage, sync, homes);
      std::vector<float>& expected = references[order_of_sums(plan)];
      const std::vector<RankOutcome> outcomes = train_ranks(model, plan, options, spoil);
      for (const RankOutcome& outcome : outcomes) {
        ASSERT_EQ(outcome.failure, "") << text_of(plan);
        if (expected.empty()) expected = outcome.parameters;
        EXPECT_TRUE(tiny::same_bits(outcome.parameters, expected)) << text_of(plan);
        ASSERT_GT(outcome.result.records.size(), 6u) << text_of(plan);
        for (const StepRecord& record : outcome.result.records) {
          EXPECT_EQ(record.clipped, record.step == 3) << text_of(plan) << record.step;
          EXPECT_EQ(record.skipped, record.step == 6) << text_of(plan) << record.step;
        }
        EXPECT_EQ(outcome.result.rollbacks, sync == SyncMode::kSpeculate ? 2 : 0) << text_of(plan);
      }
    });
  }
}

TEST(ranks, a_rank_that_fails_ends_the_others_with_its_number) {
  const Model model = tiny::gpt2_model();
  for (const SyncMode sync : kSyncs) {
    for (const int32_t moment : {0, 1, 4}) {
      const auto fail = [&](int rank, TrainerOptions& own) {
        if (rank != 2) return;
        own.gradient_factor = [moment](int32_t step) {
          if (step == moment) throw Error("the disk", "it is full", "make room");
          return 1.0;
        };
      };
      const std::vector<RankOutcome> outcomes = train_ranks(
          model, three_ranks(2, sync, Homes::kOptimizerAway), tiny::options_for(kSteps), fail);
      EXPECT_EQ(outcomes[2].failure, "the disk: it is full; make room");
      for (const size_t other : {0u, 1u}) {
        EXPECT_TRUE(outcomes[other].failure.starts_with("rank 2: the disk: it is full; make room"))
            << outcomes[other].failure;
      }
    }
  }
}

TEST(ranks, threads_of_one_trainer_fail_with_the_first_failure) {
  TrainerOptions options = tiny::options_for(kSteps);
  options.data = "/nowhere";
  try {
    Trainer trainer(tiny::gpt2_model(), three_ranks(1, SyncMode::kWait, Homes::kGpu), options);
    FAIL() << "it trains";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("/nowhere")) << error.what();
  }
}

TEST(ranks, end_after_the_same_step_whoever_is_asked_to_stop) {
  const Model model = tiny::gpt2_model();
  for (const SyncMode sync : kSyncs) {
    const std::vector<RankOutcome> outcomes = train_ranks(
        model, three_ranks(1, sync, Homes::kOptimizerAway), tiny::options_for(kSteps),
        [](int, TrainerOptions&) {},
        [](int rank, Trainer& trainer, const StepRecord&) {
          if (rank == 1) trainer.request_stop();
        });
    for (const RankOutcome& outcome : outcomes) {
      EXPECT_EQ(outcome.failure, "");
      EXPECT_EQ(outcome.result.next_step, outcomes.front().result.next_step);
      EXPECT_EQ(outcome.result.stopped, outcomes.front().result.stopped);
      EXPECT_TRUE(tiny::same_bits(outcome.parameters, outcomes.front().parameters));
    }
  }
}

TEST(ranks, begin_with_the_weights_of_one_rank_and_tell_its_losses) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::options_for(kSteps);
  const Plan whole = plan_of(1, 6, 0, SyncMode::kWait, Homes::kGpu, DType::kBf16);
  Trainer alone(model, whole, options);
  for (const int64_t zero_stage : {1, 2, 3}) {
    Trainer ranks(model, three_ranks(zero_stage, SyncMode::kWait, Homes::kAllAway), options);
    EXPECT_TRUE(tiny::same_bits(ranks.parameters(), alone.parameters()));
    EXPECT_EQ(ranks.validation_loss(3), alone.validation_loss(3));
    const TemporaryFolder folder;
    ranks.export_weights(folder / "ranks.safetensors");
    TrainerOptions imports = options;
    imports.seed = 7;
    imports.initial_weights = folder / "ranks.safetensors";
    EXPECT_TRUE(tiny::same_bits(Trainer(model, whole, imports).parameters(), alone.parameters()));
  }
}

// Half of the steps split one way, the rest another way: a checkpoint has nothing of ranks.
TEST(ranks, resume_with_another_split) {
  const Model model = tiny::gpt2_model();
  for (const SyncMode sync : kSyncs) {
    TrainerOptions options = tiny::disturbed_options();
    const auto of = [&](int64_t zero_stage, Homes homes) {
      return plan_of(3, 3, zero_stage, sync, homes, DType::kBf16);
    };
    const Plan first = of(2, Homes::kOptimizerAway);
    const tiny::Outcome reference = tiny::train(model, first, options, kSteps, false);
    for_every_split([&](int64_t zero_stage, Homes homes) {
      const TemporaryFolder folder;
      TrainerOptions keeps = options;
      keeps.checkpoint_folder = folder.path();
      keeps.resume = true;
      Trainer(model, first, keeps).train(kSteps / 2, nullptr);
      const Plan second = of(zero_stage, homes);
      Trainer resumed(model, second, keeps);
      EXPECT_EQ(resumed.next_step(), kSteps / 2);
      resumed.train(kSteps, nullptr);
      EXPECT_TRUE(tiny::same_bits(resumed.parameters(), reference.parameters)) << text_of(second);
    });
    // As one rank: the same state, and other sums from there on.
    const TemporaryFolder folder;
    options.checkpoint_folder = folder.path();
    options.resume = true;
    std::vector<float> kept;
    {
      Trainer half(model, first, options);
      half.train(kSteps / 2, nullptr);
      kept = half.parameters();
    }
    if (sync == SyncMode::kDelay) continue;  // what waited there has been applied here
    const Trainer alone(model, plan_of(1, 3, 0, sync, Homes::kGpu, DType::kBf16), options);
    EXPECT_EQ(alone.next_step(), kSteps / 2);
    EXPECT_TRUE(tiny::same_bits(alone.parameters(), kept));
  }
}

TEST(ranks, fp16_finds_the_same_loss_scales) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  for (const SyncMode sync : kSyncs) {
    std::array<std::optional<tiny::Outcome>, 2> references;
    for_every_split([&](int64_t zero_stage, Homes homes) {
      const Plan plan = plan_of(2, 4, zero_stage, sync, homes, DType::kF16);
      tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, false);
      std::optional<tiny::Outcome>& reference = references[order_of_sums(plan)];
      if (!reference)
        reference = std::move(outcome);
      else
        tiny::expect_same(outcome, *reference, text_of(plan));
    });
  }
}

std::string knob_missing(const Plan& plan) {
  const std::vector<DeviceVerdict> verdicts = which_run(tiny::gpt2_model(), plan);
  return verdicts.front().missing ? verdicts.front().missing->knob : "";
}

// Hybrid sharding: pairs of ranks share, and sum over the other pair what each has. Every way to
// split and step has the same bits, near those of one rank, whose verdicts they come to.
TEST(ranks, groups_that_share_come_to_the_same_bits) {
  const Model model = tiny::gpt2_model();
  const TrainerOptions options = tiny::disturbed_options();
  int trained = 0;
  for (const SyncMode sync : kSyncs) {
    const auto plan = [&](int64_t zero_stage, Homes homes) {
      Plan changed = plan_of(4, 4, zero_stage, sync, homes, DType::kF32);
      changed.zero_group = 2;
      return changed;
    };
    const Plan alone = plan_of(1, 4, 0, sync, Homes::kGpu, DType::kF32);
    const tiny::Outcome reference = tiny::train(model, plan(1, Homes::kGpu), options, kSteps, true);
    furthest_apart(reference, tiny::train(model, alone, options, kSteps, true));
    for_every_split([&](int64_t zero_stage, Homes homes) {
      if (zero_stage == 0) return;
      const tiny::Outcome outcome =
          tiny::train(model, plan(zero_stage, homes), options, kSteps, false);
      tiny::expect_same(outcome, reference, text_of(plan(zero_stage, homes)));
      ++trained;
    });
  }
  std::printf("%d plans of two groups with the same bits\n", trained);
}

// The memory of every rank is that of its plan, but for pages that are only begun.
TEST(ranks, each_says_what_memory_it_takes) {
  constexpr int64_t kPages = int64_t{1} << 16;
  const Plan plan = three_ranks(2, SyncMode::kWait, Homes::kOptimizerAway);
  Trainer trainer(tiny::gpt2_model(), plan, tiny::options_for(3));
  const TrainResult result = trainer.train(3, nullptr);
  ASSERT_EQ(result.memory_of_ranks.size(), 3u);
  for (const std::vector<MemoryUse>& of_rank : result.memory_of_ranks) {
    ASSERT_EQ(of_rank.size(), result.memory.size());
    for (const MemoryUse& use : of_rank) {
      EXPECT_GT(use.planned.count, kPages) << to_string(use.place);
      const int64_t apart = std::abs(use.resident.count - use.planned.count);
      EXPECT_LE(apart, use.planned.count / 100 + kPages) << to_string(use.place);
    }
  }
}

TEST(ranks, what_does_not_run_is_refused_by_name) {
  const Plan plan = three_ranks(1, SyncMode::kWait, Homes::kOptimizerAway);
  EXPECT_EQ(knob_missing(plan), "");
  EXPECT_FALSE(first_missing(tiny::gpt2_model(), plan, cuda_capabilities()));
  const auto with = [&](const auto& change) {
    Plan other = plan;
    change(other);
    return knob_missing(other);
  };
  EXPECT_EQ(with([](Plan& other) { other.zero_stage = 3; }), "");
  EXPECT_EQ(with([](Plan& other) { other.weights.flow_share = 0.5; }), "plan.weights.flow_share");
  EXPECT_EQ(with([](Plan& other) {
              other.weights.flow_share = 0.5;
              other.zero_stage = 3;
            }),
            "");
  EXPECT_EQ(with([](Plan& other) { other.optimizer.stream_share = 0.5; }), "");
  EXPECT_EQ(with([](Plan& other) {
              other.data = other.devices = 4;
              other.global_batch = 4;
              other.zero_group = 2;
            }),
            "");
  EXPECT_EQ(with([](Plan& other) {
              other.pipeline = 2;
              other.devices = 6;
            }),
            "");
  Plan many = plan_of(17, 17, 1, SyncMode::kWait, Homes::kGpu, DType::kBf16);
  try {
    Trainer trainer(tiny::gpt2_model(), many, tiny::options_for(kSteps));
    FAIL() << "it trains";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("mpirun -n 17"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ballast
