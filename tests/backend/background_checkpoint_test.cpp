// Checkpoints that are written while training goes on: the same bytes as those for which it rests,
// a failure that ends the run, and a period that follows from what they cost.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <map>
#include <stdexcept>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include "backend/checkpoint/background_write.h"
#include "backend/checkpoint/checkpoint_period.h"
#include "backend/checkpoint/shards.h"
#include "backend/formats/safetensors.h"
#include "backend/host/device_host.h"
#include "backend/train/checkpoint.h"
#include "backend/train/checkpoint_folder.h"
#include "backend/train/parameter_state.h"
#include "sim/graph/build.h"
#include "tests/backend/same_files.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr int64_t kBackgroundSteps = 24;

TrainerOptions options_in(const std::string& folder, int64_t period) {
  TrainerOptions options = tiny::options_for(kBackgroundSteps);
  options.optimizer.clip_norm = 2;
  options.checkpoint_folder = folder;
  options.checkpoint_period_steps = period;
  options.resume = true;
  return options;
}

// Data of every tensor, of shards too, and the metadata but for what is random: the run's id, and
// the names of shards.
std::map<std::string, std::string> content_of(const std::string& path) {
  const SafetensorsReader reader(path);
  std::map<std::string, std::string> content(reader.metadata().begin(), reader.metadata().end());
  content.erase("run");
  content.erase("mark");
  size_t number = 0;
  for (const Shard& shard : shards_of(reader.metadata(), path)) {
    const std::string key = fmt::format("shard/{:05}", number++);
    EXPECT_EQ(content.erase(key), 1u);
    for (const auto& [name, data] :
         content_of((fs::path(path).parent_path() / shard.file).string())) {
      content[key + "/" + name] = data;
    }
  }
  for (const StoredTensor& tensor : reader.tensors()) {
    std::string data(static_cast<size_t>(tensor.bytes), '\0');
    reader.read(tensor, std::as_writable_bytes(std::span(data.data(), data.size())));
    content[tensor.name] = std::move(data);
  }
  return content;
}

// The last one is written with nothing beside it, so the one before is looked at.
TEST(background_checkpoint, has_the_bytes_of_one_for_which_training_rests) {
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
    const TemporaryFolder beside;
    const TemporaryFolder resting;
    for (const bool in_background : {true, false}) {
      TrainerOptions options = options_in((in_background ? beside : resting).path(), 7);
      options.checkpoints_in_background = in_background;
      options.optimizer_threads = in_background ? 3 : 1;  // which take the copy
      Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(sync), options);
      EXPECT_EQ(trainer.train(kBackgroundSteps, nullptr).checkpoints.kept, 3);
    }
    for (const int64_t step : {int64_t{21}, kBackgroundSteps}) {
      EXPECT_EQ(content_of(checkpoint_path(beside.path(), step)),
                content_of(checkpoint_path(resting.path(), step)))
          << to_string(sync) << " at " << step;
    }
  }
}

// Neither the copy nor the file is one to go on from, and both name the same tensor: the first one.
TEST(background_checkpoint, of_a_state_that_is_not_finite_is_none_and_names_its_tensor) {
  const TemporaryFolder folder;
  const Model model = tiny::gpt2_model();
  const Plan plan = tiny::plan_of_both_homes(SyncMode::kWait);
  Graph graph = build(model, plan);
  const TrainerOptions options = tiny::options_for(3);
  const TokenSource data = TokenSource::open(options.data, {.vocab = model.vocab});
  HostDevice device({model, plan, graph, data}, {}, {});
  CheckpointSnapshot snapshot;
  const auto both = [&](int threads) {
    const auto copied = snapshot.take(graph, device, {}, threads);
    EXPECT_EQ(save_checkpoint(graph, device, {}, folder / "state.safetensors"), copied);
    return copied;
  };
  EXPECT_EQ(both(3), std::nullopt);
  for (const auto& [array, prefix] : {std::pair{StateArray::kMoment2, "moment2."},
                                      {StateArray::kMoment1, "moment1."},
                                      {StateArray::kMaster, "master."}}) {
    std::vector<std::pair<size_t, const Parameter*>> parameters;
    for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
      parameters.push_back({module, &parameter});
    });
    // From the last one on: each is then the first of those that are not finite.
    for (size_t i = parameters.size(); i-- > 0;) {
      const auto& [module, parameter] = parameters[i];
      std::vector<float> values = read_parameter(graph, device, module, *parameter, array);
      values[values.size() * i / parameters.size()] = std::numeric_limits<float>::infinity();
      write_parameter(graph, device, module, *parameter, array, values);
      EXPECT_EQ(both(1 + static_cast<int>(i % 4)), prefix + parameter->name);
    }
  }
}

