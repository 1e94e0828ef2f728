#include "sim/spec/model.h"

#include <gtest/gtest.h>

#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

// Embedding 16x8; a layer: norms 2x8, qkv 3x8x8, out 8x8, fc1 2x32x8, fc2 8x32; final norm 8, head
// 16x8: 128 + 2 x (16 + 192 + 64 + 512 + 256) + 8 + 128.
TEST(modules_of, counts_every_parameter_of_a_small_llama) {
  EXPECT_EQ(parameter_count(tiny::model()), 128 + 2 * (16 + 192 + 64 + 512 + 256) + 8 + 128);
}

TEST(modules_of, flat_offsets_and_parameters_follow_one_another) {
  int64_t end = 0;
  for (const Module& module : modules_of(tiny::model())) {
    EXPECT_EQ(module.flat_offset, end);
    int64_t inside = 0;
    for (const Parameter& parameter : module.parameters) {
      EXPECT_EQ(parameter.offset, inside);
      inside += parameter.count();
    }
    EXPECT_EQ(inside, module.count);
    end += module.count;
  }
}

TEST(check_model, refuses_impossible_sizes_with_the_field_named) {
  const auto refused = [](auto change, const std::string& field) {
    Model model = tiny::model();
    change(model);
    try {
      check(model);
      ADD_FAILURE() << field;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(field), std::string::npos) << error.what();
    }
  };
  refused([](Model& m) { m.layers = 0; }, "layers");
  refused([](Model& m) { m.hidden = -8; }, "hidden");
  refused([](Model& m) { m.kv_heads = 3; }, "kv_heads");
  refused([](Model& m) { m.head_size = 3; }, "head_size");
  refused([](Model& m) { m.vocab = int64_t{1} << 40; }, "out of range");
  refused([](Model& m) { m.norm_epsilon = 0; }, "epsilon");
}

TEST(check_plan, refuses_what_cannot_be_run_with_the_knob_named) {
  const auto refused = [](auto change, const std::string& knob) {
    Plan plan = tiny::plan();
    change(plan);
    try {
      check(plan, tiny::model());
      ADD_FAILURE() << knob;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(knob), std::string::npos) << error.what();
    }
  };
  refused([](Plan& p) { p.global_batch = 0; }, "global_batch");
  refused([](Plan& p) { p.micro_batch = 3; }, "micro_batch");
  refused([](Plan& p) { p.sequence_length = -1; }, "sequence_length");
  refused([](Plan& p) { p.weights.flow_share = 1.5; }, "flow_share");
  refused([](Plan& p) { p.optimizer.bucket_bytes = {0}; }, "bucket_bytes");
  refused([](Plan& p) { p.optimizer.placement = OptimizerPlacement::kNvme; }, "nvme");
  refused([](Plan& p) { p.devices = 2; }, "data");
  refused(
      [](Plan& p) {
        p.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kRecompute;
      },
      "fc2");
  EXPECT_NO_THROW(check(tiny::plan(), tiny::model()));
}

}  // namespace
}  // namespace ballast
