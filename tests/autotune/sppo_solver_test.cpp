#include "autotune/space/sppo_solver.h"

#include <gtest/gtest.h>

#include "autotune/space/layout.h"
#include "tests/autotune/support.h"

namespace ballast::tests {
namespace {

// Nodes of eight.
Machine nodes_of_eight(int64_t devices) {
  Machine machine = gpu_machine();
  machine.devices = devices;
  machine.devices_per_node = 8;
  return machine;
}

// A model of 32 heads and as many layers, whatever else: degrees up to 32.
Model wide_model() {
  Model model = small_model();
  model.layers = 32;
  model.heads = model.kv_heads = 32;
  model.max_positions = 1 << 24;
  return model;
}

std::vector<Plan> layouts(int64_t devices, int64_t global_batch, int64_t tokens) {
  Plan base = auto_plan(global_batch);
  base.devices = devices;
  base.data = 1;
  base.sequence_length = tokens;
  base.micro_batch = 1;
  KnobSet open;
  open.add(KnobId::kSequence)
      .add(KnobId::kPipeline)
      .add(KnobId::kSubsequences)
      .add(KnobId::kContext)
      .add(KnobId::kTensor);
  return layouts_of(wide_model(), base, open);
}

void expect_choice(const std::optional<SolverChoice>& choice, int64_t sequence, int64_t pipeline,
                   int64_t parts, double idle_share) {
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->sequence, sequence);
  EXPECT_EQ(choice->pipeline, pipeline);
  EXPECT_EQ(choice->subsequences, parts);
  EXPECT_DOUBLE_EQ(choice->idle_share, idle_share);
}

// 1,048,576 tokens on 32 devices: 8 ranks of a sequence leave 4 stages, whose parts have 2,048
// tokens a device where there are 64: 3/64. 4 ranks and 8 stages idle 7/128.
TEST(SppoSolver, takes_the_degrees_that_idle_least) {
  expect_choice(sppo_choice(layouts(32, 1, 1 << 20), nodes_of_eight(32)), 8, 4, 64, 3.0 / 64);
}

// The paper's example of the bubble: 4 stages, 16 parts, which 262,144 tokens have with 8 ranks.
TEST(SppoSolver, idles_as_the_paper_says) {
  expect_choice(sppo_choice(layouts(32, 1, 1 << 18), nodes_of_eight(32)), 8, 4, 16, 3.0 / 16);
}

// No two degrees within nodes of eight use 128 devices: then stages cross them, sequences do not.
TEST(SppoSolver, lets_a_pipeline_be_longer_than_a_node_where_nothing_else_uses_all_devices) {
  expect_choice(sppo_choice(layouts(128, 1, 1 << 22), nodes_of_eight(128)), 8, 16, 256, 15.0 / 256);
}

// Sequences of fewer tokens than a part has are not for it; one of as many is a part itself.
TEST(SppoSolver, has_nothing_to_say_of_short_sequences) {
  EXPECT_FALSE(sppo_choice(layouts(32, 1, 1024), nodes_of_eight(32)));
  expect_choice(sppo_choice(layouts(2, 1, 4096), nodes_of_eight(2)), 2, 1, 1, 0);
}

}  // namespace
}  // namespace ballast::tests