TEST(background_checkpoint, of_ranks_has_the_bytes_of_one_for_which_training_rests) {
  const TemporaryFolder beside;
  const TemporaryFolder resting;
  Plan plan =
      tiny::waiting_plan({.sequences = 2, .micro_batch = 1, .tokens = 12}, 2 * kSegment * 4);
  plan.data = plan.devices = 2;
  plan.zero_stage = 2;
  for (const bool in_background : {true, false}) {
    TrainerOptions options = options_in((in_background ? beside : resting).path(), 5);
    options.checkpoints_in_background = in_background;
    Trainer trainer(tiny::gpt2_model(), plan, options);
    trainer.train(12, nullptr);
  }
  EXPECT_EQ(content_of(checkpoint_path(beside.path(), 10)),
            content_of(checkpoint_path(resting.path(), 10)));
}

// A file where the folder was: nothing can be put beside it.
TEST(background_checkpoint, that_cannot_be_written_ends_the_run_and_the_older_one_stays) {
  for (const int64_t ranks : {1, 2}) {
    const TemporaryFolder root;
    const std::string folder = root / "kept";
    Plan plan = tiny::plan_of_both_homes(SyncMode::kWait);
    plan.micro_batch = 1;
    plan.data = plan.devices = ranks;
    TrainerOptions options = options_in(folder, 4);
    Trainer trainer(tiny::gpt2_model(), plan, options);
    std::atomic<bool> moved{false};
    const std::string message = error_of([&] {
      trainer.train(100'000, [&](const StepRecord& record) {
        if (record.step < 6 || moved.exchange(true)) return;
        while (!fs::exists(checkpoint_path(folder, 4))) std::this_thread::sleep_for(1ms);
        fs::rename(folder, root / "elsewhere");
      });
    });
    EXPECT_TRUE(mentions(message, "cannot be created: No such file or directory")) << message;
    EXPECT_TRUE(fs::exists(checkpoint_path(root / "elsewhere", 4)));
  }
}

TEST(background_checkpoint, whose_copy_has_no_room_is_refused_before_the_first_step) {
  const TemporaryFolder folder;
  TrainerOptions options = options_in(folder.path(), 4);
  options.available_memory = [] { return Bytes{1000}; };
  const Plan plan = tiny::plan_of_both_homes(SyncMode::kDelay);
  const std::string message = error_of([&] { Trainer(tiny::gpt2_model(), plan, options); });
  EXPECT_TRUE(mentions(message, "--pause-for-checkpoints")) << message;
  options.checkpoints_in_background = false;
  EXPECT_EQ(error_of([&] { Trainer(tiny::gpt2_model(), plan, options); }), "");
  options.checkpoints_in_background = true;
  options.checkpoint_period_steps = 0;
  EXPECT_EQ(error_of([&] { Trainer(tiny::gpt2_model(), plan, options); }), "");
}

TEST(background_checkpoint, period_that_follows_a_bound_leaves_the_bits_alone) {
  const TemporaryFolder bounded;
  const TemporaryFolder plain;
  Plan plan = tiny::plan_of_both_homes(SyncMode::kSpeculate);
  std::vector<float> parameters[2];
  for (const bool is_bounded : {true, false}) {
    TrainerOptions options = options_in((is_bounded ? bounded : plain).path(), 0);
    if (is_bounded) options.checkpoint_overhead = 0.5;
    {
      Trainer trainer(tiny::gpt2_model(), plan, options);
      const TrainResult half = trainer.train(kBackgroundSteps, nullptr);
      EXPECT_EQ(half.checkpoints.kept > 0, is_bounded);
    }
    Trainer trainer(tiny::gpt2_model(), plan, options);
    trainer.train(2 * kBackgroundSteps, nullptr);
    parameters[is_bounded ? 0 : 1] = trainer.parameters();
  }
  EXPECT_TRUE(tiny::same_bits(parameters[0], parameters[1]));
}

