#include "cli/tune/tune_output.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/search/ties.h"
#include "cli/text/runs_on.h"
#include "cli/text/tables.h"
#include "cli/text/why_slower.h"
#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/interval.h"

namespace ballast {
namespace {

constexpr size_t kRankedInJson = 20;
constexpr size_t kReasonsShown = 3;

Bytes memory_of(const Candidate& candidate, Place place) {
  return candidate.memory[static_cast<size_t>(place)];
}

std::string plans_text(int64_t plans) {
  return plans < 100 ? std::to_string(plans) : show_count(static_cast<double>(plans));
}

// What became of all plans, or layouts.
std::string counts_text(const SearchResult& found, const Stack& stack) {
  std::string text =
      fmt::format("{} {}, {} ruled out by their bounds, {} do not fit", plans_text(found.simulated),
                  stack.name == kBallastStack ? "simulated" : "timed", plans_text(found.bounded),
                  plans_text(found.infeasible));
  if (!found.complete()) text += fmt::format(", {} not looked at", plans_text(found.not_looked_at));
  return text;
}

}  // namespace

size_t near_ties(const SearchResult& found) { return count_within(found, told_apart_from()); }

OrderedJson memory_json(const std::array<Bytes, kPlaces>& memory) {
  OrderedJson json = OrderedJson::object();
  for (int i = 0; i < kPlaces; ++i) {
    const Bytes bytes = memory[static_cast<size_t>(i)];
    if (bytes.count > 0) json[std::string(to_string(static_cast<Place>(i)))] = bytes.count;
  }
  return json;
}

// What the best is explained against; null where there is no other plan.
OrderedJson next_json(const SearchResult& found) {
  const Candidate* const next = next_best(found);
  if (next == nullptr) return nullptr;
  return {{"rank", next - found.ranked.data() + 1},
          {"step_time_s", next->step_time.seconds()},
          {"plan", OrderedJson::parse(plan_json(next->plan))}};
}

OrderedJson search_json(const SearchResult& found, const Stack& stack, const Model* model) {
  const size_t near = near_ties(found);
  OrderedJson ranked = OrderedJson::array();
  const size_t count = std::min(found.ranked.size(), kRankedInJson);
  std::vector<OrderedJson> devices(count, OrderedJson::array());
  if (model != nullptr) {
    parallel_for(count, hardware_threads(), [&](size_t i) {
      devices[i] = runs_on_json(runs_on(*model, found.ranked[i].plan, stack));
    });
  }
  for (size_t i = 0; i < count; ++i) {
    const Candidate& candidate = found.ranked[i];
    ranked.push_back({{"step_time_s", candidate.step_time.seconds()},
                      {"tokens_per_s", candidate.tokens_per_s},
                      {"gpu_bytes", memory_of(candidate, Place::kHbm).count},
                      {"cpu_bytes", memory_of(candidate, Place::kDram).count},
                      {"bound_s", candidate.bound.seconds()},
                      {"tie", near > 1 && ranked.size() < near},
                      {"runs_on", std::move(devices[i])},
                      {"plan", OrderedJson::parse(plan_json(candidate.plan))}});
  }
  OrderedJson reasons = OrderedJson::array();
  for (const InfeasibleReason& reason : found.reasons) {
    reasons.push_back(
        {{"reason", reason.reason}, {"plans", reason.count}, {"nearest", reason.detail}});
  }
  return {{"stack", stack.name},
          {"counted", counted(stack.name, 0)},
          {"layouts", found.layouts},
          {"considered", found.considered},
          {"simulated", found.simulated},
          {"bounded", found.bounded},
          {"infeasible", found.infeasible},
          {"not_looked_at", found.not_looked_at},
          {"complete", found.complete()},
          {"stopped_by", stop_json(found.stop)},
          {"proven_within", or_null(found.proven_within)},
          {"seconds", found.seconds},
          {"ties", near},
          {"next_best", next_json(found)},
          {"ranked", ranked},
          {"reasons", reasons}};
}

OrderedJson stop_json(SearchStop stop) {
  if (stop == SearchStop::kNone) return nullptr;
  return std::string(to_string(stop));
}

std::string stop_text(SearchStop stop, double deadline_s) {
  CHECK(stop != SearchStop::kNone);
  if (stop == SearchStop::kInterrupt) return "interrupted";
  if (stop == SearchStop::kDeadline) {
    return fmt::format("stopped by the deadline ({:g} s, --deadline)", deadline_s);
  }
  return fmt::format("stopped by {}", to_string(stop));
}

std::string search_text(const TuneFlags& flags, const Setting& best, const SearchResult& found) {
  const bool of_ballast = best.stack.name == kBallastStack;
  std::string text =
      fmt::format("{} {} for {} on {}: {}, in {}\n", plans_text(found.considered),
                  counted(best.stack.name, found.considered), best.model.name, best.machine.name,
                  counts_text(found, best.stack), show(Duration::from_seconds(found.seconds)));
  text += of_ballast ? "as Ballast's own backend, whose plans these are (--stack to tune for "
                       "another framework)\n\n"
                     : fmt::format(
                           "as {} runs them: of every layout the best of a list, which "
                           "proves nothing of other plans\n\n",
                           best.stack.name);
  const bool is_whole = found.complete();
  const double within = found.proven_within.value_or(is_whole ? 0 : 1);
  if (is_whole && (!of_ballast || within <= 0)) return text;
  if (!of_ballast) {
    return text + fmt::format("{}; one of the {} layouts that nobody looked at may be faster\n\n",
                              stop_text(found.stop, flags.deadline_s), found.not_looked_at);
  }
  if (!is_whole) text += stop_text(found.stop, flags.deadline_s) + "; ";
  if (within >= 1) return text + "how much faster another plan can be is not known\n\n";
  return text + fmt::format("no plan takes less than {}, {:.2f} % less than the fastest{}\n\n",
                            show(shortest_step(found) * (1 - within)), 100 * within,
                            is_whole ? " (--tolerance)" : " so far");
}

std::string ranking_text(const SearchResult& found, int64_t top) {
  Table table({{"", true}, {"step"}, {"tokens/s"}, {"GPU memory"}, {"CPU memory"}, {"plan", true}});
  const auto count = std::min(found.ranked.size(), static_cast<size_t>(top));
  for (size_t i = 0; i < count; ++i) {
    const Candidate& candidate = found.ranked[i];
    table.add({std::to_string(i + 1), show(candidate.step_time), show_count(candidate.tokens_per_s),
               show(memory_of(candidate, Place::kHbm)), show(memory_of(candidate, Place::kDram)),
               i == 0 ? "the best" : differing_text(candidate.plan, found.ranked[0].plan)});
  }
  std::string text = table.text();
  if (const size_t near = near_ties(found); near > 1) {
    text += fmt::format("\nthe first {} are within {:.1f} % of each other: cannot be told apart\n",
                        near, 100 * told_apart_from());
  }
  return text;
}

std::string why_text(const Setting& best, const SearchResult& found,
                     const Measurements& measurements) {
  const Candidate* const next = next_best(found);
  if (next == nullptr) return "";
  const size_t tied = count_within(found, kTieShare);
  std::string text;
  if (tied > 1) {
    text +=
        fmt::format("\n{} plans take the same time within {} %; the simplest of them is taken\n",
                    tied, 100 * kTieShare);
  }
  Setting other = best;
  other.plan = next->plan;
  return text + fmt::format("\n{}\n", why_it_loses(best, other, measurements));
}

std::string infeasible_text(const SearchResult& found, const Stack& stack) {
  if (found.infeasible == 0 || found.reasons.empty()) return "";
  std::string text =
      fmt::format("{} of {} {} do not fit:\n", plans_text(found.infeasible),
                  plans_text(found.considered), counted(stack.name, found.considered));
  for (size_t i = 0; i < std::min(kReasonsShown, found.reasons.size()); ++i) {
    const InfeasibleReason& reason = found.reasons[i];
    text +=
        fmt::format("  {:>8}  {}; the nearest: {}\n", reason.count, reason.reason, reason.detail);
  }
  return text;
}

}  // namespace ballast
