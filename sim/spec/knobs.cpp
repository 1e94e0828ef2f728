#include "sim/spec/knobs.h"

#include <array>

#include "sim/spec/knobs/activations.h"
#include "sim/spec/knobs/batch.h"
#include "sim/spec/knobs/names_and_ranks.h"
#include "sim/spec/knobs/state.h"

namespace ballast {
namespace {

// The rows of these groups, one after another.
template <size_t... kCounts>
constexpr auto joined(const Knob (&... groups)[kCounts]) {
  std::array<Knob, (kCounts + ...)> rows{};
  size_t count = 0;
  const auto append = [&](const auto& group) {
    for (const Knob& row : group) rows[count++] = row;
  };
  (append(groups), ...);
  return rows;
}

constexpr auto kTable = joined(knob_rows::kNameAndRankRows, knob_rows::kBatchRows,
                               knob_rows::kStateRows, knob_rows::kActivationRows);
static_assert(kTable.size() == kKnobs);
constexpr bool is_in_order() {
  for (size_t i = 0; i < kKnobs; ++i) {
    if (static_cast<size_t>(kTable[i].id) != i) return false;
  }
  return true;
}
static_assert(is_in_order(), "rows stand in the order of KnobId");

}  // namespace

std::span<const Knob> knobs() { return kTable; }

const Knob& knob_of(KnobId id) { return kTable[static_cast<size_t>(id)]; }

}  // namespace ballast