TEST(background_checkpoint, ranks_agree_on_a_period_that_is_measured) {
  const TemporaryFolder folder;
  Plan plan =
      tiny::waiting_plan({.sequences = 2, .micro_batch = 1, .tokens = 12}, 2 * kSegment * 4);
  plan.data = plan.devices = 2;
  TrainerOptions options = options_in(folder.path(), 0);
  options.checkpoint_overhead = 0.3;
  Trainer trainer(tiny::gpt2_model(), plan, options);
  const TrainResult result = trainer.train(40, nullptr);
  EXPECT_EQ(result.next_step, 40);
  EXPECT_GE(result.checkpoints.kept, 1);
}

TEST(background_write, ends_before_it_is_waited_for_or_destroyed) {
  std::atomic<int> done{0};
  {
    BackgroundWrite write;
    EXPECT_FALSE(write.is_under_way());
    write.begin([&] {
      std::this_thread::sleep_for(20ms);
      ++done;
    });
    EXPECT_TRUE(write.is_under_way());
    EXPECT_EQ(write.times().end, std::chrono::nanoseconds::max());
    write.wait();
    EXPECT_EQ(done, 1);
    EXPECT_GE(write.times().end - write.times().begin, 20ms);
    write.begin([&] { ++done; });
  }
  EXPECT_EQ(done, 2);
}

TEST(background_write, leaves_cores_to_the_threads_of_steps) {
  const auto niceness = [] { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); };
  constexpr int kNicest = 19;
  BackgroundWrite write;
  int own = 0;
  write.begin([&] { own = niceness(); });
  write.wait();
  EXPECT_EQ(own, std::min(niceness() + 10, kNicest));
}

TEST(background_write, that_throws_is_told_of_once) {
  BackgroundWrite write;
  write.begin([] { throw std::runtime_error("the disk"); });
  while (write.is_under_way()) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(write.has_failed());
  EXPECT_THROW(write.wait(), std::runtime_error);
  EXPECT_FALSE(write.has_failed());
  write.begin([] {});
  write.wait();
}

// Steps of 1 s. A checkpoint rests 0.5 s, and the four steps beside its write take 1.25 s: 1.5 s in
// all, so 5 % are 30 steps.
TEST(checkpoint_period, spreads_what_a_checkpoint_costs_over_the_bound) {
  CheckpointPeriod period(0.05);
  EXPECT_EQ(period.steps(), CheckpointPeriod::kProfiledSteps);
  period.add({{9.0}, {1.0}, {1.0}, {1.0}});
  EXPECT_EQ(period.undisturbed_step(), 1.0);
  period.add_checkpoint(0.5);
  EXPECT_EQ(period.steps(), CheckpointPeriod::kProfiledSteps);
  period.add({{1.25, true, true}, {1.25, true}, {1.25, true}, {1.25, true}, {1.0}, {1.0}});
  period.add_written(5);
  period.add_checkpoint(0.5);
  EXPECT_DOUBLE_EQ(period.cost(), 1.5);
  EXPECT_EQ(period.steps(), 30);
  // Of ten steps of 1 s, 2 s.
  EXPECT_DOUBLE_EQ(period.measured_overhead(), 0.2);
}

// No checkpoint begins before the one before has ended, and two steps are left to tell what one
// takes alone: 13 and 2.
TEST(checkpoint_period, is_no_shorter_than_a_write) {
  CheckpointPeriod period(0.5);
  period.add({{1.0}, {1.0}, {1.0}});
  period.add_checkpoint(0.001);
  period.add({{1.0, true, true}, {1.0, true}});
  period.add_written(12.5);
  period.add_checkpoint(0.001);
  EXPECT_EQ(period.steps(), 15);
}

TEST(checkpoint_period, follows_a_disk_that_becomes_slower) {
  CheckpointPeriod period(0.1);
  period.add({{1.0}, {1.0}});
  const auto cycle = [&](double rest) {
    period.add_checkpoint(rest);
    period.add({{1.0, true, true}, {1.0}});
    period.add_written(1);
    return period.steps();
  };
  for (int i = 0; i < 8; ++i) cycle(1);
  EXPECT_EQ(cycle(1), 10);
  for (int i = 0; i < 8; ++i) cycle(3);
  EXPECT_EQ(cycle(3), 30);
}

