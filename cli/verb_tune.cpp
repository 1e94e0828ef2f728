#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "autotune/search.h"
#include "cli/closed_loop.h"
#include "cli/completion.h"
#include "cli/host.h"
#include "cli/prediction.h"
#include "cli/progress.h"
#include "cli/text.h"
#include "cli/why.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr double kSecondsAPlan = 0.4;
// A search over all degrees of many devices can take long to prove what it found early.
constexpr double kDeadlineSeconds = 60;
// The best plans of a search must have been timed, operation by operation, before it counts.
constexpr size_t kTimedAtTheTop = 5;
// Candidates kept behind those that are shown, and the share of a step below which two tie.
constexpr size_t kRankedAtLeast = 200;
constexpr size_t kRankedInJson = 20;
constexpr double kTieShare = 2e-3;
constexpr int kMostRounds = 4;
constexpr size_t kReasonsShown = 3;

struct TuneFlags {
  OutputFlags output;
  PlanFlags plan;
  StoreFlag store;
  std::string plan_out = "plan.json";
  bool allow_delay = false;
  bool free_degrees = false;
  bool exhaustive = false;
  double deadline_s = kDeadlineSeconds;
  int64_t top = 5;
  LoopFlags loop;
};

bool parse(Words words, TuneFlags& flags) {
  VerbParser parser("tune");
  parser.add(flags.plan, VerbParser::Lists::kNo);
  CLI::App& app = parser.app();
  app.add_option("--out", flags.plan_out, "Write the best plan to this file [plan.json]")
      ->type_name("FILE");
  app.add_option("--deadline", flags.deadline_s,
                 "Stop each search after this many seconds, with the best so far [60]")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS");
  app.add_option("--top", flags.top, "Plans to print [5]")
      ->check(CLI::PositiveNumber)
      ->type_name("COUNT");
  app.add_flag("--allow-delay", flags.allow_delay,
               "Consider updates one step late, which are not exact, as well");
  app.add_flag("--free-degrees", flags.free_degrees,
               "Search the parallel degrees even where a strategy or a plan is named");
  app.add_flag("--exhaustive", flags.exhaustive,
               "Simulate every plan instead of ruling out by bounds: slow, the same answer");
  add_loop_flags(parser, flags.loop);
  parser.add(flags.store);
  parser.add(flags.output, "");
  return parser.parse(words);
}

// A strategy that was asked for keeps what it sets; otherwise everything may be chosen.
Freedom freedom_of(const TuneFlags& flags) {
  Freedom freedom;
  if (flags.plan.strategies.empty()) {
    freedom = Freedom::all();
    freedom.delay = flags.allow_delay;
  }
  freedom.micro_batch = !flags.plan.micro_batch;
  freedom.activations = true;
  freedom.bucket_bytes = true;
  return freedom;
}

// Degrees that no flag names, and where the optimizer lives.
LayoutFreedom layout_freedom_of(const TuneFlags& flags, const Plan& plan) {
  LayoutFreedom freedom;
  const bool named = !flags.plan.strategies.empty() || flags.plan.plan_file;
  if (plan.machine == kHere || (named && !flags.free_degrees)) return freedom;
  const DegreeFlags& given = flags.plan.degrees;
  freedom = LayoutFreedom::all();
  freedom.tensor = freedom.tensor_sequence = !given.tensor;
  freedom.pipeline = !given.pipeline;
  freedom.virtual_pipeline = !given.virtual_pipeline;
  freedom.sequence = !given.sequence;
  freedom.context = !given.context;
  freedom.expert = !given.expert;
  freedom.zero_stage = !given.zero_stage;
  freedom.placement = flags.plan.strategies.empty();
  return freedom;
}

// Layouts that leave as many ranks with data of their own as a flag asks for.
std::vector<Plan> layouts_for(const TuneFlags& flags, const Case& of) {
  std::vector<Plan> layouts = layouts_of(of.model, of.plan, layout_freedom_of(flags, of.plan));
  if (const auto data = flags.plan.degrees.data) {
    std::erase_if(layouts, [&](const Plan& plan) { return plan.data != *data; });
  }
  if (!layouts.empty()) return layouts;
  throw Error("tune, degrees", "no layout of the devices is legal with the degrees that were named",
              "name fewer of them, or another global batch");
}

using Values = std::array<int16_t, 7>;
Values values_of(const Choice& choice) {
  return {choice.micro_batch, choice.activations, choice.bucket,    choice.gpu_buckets,
          choice.cast,        choice.sync,        choice.flow_share};
}

