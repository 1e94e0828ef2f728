#include "autotune/search/evaluate.h"

#include <algorithm>
#include <cmath>

#include "autotune/space/memory_reuse.h"
#include "sim/base/error.h"
#include "sim/engine/predict.h"
#include "sim/engine/repetition.h"
#include "sim/graph/build.h"

namespace ballast {
namespace {

// Slopes that differ by more are no line.
constexpr double kMostBend = 5e-4;
// Micro-batches of the shortest of three steps: 4, 6 and 8; where these show no line 16, 24 and 32.
constexpr int64_t kShortest[] = {4, 16};

// Makes the last of three steps one of `beyond` micro-batches more, if all lie on a line.
bool extrapolate(std::array<Outcome, 3>& steps, int64_t spacing, int64_t beyond) {
  const int64_t first = steps[1].step_time->ps - steps[0].step_time->ps;
  const int64_t second = steps[2].step_time->ps - steps[1].step_time->ps;
  if (second <= 0) return false;
  const double bend = std::abs(static_cast<double>(first - second)) / static_cast<double>(second);
  if (bend > kMostBend) return false;
  Outcome& last = steps[2];
  last.step_time->ps += beyond / spacing * second + beyond % spacing * second / spacing;
  last.extrapolated = true;
  return true;
}

// Addresses planned for more micro-batches may pack as much worse.
constexpr int64_t kMostDriftPercent = 10;

// A long step, by two shorter ones (sim/engine/repetition.h); nothing where it is to be simulated
// whole, as one is whose memory is nearly too small.
std::optional<Outcome> evaluate_from_less(const Model& model, Plan plan,
                                          const std::vector<MemoryReuse>& reuses,
                                          const Usable& usable, const CostModel& costs) {
  Outcome outcome;
  outcome.memory_reuse = plan.memory_reuse;
  for (const MemoryReuse reuse : reuses) {
    if (reuse != reuses.front()) outcome.memory_reuse = plan.memory_reuse = reuse;
    std::optional<Prediction> found = repeated(model, plan, [&](const Plan& shorter) {
      return predict_time(build(model, shorter, StackFacts{}), shorter, costs);
    });
    if (!found) return std::nullopt;
    outcome.memory = found->graph.arenas.size;
    if (excess_of(outcome.memory, usable).count > 0) {
      outcome.peaks = std::move(found->peaks);
      continue;
    }
    std::array<Bytes, kPlaces> drifted = outcome.memory;
    for (Bytes& size : drifted) size += {size.count / 100 * kMostDriftPercent};
    if (excess_of(drifted, usable).count > 0) return std::nullopt;
    outcome.step_time = found->step_time;
    outcome.peaks.clear();
    break;
  }
  return outcome;
}

}  // namespace

bool has_even_middle(const Plan& plan) {
  return plan.optimizer.sync != SyncMode::kDelay &&
         plan.optimizer.placement != OptimizerPlacement::kNvme;
}

Candidate candidate_of(Plan plan, Duration step_time, const Outcome& outcome) {
  Candidate candidate;
  candidate.plan = std::move(plan);
  candidate.plan.memory_reuse = outcome.memory_reuse;
  candidate.step_time = step_time;
  candidate.tokens_per_s =
      static_cast<double>(candidate.plan.tokens_per_step()) / step_time.seconds();
  candidate.memory = outcome.memory;
  return candidate;
}

Usable usable_of(const Machine& machine) {
  Usable result{};
  for (int p = 0; p < kPlaces; ++p) {
    result[static_cast<size_t>(p)] = usable(machine, static_cast<Place>(p));
  }
  return result;
}

std::array<Bytes, kPlaces> arenas_of(const std::vector<PlacePeak>& peaks) {
  std::array<Bytes, kPlaces> arenas{};
  for (const PlacePeak& peak : peaks) arenas[static_cast<size_t>(peak.place)] = peak.arena;
  return arenas;
}

Bytes excess_of(const std::array<Bytes, kPlaces>& memory, const Usable& usable) {
  Bytes excess;
  for (size_t p = 0; p < kPlaces; ++p) excess = std::max(excess, memory[p] - usable[p]);
  return excess;
}

double fullness_of(const std::array<Bytes, kPlaces>& memory, const Usable& usable) {
  double fullness = 0;
  for (size_t p = 0; p < kPlaces; ++p) {
    if (memory[p].count == 0) continue;
    const double room = std::max(1.0, static_cast<double>(usable[p].count));
    fullness = std::max(fullness, static_cast<double>(memory[p].count) / room);
  }
  return fullness;
}

Outcome evaluate(const Model& model, const Plan& plan, const std::vector<MemoryReuse>& reuses,
                 const Usable& usable, const CostModel& costs) {
  CHECK(!reuses.empty() && reuses.front() == plan.memory_reuse.value_or(MemoryReuse::kApart));
  if (is_long(model, plan)) {
    if (auto from_less = evaluate_from_less(model, plan, reuses, usable, costs)) {
      return *std::move(from_less);
    }
  }
  Graph graph = build_placed(model, plan, StackFacts{});
  Outcome outcome;
  outcome.memory_reuse = plan.memory_reuse;
  const bool fits = any_reuse_fits(reuses, [&](MemoryReuse reuse) {
    if (reuse != reuses.front()) {
      outcome.memory_reuse = graph.reuse = reuse;
      place(graph);  // the graph is the same but for its addresses
    }
    outcome.memory = graph.arenas.size;
    return excess_of(outcome.memory, usable).count <= 0;
  });
  if (!fits) {
    outcome.peaks = memory_peaks(graph);
    return outcome;
  }
  link(graph);
  outcome.step_time = step_time_of(graph, plan, costs);
  return outcome;
}

Outcome estimate(const Model& model, const Plan& plan, const std::vector<MemoryReuse>& reuses,
                 const Usable& usable, const CostModel& costs) {
  const int64_t micro_batches = plan.accumulation();
  if (micro_batches <= kFewMicroBatches || plan.pipeline > 1 || !has_even_middle(plan)) {
    return evaluate(model, plan, reuses, usable, costs);
  }
  for (const int64_t shortest : kShortest) {
    const int64_t spacing = shortest / 2;
    const int64_t longest = shortest + 2 * spacing;
    if (longest >= micro_batches) break;
    std::array<Outcome, 3> steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      Plan less = plan;
      const int64_t count = shortest + static_cast<int64_t>(i) * spacing;
      less.global_batch = count * *plan.micro_batch * plan.data;
      steps[i] = evaluate(model, less, reuses, usable, costs);
    }
    Outcome& last = steps.back();
    // A longer step needs no less.
    const bool any_fits = steps[0].step_time || steps[1].step_time || last.step_time;
    if (!any_fits) return std::move(last);
    const bool same_memory =
        steps[0].memory == last.memory && steps[1].memory == last.memory && last.step_time;
    if (!same_memory) continue;
    if (extrapolate(steps, spacing, micro_batches - longest)) return std::move(last);
  }
  return evaluate(model, plan, reuses, usable, costs);
}

}  // namespace ballast
