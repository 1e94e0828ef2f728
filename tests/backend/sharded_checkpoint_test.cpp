// Checkpoints of which every rank writes its part: each value stands in them once, whatever plan
// runs resumes them to the bits of the same state in one file, and one is never half of two.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>

#include "backend/checkpoint/rank_parts.h"
#include "backend/checkpoint/shards.h"
#include "backend/train/checkpoint.h"
#include "backend/train/checkpoint_folder.h"
#include "tests/backend/same_files.h"
#include "tests/backend/split_training.h"
#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;
using tiny::Degrees;
using tiny::Homes;

constexpr int64_t kKept = 3;
constexpr int64_t kTrainedOn = 5;

// --- elements ------------------------------------------------------------------------------------

std::set<int64_t> elements_of(const ElementRuns& runs) {
  std::set<int64_t> all;
  for (int64_t i = 0; i < runs.runs; ++i) {
    for (int64_t j = 0; j < runs.run; ++j) all.insert(runs.first + i * runs.stride + j);
  }
  return all;
}

ElementRuns drawn_runs(std::mt19937& random, int64_t stride) {
  const auto draw = [&](int64_t most) {
    return std::uniform_int_distribution<int64_t>(1, most)(random);
  };
  ElementRuns runs{draw(30) - 1, draw(stride), stride, draw(4)};
  if (runs.runs == 1) runs.stride = 0;
  return runs;
}

TEST(element_runs, that_do_not_meet_have_no_element_in_common) {
  std::mt19937 random(5);
  int apart = 0, split = 0;
  for (int i = 0; i < 60'000; ++i) {
    const int64_t stride = 2 + i % 9;
    const ElementRuns one = drawn_runs(random, stride);
    const ElementRuns other = drawn_runs(random, i % 3 == 0 ? stride + 1 : stride);
    const std::set<int64_t> of_one = elements_of(one);
    const std::set<int64_t> of_other = elements_of(other);
    const bool common =
        std::ranges::any_of(of_one, [&](int64_t e) { return of_other.contains(e); });
    if (common) EXPECT_TRUE(may_meet(one, other)) << ballast::text_of({{one, other}});
    apart += may_meet(one, other) ? 0 : 1;
    const bool interleaved = !common && one.first < other.end() && other.first < one.end();
    split += interleaved && !may_meet(one, other) ? 1 : 0;
  }
  EXPECT_GT(apart, 1000);
  EXPECT_GT(split, 1000);  // parts of the columns of one matrix
}

