// Checkpoints: a training that is stopped, killed or continued under another plan ends with the
// same bits as one that never stopped.
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <random>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "backend/formats/safetensors.h"
#include "backend/formats/weight_files.h"
#include "backend/train/checkpoint.h"
#include "backend/train/checkpoint_folder.h"
#include "tests/backend/plain_loop.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int64_t kResumeSteps = 24;
constexpr int64_t kCheckpointPeriod = 5;

TrainerOptions options_of_folder(const std::string& folder) {
  TrainerOptions options = tiny::options_for(kResumeSteps);
  options.optimizer.clip_norm = 2;
  options.checkpoint_folder = folder;
  options.checkpoint_period_steps = kCheckpointPeriod;
  options.resume = true;
  return options;
}

std::vector<float> train_to_the_end(const Plan& plan, const std::string& folder) {
  Trainer trainer(tiny::gpt2_model(), plan, options_of_folder(folder));
  trainer.train(kResumeSteps, nullptr);
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
    TrainerOptions options = options_of_folder(folder);
    options.gradient_factor = [&](int32_t) {  // called by every step's loss
      const char step = 1;
      return ::write(pipe_ends[1], &step, 1) == 1 ? 1.0 : 0.0;
    };
    Trainer trainer(tiny::gpt2_model(), plan, options);
    trainer.train(kResumeSteps, nullptr);
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

int checkpoints_in(const std::string& folder) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files += entry.path().extension() == ".safetensors";
  }
  return files;
}

TEST(resume, a_killed_training_continues_to_the_same_bits) {
  std::mt19937 random(11);
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
    const TemporaryFolder whole;
    const TemporaryFolder killed;
    const Plan plan = tiny::plan_of_both_homes(sync);
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
  const std::vector<float> expected =
      train_to_the_end(tiny::plan_of_both_homes(SyncMode::kWait), whole.path());
  {
    Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait),
                    options_of_folder(changed.path()));
    trainer.train(10, nullptr);
  }
  Plan other = tiny::plan_of_both_homes(SyncMode::kSpeculate);
  other.optimizer.bucket_bytes = {1};
  other.optimizer.undo = UndoKind::kExact;
  other.weights.flow_share = 1;
  EXPECT_TRUE(tiny::same_bits(train_to_the_end(other, changed.path()), expected));
}

TEST(resume, only_the_last_two_checkpoints_are_kept) {
  const TemporaryFolder folder;
  train_to_the_end(tiny::plan_of_both_homes(SyncMode::kWait), folder.path());
  EXPECT_EQ(checkpoints_in(folder.path()), 2);
  EXPECT_EQ(newest_checkpoint(folder.path()), checkpoint_path(folder.path(), kResumeSteps));
}

TEST(resume, a_request_to_stop_ends_at_a_step_that_can_be_resumed) {
  const TemporaryFolder folder;
  const TemporaryFolder whole;
  const Plan plan = tiny::plan_of_both_homes(SyncMode::kSpeculate);
  const std::vector<float> expected = train_to_the_end(plan, whole.path());
  TrainResult result;
  {
    Trainer trainer(tiny::gpt2_model(), plan, options_of_folder(folder.path()));
    int seen = 0;
    result = trainer.train(kResumeSteps, [&](const StepRecord&) {
      if (++seen == 3) trainer.request_stop();
    });
  }
  EXPECT_TRUE(result.stopped || result.next_step == kResumeSteps);
  EXPECT_EQ(load_checkpoint_header(*newest_checkpoint(folder.path())).next_step, result.next_step);
  EXPECT_TRUE(tiny::same_bits(train_to_the_end(plan, folder.path()), expected));
}

// A run of 3 steps in a folder, begun anew.
std::vector<float> short_run(TrainerOptions options) {
  options.resume = false;
  Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait), options);
  trainer.train(3, nullptr);
  return trainer.parameters();
}

