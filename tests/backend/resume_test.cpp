// Checkpoints: a training that is stopped, killed or continued under another plan ends with the
// same bits as one that never stopped.
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "backend/train/checkpoint.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int64_t kSteps = 24;
constexpr int64_t kPeriod = 5;

Plan plan_with(SyncMode sync) {
  Plan plan = tiny::wait_plan();
  plan.optimizer.sync = sync;
  plan.optimizer.gpu_buckets = 1;
  plan.optimizer.bucket_bytes = {2 * kSegment * 4};
  return plan;
}

TrainerOptions options_in(const std::string& folder) {
  TrainerOptions options = tiny::options_for(kSteps);
  options.optimizer.clip_norm = 2;
  options.checkpoint_folder = folder;
  options.checkpoint_period_steps = kPeriod;
  options.resume = true;
  return options;
}

std::vector<float> train_to_the_end(const Plan& plan, const std::string& folder) {
  Trainer trainer(tiny::gpt2_model(), plan, options_in(folder));
  trainer.train(kSteps, nullptr);
  return trainer.parameters();
}

// Trains in a process of its own that is killed once its loss has been computed `steps` times, and
// a little later. Returns whether it was killed before it ended.
bool train_and_kill(const Plan& plan, const std::string& folder, int steps,
                    std::chrono::microseconds later) {
  std::array<int, 2> pipe_ends{};
  CHECK(pipe(pipe_ends.data()) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    TrainerOptions options = options_in(folder);
    options.gradient_factor = [&](int32_t) {  // called by every step's loss
      const char step = 1;
      return ::write(pipe_ends[1], &step, 1) == 1 ? 1.0 : 0.0;
    };
    Trainer trainer(tiny::gpt2_model(), plan, options);
    trainer.train(kSteps, nullptr);
    _exit(0);
  }
  close(pipe_ends[1]);
  char step = 0;
  for (int seen = 0; seen < steps && ::read(pipe_ends[0], &step, 1) == 1; ++seen) {
  }
  std::this_thread::sleep_for(later);
  kill(child, SIGKILL);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  close(pipe_ends[0]);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

TEST(resume, a_killed_training_continues_to_the_same_bits) {
  std::mt19937 random(11);
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
    const TemporaryFolder whole;
    const TemporaryFolder killed;
    const Plan plan = plan_with(sync);
    const std::vector<float> expected = train_to_the_end(plan, whole.path());
    int kills = 0;
    // Far enough to leave a checkpoint behind more often than not; every kill may hit anything.
    while (kills < 6 && train_and_kill(plan, killed.path(), 2 + static_cast<int>(random() % 8),
                                       std::chrono::microseconds(random() % 8000))) {
      ++kills;
    }
    EXPECT_GT(kills, 0);
    EXPECT_TRUE(tiny::same_bits(train_to_the_end(plan, killed.path()), expected))
        << to_string(sync) << " after " << kills << " kills";
  }
}

TEST(resume, another_plan_of_the_same_model_reads_the_checkpoint) {
  const TemporaryFolder whole;
  const TemporaryFolder changed;
  const std::vector<float> expected = train_to_the_end(plan_with(SyncMode::kWait), whole.path());
  {
    Trainer trainer(tiny::gpt2_model(), plan_with(SyncMode::kWait), options_in(changed.path()));
    trainer.train(10, nullptr);
  }
  Plan other = plan_with(SyncMode::kSpeculate);
  other.optimizer.bucket_bytes = {1};
  other.optimizer.undo = UndoKind::kExact;
  other.weights.flow_share = 1;
  EXPECT_TRUE(tiny::same_bits(train_to_the_end(other, changed.path()), expected));
}

TEST(resume, only_the_last_two_checkpoints_are_kept) {
  const TemporaryFolder folder;
  train_to_the_end(plan_with(SyncMode::kWait), folder.path());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files += entry.is_regular_file();
  }
  EXPECT_EQ(files, 2);
  EXPECT_EQ(newest_checkpoint(folder.path()), checkpoint_path(folder.path(), kSteps));
}