TEST(rank_parts, pieces_of_a_part_have_its_values_in_their_order) {
  std::mt19937 random(7);
  int64_t across = 0;  // pieces that have some of two runs
  for (int i = 0; i < 2'000; ++i) {
    RankPart part;
    int64_t own = 0;
    for (int k = 0; k < 1 + i % 3; ++k) {
      const ElementRuns whole = drawn_runs(random, 9);
      part.runs.push_back({whole, own, whole.runs == 1 ? 0 : whole.run + i % 2});
      part.count += whole.count();
      own += 2 * whole.count() + 9;
    }
    const auto read = [](int64_t begin, std::span<float> values) {
      for (float& value : values) value = static_cast<float>(begin++);
    };
    std::vector<float> whole(static_cast<size_t>(part.count)), pieces = whole;
    read_part(part, read, whole);
    const int64_t most = 1 + i % 11;
    for (int64_t begin = 0; begin < part.count; begin += most) {
      const int64_t count = std::min(most, part.count - begin);
      const RankPart piece = piece_of(part, begin, count);
      EXPECT_EQ(piece.count, count);
      across += piece.runs.size() > 1 ? 1 : 0;
      read_part(piece, read,
                std::span(pieces).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
    }
    ASSERT_EQ(pieces, whole) << i;
  }
  EXPECT_GT(across, 1000);
}

TEST(element_runs, text_is_read_back_and_any_other_refused) {
  const std::vector<ElementRuns> all = {{0, 4096, 0, 1}, {8192, 64, 256, 12}, {0, 1, 1, 2}};
  EXPECT_EQ(text_of(all), "0:4096:0:1;8192:64:256:12;0:1:1:2");
  EXPECT_EQ(parse_runs(text_of(all), "here"), all);
  EXPECT_TRUE(parse_runs("", "here").empty());
  for (const char* text :
       {"0", "0:1:0", "0:1:0:1:", "a:1:0:1", "-1:1:0:1", "0:0:0:1", "0:1:0:0", "0:8:4:2", "0:1:2:1",
        "0:1:0:1;;", "0:1:0:1 ", "0:1:4611686018427387904:3", "99999999999999999999:1:0:1"}) {
    const std::string message = error_of([&] { parse_runs(text, "here"); });
    EXPECT_TRUE(mentions(message, "here: '")) << text << ": " << message;
  }
}

// --- every plan ----------------------------------------------------------------------------------

struct Case {
  Model model;
  Degrees degrees;
  SyncMode sync = SyncMode::kWait;
  int64_t zero_group = 0;
};

// Of a batch that any of these numbers of ranks divides.
Plan plan_for(const Degrees& degrees, SyncMode sync = SyncMode::kWait, Homes homes = Homes::kGpu) {
  Plan plan = tiny::plan_of(degrees, sync, homes);
  plan.global_batch = 12;
  return plan;
}

Plan plan_of_case(const Case& one) {
  Plan plan = plan_for(
      one.degrees, one.sync,
      one.degrees.zero_stage > 0 && one.degrees.expert == 1 ? Homes::kOptimizerAway : Homes::kGpu);
  plan.zero_group = one.zero_group;
  return plan;
}

std::string text_of_case(const Case& one) {
  return one.model.name + " " + tiny::text_of(one.degrees) +
         (one.zero_group > 0 ? "groups of " + std::to_string(one.zero_group) + " " : "") +
         std::string(to_string(one.sync));
}

// A vocabulary that does not divide; a tied embedding; experts of their own and in one array.
std::vector<Case> cases() {
  Model gpt2 = tiny::gpt2_model();
  Model llama = tiny::llama_model();
  gpt2.vocab = llama.vocab = 259;
  const std::vector<Model> newer = tiny::newer_models();
  std::vector<Case> all;
  for (const Degrees& degrees :
       {Degrees{.data = 2}, Degrees{.data = 3, .zero_stage = 1},
        Degrees{.data = 3, .zero_stage = 2}, Degrees{.data = 3, .zero_stage = 3},
        Degrees{.tensor = 2}, Degrees{.tensor = 2, .tensor_sequence = true},
        Degrees{.tensor = 2, .data = 2}, Degrees{.tensor = 2, .data = 2, .zero_stage = 2},
        Degrees{.tensor = 2, .data = 2, .zero_stage = 3}, Degrees{.sequence = 2, .zero_stage = 1},
        Degrees{.context = 2}, Degrees{.data = 2, .pipeline = 2, .zero_stage = 1},
        Degrees{.tensor = 2, .pipeline = 2}}) {
    all.push_back({gpt2, degrees});
    all.push_back({llama, degrees});
  }
  for (const SyncMode sync : {SyncMode::kDelay, SyncMode::kSpeculate}) {
    for (const int64_t stage : {0, 1, 3}) {
      all.push_back({gpt2, Degrees{.data = 2, .zero_stage = stage}, sync});
    }
    all.push_back({gpt2, Degrees{.tensor = 2, .data = 2, .zero_stage = 1}, sync});
  }
  all.push_back({gpt2, Degrees{.data = 4, .zero_stage = 1}, SyncMode::kWait, 2});
  all.push_back({gpt2, Degrees{.data = 4, .zero_stage = 3}, SyncMode::kWait, 2});
  for (const Model& model : newer) {
    if (model.experts == 0) continue;
    for (const int64_t stage : {0, 1, 3}) {
      all.push_back({model, Degrees{.data = 4, .expert = 2, .zero_stage = stage}});
    }
  }
  return all;
}

TrainerOptions options_in(const std::string& folder) {
  TrainerOptions options = tiny::gentle();
  options.checkpoint_folder = folder;
  options.resume = true;
  return options;
}

// What stands in a checkpoint of shards, gathered: by tensor.
std::map<std::string, std::vector<float>> gathered(const std::string& manifest) {
  const SafetensorsReader reader(manifest);
  const std::vector<Shard> shards = shards_of(reader.metadata(), manifest);
  std::map<std::string, std::vector<float>> all;
  std::map<std::string, std::vector<int>> times;
  for (const Shard& shard : shards) {
    const SafetensorsReader file((fs::path(manifest).parent_path() / shard.file).string());
    for (const StoredTensor& tensor : file.tensors()) {
      std::vector<float> stored(static_cast<size_t>(tensor.elements()));
      file.read(tensor, std::as_writable_bytes(std::span(stored)));
      const std::string parameter = tensor.name.substr(tensor.name.find('.') + 1);
      size_t at = 0;
      for (const ElementRuns& runs :
           parse_runs(file.metadata().at(elements_key(parameter)), parameter)) {
        std::vector<float>& to = all[tensor.name];
        std::vector<int>& of_tensor = times[tensor.name];
        to.resize(std::max(to.size(), static_cast<size_t>(runs.end())));
        of_tensor.resize(to.size());
        for (int64_t i = 0; i < runs.runs; ++i) {
          for (int64_t j = 0; j < runs.run; ++j, ++at) {
            const auto element = static_cast<size_t>(runs.first + i * runs.stride + j);
            to[element] = stored[at];
            ++of_tensor[element];
          }
        }
      }
      EXPECT_EQ(at, stored.size()) << tensor.name;
    }
  }
  for (const auto& [name, counts] : times) {
    EXPECT_TRUE(std::ranges::all_of(counts, [](int count) { return count == 1; })) << name;
  }
  return all;
}

std::map<std::string, std::vector<int64_t>> shapes_of(const Model& model) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Module& module : modules_of(model)) {
    for (const Parameter& parameter : module.parameters) shapes[parameter.name] = parameter.shape();
  }
  return shapes;
}