TEST(resume, a_folder_of_another_run_is_refused_unless_told_to_replace_it) {
  const TemporaryFolder folder;
  train_to_the_end(tiny::plan_of_both_homes(SyncMode::kWait), folder.path());
  TrainerOptions options = options_of_folder(folder.path());
  const std::string message = error_of([&] { short_run(options); });
  EXPECT_TRUE(mentions(message, "checkpoints of another run")) << message;
  EXPECT_TRUE(mentions(message, "--replace-checkpoints")) << message;
  EXPECT_EQ(newest_checkpoint(folder.path()), checkpoint_path(folder.path(), kResumeSteps));

  const std::string before = load_checkpoint_header(*newest_checkpoint(folder.path())).run;
  options.replace_checkpoints = true;
  const std::vector<float> expected = short_run(options);
  EXPECT_EQ(checkpoints_in(folder.path()), 1);
  EXPECT_EQ(newest_checkpoint(folder.path()), checkpoint_path(folder.path(), 3));
  EXPECT_NE(load_checkpoint_header(*newest_checkpoint(folder.path())).run, before);
  Trainer resumed(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait),
                  options_of_folder(folder.path()));
  EXPECT_TRUE(tiny::same_bits(resumed.parameters(), expected));
}

// A's newest carries the higher number, and B is never resumed from it.
TEST(resume, checkpoints_of_two_runs_are_never_mixed) {
  const TemporaryFolder a, b;
  train_to_the_end(tiny::plan_of_both_homes(SyncMode::kWait), a.path());
  short_run(options_of_folder(b.path()));
  const std::string newest = *newest_checkpoint(a.path());
  std::filesystem::copy_file(newest, checkpoint_path(b.path(), kResumeSteps));
  const std::string message = error_of([&] {
    Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait),
                    options_of_folder(b.path()));
  });
  EXPECT_TRUE(mentions(message, "two runs")) << message;
  EXPECT_TRUE(mentions(message, checkpoint_path(b.path(), 3))) << message;
}

TEST(resume, a_folder_is_locked_as_long_as_a_run_lives) {
  const TemporaryFolder folder;
  const auto open = [&] {
    return Trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait),
                   options_of_folder(folder.path()));
  };
  {
    const Trainer first = open();
    EXPECT_TRUE(mentions(error_of([&] { open(); }), "another process trains"));
  }
  EXPECT_EQ(error_of([&] { open(); }), "");
}

