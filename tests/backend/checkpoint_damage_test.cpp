// Files that check themselves: whatever bit of a checkpoint flips is found, and the checkpoint
// before it taken; so in exported weights.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <limits>
#include <random>

#include "backend/formats/safetensors.h"
#include "backend/train/checkpoint.h"
#include "backend/train/checkpoint_folder.h"
#include "backend/train/parameter_state.h"
#include "backend/train/weights_file.h"
#include "tests/backend/temporary_folder.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPeriod = 4;
constexpr int64_t kDamagedSteps = 2 * kPeriod;
constexpr int kTries = 10'000;

TrainerOptions options_in(const std::string& folder) {
  TrainerOptions options = tiny::options_for(kDamagedSteps);
  options.checkpoint_folder = folder;
  options.checkpoint_period_steps = kPeriod;
  options.resume = true;
  return options;
}

std::vector<float> train_to(int64_t steps, const std::string& folder) {
  Trainer trainer(tiny::one_layer_gpt2(), tiny::wait_plan(), options_in(folder));
  trainer.train(steps, nullptr);
  return trainer.parameters();
}

std::string error_of_resuming(const std::string& folder) {
  return error_of([&] { Trainer(tiny::one_layer_gpt2(), tiny::wait_plan(), options_in(folder)); });
}

std::string file_content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void flip(const std::string& path, int64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(bit / 8);
  const int byte = file.get();
  file.seekp(bit / 8);
  file.put(static_cast<char>(byte ^ (1 << (bit % 8))));
  ASSERT_TRUE(file.good());
}

// Every second try is in the header, which is a small part of the file.
class Flips {
 public:
  explicit Flips(const std::string& path)
      : random_(20),
        bits_(8 * static_cast<int64_t>(fs::file_size(path))),
        header_bits_(8 * SafetensorsReader(path).tensors().front().begin) {}
  int64_t next() {
    const int64_t most = ++count_ % 2 == 0 ? header_bits_ : bits_;
    return std::uniform_int_distribution<int64_t>(0, most - 1)(random_);
  }

 private:
  std::mt19937_64 random_;
  int64_t bits_ = 0;
  int64_t header_bits_ = 0;
  int count_ = 0;
};

TEST(damage, every_flipped_bit_of_a_checkpoint_is_found_and_the_one_before_is_taken) {
  const TemporaryFolder folder;
  train_to(kDamagedSteps, folder.path());
  const std::string older = checkpoint_path(folder.path(), kPeriod);
  const std::string newest = checkpoint_path(folder.path(), kDamagedSteps);
  const CheckpointFolder checkpoints(folder.path());
  Flips flips(newest);
  for (int i = 0; i < kTries; ++i) {
    const int64_t bit = flips.next();
    flip(newest, bit);
    const CheckpointFolder::ToResume found = checkpoints.to_resume();
    ASSERT_EQ(found.checkpoint, older) << "bit " << bit;
    ASSERT_EQ(found.notes.size(), 1u);
    ASSERT_TRUE(mentions(found.notes[0], newest + ".damaged")) << "bit " << bit;
    ASSERT_TRUE(fs::exists(newest + ".damaged"));
    fs::rename(newest + ".damaged", newest);
    flip(newest, bit);
  }
  const CheckpointFolder::ToResume whole = checkpoints.to_resume();
  EXPECT_EQ(whole.checkpoint, newest);
  EXPECT_TRUE(whole.notes.empty());
}

TEST(damage, a_run_that_goes_on_from_the_one_before_ends_with_the_same_bits) {
  const TemporaryFolder folder;
  const std::vector<float> expected = train_to(kDamagedSteps, folder.path());
  const std::string newest = checkpoint_path(folder.path(), kDamagedSteps);
  flip(newest, 8 * (static_cast<int64_t>(fs::file_size(newest)) - 2) + 6);  // of an exponent
  EXPECT_TRUE(tiny::same_bits(train_to(kDamagedSteps, folder.path()), expected));
  EXPECT_TRUE(fs::exists(newest));
  EXPECT_TRUE(verify_checkpoint(newest));
}