// The same in one file, as one rank writes it.
void write_in_one_file(const Model& model, const std::string& manifest, const std::string& path) {
  StoredMetadata metadata = SafetensorsReader(manifest).metadata();
  std::erase_if(metadata, [](const auto& one) { return one.first.starts_with("shard"); });
  metadata["format"] = "ballast.checkpoint/3";
  const std::map<std::string, std::vector<float>> values = gathered(manifest);
  std::vector<TensorDeclaration> tensors;
  for (const auto& [name, floats] : values) {
    const std::string parameter = name.substr(name.find('.') + 1);
    tensors.push_back({name, StoredType::kF32, shapes_of(model).at(parameter)});
  }
  SafetensorsWriter writer(path, tensors, metadata);
  for (const auto& [name, floats] : values) writer.write(std::as_bytes(std::span(floats)));
  writer.commit();
}

std::vector<float> trained_on(const Model& model, const Plan& plan, const std::string& folder) {
  Trainer trainer(model, plan, options_in(folder));
  EXPECT_EQ(trainer.next_step(), kKept);
  trainer.train(kTrainedOn, nullptr);
  return trainer.parameters();
}

// Every plan's checkpoint holds each value of the model's parameters once, and each rank's shard a
// part that is no larger than its share.
TEST(sharded_checkpoint, holds_every_value_once_whatever_the_plan) {
  for (const Case& one : cases()) {
    const TemporaryFolder folder;
    const Plan plan = plan_of_case(one);
    const TrainerOptions options = options_in(folder.path());
    Trainer trainer(one.model, plan, options);
    trainer.train(kKept, nullptr);
    const std::string manifest = checkpoint_path(folder.path(), kKept);
    const auto values = gathered(manifest);
    std::map<std::string, size_t> counts;  // by array
    for (const auto& [name, floats] : values) {
      counts[name.substr(0, name.find('.'))] += floats.size();
    }
    const size_t parameters = trainer.parameters().size();
    const size_t arrays = one.sync == SyncMode::kDelay ? 4 : 3;
    EXPECT_EQ(counts.size(), arrays) << text_of_case(one);
    for (const auto& [array, count] : counts) EXPECT_EQ(count, parameters) << array;
    const std::vector<std::string> shards = shards_of_checkpoint(manifest);
    const auto ranks = static_cast<size_t>(plan.devices / plan.pipeline);
    EXPECT_EQ(shards.size(), ranks) << text_of_case(one);
    for (const std::string& shard : shards) {
      const double share =
          static_cast<double>(fs::file_size(shard)) / static_cast<double>(4 * arrays * parameters);
      EXPECT_LT(share, 1.4 / static_cast<double>(ranks)) << text_of_case(one) << shard;
    }
    ASSERT_FALSE(HasFailure()) << text_of_case(one);
  }
  std::printf("%zu plans\n", cases().size());
}

