// Exactness (docs/design.md): every placement, bucket and sync choice gives the same parameters,
// bit for bit, as waiting with every operation run one after another on one thread.
#include <array>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int kExactSteps = 30;

// The thread sanitizer makes all of this some twenty times slower, the address sanitizer ten times;
// races and strays do not depend on the type or on most pairs of knobs.
#if defined(__SANITIZE_THREAD__)
constexpr size_t kEvery = 5;
#elif defined(__SANITIZE_ADDRESS__)
constexpr size_t kEvery = 3;
#else
constexpr size_t kEvery = 1;
#endif
std::vector<DType> some_of(std::vector<DType> types) {
  types.resize((types.size() + kEvery - 1) / kEvery);
  return types;
}

// The knobs, each with its choices; a combination picks one of each.
constexpr std::array<int, 9> kChoices = {2, 2, 2, 3, 3, 3, 5, 2, 2};
using Combination = std::array<int, kChoices.size()>;

ActivationPlan activation_choice(int choice) {
  ActivationPlan plan = tiny::all_activations(ActivationFate::kKeep);
  const auto fate = [&](ModuleKind kind) -> ActivationFate& {
    return plan.fate[static_cast<size_t>(kind)];
  };
  switch (choice) {
    case 1:
      return tiny::all_activations(ActivationFate::kRecompute);
    case 2:
      return tiny::all_activations(ActivationFate::kOffload);
    case 3:  // cheap modules again, dear ones away: nothing of a layer is kept
      fate(ModuleKind::kNorm1) = fate(ModuleKind::kNorm2) = ActivationFate::kRecompute;
      fate(ModuleKind::kActivation) = ActivationFate::kRecompute;
      fate(ModuleKind::kQkv) = fate(ModuleKind::kFc1) = ActivationFate::kOffload;
      fate(ModuleKind::kCoreAttention) = ActivationFate::kOffload;
      break;
    case 4:
      fate(ModuleKind::kAttentionOut) = fate(ModuleKind::kNorm2) = ActivationFate::kRecompute;
      break;
    default:
      break;
  }
  return plan;
}

Plan plan_for(const Combination& c, DType dtype) {
  Plan plan = tiny::wait_plan(dtype);
  plan.optimizer.sync = c[0] == 0 ? SyncMode::kWait : SyncMode::kSpeculate;
  plan.optimizer.undo = c[1] == 0 ? UndoKind::kSnapshot : UndoKind::kExact;
  plan.optimizer.cast = c[2] == 0 ? CastPlacement::kGpu : CastPlacement::kCpu;
  constexpr std::array<int64_t, 3> buckets = {int64_t{1} << 30, 2 * kSegment * 4, 1};
  plan.optimizer.bucket_bytes = {buckets[static_cast<size_t>(c[3])]};
  constexpr std::array<int64_t, 3> on_gpu = {0, 1, 5};
  plan.optimizer.gpu_buckets = on_gpu[static_cast<size_t>(c[4])];
  constexpr std::array<double, 3> flow = {0, 0.5, 1};
  plan.weights.flow_share = flow[static_cast<size_t>(c[5])];
  plan.activations = activation_choice(c[6]);
  plan.weights.look_ahead = plan.activations->look_ahead = c[7] == 0 ? 0 : 4;
  plan.optimizer.transfers = c[8] == 0 ? StateTransfers::kCopies : StateTransfers::kDirect;
  // With every choice of buckets and of activations, one way or the other.
  plan.memory_reuse = (c[3] + c[6]) % 2 == 0 ? MemoryReuse::kAtOnce : MemoryReuse::kApart;
  return plan;
}

std::string text_of(const Combination& c) {
  std::string text;
  for (const int choice : c) text += std::to_string(choice);
  return text;
}

// Combinations in which every pair of choices of every two knobs occurs: greedily, each next one
// covers the most pairs that are still missing (Cohen et al., "The AETG system", 1997).
std::vector<Combination> pairwise() {
  std::vector<Combination> all;
  Combination next{};
  for (bool more = true; more;) {
    all.push_back(next);
    more = false;
    for (size_t k = 0; k < next.size() && !more; ++k) {
      if (++next[k] < kChoices[k])
        more = true;
      else
        next[k] = 0;
    }
  }
  constexpr size_t kKnobsTried = kChoices.size();
  std::array<std::array<std::array<std::array<bool, 5>, 5>, kKnobsTried>, kKnobsTried> covered{};
  const auto gain = [&](const Combination& c) {
    int pairs = 0;
    for (size_t i = 0; i < c.size(); ++i) {
      for (size_t j = i + 1; j < c.size(); ++j) pairs += !covered[i][j][c[i]][c[j]];
    }
    return pairs;
  };
  std::vector<Combination> chosen;
  for (;;) {
    const Combination* best = &all.front();
    for (const Combination& c : all) {
      if (gain(c) > gain(*best)) best = &c;
    }
    if (gain(*best) == 0) return chosen;
    for (size_t i = 0; i < best->size(); ++i) {
      for (size_t j = i + 1; j < best->size(); ++j) covered[i][j][(*best)[i]][(*best)[j]] = true;
    }
    chosen.push_back(*best);
  }
}

