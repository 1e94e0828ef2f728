// What `tune` says beyond its best plan: the front, what each figure of the machine is worth, what
// each knob is worth on the way from a known strategy, and which known strategies do not fit.
//
// Each is made, shown as JSON (keys of docs/autotune.md) and as text.
// Will not do: search without asking (cli/tune/search_cache.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "autotune/space/sppo_solver.h"
#include "autotune/studies/ablation.h"
#include "autotune/studies/sensitivity.h"
#include "cli/text/prediction.h"
#include "cli/tune/tune_objectives.h"

namespace ballast {

Frontier study_frontier(const TuneFlags& flags, const TunedPoints& tuned, SearchCache& cache);
OrderedJson frontier_json(const TuneFlags& flags, const Frontier& frontier);
std::string frontier_text(const TuneFlags& flags, const Frontier& frontier);

struct SensitivityStudy {
  std::vector<Sensitivity> figures;
  std::string searched;  // which space
};
SensitivityStudy study_sensitivity(const Tuner& tuner, const Candidate& best, SearchCache& cache);
OrderedJson sensitivity_json(const SensitivityStudy& study);
std::string sensitivity_text(const SensitivityStudy& study);

struct AblationStudy {
  std::string start;  // the strategy
  Ablation ablation;
  Duration best;
};
// The strategy runs in the best plan's layout; knobs that it leaves open are chosen for it. Throws
// Error where it is not one, or not legal in this layout.
AblationStudy study_ablation(const TuneFlags& flags, const Tuner& tuner, const Candidate& best,
                             const SearchCache& cache);
OrderedJson ablation_json(const AblationStudy& study);
std::string ablation_text(const AblationStudy& study);

// A shipped strategy with its defaults on this model and machine.
struct StrategyVerdict {
  std::string name;
  bool fits = false;
  bool decided = true;           // false: interrupted before it was known
  std::string reason;            // why not, as `predict` of it says
  std::vector<Shortfall> lacks;  // empty where it fits or is not legal
};
// Whether it fits with open knobs at their least; where it does not, by how much, as `predict`
// fills them in.
std::vector<StrategyVerdict> study_strategies(const TuneFlags& flags, const Setting& best,
                                              const SearchCache& cache);
OrderedJson strategies_json(const std::vector<StrategyVerdict>& verdicts);
std::string strategies_text(const std::vector<StrategyVerdict>& verdicts);

// The best plan as the framework that `predict` assumes runs it: slower than Ballast's own backend,
// and in more memory. Nothing on machines where `predict` assumes that backend too.
std::optional<Predicted> study_as_framework(const Setting& best, const Tuner& tuner);
std::string as_framework_text(const Predicted& predicted);

// The layout that SPPO's rules alone choose among those that were searched, and what the search
// makes of it. Nothing where sequence and pipeline degree and parts are not all open.
struct SolverStudy {
  SolverChoice choice;
  bool is_best = false;               // the best plan has these degrees
  std::optional<Duration> step_time;  // of its fastest plan
  Duration best;
  std::string reason;  // why it has none: what does not fit, or that it was not decided
};
std::optional<SolverStudy> study_sppo_solver(const Tuner& tuner, const Candidate& best,
                                             SearchCache& cache);
OrderedJson solver_json(const SolverStudy& study);
std::string solver_text(const SolverStudy& study);

}  // namespace ballast
