// Names as people write them: what is found, what is suggested, and what a cache of the Hub holds.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "profiles/load.h"
#include "profiles/names/meant.h"
#include "profiles/names/words.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kNames = {"alps-gh200-quad", "dgx-h100-80gb", "h100-sxm-80gb",
                                         "rtx-4090-pcie"};
using Strings = std::vector<std::string>;

TEST(Words, a_part_begins_where_a_word_begins_whatever_divides_words) {
  EXPECT_EQ(containing("4090", kNames), Strings{"rtx-4090-pcie"});
  EXPECT_EQ(containing("RTX4090", kNames), Strings{"rtx-4090-pcie"});
  EXPECT_EQ(containing("rtx 4090", kNames), Strings{"rtx-4090-pcie"});
  EXPECT_EQ(containing("h100", kNames), (Strings{"dgx-h100-80gb", "h100-sxm-80gb"}));
  EXPECT_EQ(containing("h100-80gb", kNames), (Strings{"dgx-h100-80gb", "h100-sxm-80gb"}));
  EXPECT_EQ(containing("h200", kNames), Strings{}) << "a gh200 has no h200";
  EXPECT_EQ(containing("090", kNames), Strings{});
  EXPECT_EQ(containing("h", kNames), Strings{}) << "one letter tells nothing";
  EXPECT_EQ(containing("", kNames), Strings{});
}

TEST(Words, suggestion_is_what_holds_the_word_else_what_is_near_else_what_shares_words) {
  EXPECT_EQ(suggestion("h100", kNames), "did you mean 'dgx-h100-80gb' or 'h100-sxm-80gb'?");
  EXPECT_EQ(suggestion("dgx-h100-80gn", kNames), "did you mean 'dgx-h100-80gb'?");
  EXPECT_EQ(suggestion("my-own-rtx-5090-and-more", kNames), "did you mean 'rtx-4090-pcie'?");
  EXPECT_EQ(suggestion("zzz", kNames),
            "known are alps-gh200-quad, dgx-h100-80gb, h100-sxm-80gb, rtx-4090-pcie");
  EXPECT_EQ(suggestion("x", {}), "none is known");
  EXPECT_EQ(suggestion("layer", {"dense_layers", "layers"}),
            "did you mean 'layers' or 'dense_layers'?")
      << "a slip goes first";
  EXPECT_NE(suggestion("ax", {"ax-1", "ax-2", "ax-3", "ax-4", "ax-5", "ax-6", "ax-7", "ax-8"})
                .find("or 2 more?"),
            std::string::npos);
}

// The environment that names a cache, put back afterwards.
class HubCache : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) {
      const char* value = std::getenv(name);
      before_.push_back(value == nullptr ? std::optional<std::string>() : value);
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (size_t i = 0; i < before_.size(); ++i) {
      if (before_[i]) ::setenv(kVariables[i], before_[i]->c_str(), 1);
      if (!before_[i]) ::unsetenv(kVariables[i]);
    }
  }

  // A snapshot of `id` that has so many layers.
  void write_snapshot(const fs::path& cache, const std::string& model, const std::string& commit,
                      int layers) {
    const fs::path snapshot = cache / model / "snapshots" / commit;
    fs::create_directories(snapshot);
    profile_tests::write_file(
        snapshot / "config.json",
        R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 4,
            "n_layer": )" +
            std::to_string(layers) + "}");
  }

  static constexpr const char* kVariables[] = {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
  profile_tests::TemporaryFolder own_;
  const fs::path folder_ = own_.path();
  std::vector<std::optional<std::string>> before_;
};

TEST_F(HubCache, is_looked_at_before_the_shipped_models_under_each_of_its_names) {
  struct Place {
    const char* variable;
    const char* below;
  };
  for (const Place& place : {Place{"HF_HUB_CACHE", ""}, Place{"HF_HOME", "hub"},
                             Place{"HOME", ".cache/huggingface/hub"}}) {
    const fs::path root = folder_ / place.variable;
    write_snapshot(root / place.below, "models--openai--gpt2", "abc", 3);
    ::setenv(place.variable, root.c_str(), 1);
    const Meant meant = meant_by("openai/gpt2", "models");
    EXPECT_NE(meant.note.find(meant.name), std::string::npos) << "the note says which file";
    const Model model = load_model(meant.name);
    EXPECT_EQ(model.layers, 3) << place.variable;
    EXPECT_EQ(model.name, "gpt2") << "and not the commit";
    ::unsetenv(place.variable);
  }
  EXPECT_EQ(meant_by("openai/gpt2", "models").name, "gpt2") << "without a cache: the shipped one";
}

TEST_F(HubCache, main_names_the_snapshot) {
  ::setenv("HF_HUB_CACHE", folder_.c_str(), 1);
  write_snapshot(folder_, "models--a--b", "aaa", 3);
  write_snapshot(folder_, "models--a--b", "bbb", 4);
  fs::create_directories(folder_ / "models--a--b" / "refs");
  for (const auto& [commit, layers] : {std::pair{"aaa", 3}, std::pair{"bbb", 4}}) {
    std::ofstream(folder_ / "models--a--b" / "refs" / "main") << commit;
    EXPECT_EQ(load_model(meant_by("a/b", "models").name).layers, layers);
  }
}

TEST_F(HubCache, ids_mean_the_shipped_model_of_their_last_part) {
  const std::pair<const char*, const char*> ids[] = {
      {"meta-llama/Llama-3.1-8B", "llama-3.1-8b"},
      {"meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"},
      {"meta-llama/Meta-Llama-3-8B", "llama-3-8b"},
      {"meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"},
      {"mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"},
      {"Qwen/Qwen3-30B-A3B-Base", "qwen3-30b-a3b"},
      {"deepseek-ai/DeepSeek-V3", "deepseek-v3"},
      {"Llama-3.1-8B", "llama-3.1-8b"}};
  for (const auto& [id, name] : ids) {
    const Meant meant = meant_by(id, "models");
    EXPECT_EQ(meant.name, name) << id;
    EXPECT_NE(meant.note.find(std::string(name) + ".json"), std::string::npos) << meant.note;
  }
  for (const char* other : {"mistralai/Mistral-7B-v0.3", "meta-llama/Llama-3.3-70B", "a/b/gpt2",
                            "./gpt2", "gpt2/config.json"}) {
    EXPECT_EQ(meant_by(other, "models").name, other) << "is another model, or a path";
    EXPECT_THROW(load_model(other), Error);
  }
}

TEST(Names, a_part_of_one_machine_means_it_and_a_part_of_several_none) {
  EXPECT_EQ(meant_by("4090", "machines").name, "rtx-4090-pcie");
  EXPECT_NE(meant_by("4090", "machines").note, "");
  EXPECT_EQ(meant_by("rtx-4090-pcie", "machines").note, "") << "said exactly";
  EXPECT_EQ(meant_by("h100", "machines").name, "h100");
  EXPECT_EQ(meant_by("zero", "strategies").name, "zero") << "strategies differ too much";
}

}  // namespace
}  // namespace ballast
