// A pipeline whose copies run beside its turns, of more operations than are ever spread at once.
#include <algorithm>
#include <cstdio>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sim/engine/predict.h"
#include "sim/engine/repetition.h"
#include "sim/graph/build.h"
#include "tests/engine/tiny_machine.h"

namespace ballast {
namespace {

struct LongShape {
  int64_t stages = 1, chunks = 1;
  ReloadOrder reload = ReloadOrder::kLookAhead;
  double link_bytes_per_s = 1e9;
};

std::string text_of(const LongShape& shape) {
  return fmt::format("{} stages of {} chunks, reload {}, link of {:.1f} GB/s", shape.stages,
                     shape.chunks, to_string(shape.reload), shape.link_bytes_per_s / 1e9);
}

Model model_of(const LongShape& shape) {
  Model model = tests::tiny_model();
  model.layers = std::max<int64_t>(48, 2 * shape.stages * shape.chunks);
  return model;
}

Plan plan_of(const LongShape& shape) {
  Plan plan = tests::tiny_plan(OptimizerPlacement::kGpu);
  plan.devices = plan.pipeline = shape.stages;
  plan.virtual_pipeline = shape.chunks;
  plan.optimizer.gpu_buckets = 0;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  plan.activations->fate.fill(ActivationFate::kOffload);
  plan.activations->reload = shape.reload;
  return plan;
}

Machine machine_of(const LongShape& shape) {
  Machine machine = tests::tiny_cluster();
  machine.gpu.memory.value = machine.cpu.memory.value = {int64_t{400} << 30};
  machine.link.host_to_device = machine.link.device_to_host = tests::flat(shape.link_bytes_per_s);
  return machine;
}

// Copies take longer than turns, about as long, and far less.
std::vector<LongShape> long_shapes() {
  std::vector<LongShape> all;
  for (const double link : {0.5e9, 2e9, 20e9}) {
    for (const int64_t stages : {2, 4}) {
      all.push_back({stages, stages == 2 ? 1 : 2, ReloadOrder::kLookAhead, link});
    }
  }
  all.push_back({2, 2, ReloadOrder::kLookAhead, 2e9});
  all.push_back({4, 2, ReloadOrder::kByModule, 2e9});
  return all;
}

// Beyond what is spread at once a micro-batch takes what it took before: the step is told from
// those of fewer that are spread, and not from one whose turns overlap with nothing.
TEST(long_pipeline, a_micro_batch_takes_as_long_however_many_there_are) {
  double worst = 0;
  for (const LongShape& shape : long_shapes()) {
    const Model model = model_of(shape);
    const Machine machine = machine_of(shape);
    const auto predicted = [&](int64_t micro_batches) {
      return predict(model, with_micro_batches(plan_of(shape), micro_batches), machine, nullptr);
    };
    const Prediction few = predicted(20), more = predicted(36), many = predicted(400);
    ASSERT_TRUE(few.fits && more.fits && many.fits) << text_of(shape);
    const double before = (more.step_time - few.step_time).seconds() / 16;
    const double after = (many.step_time - more.step_time).seconds() / 364;
    worst = std::max(worst, std::abs(after / before - 1));
    EXPECT_NEAR(after / before, 1, 0.01) << text_of(shape);
    EXPECT_FALSE(build(model, with_micro_batches(plan_of(shape), 400)).blocks.empty())
        << text_of(shape) << ": it is not long enough to be folded";
    EXPECT_TRUE(many.graph.blocks.empty()) << text_of(shape);
    for (size_t place = 0; place < few.peaks.size(); ++place) {
      EXPECT_EQ(many.peaks[place].live, more.peaks[place].live) << text_of(shape);
    }
  }
  std::printf("%.2f %% at most\n", 100 * worst);
}

}  // namespace
}  // namespace ballast