// Every plan resumes what every other plan of its model has kept, to the bits of that state in one
// file: masters, moments and gradients that wait.
TEST(sharded_checkpoint, resumes_as_any_plan_to_the_bits_of_one_file) {
  const std::vector<Case> all = cases();
  std::mt19937 random(11);
  int resumed = 0;
  for (const Case& one : all) {
    const TemporaryFolder kept;
    const TemporaryFolder single;
    Trainer(one.model, plan_of_case(one), options_in(kept.path())).train(kKept, nullptr);
    const std::string manifest = checkpoint_path(kept.path(), kKept);
    write_in_one_file(one.model, manifest, checkpoint_path(single.path(), kKept));
    std::vector<Case> others = {one, {one.model, Degrees{}, one.sync}};
    std::vector<Case> drawn;
    std::ranges::copy_if(all, std::back_inserter(drawn), [&](const Case& other) {
      return other.model.name == one.model.name && other.sync == one.sync;
    });
    std::ranges::sample(drawn, std::back_inserter(others), 2, random);
    for (const Case& other : others) {
      const Plan plan = plan_of_case(other);
      const TemporaryFolder from_shards, from_one;
      fs::copy(kept.path(), from_shards.path());
      fs::copy(single.path(), from_one.path());
      EXPECT_TRUE(tiny::same_bits(trained_on(other.model, plan, from_shards.path()),
                                  trained_on(other.model, plan, from_one.path())))
          << text_of_case(one) << " as " << text_of_case(other);
      ++resumed;
    }
  }
  std::printf("%d ways to resume\n", resumed);
}

// --- what befalls them ---------------------------------------------------------------------------

Plan three_ranks(int64_t zero_stage = 2) {
  return plan_for(Degrees{.data = 3, .zero_stage = zero_stage}, SyncMode::kWait,
                  Homes::kOptimizerAway);
}

TrainerOptions periodic(const std::string& folder) {
  TrainerOptions options = options_in(folder);
  options.checkpoint_period_steps = kKept;
  return options;
}

void train_to(int64_t steps, const std::string& folder, const Plan& plan = three_ranks()) {
  Trainer(tiny::one_layer_gpt2(), plan, periodic(folder)).train(steps, nullptr);
}