// What is damaged neither counts among those that are kept, nor is it what a run ends with.
TEST(damage, a_damaged_one_does_not_push_out_those_that_are_whole) {
  const TemporaryFolder folder;
  train_to(kDamagedSteps, folder.path());
  fs::resize_file(checkpoint_path(folder.path(), kDamagedSteps), 5000);
  train_to(kPeriod + 1, folder.path());
  EXPECT_TRUE(fs::exists(checkpoint_path(folder.path(), kPeriod)));
  EXPECT_EQ(newest_checkpoint(folder.path()), checkpoint_path(folder.path(), kPeriod + 1));
}

// Its disk may be back tomorrow, with the steps.
TEST(damage, a_link_to_a_checkpoint_that_is_not_there_ends_the_run) {
  const TemporaryFolder folder;
  train_to(kDamagedSteps, folder.path());
  const std::string newest = checkpoint_path(folder.path(), kDamagedSteps);
  fs::rename(newest, newest + ".elsewhere");
  fs::create_symlink("/nowhere/else.safetensors", newest);
  EXPECT_TRUE(mentions(error_of_resuming(folder.path()), "is a link to a file that is not there"));
  EXPECT_TRUE(fs::is_symlink(newest));
}

TEST(damage, where_no_checkpoint_is_whole_nothing_is_removed) {
  const TemporaryFolder folder;
  train_to(kDamagedSteps, folder.path());
  const std::string paths[] = {checkpoint_path(folder.path(), kPeriod),
                               checkpoint_path(folder.path(), kDamagedSteps)};
  for (const std::string& path : paths) flip(path, 8 * 100'000 + 3);
  const std::string before[] = {file_content(paths[0]), file_content(paths[1])};
  const std::string message = error_of_resuming(folder.path());
  EXPECT_TRUE(mentions(message, "no checkpoint in " + folder.path() + " is whole")) << message;
  EXPECT_TRUE(mentions(message, "nothing was removed")) << message;
  EXPECT_EQ(file_content(paths[0]), before[0]);
  EXPECT_EQ(file_content(paths[1]), before[1]);
}

// The same content as a program wrote it that knew no checksums.
void take_checksums_out(const std::string& path) {
  const SafetensorsReader reader(path);
  StoredMetadata metadata = reader.metadata();
  metadata["format"] = "ballast.checkpoint/2";
  std::vector<TensorDeclaration> declarations;
  for (const StoredTensor& tensor : reader.tensors()) {
    declarations.push_back({tensor.name, tensor.type, tensor.shape});
  }
  const std::string data =
      file_content(path).substr(static_cast<size_t>(reader.tensors().front().begin));
  std::ofstream(path, std::ios::binary) << safetensors_preamble(declarations, metadata) << data;
}

TEST(damage, checkpoints_without_checksums_are_resumed_aloud) {
  const TemporaryFolder folder, whole;
  const std::vector<float> expected = train_to(kDamagedSteps, whole.path());
  train_to(kPeriod, folder.path());
  const std::string path = checkpoint_path(folder.path(), kPeriod);
  take_checksums_out(path);
  EXPECT_FALSE(verify_checkpoint(path));
  {
    const Trainer trainer(tiny::one_layer_gpt2(), tiny::wait_plan(), options_in(folder.path()));
    ASSERT_EQ(trainer.notes().size(), 1u);
    EXPECT_TRUE(mentions(trainer.notes()[0], path + " was written without checksums"));
  }
  EXPECT_TRUE(tiny::same_bits(train_to(kDamagedSteps, folder.path()), expected));
}

// A file that says it has checksums and has none was changed.
TEST(damage, a_checkpoint_that_lost_its_checksums_is_damaged) {
  const TemporaryFolder folder;
  train_to(kPeriod, folder.path());
  const std::string path = checkpoint_path(folder.path(), kPeriod);
  take_checksums_out(path);
  std::string content = file_content(path);
  content[content.find("ballast.checkpoint/2") + 19] = '3';
  std::ofstream(path, std::ios::binary) << content;
  EXPECT_TRUE(mentions(error_of_resuming(folder.path()), "it has no checksums"));
}

TEST(damage, every_flipped_bit_of_exported_weights_is_found) {
  const TemporaryFolder folder;
  const std::string path = folder / "weights.safetensors";
  {
    const Trainer trainer(tiny::one_layer_gpt2(), tiny::wait_plan(),
                          tiny::options_for(kDamagedSteps));
    trainer.export_weights(path);
  }
  EXPECT_EQ(SafetensorsReader(path).metadata().at("format"), "pt");
  Flips flips(path);
  for (int i = 0; i < kTries; ++i) {
    const int64_t bit = flips.next();
    flip(path, bit);
    ASSERT_NE(error_of([&] { SafetensorsReader(path).verify(); }), "") << "bit " << bit;
    flip(path, bit);
  }
  EXPECT_EQ(error_of([&] { SafetensorsReader(path).verify(); }), "");
}

TEST(damage, first_value_that_is_not_finite_is_found_wherever_it_is) {
  const float most = std::numeric_limits<float>::max();
  const float infinity = std::numeric_limits<float>::infinity();
  const float no_number = std::numeric_limits<float>::quiet_NaN();
  for (const size_t size : {0, 1, 1023, 1024, 1025, 5000}) {
    std::vector<float> values(size, -most);
    for (size_t i = 0; i < size; i += 3) values[i] = std::numeric_limits<float>::denorm_min();
    EXPECT_EQ(first_not_finite(values), std::nullopt);
    for (size_t at = 0; at < size; at += 1 + size / 40) {
      std::vector<float> bad = values;
      bad[at] = at % 3 == 0 ? -infinity : at % 3 == 1 ? infinity : -no_number;
      bad[size - 1] = std::isfinite(bad[size - 1]) ? no_number : bad[size - 1];
      EXPECT_EQ(first_not_finite(bad), at) << size;
    }
  }
}

TEST(damage, imported_values_that_are_not_finite_are_refused_with_their_tensor) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    const TemporaryFolder folder;
    const std::string path = folder / "weights.safetensors";
    {
      const Trainer trainer(tiny::one_layer_gpt2(), tiny::wait_plan(),
                            tiny::options_for(kDamagedSteps));
      trainer.export_weights(path);
    }
    const std::string copy = folder / "copy.safetensors";
    std::string name;
    {
      const SafetensorsReader reader(path);
      std::vector<TensorDeclaration> declarations;
      for (const StoredTensor& tensor : reader.tensors()) {
        declarations.push_back({tensor.name, tensor.type, tensor.shape});
      }
      SafetensorsWriter writer(copy, declarations, {});
      for (const StoredTensor& tensor : reader.tensors()) {
        std::vector<float> values(static_cast<size_t>(tensor.elements()));
        reader.read(tensor, std::as_writable_bytes(std::span(values)));
        if (&tensor == &reader.tensors()[2]) values[5] = bad;
        writer.write(std::as_bytes(std::span(values)));
      }
      writer.commit();
      name = reader.tensors()[2].name;
    }
    TrainerOptions options = tiny::options_for(kDamagedSteps);
    options.initial_weights = copy;
    const std::string message =
        error_of([&] { Trainer(tiny::one_layer_gpt2(), tiny::wait_plan(), options); });
    EXPECT_TRUE(mentions(message, "tensor '" + name + "' has a value that is not finite"));
    EXPECT_TRUE(mentions(message, " at 5 of ")) << message;
  }
}

}  // namespace
}  // namespace ballast