TEST(resume, what_a_killed_process_left_half_written_is_removed) {
  const TemporaryFolder folder;
  const std::string left = folder.write("step-00000010.safetensors.part-77-0", "half");
  const std::string other = folder.write("notes.part-77-0", "not ours");
  short_run(options_of_folder(folder.path()));
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST(resume, a_seed_data_or_numbers_that_changed_are_said) {
  const TemporaryFolder folder;
  short_run(options_of_folder(folder.path()));
  const Plan same = tiny::plan_of_both_homes(SyncMode::kWait);
  const auto notes_of = [&](const TrainerOptions& options, const Plan& plan) {
    std::string text;
    const Trainer trainer(tiny::gpt2_model(), plan, options);
    for (const std::string& note : trainer.notes()) text += note + "\n";
    return text;
  };
  TrainerOptions options = options_of_folder(folder.path());
  EXPECT_EQ(notes_of(options, same), "");
  options.seed = 7;
  EXPECT_EQ(notes_of(options, same), "");  // the default of a caller who was not asked for one
  options.seed_is_given = true;
  EXPECT_TRUE(mentions(notes_of(options, same), "--seed 7 is not used"));

  options = options_of_folder(folder.path());
  options.optimizer.beta2 = 0.99f;
  options.optimizer.learning_rate.floor = 0;
  EXPECT_EQ(notes_of(options, same),
            "the run goes on with --min-lr 0 (it was 0.0003), --beta2 0.99 (it was 0.95)\n");

  options = options_of_folder(folder.path());
  const auto notes_with = [&](const auto& change) {
    Plan plan = same;
    change(plan);
    return notes_of(options, plan);
  };
  EXPECT_EQ(notes_with([](Plan& plan) {
              plan.global_batch *= 2;
              plan.sequence_length -= 1;
            }),
            "the run goes on with global_batch 8 (it was 4), sequence_length 11 (it was 12)\n");
  EXPECT_EQ(notes_with([](Plan& plan) { plan.optimizer.sync = SyncMode::kDelay; }),
            "the run goes on with optimizer.sync delay (it was no delay)\n");
  EXPECT_EQ(notes_with([](Plan& plan) { plan.optimizer.sync = SyncMode::kSpeculate; }), "");
  EXPECT_EQ(notes_with([](Plan& plan) { plan.optimizer.moments = DType::kBf16; }),
            "the run goes on with optimizer.moments bf16 (it was fp32)\n");

  std::ifstream file(options.data);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  options.data = folder.write("same.txt", text);
  EXPECT_EQ(notes_of(options, same), "");  // moved, and the same
  text[text.size() - 1] ^= 1;
  options.data = folder.write("other.txt", text);
  EXPECT_TRUE(mentions(notes_of(options, same), "not those that the run had"));
  EXPECT_TRUE(mentions(notes_of(options, same), "other.txt"));
}

TEST(resume, another_model_is_refused_though_its_parameters_have_the_same_shapes) {
  const TemporaryFolder folder;
  TrainerOptions options = options_of_folder(folder.path());
  options.model_record = "{\n \"heads\": 2,\n \"ffn\": 640\n}";
  short_run(options);
  options.model_record = "{\n \"heads\": 4,\n \"ffn\": 640\n}";
  const std::string message = error_of([&] {
    Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait), options);
  });
  EXPECT_TRUE(mentions(message, R"(there "heads": 2, here "heads": 4)")) << message;
}

// From step 12 on no gradient is finite: at 14 the run ends, and what it wrote at 12, from which
// it cannot go on, is gone.
TEST(divergence, three_steps_running_end_the_run_and_the_last_good_checkpoint_stays) {
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate, SyncMode::kDelay}) {
    const TemporaryFolder folder;
    TrainerOptions options = options_of_folder(folder.path());
    options.checkpoint_period_steps = 4;
    options.gradient_factor = [](int32_t step) { return step < 12 ? 1.0 : std::nan(""); };
    TrainResult result;
    {
      Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(sync), options);
      result = trainer.train(kResumeSteps, nullptr, true);
    }
    ASSERT_TRUE(result.divergence) << to_string(sync);
    EXPECT_EQ(result.divergence->step, 12);
    EXPECT_TRUE(mentions(result.divergence->what, "gradient norm nan"));
    EXPECT_LT(result.next_step, kResumeSteps);
    EXPECT_EQ(result.newest_checkpoint, checkpoint_path(folder.path(), 8)) << to_string(sync);
    EXPECT_EQ(checkpoints_in(folder.path()), 1);
  }
}

TEST(divergence, two_bad_steps_are_got_over) {
  const TemporaryFolder folder;
  TrainerOptions options = options_of_folder(folder.path());
  options.gradient_factor = [](int32_t step) {
    return step % 4 < 2 && step > 8 ? std::nan("") : 1.0;
  };
  Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kSpeculate), options);
  const TrainResult result = trainer.train(kResumeSteps, nullptr);
  EXPECT_FALSE(result.divergence);
  EXPECT_EQ(result.newest_checkpoint, checkpoint_path(folder.path(), kResumeSteps));
}

// The scale of fp16 begins too high for these gradients and is halved step after step.
TEST(divergence, overflows_under_a_loss_scale_that_can_fall_are_not_counted) {
  Plan plan = tiny::plan_of_both_homes(SyncMode::kWait);
  plan.dtype = DType::kF16;
  TrainerOptions options = tiny::options_for(kResumeSteps);
  options.gradient_factor = [](int32_t) { return 4096.0; };
  options.optimizer.clip_norm = 1;
  Trainer trainer(tiny::gpt2_model(), plan, options);
  const TrainResult result = trainer.train(kResumeSteps, nullptr);
  int skipped = 0;
  for (const StepRecord& record : result.records) skipped += record.skipped;
  EXPECT_GE(skipped, 3);
  EXPECT_FALSE(result.divergence);
}

