// What a configuration says and a prediction or a training run does not follow.
#include "sim/spec/caveats.h"

#include <gtest/gtest.h>

#include "tests/tiny.h"

namespace ballast {
namespace {

Model rotary(int64_t positions) { return tiny::llama({.positions = positions}); }

Plan of_length(int64_t tokens) {
  Plan plan;
  plan.sequence_length = tokens;
  return plan;
}

TEST(Caveats, a_model_that_is_followed_has_none) {
  EXPECT_TRUE(caveats_of(rotary(64), of_length(64), {}).empty());
}

TEST(Caveats, a_sequence_beyond_the_positions_is_told_with_both_numbers) {
  const std::vector<Caveat> caveats = caveats_of(rotary(64), of_length(65), {});
  ASSERT_EQ(caveats.size(), 1U);
  EXPECT_TRUE(caveats[0].trains_another);
  EXPECT_NE(caveats[0].note.find("65"), std::string::npos) << caveats[0].note;
  EXPECT_NE(caveats[0].note.find("64"), std::string::npos) << caveats[0].note;
  EXPECT_NE(caveats[0].remedy.find("model.max_positions=65"), std::string::npos);
}

TEST(Caveats, a_window_counts_where_the_sequence_leaves_it) {
  Model model = rotary(64);
  model.sliding_window = 16;
  EXPECT_TRUE(caveats_of(model, of_length(16), {}).empty());
  const std::vector<Caveat> caveats = caveats_of(model, of_length(17), {});
  ASSERT_EQ(caveats.size(), 1U);
  EXPECT_FALSE(caveats[0].trains_another) << "a device that does not train it refuses it by name";
}

TEST(Caveats, dropout_is_left_out_but_where_the_stack_of_a_gpt_does_it) {
  Model model = rotary(64);
  model.architecture = "gpt2";
  model.dropout = 0.1;
  StackFacts facts;
  EXPECT_NE(notes_of(model, of_length(8), facts).at(0).find("left out"), std::string::npos);
  facts.dropout = true;
  EXPECT_EQ(notes_of(model, of_length(8), facts).at(0).find("left out"), std::string::npos);
  model.architecture = "llama";
  EXPECT_NE(notes_of(model, of_length(8), facts).at(0).find("left out"), std::string::npos);
}

TEST(Caveats, quantization_names_its_method) {
  Model model = rotary(64);
  model.quantization = "gptq";
  EXPECT_NE(notes_of(model, of_length(8), {}).at(0).find("gptq"), std::string::npos);
}

}  // namespace
}  // namespace ballast