// Steps beside the write that were faster by chance do not pay for the rest of 2 s.
TEST(checkpoint_period, takes_no_noise_for_a_gain) {
  CheckpointPeriod period(0.1);
  period.add({{1.0}, {1.0}});
  period.add_checkpoint(2);
  period.add({{0.2, true, true}, {0.2, true}, {1.0}});
  period.add_written(1);
  period.add_checkpoint(2);
  EXPECT_DOUBLE_EQ(period.cost(), 2);
  EXPECT_EQ(period.steps(), 20);
}

// Two steps in three repair the one before and take 3 s instead of 1 s. The run with the write
// beside its first two drains for 0.25 s before it and rests 0.5 s: with 2.5 s of longer steps, it
// cost 3.25 s, whatever the kinds of the other steps are.
TEST(checkpoint_period, compares_steps_with_their_kind_and_counts_the_draining) {
  CheckpointPeriod period(0.05);
  const CheckpointPeriod::Step repairing{3.0, false, false, true};
  period.add({{9.0}, repairing, repairing, {1.0}, repairing, repairing, {1.0}}, 0.25);
  period.add_checkpoint(0.5);
  period.add({{4.0, true, true, true}, {2.5, true}, repairing, repairing, {1.0}}, 0.125);
  period.add_written(6);
  EXPECT_DOUBLE_EQ(period.cost(), 3.25);
  // Of 1 + 4 * 3 + 2 * 1 and 3 * 3 + 2 * 1 s.
  EXPECT_DOUBLE_EQ(period.measured_overhead(), 3.25 / 26);
  period.add_checkpoint(1);
  period.add({{3.0, true, true, true}});
  EXPECT_DOUBLE_EQ(period.cost(), 3.25);
  EXPECT_DOUBLE_EQ(period.measured_overhead(), (3.25 + 1.125) / 29);
}

// Without a checkpoint a first step would have repaired the last one of the run before: where none
// of its kind was seen it is compared with any.
TEST(checkpoint_period, compares_a_kind_that_was_not_seen_with_all) {
  CheckpointPeriod period(0.05);
  period.add({{9.0}, {2.0}, {2.0}});
  period.add_checkpoint(0.5);
  period.add({{2.5, false, true, true}, {2.0}});
  EXPECT_DOUBLE_EQ(period.cost(), 1);
}

TEST(checkpoint_period, that_is_given_is_kept) {
  CheckpointPeriod period({}, 7);
  period.add({{1.0}, {1.0}});
  period.add_checkpoint(5);
  EXPECT_EQ(period.steps(), 7);
}

// A disk that has so many bytes free.
class SmallDisk : public SameFiles {
 public:
  std::optional<double> free_bytes(const std::string&) override { return free; }
  double free = 0;
};

// What will lie on the disk at a time is known before the first step: two checkpoints that are
// kept, and one more until it is whole.
TEST(background_checkpoint, room_is_asked_for_all_that_will_lie_there_at_a_time) {
  const TemporaryFolder folder;
  SmallDisk disk;
  const auto train_to = [&](int64_t steps, int64_t period, double room) {
    TrainerOptions options = options_in(folder.path(), period);
    options.files = &disk;
    Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait), options);
    disk.free = room * 12 * static_cast<double>(trainer.parameters().size());
    return error_of([&] { trainer.train(steps, nullptr); });
  };
  EXPECT_TRUE(mentions(train_to(8, 2, 2.9), ": 3 checkpoints of 6.0 MB")) << train_to(8, 2, 2.9);
  EXPECT_TRUE(mentions(train_to(4, 2, 1.9), ": 2 checkpoints of 6.0 MB")) << train_to(4, 2, 1.9);
  EXPECT_TRUE(mentions(train_to(4, 0, 0.9), ": a checkpoint takes 6.0 MB")) << train_to(4, 0, 0.9);
  EXPECT_FALSE(newest_checkpoint(folder.path()));  // none of them has begun
  EXPECT_EQ(train_to(4, 0, 1.1), "");
  EXPECT_TRUE(mentions(train_to(12, 2, 1.9), ": 2 checkpoints of 6.0 MB"))
      << "beside one that is there";
  EXPECT_EQ(train_to(6, 2, 1.1), "");
  EXPECT_EQ(train_to(12, 2, 1.1), "") << "two are there, of which one goes";
}

}  // namespace
}  // namespace ballast