TEST(exactness, every_pair_of_knobs_gives_the_bits_of_waiting_on_one_lane) {
  const TrainerOptions options = tiny::options_for(kExactSteps);
  const tiny::Outcome reference =
      tiny::train(tiny::gpt2_model(), tiny::wait_plan(), options, kExactSteps, true);
  ASSERT_EQ(reference.records.size(), static_cast<size_t>(kExactSteps));
  EXPECT_LT(reference.records.back().loss, reference.records.front().loss - 0.5);
  const std::vector<Combination> combinations = pairwise();
  EXPECT_GE(combinations.size(), 15u);  // 5 x 3 choices of two knobs alone
  for (size_t i = 0; i < combinations.size(); i += kEvery) {
    const Combination& c = combinations[i];
    TrainerOptions threads = options;
    threads.optimizer_threads = 1 + c[3] % 2;
    const tiny::Outcome outcome =
        tiny::train(tiny::gpt2_model(), plan_for(c, DType::kBf16), threads, kExactSteps, false);
    EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters)) << text_of(c);
    if (c[0] == 1) {
      EXPECT_GT(outcome.rollbacks, 0) << text_of(c);
    }
  }
}

// Clipping (a gradient 1e4 times too large) and poison (NaN, infinity) at chosen steps.
double disturbed_factor(int32_t step) {
  if (step == 3 || step == 4 || step == 17) return 1e4;
  if (step == 7 || step == 8) return std::numeric_limits<double>::quiet_NaN();
  if (step == 12) return std::numeric_limits<double>::infinity();
  return 1;
}

TEST(exactness, rollbacks_of_clipped_and_poisoned_steps_leave_no_trace) {
  for (const DType dtype : some_of({DType::kBf16, DType::kF32, DType::kF16})) {
    TrainerOptions options = tiny::options_for(kExactSteps);
    options.optimizer.clip_norm = 50;  // only the disturbed steps clip
    options.gradient_factor = disturbed_factor;
    const tiny::Outcome reference =
        tiny::train(tiny::llama_model(), tiny::wait_plan(dtype), options, kExactSteps, true);
    int skipped = 0;
    int clipped = 0;
    for (const StepRecord& record : reference.records) {
      skipped += record.skipped;
      clipped += record.clipped;
    }
    EXPECT_GE(skipped, 3);
    if (dtype != DType::kF16) {
      EXPECT_EQ(clipped, 3);
    }  // in fp16 those overflow and are skipped
    for (const Combination c :
         {Combination{1, 0, 0, 2, 0, 0, 0, 1}, Combination{1, 1, 0, 2, 2, 1, 2, 1},
          Combination{1, 1, 1, 1, 1, 2, 1, 1}, Combination{1, 0, 1, 2, 2, 1, 3, 0},
          Combination{0, 0, 0, 2, 2, 1, 3, 0}}) {
      const tiny::Outcome outcome =
          tiny::train(tiny::llama_model(), plan_for(c, dtype), options, kExactSteps, false);
      EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters))
          << to_string(dtype) << " " << text_of(c);
      if (c[0] == 1) {
        EXPECT_EQ(outcome.rollbacks, skipped + clipped) << text_of(c);
      }
      for (size_t i = 0; i < outcome.records.size(); ++i) {
        EXPECT_EQ(outcome.records[i].loss, reference.records[i].loss) << "step " << i;
        EXPECT_EQ(outcome.records[i].loss_scale, reference.records[i].loss_scale) << "step " << i;
      }
    }
  }
}

// delay has its own reference: itself on one thread.
TEST(exactness, delayed_updates_do_not_depend_on_lanes_or_placement) {
  TrainerOptions options = tiny::options_for(kExactSteps);
  options.gradient_factor = disturbed_factor;
  options.optimizer.clip_norm = 50;
  for (const DType dtype : some_of({DType::kBf16, DType::kF16})) {
    Plan plan = tiny::wait_plan(dtype);
    plan.optimizer.sync = SyncMode::kDelay;
    const tiny::Outcome reference =
        tiny::train(tiny::gpt2_model(), plan, options, kExactSteps, true);
    EXPECT_EQ(reference.records.size(), static_cast<size_t>(kExactSteps));
    for (const Combination c :
         {Combination{0, 0, 0, 2, 0, 0, 0, 1}, Combination{0, 0, 1, 2, 1, 0, 3, 1},
          Combination{0, 0, 1, 1, 2, 0, 1, 0}}) {
      Plan other = plan_for(c, dtype);
      other.optimizer.sync = SyncMode::kDelay;
      const tiny::Outcome outcome =
          tiny::train(tiny::gpt2_model(), other, options, kExactSteps, false);
      EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters)) << text_of(c);
    }
    const tiny::Outcome waited =
        tiny::train(tiny::gpt2_model(), tiny::wait_plan(dtype), options, kExactSteps, true);
    EXPECT_FALSE(tiny::same_bits(reference.parameters, waited.parameters));
  }
}

}  // namespace
}  // namespace ballast
