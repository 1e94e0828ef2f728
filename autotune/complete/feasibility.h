// Feasibility: whether any plan that open knobs leave fits.
//
// First the knobs take what most often needs least memory (micro-batch 1, everything recomputed but
// the layers' inputs, those offloaded too if need be, weights that stay or flow, an eighth, a
// quarter, ... of the buckets on the GPU), and memory alone decides (predict_memory). Where none of
// these fits, every plan that the open knobs leave is refused by a bound of its memory or placed
// (autotune/search), or those of a list are (autotune/complete/way_lists.h).
// Where the layout is open too, the first is asked of every layout whose least memory fits, in the
// order of open_layouts(), and the second of those that then come nearest.
// Will not do: look for the fastest plan (autotune/complete/complete.h).
#pragma once

#include <string>
#include <vector>

#include "autotune/complete/open_layouts.h"
#include "autotune/complete/setting.h"
#include "sim/graph/report/memory.h"

namespace ballast {

// One plan without "auto" knobs, and whether it fits.
struct Verdict {
  bool fits = false;
  Plan plan;
  std::string reason;            // why not, with numbers and a remedy; else empty
  std::vector<PlacePeak> peaks;  // one a place; empty where the machine has too few devices
};

// A plan that fits, or else, of those that need little, the one that misses by least. Throws Error
// where no way is legal.
Verdict feasibility(const Setting& setting);

// The first half of it, for a setting of one layout: the knobs as they most often need least
// memory. A plan may fit where this one does not.
Verdict lean_verdict(const Setting& setting);

// What remains to be asked where the lean plans of no layout fit: the layout that fits, or comes
// nearest, of the few whose lean plans miss by least.
struct Nearest {
  Setting setting;
  Verdict verdict;
};
Nearest nearest_layout(const std::vector<OpenLayout>& layouts);

}  // namespace ballast
