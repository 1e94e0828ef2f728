#include "cli/tune/search_cache.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/bounds/layer_costs.h"
#include "autotune/complete/first_plan.h"
#include "autotune/complete/layouts/ranking.h"
#include "cli/terminal/standard_error.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"
#include "cli/tune/choice_progress.h"
#include "profiles/json_depth.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Measurements& measurements) {
  std::string text;
  for (const auto& [operation, measured] : measurements) {
    text += fmt::format("{} {} {}\n", operation, measured.median.ps, measured.deviation.ps);
  }
  return text;
}

std::string text_of(const std::vector<Plan>& layouts) {
  std::string text;
  for (const Plan& layout : layouts) text += plan_json(layout);
  return text;
}

// Sources that changed since their commit make another program, which may find something else.
std::string program_text() {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed);
  std::string file;
  if (!failed) {
    const auto size = fs::file_size(program, failed);
    const auto time = fs::last_write_time(program, failed).time_since_epoch().count();
    file = fmt::format(" {} {}", size, time);
  }
  return program_version() + " " + program_commit() + file;
}

std::string question_text(const SearchQuestion& question, const Measurements& measurements,
                          const SearchCacheOptions& options) {
  const SearchSpace& space = question.space;
  const Json json = {{"program", program_text()},
                     {"model", Json::parse(model_json(question.model))},
                     {"machine", Json::parse(machine_json(question.machine))},
                     {"measurements", digest_of(text_of(measurements))},
                     {"stack", {question.stack.name, digest_of(stack_json(question.stack))}},
                     {"plan", Json::parse(plan_json(space.layouts.front()))},
                     {"layouts", {space.layouts.size(), digest_of(text_of(space.layouts))}},
                     {"free", text_of(space.open)},
                     {"tolerance", question.tolerance},
                     {"exhaustive", options.exhaustive},
                     {"ranked", question.ranked}};
  return json.dump();
}

Json candidate_json(const Candidate& candidate) {
  Json memory = Json::array();
  for (const Bytes bytes : candidate.memory) memory.push_back(bytes.count);
  return {{"plan", Json::parse(plan_json(candidate.plan))},
          {"step_time_ps", candidate.step_time.ps},
          {"tokens_per_s", candidate.tokens_per_s},
          {"memory_bytes", memory},
          {"bound_ps", candidate.bound.ps}};
}

Candidate candidate_of(const Json& json, const std::string& source) {
  Candidate candidate;
  candidate.plan = parse_plan(json.at("plan").dump(), source);
  candidate.step_time.ps = json.at("step_time_ps");
  candidate.tokens_per_s = json.at("tokens_per_s");
  for (size_t i = 0; i < candidate.memory.size(); ++i) {
    candidate.memory[i].count = json.at("memory_bytes").at(i);
  }
  candidate.bound.ps = json.at("bound_ps");
  return candidate;
}

SearchStop stop_of(const std::string& name) {
  for (const SearchStop stop : {SearchStop::kDeadline, SearchStop::kPatience}) {
    if (to_string(stop) == name) return stop;
  }
  return SearchStop::kNone;
}

}  // namespace

std::string answer_json(const SearchResult& result) {
  Json ranked = Json::array();
  for (const Candidate& candidate : result.ranked) ranked.push_back(candidate_json(candidate));
  Json reasons = Json::array();
  for (const InfeasibleReason& reason : result.reasons) {
    reasons.push_back({{"reason", reason.reason},
                       {"plans", reason.count},
                       {"example", Json::parse(plan_json(reason.example))},
                       {"detail", reason.detail},
                       {"excess_bytes", reason.excess.count}});
  }
  const Json json = {{"ranked", ranked},
                     {"layouts", result.layouts},
                     {"considered", result.considered},
                     {"bounded", result.bounded},
                     {"simulated", result.simulated},
                     {"infeasible", result.infeasible},
                     {"not_looked_at", result.not_looked_at},
                     {"reasons", reasons},
                     {"stop", to_string(result.stop)},
                     {"proven_within", or_null(result.proven_within)},
                     {"seconds", result.seconds},
                     {"deadline_s", or_null(result.deadline_s)}};
  return json.dump();
}

SearchResult parse_answer(const std::string& text, const std::string& source) {
  try {
    check_depth(text, source);
    const Json json = Json::parse(text);
    SearchResult result;
    for (const Json& candidate : json.at("ranked")) {
      result.ranked.push_back(candidate_of(candidate, source));
    }
    if (!result.ranked.empty()) result.best = result.ranked.front();
    result.layouts = json.at("layouts");
    result.considered = json.at("considered");
    result.bounded = json.at("bounded");
    result.simulated = json.at("simulated");
    result.infeasible = json.at("infeasible");
    result.not_looked_at = json.at("not_looked_at");
    for (const Json& reason : json.at("reasons")) {
      result.reasons.push_back({reason.at("reason"),
                                reason.at("plans"),
                                parse_plan(reason.at("example").dump(), source),
                                reason.at("detail"),
                                {reason.at("excess_bytes").get<int64_t>()}});
    }
    result.stop = stop_of(json.at("stop"));
    if (const Json& within = json.at("proven_within"); !within.is_null()) {
      result.proven_within = within.get<double>();
    }
    result.seconds = json.at("seconds");
    if (const Json& deadline = json.at("deadline_s"); !deadline.is_null()) {
      result.deadline_s = deadline.get<double>();
    }
    return result;
  } catch (const Json::exception&) {
    throw Error(source, "holds a search that cannot be read", "ask with --again");
  }
}