std::vector<std::string> files_of_checkpoint(const std::string& manifest) {
  std::vector<std::string> files = shards_of_checkpoint(manifest);
  files.push_back(manifest);
  return files;
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

void flip(const std::string& path, int64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(bit / 8);
  const int byte = file.get();
  file.seekp(bit / 8);
  file.put(static_cast<char>(byte ^ (1 << (bit % 8))));
  ASSERT_TRUE(file.good());
}

class Damaged : public testing::Test {
 protected:
  Damaged() {
    train_to(2 * kKept, folder.path());
    files = files_of_checkpoint(newest());
  }
  std::string older() const { return checkpoint_path(folder.path(), kKept); }
  std::string newest() const { return checkpoint_path(folder.path(), 2 * kKept); }
  // The older one is taken, every file of the newest that is there set aside, and put back.
  void expect_older(const std::string& what) {
    const CheckpointFolder checkpoints(folder.path());
    const CheckpointFolder::ToResume found = checkpoints.to_resume();
    ASSERT_EQ(found.checkpoint, older()) << what;
    ASSERT_EQ(found.notes.size(), 1u) << what;
    ASSERT_TRUE(mentions(found.notes[0], newest() + ".damaged")) << found.notes[0];
    for (const std::string& file : files) {
      ASSERT_FALSE(fs::exists(file)) << what;
      if (fs::exists(file + ".damaged")) fs::rename(file + ".damaged", file);
    }
  }
  void expect_newest() {
    const CheckpointFolder::ToResume found = CheckpointFolder(folder.path()).to_resume();
    EXPECT_EQ(found.checkpoint, newest());
    EXPECT_TRUE(found.notes.empty());
  }

  TemporaryFolder folder;
  std::vector<std::string> files;  // of the newest
};

TEST_F(Damaged, any_flipped_bit_of_any_file_is_found) {
  std::mt19937 random(3);
  for (int i = 0; i < 400; ++i) {
    const std::string& file = files[static_cast<size_t>(i) % files.size()];
    const auto bits = 8 * static_cast<int64_t>(fs::file_size(file));
    // Every second one in the first kilobytes, the header.
    const int64_t most = i % 8 < 4 ? bits : std::min<int64_t>(bits, 8 * 4096);
    const auto bit = std::uniform_int_distribution<int64_t>(0, most - 1)(random);
    flip(file, bit);
    expect_older(file + ", bit " + std::to_string(bit));
    ASSERT_FALSE(HasFatalFailure());
    flip(file, bit);
  }
  expect_newest();
}

TEST_F(Damaged, a_shard_that_is_missing_cut_or_another_ones_is_found) {
  const TemporaryFolder beside;
  for (size_t i = 0; i + 1 < files.size(); ++i) {
    const std::string copy = beside / "copy";
    fs::rename(files[i], copy);
    expect_older("missing");
    ASSERT_FALSE(HasFatalFailure());
    fs::copy_file(shards_of_checkpoint(older())[i], files[i]);  // whole, and of another step
    expect_older("another one's");
    ASSERT_FALSE(HasFatalFailure());
    fs::remove(files[i]);
    fs::copy_file(copy, files[i]);
    fs::resize_file(files[i], fs::file_size(copy) / 2);
    expect_older("cut");
    ASSERT_FALSE(HasFatalFailure());
    fs::remove(files[i]);
    fs::rename(copy, files[i]);
  }
  expect_newest();
}

TEST_F(Damaged, a_manifest_that_names_another_place_is_refused) {
  StoredMetadata metadata = SafetensorsReader(newest()).metadata();
  const std::string named = metadata.at("shard/00000");
  for (const std::string& text :
       {named.substr(0, 9) + "../" + named.substr(9), named.substr(0, 9),
        std::string("xyz ") + named, named.substr(0, 9) + "step-00000003.safetensors",
        std::string()}) {
    metadata["shard/00000"] = text;
    EXPECT_TRUE(mentions(error_of([&] { shards_of(metadata, "here"); }), "names no shard beside"))
        << text;
  }
  metadata["shard/00000"] = named;
  for (const char* count : {"0", "4", "-1", "x", "99999999999999999999"}) {
    metadata["shards"] = count;
    EXPECT_TRUE(mentions(error_of([&] { shards_of(metadata, "here"); }), "here: it ")) << count;
  }
}

// Shards without a manifest, as a kill leaves them, go with the next that opens the folder; so do
// half written ones, and those of a checkpoint stay.
TEST_F(Damaged, shards_that_no_checkpoint_names_are_removed) {
  const std::set<std::string> before = names_in(folder.path());
  fs::copy_file(files[0], folder / shard_file({9, "0123abcd", 0, 3}));
  fs::copy_file(files[0], folder / shard_file({2 * kKept, "0123abcd", 0, 3}));
  folder.write(shard_file({9, "0123abcd", 1, 3}) + ".part-999999999-1", "half");
  EXPECT_EQ(names_in(folder.path()).size(), before.size() + 3);
  {
    const CheckpointFolder opened(folder.path());
  }
  EXPECT_EQ(names_in(folder.path()), before);
  // Of a manifest that cannot be read nobody knows which are its.
  flip(newest(), 8 * 200);
  fs::copy_file(files[0], folder / shard_file({2 * kKept, "0123abcd", 0, 3}));
  {
    const CheckpointFolder opened(folder.path());
  }
  EXPECT_EQ(names_in(folder.path()).size(), before.size() + 1);
}

TEST(sharded_checkpoint, goes_whole_when_newer_ones_are_there) {
  const TemporaryFolder folder;
  train_to(5 * kKept, folder.path());
  std::set<std::string> expected = {"lock"};
  for (const int64_t step : {4 * kKept, 5 * kKept}) {
    for (const std::string& file : files_of_checkpoint(checkpoint_path(folder.path(), step))) {
      expected.insert(fs::path(file).filename().string());
    }
  }
  EXPECT_EQ(names_in(folder.path()), expected);
  EXPECT_EQ(expected.size(), 1 + 2 * 4u);
}

// What other ranks and one rank keep in one folder in turns.
TEST(sharded_checkpoint, ranks_and_one_alone_go_on_in_turns) {
  const TemporaryFolder folder;
  const std::vector<Plan> plans = {three_ranks(), plan_for(Degrees{}), three_ranks(3),
                                   plan_for(Degrees{.tensor = 2}), plan_for(Degrees{})};
  int64_t steps = 0;
  for (const Plan& plan : plans) train_to(steps += kKept, folder.path(), plan);
  EXPECT_TRUE(shards_of_checkpoint(checkpoint_path(folder.path(), steps)).empty());
  EXPECT_EQ(shards_of_checkpoint(checkpoint_path(folder.path(), steps - kKept)).size(), 2u);
  EXPECT_EQ(names_in(folder.path()).size(), 1 + 1 + 3u);
}

TEST(sharded_checkpoint, of_a_run_that_is_replaced_goes_once_another_is_there) {
  const TemporaryFolder folder;
  train_to(kKept, folder.path());
  const std::vector<std::string> before =
      files_of_checkpoint(checkpoint_path(folder.path(), kKept));
  TrainerOptions options = periodic(folder.path());
  options.resume = false;
  options.replace_checkpoints = true;
  Trainer(tiny::one_layer_gpt2(), three_ranks(), options).train(kKept, nullptr);
  for (const std::string& file : before) {
    EXPECT_EQ(fs::exists(file), file == before.back()) << file;  // the manifest has the name again
  }
  EXPECT_EQ(names_in(folder.path()).size(), 1 + 4u);
}

// Of which one rank's shards cannot be written.
class FullForOne : public SameFiles {
 public:
  explicit FullForOne(std::string part) : part_(std::move(part)) {}
  int open(const std::string& path, int flags, mode_t mode) override {
    if (path.find(part_) != std::string::npos && (flags & O_CREAT) != 0) {
      errno = ENOSPC;
      return -1;
    }
    return SameFiles::open(path, flags, mode);
  }

 private:
  std::string part_;
};

// Whichever rank cannot write, in whichever checkpoint, beside the steps or not: all end with one
// line that names it, and the older checkpoint is what a run resumes.
TEST(sharded_checkpoint, that_one_rank_cannot_write_is_kept_by_none) {
  for (const bool in_background : {true, false}) {
    for (const int rank : {0, 1, 2}) {
      for (const int64_t step : {2 * kKept, 3 * kKept}) {  // at the end, and before it
        const TemporaryFolder folder;
        train_to(kKept, folder.path());
        const std::string part = fmt::format("-{}-of-3", rank);
        FullForOne files(part);
        TrainerOptions options = periodic(folder.path());
        options.checkpoints_in_background = in_background;
        options.files = &files;
        const std::string message = error_of(
            [&] { Trainer(tiny::one_layer_gpt2(), three_ranks(), options).train(step, nullptr); });
        EXPECT_TRUE(mentions(message, "No space left on device")) << message;
        EXPECT_TRUE(mentions(message, part)) << message;
        const CheckpointFolder::ToResume found = CheckpointFolder(folder.path()).to_resume();
        EXPECT_EQ(found.checkpoint, checkpoint_path(folder.path(), kKept));
        EXPECT_TRUE(found.notes.empty());
        EXPECT_EQ(names_in(folder.path()).size(), 1 + 4u);
      }
    }
  }
}

TEST(sharded_checkpoint, copies_of_all_ranks_have_to_fit_and_each_copies_its_part) {
  const TemporaryFolder folder;
  TrainerOptions options = periodic(folder.path());
  int64_t all = 0;
  {
    Trainer alone(tiny::one_layer_gpt2(), plan_for(Degrees{}), options);
    all = 12 * static_cast<int64_t>(alone.parameters().size());
  }
  options.available_memory = [&] { return Bytes{all - 1}; };
  const std::string message =
      error_of([&] { Trainer(tiny::one_layer_gpt2(), three_ranks(), options); });
  EXPECT_TRUE(mentions(message, "--pause-for-checkpoints")) << message;
  options.checkpoints_in_background = false;
  EXPECT_EQ(error_of([&] { Trainer(tiny::one_layer_gpt2(), three_ranks(), options); }), "");
}

TEST(sharded_checkpoint, folder_that_another_rank_does_not_see_is_refused) {
  const TemporaryFolder folder;
  EXPECT_TRUE(mentions(error_of([&] { require_shared_folder(folder / "none", 2); }),
                       "rank 2 does not see the folder that the first one has opened"));
  const CheckpointFolder opened(folder.path());
  EXPECT_EQ(error_of([&] { require_shared_folder(folder.path(), 2); }), "");
}

}  // namespace
}  // namespace ballast