// Choices such that every value of every knob is in at least one of them.
std::vector<Choice> covering(const std::vector<Choice>& all) {
  std::set<std::pair<int, int16_t>> seen;
  std::vector<Choice> chosen;
  // Neighbours in the list differ in their last knobs only; a long stride changes them all.
  const size_t stride = all.size() * 5 / 8 | 1;
  const size_t step = std::gcd(stride, all.size()) == 1 ? stride : 1;
  for (size_t i = 0; i < all.size(); ++i) {
    const Choice& choice = all[i * step % all.size()];
    const Values values = values_of(choice);
    bool is_new = false;
    for (size_t knob = 0; knob < values.size(); ++knob) {
      is_new = seen.emplace(static_cast<int>(knob), values[knob]).second || is_new;
    }
    if (is_new) chosen.push_back(choice);
  }
  return chosen;
}

// Choices that differ from the one of this plan in one knob; none where it is not of the space.
std::vector<Choice> neighbours_of(const Plan& plan, const Space& space, const Plan& base) {
  const std::vector<Choice> all = choices_of(space, base);
  const auto same = [&](const Choice& choice) { return plan_of(space, base, choice) == plan; };
  const auto found = std::find_if(all.begin(), all.end(), same);
  std::vector<Choice> neighbours;
  if (found == all.end()) return neighbours;
  const Values here = values_of(*found);
  for (const Choice& choice : all) {
    const Values there = values_of(choice);
    int differing = 0;
    for (size_t knob = 0; knob < here.size(); ++knob) differing += here[knob] != there[knob];
    if (differing == 1) neighbours.push_back(choice);
  }
  return neighbours;
}

class Tuner {
 public:
  Tuner(Case of, const TuneFlags& flags)
      : of_(std::move(of)),
        flags_(flags),
        space_{layouts_for(flags, of_), freedom_of(flags)},
        timed_(of_.plan.machine == kHere || flags.loop.plans),
        measurements_(measurements_of(of_.machine, flags.store)) {}

  SearchResult run() {
    if (timed_) measure_space();
    SearchResult found = search_once();
    for (int round = 1; round < kMostRounds && measure_top(found); ++round) found = search_once();
    return found;
  }

  // Runs the most promising plans, and ranks what was found by them.
  MeasureResult measure_plans(SearchResult& found) {
    add_candidates(found);
    MeasureResult result =
        run_closed_loop({of_, free_text(), flags_.loop, flags_.store}, found, measurements_);
    measurements_ = result.measurements;
    if (result.measured.empty()) return result;
    found.ranked.clear();
    for (const MeasuredPlan& plan : result.measured) {
      found.ranked.push_back(candidate_of(
          plan.run.plan, predict(of_.model, plan.run.plan, of_.machine, &measurements_)));
    }
    found.ranked.insert(found.ranked.end(), result.others.begin(), result.others.end());
    found.best = found.ranked.front();
    return result;
  }

  const Measurements& measurements() const { return measurements_; }
  Case with(const Plan& plan) const { return {of_.model, of_.machine, plan}; }

 private:
  void measure_space() {
    Progress progress("measure");
    const Space space = space_of(of_.model, of_.plan, space_.freedom);
    const std::vector<Choice> chosen = covering(choices_of(space, of_.plan));
    for (size_t i = 0; i < chosen.size(); ++i) {
      progress.show(static_cast<double>(i) / static_cast<double>(chosen.size()),
                    fmt::format("plan {} of {}", i + 1, chosen.size()));
      measure(plan_of(space, of_.plan, chosen[i]));
    }
    progress.finish(fmt::format("{} operations are timed", measurements_.size()));
  }

  // A search that prunes well leaves few plans that it simulated. So plans that differ from the
  // best in one knob are candidates too, and those that show every value of every knob.
  void add_candidates(SearchResult& found) const {
    const Space space = space_of(of_.model, of_.plan, space_.freedom);
    std::vector<Choice> choices = neighbours_of(found.best->plan, space, of_.plan);
    for (const Choice& choice : covering(choices_of(space, of_.plan))) choices.push_back(choice);
    for (const Choice& choice : choices) {
      const Plan plan = plan_of(space, of_.plan, choice);
      const auto same = [&](const Candidate& known) { return known.plan == plan; };
      if (std::any_of(found.ranked.begin(), found.ranked.end(), same)) continue;
      const Prediction prediction = predict(of_.model, plan, of_.machine, &measurements_);
      if (prediction.fits) found.ranked.push_back(candidate_of(plan, prediction));
    }
  }