std::optional<SearchResult> SearchCache::known(const std::string& question) const {
  if (options_.again) return std::nullopt;
  const auto store = open_store_if_present(store_);
  if (!store) return std::nullopt;
  const std::optional<std::string> answer = store->search_answer(question);
  if (!answer) return std::nullopt;
  SearchResult result = parse_answer(*answer, store->path());
  const bool as_long = result.complete() || result.deadline_s >= options_.deadline_s;
  return as_long ? std::optional(std::move(result)) : std::nullopt;
}

SearchResult SearchCache::rank_now(const SearchQuestion& question,
                                   const Measurements& measurements) {
  Progress progress("rank");
  const std::string where = place_of(question);
  RankingOptions options;
  options.deadline_s = left_s();
  options.ranked = question.ranked;
  options.any_is_enough = question.tolerance >= kAnyPlan;
  if (question.tolerance > 0) options.within = 1;
  options.interrupted = interruption();
  options.progress = [&](const LayoutProgress& at) { show(progress, where, at); };
  SearchResult found = rank_layouts({question.model, {}, question.machine, question.stack},
                                    question.space.layouts, &measurements, options);
  const double decided = 1 - static_cast<double>(found.not_looked_at) /
                                 static_cast<double>(std::max<int64_t>(1, found.layouts));
  progress.finish(
      fmt::format("{}{} layouts: {} timed, {} ruled out by their bounds, {} do not fit{}", where,
                  found.layouts, found.simulated, found.bounded, found.infeasible,
                  found.complete() ? "" : fmt::format(", {} not looked at", found.not_looked_at)),
      decided);
  return found;
}

std::string SearchCache::place_of(const SearchQuestion& question) const {
  return standing_ + (question.label.empty() ? "" : question.label + ": ");
}

SearchResult SearchCache::search_now(const SearchQuestion& question,
                                     const Measurements& measurements) {
  Progress progress("search");
  const std::string where = place_of(question);
  SearchOptions options;
  options.deadline_s = left_s();
  options.exhaustive = options_.exhaustive;
  options.ranked = question.ranked;
  options.tolerance = question.tolerance;
  options.interrupted = interruption();
  options.progress = [&](const SearchProgress& at) {
    const double share = at.best ? at.bound.seconds() / at.best->seconds() : 0;
    progress.show(share, fmt::format("{}{} plans, {} simulated, best {}", where, at.considered,
                                     at.simulated, at.best ? show(*at.best) : "none yet"));
  };
  const CostModel costs(question.machine, question.space.layouts.front(), Stack{}, &measurements);
  LayerProfiles layers(question.model, costs);
  options.layers = &layers;
  begin_with_first_plan({question.model, {}, question.machine}, question.space.layouts,
                        &measurements, options);
  SearchResult found =
      search(question.model, question.space, question.machine, &measurements, options);
  // As far as a proof got: what bounds rule out need not be looked at.
  const double proven = found.proven_within ? 1 - *found.proven_within : 0;
  const std::string left = fmt::format(", {} not looked at", found.not_looked_at);
  progress.finish(
      fmt::format("{}{} plans: {} simulated, {} ruled out by their bounds, {} do not fit{}", where,
                  found.considered, found.simulated, found.bounded, found.infeasible,
                  found.complete() ? "" : left),
      found.complete() ? 1 : proven);
  return found;
}

// The store spares later calls the search; this one has its answer either way.
void SearchCache::keep(const SearchRecord& record) const {
  try {
    open_store(store_).append(record);
  } catch (const Error& error) {
    print_to_stderr("this search is not kept: {}\n", one_line(error.what()));
  }
}

SearchResult SearchCache::ask(const SearchQuestion& question, const Measurements& measurements) {
  const std::string text = question_text(question, measurements, options_);
  if (asked_++ == 0) try_store(store_);  // first of all, and not when an answer is there
  if (std::optional<SearchResult> found = known(text)) {
    ++from_store_;
    return *std::move(found);
  }
  const bool of_ballast = question.stack.name == kBallastStack;
  SearchResult found =
      of_ballast ? search_now(question, measurements) : rank_now(question, measurements);
  found.deadline_s = options_.deadline_s;
  if (found.stop != SearchStop::kInterrupt) keep({text, answer_json(found)});
  return found;
}

Ask SearchCache::asker(const Measurements& measurements) {
  return [this, &measurements](const SearchQuestion& question) -> std::optional<SearchResult> {
    if (must_stop()) return std::nullopt;
    return ask(question, measurements);
  };
}

void SearchCache::limit_studies(double seconds) {
  using Clock = std::chrono::steady_clock;
  const std::chrono::duration<double> time(seconds);
  studies_end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
}

bool SearchCache::is_out_of_time() const {
  return studies_end_ && std::chrono::steady_clock::now() > *studies_end_;
}

void SearchCache::stop_watching() {
  interrupted_ = interrupted();
  watch_.reset();
}

}  // namespace ballast
