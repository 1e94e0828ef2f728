// Explain: why the best plan of a search takes as long as it does, why the next-best loses, and
// what each knob is worth.
//
// Will not do: search (autotune/search), print (cli).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autotune/search/search.h"
#include "autotune/space/space.h"
#include "sim/engine/predict.h"

namespace ballast {

// What a plan's step time comes closest to: no plan with this much work could take less.
struct Binding {
  std::string resource;  // "lane compute", "capacity dram"
  Duration busy;         // at full speed
  double share = 0;      // of the step time; near 1: this resource sets the pace
};
Binding binding_of(const Prediction& prediction);

// Knobs in which two plans differ, as "optimizer.sync: speculate, not wait": the first's value,
// not the second's.
std::vector<std::string> differing_knobs(const Plan& plan, const Plan& other);

// Time of one kind of operation on the critical path of the two.
struct KindDifference {
  OpKind kind{};
  Phase phase{};
  Duration best;
  Duration other;
};

struct Comparison {
  Plan other;
  std::vector<std::string> knobs;        // of the best, where they differ
  Duration longer;                       // the other's step time less the best's
  std::vector<KindDifference> critical;  // largest change first; sums to `longer` with `waiting`
  Duration waiting;                      // what the other waits longer on its critical path
  Binding best_binding;
  Binding other_binding;
  std::array<Bytes, kPlaces> best_memory{};
  std::array<Bytes, kPlaces> other_memory{};
};
// Requires that both fit.
Comparison compare(const Plan& best, const Prediction& best_prediction, const Plan& other,
                   const Prediction& other_prediction);

// The best plan with one knob changed.
struct Alternative {
  std::string knob;                   // "micro_batch"
  std::string value;                  // "4"
  std::optional<Duration> step_time;  // empty if it does not fit
  std::string reason;                 // why not
};
// Every other value of every open knob, one at a time, in the order of the space; equal graphs are
// left out. Requires that `best` is a plan of this space.
std::vector<Alternative> alternatives(const Model& model, const Plan& base, const Space& space,
                                      const Plan& best, const Machine& machine,
                                      const Measurements* measurements, int threads);

// A few lines for people: what binds the best plan, and why the next-best of `result` loses; or,
// where nothing fits, why. Ends with a newline.
std::string explain(const SearchResult& result, const Model& model, const Machine& machine,
                    const Measurements* measurements);

}  // namespace ballast
