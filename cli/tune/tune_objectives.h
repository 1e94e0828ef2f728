// `tune` by an objective of throughput: which devices and batches to search; and, where nothing is
// left, the constraint that emptied the space.
//
// Will not do: rank plans of one search (cli/tune/tune_output.h), or look for sizes
// (cli/tune/tune_sizes.h).
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/text/prediction.h"
#include "cli/tune/tuner.h"

namespace ballast {

struct TunedPoints {
  std::vector<ObjectivePoint> points;
  std::vector<std::unique_ptr<Tuner>> tuners;  // of the points; none where a point is illegal
  std::optional<size_t> best;
};
// All numbers of devices and batches that the flags name or leave. Throws Error where all of them
// are illegal.
TunedPoints tune_points(TuneFlags& flags, SearchCache& cache);

// Whether each point is known to have an answer or to have none.
bool is_decided(const TuneFlags& flags, const TunedPoints& tuned);

// A constraint that leaves nothing.
struct Emptied {
  std::string constraint;  // "--headroom-gb", "GPU memory"
  double set = 0;
  double would_do = 0;  // the value nearest to `set` that leaves a plan
  std::string unit;
  std::string together_with = {};  // the other constraint that must give way; empty: this one alone
};
// Requires that nothing was found, and that this is decided. Takes some 20 s at most: what would do
// is then less sharp.
std::vector<Emptied> emptied_by(TuneFlags& flags, const TunedPoints& tuned, SearchCache& cache);
OrderedJson emptied_json(const std::vector<Emptied>& emptied);
std::string emptied_text(const std::vector<Emptied>& emptied);

// {"name", "value", "unit"} of the best point.
OrderedJson objective_json(const TuneFlags& flags, const Candidate& best);
// One entry a point: what it gives, or why nothing.
OrderedJson points_json(const TuneFlags& flags, const TunedPoints& tuned);
// The points side by side; empty where there is only one and the objective is the step time.
std::string points_text(const TuneFlags& flags, const TunedPoints& tuned);

}  // namespace ballast
