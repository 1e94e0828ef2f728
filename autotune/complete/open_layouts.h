// The layouts that a setting leaves open, most promising first.
//
// Each is judged before any of its graphs is built: the least time of a step, whatever its
// activations and micro-batch, and the least memory (autotune/bounds/cell_bound). Both are made of
// Ballast's graphs and of the stack's rates, so that they order the layouts of other frameworks too
// but prove nothing of them. Will not do: complete a layout (autotune/complete/complete.h).
#pragma once

#include <vector>

#include "autotune/complete/setting.h"
#include "sim/spec/measurements.h"

namespace ballast {

struct OpenLayout {
  Setting setting;    // nothing of the layout is open any more
  Duration at_least;  // of a step whose least memory fits
  Bytes excess;       // by which even the least memory misses; 0 where it fits
};

// Those whose least memory fits, in ascending order of time; then the others, by what they lack.
// `measurements` may be null. Throws Error where no layout is legal.
std::vector<OpenLayout> open_layouts(const Setting& setting, const Measurements* measurements);

// The same of these layouts, of which nothing is open and each passes check().
std::vector<OpenLayout> judged_layouts(const Setting& like, std::vector<Plan> layouts,
                                       const Measurements* measurements);

// Whether no plan of it fits. Other frameworks than Ballast may need less than the bounds of its
// graphs: they are believed only where they miss by an eighth of what is there.
bool is_refuted(const OpenLayout& layout);

// The same with a step of few micro-batches, which tells which of a layout's plans is good in a
// fraction of the time, and what memory they need: in a longer step the micro-batches repeat.
Setting with_short_step(Setting setting);

}  // namespace ballast
