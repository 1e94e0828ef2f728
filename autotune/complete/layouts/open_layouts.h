// The layouts that a setting leaves open, most promising first.
//
// Each is judged before any of its graphs is built: the least time of a step, whatever its
// activations and micro-batch, and the least memory (autotune/bounds/cell_bound). Both are made of
// Ballast's graphs, of the stack's rates and of the slack of its allocator.
// Will not do: complete a layout (autotune/complete/complete.h).
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "autotune/complete/setting.h"
#include "sim/spec/measurements.h"

namespace ballast {

class CompletionEstimates;
class LayerProfiles;

struct OpenLayout {
  Setting setting;     // nothing of the layout is open any more
  Duration at_least;   // of a step whose least memory fits
  Bytes excess;        // by which even the least memory misses; 0 where it fits
  Bytes asked_excess;  // the same on the machine of the setting that was asked about
  // With these micro-batches and activations no plan of it fits; not all such are known.
  std::vector<std::pair<int64_t, ActivationPlan>> refuted;
  double fullness = 0;  // of the fullest memory of its leanest plan: needed over usable
};

// The bounds of a setting's layouts, which serve machines that differ in the sizes of their
// memories alone.
class LayoutBounds {
 public:
  // `measurements` may be null. Throws Error where no layout is legal.
  LayoutBounds(Setting setting, const Measurements* measurements);
  // The same without measurements, and with layers that `known` remembers.
  LayoutBounds(Setting setting, CompletionEstimates& known);
  // Of these layouts, of which nothing is open and each passes check(). At least one. `layers`: as
  // SearchOptions::layers, or null.
  LayoutBounds(Setting like, std::vector<Plan> layouts, const Measurements* measurements,
               LayerProfiles* layers = nullptr);
  ~LayoutBounds();
  LayoutBounds(LayoutBounds&&) noexcept;
  LayoutBounds& operator=(LayoutBounds&&) noexcept;

  // Those whose least memory fits, in ascending order of time; then the others, by what they lack.
  std::vector<OpenLayout> on(const Machine& machine) const;
  // The same in the order of the layouts.
  std::vector<OpenLayout> in_their_order(const Machine& machine) const;

 private:
  class Judge;
  LayoutBounds(Setting setting, const Measurements* measurements, CompletionEstimates* known);

  std::unique_ptr<const Setting> setting_;      // judges refer to it
  std::vector<std::unique_ptr<Judge>> judges_;  // one a start
};

// The legal layouts that a setting leaves open, of its own start alone: nothing of them is open.
// Throws the first refusal where none is legal.
std::vector<Plan> legal_layouts(const Setting& setting);
// The same of all its starts, one after the other. None is there twice by another strategy's name.
std::vector<Plan> legal_layouts_of_all(const Setting& setting);

// Those of the setting's own machine.
std::vector<OpenLayout> open_layouts(const Setting& setting, const Measurements* measurements);

// The same of these layouts, of which nothing is open and each passes check(), and those of a
// strategy stand together: of some of them, where `interrupted` is asked between blocks of them and
// says so. It may be null.
std::vector<OpenLayout> judged_layouts(const Setting& like, const std::vector<Plan>& layouts,
                                       const Measurements* measurements,
                                       const std::function<bool()>& interrupted,
                                       LayerProfiles* layers = nullptr);

// Whether no plan of it fits. Never where a fact of the stack lets it need less than the bounds of
// Ballast's graphs: 16-bit state, a loss in pieces, 8-bit codes, other stages.
bool is_refuted(const OpenLayout& layout);

// The same with a step of few micro-batches, which tells which of a layout's plans is good in a
// fraction of the time, and what memory they need: in a longer step the micro-batches repeat.
Setting with_short_step(Setting setting);

}  // namespace ballast
