// The start of a training: parameters are drawn and spread by any number of threads, with the same
// bits.
#include <gtest/gtest.h>

#include "backend/train/random.h"
#include "tests/backend/cuda_training.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

// Wide enough for parameters of several parts; buckets of one segment, so that threads share them.
Model wide_model() {
  return tiny::llama(
      {.hidden = 256, .heads = 4, .kv_heads = 2, .head_size = 64, .ffn = 1200, .vocab = 256});
}

TEST(Start, parameters_and_the_first_loss_do_not_depend_on_the_number_of_threads) {
  Plan plan = tiny::wait_plan();
  plan.optimizer.bucket_bytes = {kSegment * 4};
  plan.optimizer.gpu_buckets = 2;
  std::vector<float> reference;
  double loss = 0;
  for (const int threads : {1, 2, 8}) {
    for (const bool on_cuda : {false, true}) {
      TrainerOptions options = tiny::options_for(10);
      options.optimizer_threads = threads;
      if (on_cuda) options = tests::on_thread_cuda(options, {});
      Trainer trainer(wide_model(), plan, options);
      const std::vector<float> parameters = trainer.parameters();
      const double first = trainer.validation_loss(1);  // of the weights that were spread
      if (reference.empty()) {
        reference = parameters;
        loss = first;
      }
      EXPECT_TRUE(tiny::same_bits(parameters, reference)) << threads << " threads";
      EXPECT_EQ(first, loss) << threads << " threads";
    }
  }
  std::vector<float> alone(reference.size());
  size_t at = 0;
  for (const Module& module : modules_of(wide_model())) {
    const auto part = std::span(alone).subspan(at, static_cast<size_t>(module.count));
    initialise(module, wide_model(), tiny::options_for(10).seed, part);
    at += part.size();
  }
  EXPECT_TRUE(tiny::same_bits(alone, reference));
}

}  // namespace
}  // namespace ballast
