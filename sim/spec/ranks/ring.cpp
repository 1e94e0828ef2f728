#include "sim/spec/ranks/ring.h"

#include <algorithm>
#include <fmt/format.h>

namespace ballast {

namespace {

bool has_helpers(const Plan& plan) {
  return plan.context > 1 && plan.context_balance == ContextBalance::kHelpers;
}

// A rank that helps attends for whole pieces of queries and keys.
std::optional<KnobRefusal> refusal_of_helpers(const Plan& plan, const Model& model) {
  if (plan.subsequences > 1) {
    return KnobRefusal{"context_balance",
                       fmt::format("helpers share out whole sequences, and these pass in {} parts",
                                   plan.subsequences),
                       "use zigzag, or subsequences 1"};
  }
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    if (model.window_of(layer) == 0) continue;
    return KnobRefusal{
        "context_balance",
        fmt::format("helpers share out all keys before a query, and layers see windows of {}",
                    model.window_of(layer)),
        "use zigzag, or --set model.sliding_window=0"};
  }
  return std::nullopt;
}

}  // namespace

int64_t ring_piece_count(ContextBalance balance, int64_t context) {
  return context > 1 && balance == ContextBalance::kZigzag ? 2 * context : context;
}

std::vector<Subsequence> ring_pieces(const Plan& plan, const Subsequence& part, int64_t rank) {
  const int64_t pieces = ring_piece_count(plan.context_balance, plan.context);
  const int64_t length = part.length / pieces;
  const auto piece = [&](int64_t i) { return Subsequence{part.begin + i * length, length}; };
  if (pieces == plan.context) return {piece(rank)};
  return {piece(rank), piece(pieces - 1 - rank)};
}

RingRounds ring_rounds(const Plan& plan) {
  if (!has_helpers(plan)) return {plan.context - 1, 0};
  return {plan.context / 2, (plan.context - 1) / 2};
}

double busiest_area(const Plan& plan, const Subsequence& part, int64_t window) {
  if (has_helpers(plan)) {
    // The last rank is one with keys to see in all rounds: half a square, then whole ones.
    const auto length = static_cast<double>(div_exact(part.length, plan.context));
    return length * length * static_cast<double>(1 + 2 * ring_rounds(plan).all);
  }
  double most = 0;
  for (int64_t rank = 0; rank < plan.context; ++rank) {
    double area = 0;
    for (const Subsequence& piece : ring_pieces(plan, part, rank)) {
      area += causal_area(piece.end(), window) - causal_area(piece.begin, window);
    }
    most = std::max(most, area);
  }
  return most;
}

std::optional<KnobRefusal> refusal_of_ring(const Plan& plan, const Model& model) {
  if (has_helpers(plan)) return refusal_of_helpers(plan, model);
  const int64_t pieces = ring_piece_count(plan.context_balance, plan.context);
  if (pieces == plan.context) return std::nullopt;
  for (const Subsequence& part : subsequences_of(plan, model)) {
    if (part.length % pieces == 0) continue;
    return KnobRefusal{
        "context_balance",
        fmt::format("a zigzag gives each of {} ranks two pieces, and {} pieces do not divide {} "
                    "tokens",
                    plan.context, pieces, part.length),
        "use none, or a sequence_length that they divide"};
  }
  return std::nullopt;
}

}  // namespace ballast
