#include "autotune/complete/feasibility.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>

#include "autotune/complete/way_lists.h"
#include "autotune/search/search.h"
#include "autotune/space/memory_reuse.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/predict.h"
#include "sim/graph/build.h"

namespace ballast {
namespace {

// Layouts whose lean plans are placed where none fits, and of these those whose every plan is.
constexpr size_t kMostLeanLayouts = 4;
constexpr size_t kMostWholeLayouts = 2;

// What a verdict lacks, summed over the memories.
Bytes excess_of(const Verdict& verdict, const Machine& machine) {
  Bytes excess;
  for (const Shortfall& one : shortfalls(verdict.peaks, machine)) excess += one.lacking();
  return excess;
}

Verdict verdict_of(const Setting& setting, const Way& way) {
  StackFacts facts = setting.stack.facts;
  facts.attention = {way.attention};
  const Prediction memory = predict_memory(build(setting.model, way.plan, facts), way.plan,
                                           setting.machine, setting.stack);
  return {memory.fits, way.plan, memory.reason, memory.peaks};
}

std::string too_many_devices(const Setting& setting) {
  return fmt::format("the plan uses {} devices, and machine {} has {}; use fewer devices",
                     setting.plan.devices, setting.machine.name, setting.machine.devices);
}

// Collects what does not fit until something does: that, or else what misses by least.
class NearestWay {
 public:
  explicit NearestWay(const Setting& setting) : setting_(setting) {}

  // True where the way fits.
  bool offer(const Way& way) {
    try {
      Verdict verdict = verdict_of(setting_, way);
      const Bytes excess = excess_of(verdict, setting_.machine);
      if (verdict.fits || !verdict_ || excess < excess_) {
        excess_ = excess;
        verdict_ = std::move(verdict);
      }
      return verdict_->fits;
    } catch (const Error& error) {
      if (refusal_.empty()) refusal_ = error.what();
      return false;
    }
  }
  bool offer(const std::vector<Way>& ways) {
    return std::any_of(ways.begin(), ways.end(), [&](const Way& way) { return offer(way); });
  }
  // The same, then with memory reused at once.
  bool offer_with_reuses(const std::vector<Way>& ways) {
    return any_reuse_fits(memory_reuses(setting_.plan, setting_.stack), [&](auto reuse) {
      std::vector<Way> reusing = ways;
      for (Way& way : reusing) way.plan.memory_reuse = reuse;
      return offer(reusing);
    });
  }
  // Throws Error where no way could be built.
  Verdict take() {
    if (verdict_) return *std::move(verdict_);
    throw Error("model " + setting_.model.name, "none of its plans can be built: " + refusal_,
                "name other degrees or knobs");
  }

 private:
  const Setting& setting_;
  std::optional<Verdict> verdict_;
  Bytes excess_;
  std::string refusal_;
};

// Asks the search for any plan that fits; true where there is one. What it refuses it refuses by a
// bound of memory or by the arena itself, so that nothing is left out.
bool offer_space(const Setting& setting, NearestWay& nearest) {
  Plan plan = setting.plan;
  if (plan.pipeline > 1) {
    plan.weights.flow_share = plan.weights.flow_share.value_or(0);
    plan.optimizer.gpu_buckets = plan.optimizer.gpu_buckets.value_or(0);
  }
  OpenKnobs open;
  open.add(KnobId::kMemoryReuse);
  SearchOptions any;
  any.tolerance = 1;
  any.ranked = 1;
  const SearchResult found = search(setting.model, plan, space_of(setting.model, plan, open),
                                    setting.machine, nullptr, any);
  const AttentionKind attention = setting.stack.facts.attention.front();
  if (found.best) return nearest.offer(Way{found.best->plan, attention});
  // What the bounds say is missing is less than what is: as an example only the placed plan counts.
  for (const InfeasibleReason& reason : found.reasons) {
    nearest.offer(Way{reason.example, attention});
  }
  return false;
}

// Every plan of one layout.
Verdict verdict_of_layout(const Setting& setting) {
  const std::vector<Way> lean = lean_ways(setting);
  if (setting.plan.devices > setting.machine.devices) {
    return {false, lean.front().plan, too_many_devices(setting), {}};
  }
  NearestWay nearest(setting);
  if (nearest.offer_with_reuses(lean) || !has_auto(setting.plan)) return nearest.take();
  if (is_refuted(open_layouts(setting, nullptr).front())) return nearest.take();
  if (setting.stack.memory_is_planned() && offer_space(setting, nearest)) return nearest.take();
  if (!is_searched(setting.plan, setting.stack)) nearest.offer_with_reuses(all_ways(setting));
  return nearest.take();
}

}  // namespace

Verdict lean_verdict(const Setting& whole) {
  const Setting setting = with_short_step(whole);
  NearestWay nearest(setting);
  nearest.offer_with_reuses(lean_ways(setting));
  Verdict verdict = nearest.take();
  verdict.plan.global_batch = whole.plan.global_batch;
  return verdict;
}

Nearest nearest_layout(const std::vector<OpenLayout>& layouts) {
  struct Missed {
    const OpenLayout* layout;
    Verdict verdict;
    Bytes excess;
  };
  // By what their bounds lack: the layouts that come first are among the nearest.
  std::vector<const OpenLayout*> likely;
  for (const OpenLayout& layout : layouts) likely.push_back(&layout);
  std::stable_sort(likely.begin(), likely.end(), [](const OpenLayout* a, const OpenLayout* b) {
    return a->excess < b->excess;
  });
  likely.resize(std::min(likely.size(), kMostLeanLayouts));
  std::vector<std::optional<Missed>> lean(likely.size());
  parallel_for(likely.size(), hardware_threads(), [&](size_t i) {
    try {
      Verdict verdict = lean_verdict(likely[i]->setting);
      const Bytes excess = excess_of(verdict, likely[i]->setting.machine);
      lean[i] = Missed{likely[i], std::move(verdict), excess};
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  });
  std::vector<Missed> missed;
  for (std::optional<Missed>& one : lean) {
    if (one) missed.push_back(*std::move(one));
  }
  if (missed.empty()) {
    const Setting& first = layouts.front().setting;
    return {first, verdict_of_layout(first)};
  }
  std::stable_sort(missed.begin(), missed.end(),
                   [](const Missed& a, const Missed& b) { return a.excess < b.excess; });
  missed.resize(std::min(missed.size(), kMostWholeLayouts));
  Nearest nearest{missed.front().layout->setting, missed.front().verdict};
  Bytes least = missed.front().excess;
  for (const Missed& one : missed) {
    if (nearest.verdict.fits) break;
    if (is_refuted(*one.layout)) continue;
    Verdict verdict = verdict_of_layout(one.layout->setting);
    const Bytes excess = excess_of(verdict, one.layout->setting.machine);
    if (!verdict.fits && excess >= least) continue;
    least = excess;
    nearest = {one.layout->setting, std::move(verdict)};
  }
  return nearest;
}

Verdict feasibility(const Setting& setting) {
  if (!setting.has_open_layout() || setting.plan.devices > setting.machine.devices) {
    return verdict_of_layout(setting);
  }
  const std::vector<OpenLayout> layouts = open_layouts(setting, nullptr);
  if (layouts.size() == 1) return verdict_of_layout(layouts.front().setting);
  for (const OpenLayout& layout : layouts) {
    if (is_refuted(layout)) break;
    try {
      Verdict verdict = lean_verdict(layout.setting);
      if (verdict.fits) return verdict;
    } catch (const Error&) {
      // The graph knows no such plan.
    }
  }
  return nearest_layout(layouts).verdict;
}

}  // namespace ballast