// A decay that makes weights leave the range of numbers: whatever is kept can be gone on from.
TEST(divergence, weights_that_blow_up_end_the_run_however_few_steps_it_has) {
  for (const int64_t steps : {2, 3, 4, 24}) {
    const TemporaryFolder folder;
    TrainerOptions options = options_of_folder(folder.path());
    options.checkpoint_period_steps = 1;
    options.optimizer.weight_decay = 1e30f;
    std::optional<std::string> kept;
    {
      Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait), options);
      const TrainResult result = trainer.train(steps, nullptr, true);
      EXPECT_TRUE(result.divergence) << steps;
      kept = result.newest_checkpoint;
    }
    if (!kept) continue;
    options.optimizer.weight_decay = 0;
    Trainer trainer(tiny::gpt2_model(), tiny::plan_of_both_homes(SyncMode::kWait), options);
    EXPECT_TRUE(std::isfinite(trainer.validation_loss(1))) << *kept;
  }
}

// The gradients of the last step are in the weights, and wait in the checkpoint.
TEST(delay, the_last_gradient_is_applied_at_the_end_and_a_longer_run_does_not_see_it) {
  const TemporaryFolder folder;
  const TemporaryFolder whole;
  const Plan plan = tiny::plan_of_both_homes(SyncMode::kDelay);
  const std::vector<float> straight = train_to_the_end(plan, whole.path());
  std::vector<float> early;
  {
    Trainer trainer(tiny::gpt2_model(), plan, options_of_folder(folder.path()));
    const TrainResult result = trainer.train(10, nullptr);
    EXPECT_EQ(std::ssize(result.records), 10);
    early = trainer.parameters();
    EXPECT_EQ(early, tiny::plain_loop(tiny::gpt2_model(), plan, options_of_folder(""), 10));
  }
  {
    Trainer again(tiny::gpt2_model(), plan, options_of_folder(folder.path()));
    again.train(10, nullptr);  // nothing is left to do but that
    EXPECT_TRUE(tiny::same_bits(again.parameters(), early));
  }
  EXPECT_TRUE(tiny::same_bits(train_to_the_end(plan, folder.path()), straight));
}

TEST(weights, exported_and_imported_are_the_same_training) {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  TrainerOptions options = tiny::options_for(kResumeSteps);
  Trainer first(tiny::llama_model(), tiny::wait_plan(), options);
  first.train(3, nullptr);
  first.export_weights(path);
  options.initial_weights = path;
  Trainer second(tiny::llama_model(), tiny::plan_of_both_homes(SyncMode::kSpeculate), options);
  EXPECT_TRUE(tiny::same_bits(first.parameters(), second.parameters()));
  EXPECT_EQ(first.validation_loss(2), second.validation_loss(2));
}

// Writes the tensors of a file into two files and an index, as Hugging Face does with large models.
void split(const std::string& file, const std::string& folder, bool with_second) {
  const SafetensorsReader reader(file);
  std::string map;
  for (const int part : {0, 1}) {
    const std::string name = "model-" + std::to_string(part) + ".safetensors";
    std::vector<TensorDeclaration> declarations;
    std::vector<const StoredTensor*> tensors;
    for (size_t i = static_cast<size_t>(part); i < reader.tensors().size(); i += 2) {
      const StoredTensor& tensor = reader.tensors()[i];
      declarations.push_back({tensor.name, tensor.type, tensor.shape});
      tensors.push_back(&tensor);
      map += (map.empty() ? "\"" : ", \"") + tensor.name + "\": \"" + name + "\"";
    }
    if (part == 1 && !with_second) continue;
    SafetensorsWriter writer(folder + "/" + name, declarations, {});
    for (const StoredTensor* tensor : tensors) {
      std::vector<std::byte> bytes(static_cast<size_t>(tensor->bytes));
      reader.read(*tensor, bytes);
      writer.write(bytes);
    }
    writer.commit();
  }
  std::ofstream(folder + "/model.safetensors.index.json")
      << R"({"metadata": {"total_size": 1.5e3, "of": [true, {"x": null}]}, "weight_map": {)" << map
      << "}}\n";
}