  static Candidate candidate_of(const Plan& plan, const Prediction& prediction) {
    Candidate candidate;
    candidate.plan = plan;
    candidate.activations = activations_text(plan.activations);
    candidate.step_time = prediction.step_time;
    candidate.tokens_per_s = prediction.tokens_per_s;
    for (const PlacePeak& peak : prediction.peaks) {
      candidate.memory[static_cast<size_t>(peak.place)] = peak.arena;
    }
    return candidate;
  }

  // Which choices there are, to tell questions apart.
  std::string free_text() const {
    const Freedom& f = space_.freedom;
    std::string text;
    for (const bool free : {f.micro_batch, f.activations, f.bucket_bytes, f.gpu_buckets, f.cast,
                            f.sync, f.delay, f.undo, f.flow_share}) {
      text += free ? '1' : '0';
    }
    return fmt::format("{}, {} layouts", text, space_.layouts.size());
  }

  // True if anything was left to measure.
  bool measure(const Plan& plan) {
    const Case of = with(plan);
    if (is_measured(of, measurements_)) return false;
    if (!predict(of.model, of.plan, of.machine, &measurements_).fits) return false;
    const std::string& device = flags_.loop.training.device;
    measure_plan(of, {kSecondsAPlan, device.empty() ? "host" : device}, flags_.store,
                 measurements_);
    return true;
  }

  bool measure_top(const SearchResult& found) {
    if (!timed_) return false;
    bool any = false;
    for (size_t i = 0; i < std::min(kTimedAtTheTop, found.ranked.size()); ++i) {
      any = measure(found.ranked[i].plan) || any;
    }
    return any;
  }

  SearchResult search_once() {
    Progress progress("search");
    SearchOptions options;
    options.deadline_s = flags_.deadline_s;
    options.exhaustive = flags_.exhaustive;
    // More than are shown: the next-best that is explained lies behind the ties.
    options.ranked = kRankedAtLeast + static_cast<size_t>(flags_.top);
    options.progress = [&](const SearchProgress& at) {
      const double share = at.best ? at.bound.seconds() / at.best->seconds() : 0;
      progress.show(share, fmt::format("{} plans, {} simulated, best {}", at.considered,
                                       at.simulated, at.best ? show(*at.best) : "none yet"));
    };
    SearchResult found = search(of_.model, space_, of_.machine, &measurements_, options);
    progress.finish(fmt::format("{} plans, {} simulated", found.considered, found.simulated));
    return found;
  }

  Case of_;
  const TuneFlags& flags_;
  SearchSpace space_;
  bool timed_;  // operations of the device at hand
  Measurements measurements_;
};

void print_infeasible(const SearchResult& found) {
  if (found.infeasible == 0) return;
  fmt::print("{} of {} plans do not fit:\n", show_count(static_cast<double>(found.infeasible)),
             show_count(static_cast<double>(found.considered)));
  for (size_t i = 0; i < std::min(kReasonsShown, found.reasons.size()); ++i) {
    const InfeasibleReason& reason = found.reasons[i];
    fmt::print("  {:>8}  {}; the nearest: {}\n", reason.count, reason.reason, reason.detail);
  }
}

// How many ranked plans take as long as the best, as far as anyone could measure.
size_t ties(const SearchResult& found) {
  size_t count = 1;
  while (count < found.ranked.size() &&
         found.ranked[count].step_time.seconds() <
             (1 + kTieShare) * found.ranked.front().step_time.seconds()) {
    ++count;
  }
  return count;
}

// Of the plans that tie the simplest is the best: whoever runs it has least to understand.
void prefer_simple(SearchResult& found) {
  if (found.ranked.empty()) return;
  std::stable_sort(found.ranked.begin(),
                   found.ranked.begin() + static_cast<std::ptrdiff_t>(ties(found)),
                   [](const Candidate& a, const Candidate& b) {
                     return moving_parts(a.plan) < moving_parts(b.plan);
                   });
  found.best = found.ranked.front();
}

void print_ranking(const SearchResult& found, int64_t top) {
  Table table({{"", true}, {"step"}, {"tokens/s"}, {"GPU memory"}, {"CPU memory"}, {"plan", true}});
  const auto count = std::min(found.ranked.size(), static_cast<size_t>(top));
  for (size_t i = 0; i < count; ++i) {
    const Candidate& candidate = found.ranked[i];
    table.add({std::to_string(i + 1), show(candidate.step_time), show_count(candidate.tokens_per_s),
               show(candidate.memory[static_cast<size_t>(Place::kHbm)]),
               show(candidate.memory[static_cast<size_t>(Place::kDram)]),
               i == 0 ? "the best" : knobs_that_differ(found.ranked[0].plan, candidate.plan)});
  }
  fmt::print("{}", table.text());
}

