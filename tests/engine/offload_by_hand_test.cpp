// Offload of activations by module, with reloads by module: the four waits of Megatron-Core's
// document, each where it alone decides how long a step takes.
//
// fc1's output leaves; 8 tokens of 64 values of 2 bytes, 1024 B. Within a layer it is done after
// 3 ms of the 4 forward, and its reader, the activation's backward, comes after 2 ms of the 8
// backward. So of L layers, where nothing waits, layer l's output is there at 4 l + 3 and is read
// at 4 L + 8 (L - 1 - l) + 2. The last layer's stays.
#include <gtest/gtest.h>

#include "tests/engine/by_hand.h"

namespace ballast::by_hand {
namespace {

struct Copies {
  int64_t out_ms = 0, in_ms = 0;
};

// A step of four layers whose copies take so long.
Duration step_with(const Copies& copies, const Case& given) {
  return step_of(given, [&](const Op& op) -> std::optional<Duration> {
    if (op.phase == Phase::kOffload) return us(1000 * copies.out_ms);
    if (op.phase == Phase::kReload) return us(1000 * copies.in_ms);
    if (op.kind == OpKind::kCollective) return Duration{};
    return time_of(op);
  });
}

Case four_layers(ReloadOrder reload) {
  Case given{model_of(4), plan_of(OptimizerPlacement::kGpu), without_link()};
  given.plan.activations.emplace();
  given.plan.activations->fate[static_cast<size_t>(ModuleKind::kFc1)] = ActivationFate::kOffload;
  given.plan.activations->reload = reload;
  return given;
}
Case by_module() { return four_layers(ReloadOrder::kByModule); }

// From one reader to the next are 8 ms, in which a copy of as long returns: 4 x 12 ms.
TEST(OffloadByHand, copies_that_are_no_longer_than_a_layer_cost_nothing) {
  EXPECT_EQ(step_with({.out_ms = 1, .in_ms = 1}, by_module()), us(48'000));
  EXPECT_EQ(step_with({.out_ms = 4, .in_ms = 8}, by_module()), us(48'000));
}

// Waits 2 and 4. Layer 2's copy starts when layer 3's reader is done, at 18, and its own reader
// when it is there, at 18 + 9; so on: 18 + 3 x 9, and the 6 ms that are left.
TEST(OffloadByHand, a_layer_waits_for_what_starts_when_the_same_module_ahead_is_done) {
  EXPECT_EQ(step_with({.out_ms = 1, .in_ms = 9}, by_module()), us(18'000 + 3 * 9'000 + 6'000));
  EXPECT_EQ(step_with({.out_ms = 1, .in_ms = 20}, by_module()), us(18'000 + 3 * 20'000 + 6'000));
}

// Waits 1 and 3. Layer 0's output leaves at 3, those of 1 and 2 after it: they are gone at 3 + 12,
// 27 and 39. Layer 2 returns from 39 to 40 and is read then, not at 26; layer 1 at 48, layer 0 at
// 56; 6 ms are left.
TEST(OffloadByHand, a_copy_in_waits_until_its_own_copy_out_has_ended) {
  EXPECT_EQ(step_with({.out_ms = 12, .in_ms = 1}, by_module()), us(40'000 + 2 * 8'000 + 6'000));
}

// A copy in and one out at a time: nothing starts before its forward (wait 1), so of two layers, of
// which one leaves, 3 + out + in is when its reader may run.
TEST(OffloadByHand, a_copy_out_waits_for_the_forward_of_its_module) {
  Case given = by_module();
  given.model = model_of(2);
  EXPECT_EQ(step_with({.out_ms = 20, .in_ms = 30}, given), us(3'000 + 20'000 + 30'000 + 6'000));
}

// One copy out under way:
//
//   out       0: 3-15     1: 15-27     2: 27-39
//   compute   0-4  4-7 [layer 0's copy] 15-16  16-19 [layer 1's] 27-28  28-32  34: layer 3 is read
//
// Layer 1 stands still behind its fc1 from 7 to 15, layer 2 from 19 to 27. Layer 2's output is back
// at 40 and read 8 ms after layer 3's, at 42: 42 + 2 x 8 + 6; without the limit 40 + 2 x 8 + 6.
TEST(OffloadByHand, a_limit_of_one_copy_under_way_holds_the_forward_back) {
  Case given = by_module();
  given.plan.activations->offload_in_flight = 1;
  EXPECT_EQ(step_with({.out_ms = 12, .in_ms = 1}, given), us(42'000 + 2 * 8'000 + 6'000));
  given.plan.activations->offload_in_flight = 2;
  EXPECT_EQ(step_with({.out_ms = 12, .in_ms = 1}, given), us(40'000 + 2 * 8'000 + 6'000));
  // Of three layers two leave, one wait: 16 + 4 forward, 22 and 30 are read, 38, and 6 ms.
  given.plan.activations->offload_in_flight = 1;
  given.model = model_of(3);
  EXPECT_EQ(step_with({.out_ms = 12, .in_ms = 1}, given), us(22'000 + 2 * 8'000 + 6'000));
}

// A pipeline's stages as if they were one device: two layers a stage, copies in of 8 ms, messages
// in no time. Every backward but the first of a stage finds its last layer's output on its way
// since the one before it, so nothing waits: (4 + 2 - 1) x 24 ms, and norm and Adam.
TEST(OffloadByHand, a_chunk_before_brings_back_what_the_next_chunk_begins_with) {
  Case given = by_module();
  given.plan.devices = given.plan.pipeline = 2;
  given.plan.global_batch = 2 * 4;
  given.plan.optimizer.bucket_bytes = {int64_t{1} << 40};
  EXPECT_EQ(step_with({.out_ms = 1, .in_ms = 8}, given), us(5 * 24'000));
}

}  // namespace
}  // namespace ballast::by_hand
