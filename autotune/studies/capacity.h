// Capacity: the largest model of a family, and the longest sequence of a model, that fit a machine.
//
// Knobs that the plan leaves "auto" are free, and memory alone decides
// (autotune/complete/feasibility.h): no plan of a size that is declared too large fits.
// Both searches assume that memory grows with layers, width and tokens, so that beyond a size that
// does not fit none does, and end at a neighbouring pair: one that fits, and the next one.
// Will not do: change a degree of parallelism or a ZeRO stage that the plan names, read files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autotune/complete/feasibility.h"

namespace ballast {

// More layers than any model has ever had: it ends a search on a machine without limits.
constexpr int64_t kMostLayers = 4096;

// Layers and width of a GPT; heads divide the width, the feed-forward is four times as wide.
struct Shape {
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
};

// Models in ascending order of parameters: for each shape, its layers and more of them until the
// next shape has as many parameters.
struct Family {
  // Vocabulary, norms and all that the shapes do not say. max_positions 0: as many as are trained.
  Model like;
  std::vector<Shape> shapes;
  std::string source;
};
// GPT-3's shapes below 1B parameters (arXiv 2005.14165, table 2.1), then those by which Megatron
// was measured from 1.7B to 1T (Narayanan et al., SC21, arXiv 2104.04473, table 1; vocabulary of
// 51,200, tied embeddings).
Family gpt_family();
// Any number of layers of one model, with its width.
Family family_of(const Model& model);
// `family.like` with this shape, and positions for a sequence of so many tokens.
Model model_of(const Family& family, const Shape& shape, int64_t positions);

struct LargestModel {
  std::optional<Model> model;  // none where not even the smallest fits
  Verdict verdict;             // of `model`
  Model next;                  // the next larger one, which does not fit; no layers: all fit
  Verdict next_verdict;
  int64_t considered = 0;  // models whose memory was predicted
};
// setting.model is ignored. Shapes that the plan's degrees do not divide are left out; layers come
// in multiples of pipeline * virtual_pipeline. Throws Error where no shape is legal.
LargestModel largest_model(const Setting& setting, const Family& family);

struct LongestSequence {
  int64_t tokens = 0;  // 0: not even the shortest fits
  Model model;         // with positions for so many
  Verdict verdict;
  int64_t next_tokens = 0;
  Verdict next_verdict;  // fits where the search ended at kMostTokens
  int64_t considered = 0;
};
inline constexpr int64_t kSequenceGrain = 1024;           // tokens a sequence- or context-rank
inline constexpr int64_t kMostTokens = int64_t{1} << 28;  // of a sequence; where the search ends
// Multiples of it are the sequences that are tried: kSequenceGrain, and whole tiles of attention in
// each part where sequences pass in parts.
int64_t sequence_grain(const Plan& plan);
// In multiples of sequence_grain() * sequence * context. A model with learned positions beyond
// whose table a sequence goes is given rotary ones, which have no parameters: a table of a million
// positions would weigh as much as the layers.
LongestSequence longest_sequence(const Setting& setting);

}  // namespace ballast