TEST(weights, a_folder_of_one_file_or_of_several_with_their_index_is_imported) {
  const TemporaryFolder one, several, torn, empty;
  TrainerOptions options = tiny::options_for(kResumeSteps);
  Trainer first(tiny::llama_model(), tiny::wait_plan(), options);
  first.train(3, nullptr);
  first.export_weights(one / "model.safetensors");
  split(one / "model.safetensors", several.path(), true);
  split(one / "model.safetensors", torn.path(), false);
  for (const TemporaryFolder* folder : {&one, &several}) {
    options.initial_weights = folder->path();
    Trainer second(tiny::llama_model(), tiny::wait_plan(), options);
    EXPECT_TRUE(tiny::same_bits(first.parameters(), second.parameters()));
  }
  const auto refusal = [&](const std::string& path) {
    options.initial_weights = path;
    return error_of([&] { Trainer trainer(tiny::llama_model(), tiny::wait_plan(), options); });
  };
  EXPECT_TRUE(mentions(refusal(torn.path()), "model-1.safetensors"));
  EXPECT_TRUE(mentions(refusal(empty.path()), "neither model.safetensors nor"));
  std::ofstream(empty / "model.safetensors.index.json")
      << R"({"weight_map": {"a": "../model.safetensors"}})";
  EXPECT_TRUE(mentions(refusal(empty.path()), "no file beside it"));
}

// Of any size of a file: what is exported is imported to the same bits, no file is larger but for
// one tensor alone, the index names every tensor once, and what was there before is not mixed in.
TEST(weights, exported_into_several_files_are_imported_to_the_same_bits) {
  TrainerOptions options = tiny::options_for(kResumeSteps);
  Plan ranks = tiny::wait_plan();
  ranks.data = ranks.devices = 2;
  ranks.zero_stage = 3;
  Trainer first(tiny::llama_model(), ranks, options);
  const TemporaryFolder several;
  const std::set<std::string> of_others = {"model-00001-of-2.safetensors",
                                           "other-00001-of-00002.safetensors"};
  for (const std::string& name : of_others) std::ofstream(several / name) << "of somebody else";
  for (const int64_t most : {int64_t{1}, int64_t{30'000}, int64_t{100'000}, int64_t{1} << 40}) {
    first.train(first.next_step() + 1, nullptr);
    first.export_weights(several / "model.safetensors", most);
    const bool one = std::filesystem::exists(several / "model.safetensors");
    EXPECT_EQ(one, most == int64_t{1} << 40);
    std::set<std::string> there;
    for (const auto& entry : std::filesystem::directory_iterator(several.path())) {
      const std::string name = entry.path().filename().string();
      if (!of_others.contains(name)) there.insert(name);
      if (one || entry.path().extension() != ".safetensors" || of_others.contains(name)) continue;
      const SafetensorsReader reader(entry.path().string());
      int64_t bytes = 0;
      for (const StoredTensor& tensor : reader.tensors()) bytes += tensor.bytes;
      EXPECT_TRUE(bytes <= most || reader.tensors().size() == 1) << entry.path() << bytes;
    }
    // Nothing of the exports before it.
    if (one) EXPECT_EQ(there, std::set<std::string>{"model.safetensors"});
    for (const std::string& name : there) {
      const std::string end = fmt::format("-of-{:05}.safetensors", there.size() - 1);
      EXPECT_TRUE(one || name.ends_with(end) || name == "model.safetensors.index.json") << name;
    }
    options.initial_weights = several.path();
    options.seed = 7;
    Trainer second(tiny::llama_model(), tiny::wait_plan(), options);
    EXPECT_TRUE(tiny::same_bits(first.parameters(), second.parameters())) << most;
  }
}

