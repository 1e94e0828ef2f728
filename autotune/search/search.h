// Search: the plan with the shortest step among all of a space that fit the machine.
//
// Branch and bound, from coarse to fine. A node is a layout and a micro-batch; it is cut into
// cells, one for each choice of activations (autotune/bounds/cell_bound); a cell into plans, known
// at first by the work of their halves, then by their whole bound (autotune/bounds/bound); and what
// has the least bound is taken next, until none is below the best step found. The result is then
// the plan that simulating all of them would give; SearchOptions::exhaustive does that. Nothing is
// random and work is handed out in rounds of fixed size, so the result does not depend on the
// threads. Will not do: measure anything, or read and write files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/search/candidate.h"
#include "autotune/space/layout.h"
#include "autotune/space/space.h"
#include "sim/base/units.h"
#include "sim/spec/machine.h"
#include "sim/spec/measurements.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

class LayerProfiles;

struct InfeasibleReason {
  std::string reason;  // "GPU memory, mostly activations"
  int64_t count = 0;
  Plan example;        // the plan of this reason that misses by least
  std::string detail;  // why the example does not fit, with numbers and a remedy
  Bytes excess;        // by how much
};

// What to search: for each of these layouts, every plan that the open knobs leave.
struct SearchSpace {
  std::vector<Plan> layouts;
  OpenKnobs open;
};

struct SearchProgress {
  int64_t considered = 0;
  int64_t simulated = 0;
  std::optional<Duration> best;
  Duration bound;  // no plan that is left is faster
};

// What ended a search before every plan was decided.
enum class SearchStop : uint8_t { kNone, kDeadline, kInterrupt, kPatience };
inline std::string_view to_string(SearchStop value) {
  constexpr std::string_view kNames[] = {"none", "deadline", "interrupt", "patience"};
  return kNames[static_cast<size_t>(value)];
}

struct SearchOptions {
  int threads = 0;                   // 0: all cores
  std::optional<double> deadline_s;  // stop then with the best so far
  // The same where this says so, once and for all; asked before every round of work, and by any
  // thread in the midst of a simulation, which is then given up, and while spaces are made.
  std::function<bool()> interrupted;
  // Plans that can be faster than the best by less than this share are not simulated. 0: exact.
  double tolerance = 0;
  // Stop with the best so far when so many simulations in a row brought none better. 0: never.
  int64_t patience = 0;
  // Plans to begin with, so that there is a best from the start: one after another until one fits
  // they are simulated first and counted, whether or not they are of the space. Every knob of them
  // has a value.
  std::vector<Plan> starts;
  bool exhaustive = false;  // simulate every plan, use no bound
  // Layers that are profiled already, for more than one search: of the same model, and costs as
  // Ballast itself has of the first layout. Null: none.
  LayerProfiles* layers = nullptr;
  // Steps of very many micro-batches are told by shorter ones, but for those within 0.3 % of the
  // best (autotune/search/evaluate.h): the result is then no proof.
  bool estimates = false;
  size_t ranked = 10;                                   // candidates to return
  std::function<void(const SearchProgress&)> progress;  // after every round, on this thread
};

struct SearchResult {
  std::optional<Candidate> best;
  // Best first: the first is `best`; the others are the next of those simulated, and one that was
  // bounded away may lie between them.
  std::vector<Candidate> ranked;
  int64_t layouts = 0;
  // Plans of the space: bounded + simulated + infeasible + not_looked_at.
  int64_t considered = 0;
  int64_t bounded = 0;  // not simulated, for their bound is no better than the best
  int64_t simulated = 0;
  int64_t infeasible = 0;  // of those that were looked at more closely than by their time
  // Where the search was stopped: those that no bound rules out and nobody simulated.
  int64_t not_looked_at = 0;
  std::vector<InfeasibleReason> reasons;  // most frequent first
  // Unless kNone, a plan that was not looked at may fit, or be the best.
  SearchStop stop = SearchStop::kNone;
  // No plan of the space is faster than `best` by more than this share of its step time; nothing
  // where that is not known, for no bound was used or none was found.
  std::optional<double> proven_within;
  double seconds = 0;  // of wall time
  // What it was given, where it was asked by somebody who says so.
  std::optional<double> deadline_s;

  bool complete() const { return stop == SearchStop::kNone; }
};

// Requires check(model), check(machine), and check(plan, model) of every layout to pass; all have
// the same devices and global batch. `measurements` may be null.
SearchResult search(const Model& model, const SearchSpace& space, const Machine& machine,
                    const Measurements* measurements, const SearchOptions& options);
// One layout, with a space of its own.
SearchResult search(const Model& model, const Plan& base, const Space& space,
                    const Machine& machine, const Measurements* measurements,
                    const SearchOptions& options);

}  // namespace ballast
