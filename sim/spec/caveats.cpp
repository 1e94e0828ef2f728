#include "sim/spec/caveats.h"

#include <fmt/format.h>

#include "sim/spec/model_family.h"

namespace ballast {
namespace {

// Learned positions are a table: a plan that leaves it is refused (check() in sim/spec/plan.h).
Caveat beyond_positions(const Model& model, const Plan& plan) {
  const std::string what =
      fmt::format("sequences of {} tokens go beyond the {} positions that {} was made for",
                  plan.sequence_length, model.max_positions, model.name);
  return {what + ": time and memory hold, what it learns there may not", "model.max_positions",
          what,
          fmt::format("shorten --sequence-length, or say --set model.max_positions={}",
                      plan.sequence_length)};
}

Caveat sees_a_window(const Model& model) {
  int64_t layers = 0;
  for (int64_t layer = 0; layer < model.layers; ++layer) layers += model.window_of(layer) > 0;
  const std::string where =
      layers == model.layers ? "" : fmt::format("in {} of {} layers ", layers, model.layers);
  const std::string what = fmt::format("{}a token of {} sees {} positions at most (sliding_window)",
                                       where, model.name, model.sliding_window);
  return {what + ": attention is predicted so", "model.sliding_window", what,
          fmt::format("train at most {} tokens, or full attention: --set model.sliding_window=0",
                      model.sliding_window),
          false};
}

Caveat drops(const Model& model, const StackFacts& facts) {
  const bool counted = facts.dropout && model_family(model.architecture).has_dropout;
  const std::string what =
      fmt::format("{} is trained with a dropout of {:g}", model.name, model.dropout);
  return {fmt::format("{}: {}", what,
                      counted ? "predicted as the stack's framework does it"
                              : "left out, time and memory are those without"),
          "model.dropout", what + ", which is not done here",
          "say --set model.dropout=0 to train without"};
}

Caveat quantizes(const Model& model, const Plan& plan) {
  const std::string what =
      fmt::format("the weights of {} are quantized ({})", model.name, model.quantization);
  return {
      fmt::format("{}: left out, they are predicted in {}", what, to_string(plan.dtype)),
      "model.quantization", what + ", which is not done here",
      fmt::format("say --set model.quantization=none to train them in {}", to_string(plan.dtype))};
}

}  // namespace

std::vector<Caveat> caveats_of(const Model& model, const Plan& plan, const StackFacts& facts) {
  std::vector<Caveat> caveats;
  const bool rotary = model.position == PositionKind::kRope;
  if (rotary && plan.sequence_length > model.max_positions) {
    caveats.push_back(beyond_positions(model, plan));
  }
  const bool windows = model.sliding_window > 0 && model.full_attention_period != 1;
  if (windows && plan.sequence_length > model.sliding_window) {
    caveats.push_back(sees_a_window(model));
  }
  if (model.dropout > 0) caveats.push_back(drops(model, facts));
  if (model.quantization != "none") caveats.push_back(quantizes(model, plan));
  return caveats;
}

std::vector<std::string> notes_of(const Model& model, const Plan& plan, const StackFacts& facts) {
  std::vector<std::string> notes;
  for (const Caveat& caveat : caveats_of(model, plan, facts)) notes.push_back(caveat.note);
  return notes;
}

}  // namespace ballast