TEST(resume, a_request_to_stop_ends_at_a_step_that_can_be_resumed) {
  const TemporaryFolder folder;
  const TemporaryFolder whole;
  const Plan plan = plan_with(SyncMode::kSpeculate);
  const std::vector<float> expected = train_to_the_end(plan, whole.path());
  Trainer trainer(tiny::gpt2_model(), plan, options_in(folder.path()));
  int seen = 0;
  const TrainResult result = trainer.train(kSteps, [&](const StepRecord&) {
    if (++seen == 3) trainer.request_stop();
  });
  EXPECT_TRUE(result.stopped || result.next_step == kSteps);
  EXPECT_EQ(load_checkpoint_header(*newest_checkpoint(folder.path())).next_step, result.next_step);
  EXPECT_TRUE(tiny::same_bits(train_to_the_end(plan, folder.path()), expected));
}

TEST(resume, a_damaged_checkpoint_is_one_clear_error) {
  const TemporaryFolder folder;
  train_to_the_end(plan_with(SyncMode::kWait), folder.path());
  const std::string newest = *newest_checkpoint(folder.path());
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) / 2);
  const std::string message = error_of([&] {
    Trainer trainer(tiny::gpt2_model(), plan_with(SyncMode::kWait), options_in(folder.path()));
  });
  EXPECT_TRUE(mentions(message, newest)) << message;
}

TEST(weights, exported_and_imported_are_the_same_training) {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  TrainerOptions options = tiny::options_for(kSteps);
  Trainer first(tiny::llama_model(), tiny::wait_plan(), options);
  first.train(3, nullptr);
  first.export_weights(path);
  options.initial_weights = path;
  Trainer second(tiny::llama_model(), plan_with(SyncMode::kSpeculate), options);
  EXPECT_TRUE(tiny::same_bits(first.parameters(), second.parameters()));
  EXPECT_EQ(first.validation_loss(2), second.validation_loss(2));
}

// Beside an extent of 0 the others may be of any size: their product is no number of 63 bits.
TEST(weights, a_shape_whose_product_no_number_holds_is_an_error) {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  const std::string header =
      R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[4611686018427387904,4,0],)"
      R"("data_offsets":[0,0]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  std::ofstream(path, std::ios::binary) << file << header;
  TrainerOptions options = tiny::options_for(kSteps);
  options.initial_weights = path;
  const std::string message =
      error_of([&] { Trainer trainer(tiny::llama_model(), tiny::wait_plan(), options); });
  EXPECT_TRUE(mentions(message, "has 0 values")) << message;
}

// Streamed state rests in CPU memory and that of NVMe in a file; moments in bf16 come back as they
// were.
TEST(resume, state_that_rests_elsewhere_or_in_fewer_bits_goes_on_with_the_same_bits) {
  std::vector<Plan> plans;
  for (const double share : {0.5, 1.0}) {
    plans.push_back(plan_with(SyncMode::kWait));
    plans.back().optimizer.stream_share = share;
  }
  plans.push_back(plan_with(SyncMode::kWait));
  plans.back().optimizer.placement = OptimizerPlacement::kNvme;
  plans.back().optimizer.gpu_buckets = 0;
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    plans.push_back(plan_with(sync));
    plans.back().optimizer.moments = DType::kBf16;
  }
  plans.push_back(plans.front());
  plans.back().optimizer.moments = DType::kBf16;
  for (const Plan& plan : plans) {
    const TemporaryFolder whole, parts;
    const std::vector<float> straight = train_to_the_end(plan, whole.path());
    {
      Trainer trainer(tiny::gpt2_model(), plan, options_in(parts.path()));
      trainer.train(kSteps / 2 + 1, nullptr);
    }
    EXPECT_TRUE(tiny::same_bits(straight, train_to_the_end(plan, parts.path())))
        << to_string(plan.optimizer.sync) << " " << to_string(plan.optimizer.moments) << " "
        << plan.optimizer.stream_share;
  }
}

}  // namespace
}  // namespace ballast