// Weights that another program wrote, and a folder of such a name.
TEST(weights, an_export_removes_nothing_that_is_not_of_ballast) {
  Trainer trainer(tiny::one_layer_gpt2(), tiny::wait_plan(), tiny::options_for(kResumeSteps));
  const TemporaryFolder folder;
  const std::string theirs = folder / "model-00001-of-00009.safetensors";
  const std::vector<TensorDeclaration> one = {{"a", StoredType::kF32, {1}}};
  std::ofstream(theirs, std::ios::binary) << safetensors_preamble(one, {}) << "1234";
  ASSERT_FALSE(SafetensorsReader(theirs).has_checksums());
  std::filesystem::create_directory(folder / "model-00002-of-00009.safetensors");
  const std::string index = folder / "model.safetensors.index.json";
  std::ofstream(index) << "{}";
  trainer.export_weights(folder / "model.safetensors", int64_t{1} << 40);
  EXPECT_TRUE(std::filesystem::exists(theirs) && std::filesystem::exists(index));
  std::filesystem::remove(folder / "model.safetensors");
  trainer.export_weights(folder / "model.safetensors", 30'000);
  EXPECT_TRUE(std::filesystem::exists(theirs));
  EXPECT_TRUE(std::filesystem::is_directory(folder / "model-00002-of-00009.safetensors"));
  EXPECT_EQ(WeightFiles(folder.path()).holds("transformer.wte.weight"), true);
}

TEST(weights, are_cut_into_files_in_their_order) {
  const auto tensor = [](int64_t count) {
    return TensorDeclaration{std::to_string(count), StoredType::kF32, {count, 2}};
  };
  const std::vector<TensorDeclaration> all = {tensor(6), tensor(6), tensor(2),
                                              tensor(6), tensor(2), tensor(40)};
  using Counts = std::vector<size_t>;
  EXPECT_EQ(cut_into_files(all, std::nullopt), Counts{6});
  EXPECT_EQ(cut_into_files(all, 80), (Counts{1, 2, 2, 1}));  // 48; 48 + 16; 48 + 16; 320
  EXPECT_EQ(cut_into_files(all, 79), (Counts{1, 2, 2, 1}));
  EXPECT_EQ(cut_into_files(all, 63), (Counts{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(cut_into_files(all, 496), Counts{6});
  EXPECT_EQ(cut_into_files(all, 495), (Counts{5, 1}));
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
  TrainerOptions options = tiny::options_for(kResumeSteps);
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
    plans.push_back(tiny::plan_of_both_homes(SyncMode::kWait));
    plans.back().optimizer.stream_share = share;
  }
  plans.push_back(tiny::plan_of_both_homes(SyncMode::kWait));
  plans.back().optimizer.placement = OptimizerPlacement::kNvme;
  plans.back().optimizer.gpu_buckets = 0;
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    plans.push_back(tiny::plan_of_both_homes(sync));
    plans.back().optimizer.moments = DType::kBf16;
  }
  plans.push_back(plans.front());
  plans.back().optimizer.moments = DType::kBf16;
  for (const Plan& plan : plans) {
    const TemporaryFolder whole, parts;
    const std::vector<float> straight = train_to_the_end(plan, whole.path());
    {
      Trainer trainer(tiny::gpt2_model(), plan, options_of_folder(parts.path()));
      trainer.train(kResumeSteps / 2 + 1, nullptr);
    }
    EXPECT_TRUE(tiny::same_bits(straight, train_to_the_end(plan, parts.path())))
        << to_string(plan.optimizer.sync) << " " << to_string(plan.optimizer.moments) << " "
        << plan.optimizer.stream_share;
  }
}

}  // namespace
}  // namespace ballast