OrderedJson result_json(const SearchResult& found) {
  OrderedJson ranked = OrderedJson::array();
  for (const Candidate& candidate : found.ranked) {
    if (ranked.size() == kRankedInJson) break;
    ranked.push_back({{"step_time_s", candidate.step_time.seconds()},
                      {"tokens_per_s", candidate.tokens_per_s},
                      {"gpu_bytes", candidate.memory[static_cast<size_t>(Place::kHbm)].count},
                      {"cpu_bytes", candidate.memory[static_cast<size_t>(Place::kDram)].count},
                      {"bound_s", candidate.bound.seconds()},
                      {"plan", OrderedJson::parse(plan_json(candidate.plan))}});
  }
  OrderedJson reasons = OrderedJson::array();
  for (const InfeasibleReason& reason : found.reasons) {
    reasons.push_back(
        {{"reason", reason.reason}, {"plans", reason.count}, {"nearest", reason.detail}});
  }
  return {{"layouts", found.layouts},
          {"considered", found.considered},
          {"simulated", found.simulated},
          {"bounded", found.bounded},
          {"infeasible", found.infeasible},
          {"complete", found.complete},
          {"proven_within", found.proven_within},
          {"seconds", found.seconds},
          {"ranked", ranked},
          {"reasons", reasons}};
}

void append_to_store(const TuneFlags& flags, const Case& best, const SearchResult& found,
                     const OrderedJson& json) {
  open_store(flags.store)
      .append(TuneResult{best.machine.name, best.model.name, plan_json(best.plan),
                         found.best->step_time, json.dump(), ""});
}

void print_search(const TuneFlags& flags, const Case& best, const SearchResult& found) {
  fmt::print("{} plans for {} on {}: {} simulated, the others ruled out by their bounds, in {}\n\n",
             show_count(static_cast<double>(found.considered)), best.model.name, best.machine.name,
             found.simulated, show(Duration::from_seconds(found.seconds)));
  if (!found.complete) {
    fmt::print("stopped by the deadline ({} s); no plan is faster by more than {:.1f} %\n\n",
               flags.deadline_s, 100 * found.proven_within);
  }
}

void print_why(const Tuner& tuner, const Case& best, const SearchResult& found) {
  if (found.ranked.size() < 2) return;
  const size_t tied = ties(found);
  if (tied > 1) {
    fmt::print("\n{} plans take the same time within {} %; the simplest of them is taken\n", tied,
               100 * kTieShare);
  }
  const size_t next = std::min(tied, found.ranked.size() - 1);
  fmt::print("\n{}\n",
             why_it_loses(best, tuner.with(found.ranked[next].plan), tuner.measurements()));
}

Case load_case_of(TuneFlags& flags) {
  if (flags.loop.plans) return load_case_at_hand(flags.plan, flags.store, flags.loop);
  if (flags.plan.machines.empty() && !flags.plan.plan_file) flags.plan.machines = {kHere};
  return load_case(flags.plan, flags.store);
}

}  // namespace

int run_tune(Words words) {
  TuneFlags flags;
  if (!parse(words, flags)) return kDone;
  Case of = load_case_of(flags);
  if (of.plan.devices > of.machine.devices) {
    fmt::print("{} has {} devices, not {}\n", of.machine.name, of.machine.devices, of.plan.devices);
    return kInfeasible;
  }
  if (flags.plan.strategies.empty()) of.plan.strategy = "tuned";
  Tuner tuner(std::move(of), flags);
  SearchResult found = tuner.run();
  prefer_simple(found);
  std::optional<MeasureResult> measured;
  if (found.best && flags.loop.plans) measured = tuner.measure_plans(found);
  OrderedJson json = result_json(found);
  if (measured) json["measured"] = measured_json(*measured);
  if (flags.output.json) fmt::print("{}\n", json.dump(1));
  if (!found.best) {
    if (!flags.output.json) print_infeasible(found);
    return kInfeasible;
  }
  const Case best = tuner.with(found.best->plan);
  save_plan(best.plan, flags.plan_out);
  append_to_store(flags, best, found, json);
  if (flags.output.json) return kDone;
  print_search(flags, best, found);
  if (measured) fmt::print("{}\n", measured_text(flags.loop, *measured));
  fmt::print("the best: {}\n\n", plan_text(best.plan));
  if (!measured || measured->measured.empty()) {
    print_ranking(found, flags.top);
    print_why(tuner, best, found);
  }
  print_infeasible(found);
  fmt::print("wrote {}\n", flags.plan_out);
  return kDone;
}

}  // namespace ballast
