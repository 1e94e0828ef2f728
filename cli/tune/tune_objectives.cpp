#include "cli/tune/tune_objectives.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"
#include "cli/tune/tune_output.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr double kDiagnosisSeconds = 10;
constexpr int kAllDiagnosesSeconds = 20;
constexpr int64_t kMostDeviceFactor = 16;

bool chooses_devices(const TuneFlags& flags) {
  const Objective objective = flags.request.objective;
  return objective == Objective::kTokensPerDevice || objective == Objective::kCostPerToken ||
         objective == Objective::kDevicesForDeadline;
}

std::vector<std::optional<int64_t>> devices_of(TuneFlags& flags) {
  std::vector<int64_t> counts = parse_counts({"--devices", flags.devices});
  const auto& most = flags.constraints.most_devices;
  if (counts.empty() && chooses_devices(flags) && !flags.plan.plan_file && !flags.loop.plans) {
    int64_t all = case_for(flags, {}).machine.devices;
    if (most) all = std::min(all, *most);
    counts = parse_counts({"--devices", fmt::format("1..{}", all)});
  }
  if (most && !counts.empty()) {
    const int64_t least = counts.front();
    std::erase_if(counts, [&](int64_t count) { return count > *most; });
    if (counts.empty()) {
      throw Error(fmt::format("--most-devices {}", *most),
                  fmt::format("leaves none of --devices {}", flags.devices),
                  fmt::format("the least that would do is {}", least));
    }
  }
  return or_nothing(counts);
}

std::string label_of(const ObjectivePoint& point) {
  return fmt::format("{} device{}, batch {}", point.devices, point.devices == 1 ? "" : "s",
                     point.global_batch);
}

// One point; without a question where the machine has too few devices. Throws Error where illegal.
ObjectivePoint make_point(TuneFlags& flags, const CaseSize& size, SearchCache& cache,
                          std::unique_ptr<Tuner>& tuner) {
  ObjectivePoint point;
  point.devices = size.devices.value_or(0);
  point.global_batch = size.global_batch.value_or(0);
  Setting setting = case_for(flags, size);
  point.devices = setting.plan.devices;
  point.global_batch = setting.plan.global_batch;
  const auto& most = flags.constraints.most_devices;
  if (setting.plan.devices > setting.machine.devices) {
    point.refusal =
        fmt::format("{} has {} device{}, not {}", setting.machine.name, setting.machine.devices,
                    setting.machine.devices == 1 ? "" : "s", setting.plan.devices);
    return point;
  }
  if (most && setting.plan.devices > *most) {
    point.refusal = fmt::format("--most-devices {} leaves nothing, the least that would do is {}",
                                *most, setting.plan.devices);
    return point;
  }
  const bool of_ballast = flags.framework.name == kBallastStack;
  if (of_ballast && flags.plan.strategies.empty()) setting.plan.strategy = "tuned";
  tuner = std::make_unique<Tuner>(std::move(setting), flags, cache);
  point.question = tuner->question(label_of(point));
  return point;
}

// Why a point is no answer; empty where it is one.
std::string point_reason(const ObjectivePoint& point, const ObjectiveRequest& request) {
  if (!point.refusal.empty()) return point.refusal;
  if (!is_decided(point, request)) return "not decided";
  if (!point.found) return "not searched";
  if (!point.found->best) return "does not fit: " + point.found->reasons.front().detail;
  if (is_allowed(*point.found->best, request)) return "";
  const Economy economy = economy_of(*point.found->best, request.rates);
  const bool energy =
      request.most_joules_per_token && *economy.joules_per_token > *request.most_joules_per_token;
  return energy ? "takes too much energy" : "misses the deadline";
}

// The same, and what stopped its search.
std::string point_remark(const TuneFlags& flags, const ObjectivePoint& point) {
  std::string remark = point_reason(point, flags.request);
  if (point.stop == SearchStop::kNone) return remark;
  if (!remark.empty()) remark += ": ";
  return remark + stop_text(point.stop, flags.deadline_s);
}

// "3 of 5, best so far 2 devices, batch 16, 0.25 tokens/s; ": where a list of points stands before
// the next is searched. Empty where there is one point.
std::string standing_of(const TuneFlags& flags, const std::vector<ObjectivePoint>& points) {
  if (points.size() < 2) return "";
  const auto done = [](const ObjectivePoint& point) { return point.found || !point.question; };
  const auto count = std::count_if(points.begin(), points.end(), done);
  std::string text = fmt::format("{} of {}", count + 1, points.size());
  if (const auto best = best_point(points, flags.request)) {
    const ObjectivePoint& point = points[*best];
    const double value = value_of(*point.found->best, flags.request);
    text += fmt::format(", best so far {}, {:.4g} {}", label_of(point), value,
                        unit_of(flags.request.objective));
  }
  return text + "; ";
}

std::optional<Emptied> emptied_by_figure(const TuneFlags& flags, const TunedPoints& tuned) {
  const ObjectiveRequest& request = flags.request;
  std::optional<double> joules;
  std::optional<double> days;
  for (const ObjectivePoint& point : tuned.points) {
    if (!point.found || !point.found->best) continue;
    const Candidate& best = *point.found->best;
    const auto lower = [](std::optional<double>& least, double value) {
      least = least ? std::min(*least, value) : value;
    };
    if (request.most_joules_per_token) {
      lower(joules, *economy_of(best, request.rates).joules_per_token);
    }
    if (request.job) lower(days, days_of(*request.job, best));
  }
  if (joules && *joules > *request.most_joules_per_token) {
    return Emptied{"--most-joules-per-token", *request.most_joules_per_token, *joules, "J"};
  }
  if (days && *days > request.job->days) {
    return Emptied{"--deadline-days", request.job->days, *days, "days"};
  }
  return std::nullopt;
}

double gb(Bytes bytes) { return bytes.gb(); }

// Head-room where giving it up helps, else the memory itself; then the CPU's memory.
std::vector<Emptied> emptied_by_memory(const TuneFlags& flags, const SearchQuestion& question,
                                       const Ask& ask) {
  std::vector<Emptied> emptied;
  const Machine& machine = question.machine;
  Machine whole = machine;
  const std::optional<Bytes> least = least_memory_of(question, Place::kHbm, ask);
  const auto& limits = flags.constraints;
  if (limits.headroom_gb || limits.headroom_percent) {
    const double kept = limits.headroom_gb
                            ? *limits.headroom_gb
                            : gb(machine.gpu.memory.value) * *limits.headroom_percent /
                                  (100 - *limits.headroom_percent);
    whole.gpu.memory.value += Bytes{static_cast<int64_t>(kept * 1e9)};
    if (least && *least <= whole.gpu.memory.value) {
      const Bytes rest = whole.gpu.memory.value - *least;
      const double left = std::floor(100 * gb(rest)) / 100;
      const double share = std::floor(1e4 * gb(rest) / gb(whole.gpu.memory.value)) / 100;
      if (limits.headroom_gb) return {{"--headroom-gb", kept, left, "GB"}};
      return {{"--headroom-percent", *limits.headroom_percent, share, "%"}};
    }
  }
  // Rounded to where it still does.
  const auto enough = [](Bytes bytes) { return std::ceil(100 * gb(bytes)) / 100; };
  if (least) {
    emptied.push_back({"GPU memory", gb(machine.gpu.memory.value), enough(*least), "GB"});
  }
  const Bytes cpu = machine.cpu.memory.value;
  if (const auto more = least_memory_of(question, Place::kDram, ask)) {
    emptied.push_back({"CPU memory", gb(cpu), enough(*more), "GB"});
  }
  if (!emptied.empty()) return emptied;
  // Neither alone: as little GPU memory as any CPU memory allows, and what that then takes.
  SearchQuestion both = question;
  both.machine = with_memory(machine, Place::kDram, cpu * kMostMemoryFactor);
  const std::optional<Bytes> gpu = least_memory_of(both, Place::kHbm, ask);
  if (!gpu) return {};
  both.machine = with_memory(machine, Place::kHbm, *gpu);
  const std::optional<Bytes> more = least_memory_of(both, Place::kDram, ask);
  if (!more) return {};
  return {{"GPU memory", gb(machine.gpu.memory.value), enough(*gpu), "GB", "CPU memory"},
          {"CPU memory", gb(cpu), enough(*more), "GB", "GPU memory"}};
}

// The next doubling of devices that has a plan, where the machine has more.
std::optional<Emptied> emptied_by_devices(TuneFlags& flags, const TunedPoints& tuned,
                                          SearchCache& cache, const Ask& ask) {
  const ObjectivePoint& last = tuned.points.back();
  if (flags.plan.plan_file || tuned.tuners.back() == nullptr) return std::nullopt;
  const Setting& setting = tuned.tuners.back()->base();
  const int64_t most = std::min(setting.machine.devices, kMostDeviceFactor * last.devices);
  for (int64_t count = 2 * last.devices; count <= most; count *= 2) {
    CaseSize size{count, {}};
    if (!flags.global_batch.empty()) size.global_batch = last.global_batch;
    std::unique_ptr<Tuner> tuner;
    try {
      ObjectivePoint point = make_point(flags, size, cache, tuner);
      if (!point.question) return std::nullopt;
      point.question->tolerance = kAnyPlan;
      const std::optional<SearchResult> found = ask(*point.question);
      if (!found) return std::nullopt;
      if (!found->best) continue;
    } catch (const Error&) {
      continue;
    }
    return Emptied{"--devices", static_cast<double>(last.devices), static_cast<double>(count), ""};
  }
  return std::nullopt;
}

}  // namespace

TunedPoints tune_points(TuneFlags& flags, SearchCache& cache) {
  const std::vector<int64_t> batches = parse_counts({"--global-batch", flags.global_batch});
  TunedPoints tuned;
  std::exception_ptr first_refusal;
  for (const auto& devices : devices_of(flags)) {
    for (const auto& batch : or_nothing(batches)) {
      std::unique_ptr<Tuner> tuner;
      try {
        tuned.points.push_back(make_point(flags, {devices, batch}, cache, tuner));
      } catch (const Error& error) {
        if (!first_refusal) first_refusal = std::current_exception();
        ObjectivePoint illegal;
        illegal.devices = devices.value_or(0);
        illegal.global_batch = batch.value_or(0);
        illegal.refusal = error.what();
        tuned.points.push_back(std::move(illegal));
      }
      tuned.tuners.push_back(std::move(tuner));
    }
  }
  const auto asked = [](const ObjectivePoint& point) { return point.question.has_value(); };
  const bool any = std::any_of(tuned.points.begin(), tuned.points.end(), asked);
  if (!any && first_refusal) std::rethrow_exception(first_refusal);
  const Ask ask = [&](const SearchQuestion& question) -> std::optional<SearchResult> {
    if (cache.interrupted()) return std::nullopt;
    cache.set_standing(standing_of(flags, tuned.points));
    for (size_t i = 0; i < tuned.points.size(); ++i) {
      const ObjectivePoint& point = tuned.points[i];
      if (point.question && point.question->label == question.label) {
        return tuned.tuners[i]->run(question.label);
      }
    }
    CHECK(false);
  };
  ask_points(tuned.points, flags.request, ask);
  cache.set_standing("");
  tuned.best = best_point(tuned.points, flags.request);
  return tuned;
}

bool is_decided(const TuneFlags& flags, const TunedPoints& tuned) {
  return std::all_of(tuned.points.begin(), tuned.points.end(),
                     [&](const ObjectivePoint& point) { return is_decided(point, flags.request); });
}

std::vector<Emptied> emptied_by(TuneFlags& flags, const TunedPoints& tuned, SearchCache& cache) {
  CHECK(!tuned.best && is_decided(flags, tuned));
  if (const auto figure = emptied_by_figure(flags, tuned)) return {*figure};
  const Tuner* const tuner = tuned.tuners.back().get();
  if (tuner == nullptr || cache.interrupted()) return {};
  cache.set_deadline(std::min(flags.deadline_s, kDiagnosisSeconds));
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(kAllDiagnosesSeconds);
  const Ask ask = [&, asker = cache.asker(tuner->measurements())](
                      const SearchQuestion& each) -> std::optional<SearchResult> {
    // What would do is then less sharp, or not known.
    return Clock::now() < end ? asker(each) : std::nullopt;
  };
  SearchQuestion question = tuner->question("what would fit");
  question.ranked = SearchQuestion{}.ranked;
  std::vector<Emptied> emptied = emptied_by_memory(flags, question, ask);
  if (const auto devices = emptied_by_devices(flags, tuned, cache, ask)) {
    emptied.push_back(*devices);
  }
  return emptied;
}

OrderedJson emptied_json(const std::vector<Emptied>& emptied) {
  OrderedJson json = OrderedJson::array();
  for (const Emptied& one : emptied) {
    json.push_back({{"constraint", one.constraint},
                    {"set", one.set},
                    {"would_do", one.would_do},
                    {"unit", one.unit},
                    {"together_with", one.together_with}});
  }
  return json;
}

std::string emptied_text(const std::vector<Emptied>& emptied) {
  std::string text;
  for (const Emptied& one : emptied) {
    const std::string unit = one.unit.empty() ? "" : " " + one.unit;
    text +=
        fmt::format("{} of {:.6g}{} leaves nothing; {:.6g}{} would do{}\n", one.constraint, one.set,
                    unit, one.would_do, unit,
                    one.together_with.empty() ? "" : " together with more " + one.together_with);
  }
  return text;
}

OrderedJson objective_json(const TuneFlags& flags, const Candidate& best) {
  return {{"name", flags.objective},
          {"value", value_of(best, flags.request)},
          {"unit", std::string(unit_of(flags.request.objective))},
          {"watts_per_device", or_null(flags.request.rates.watts)},
          {"watts_source", flags.watts_source}};
}

OrderedJson points_json(const TuneFlags& flags, const TunedPoints& tuned) {
  OrderedJson json = OrderedJson::array();
  for (const ObjectivePoint& point : tuned.points) {
    OrderedJson entry = {{"devices", point.devices}, {"global_batch", point.global_batch}};
    const std::string reason = point_reason(point, flags.request);
    entry["allowed"] = reason.empty();
    entry["decided"] = is_decided(point, flags.request);
    if (!reason.empty()) entry["reason"] = reason;
    entry["stopped_by"] = stop_json(point.stop);
    if (point.found && point.found->best) {
      const Candidate& best = *point.found->best;
      const Economy economy = economy_of(best, flags.request.rates);
      entry["step_time_s"] = best.step_time.seconds();
      entry["tokens_per_s"] = economy.tokens_per_s;
      entry["tokens_per_s_per_device"] = economy.tokens_per_s_per_device;
      entry["cost_per_million_tokens"] = or_null(economy.cost_per_million_tokens);
      entry["joules_per_token"] = or_null(economy.joules_per_token);
      if (flags.request.job) entry["days"] = days_of(*flags.request.job, best);
      entry["complete"] = point.found->complete();
      entry["proven_within"] = or_null(point.found->proven_within);
      entry["plan"] = OrderedJson::parse(plan_json(best.plan));
    }
    json.push_back(std::move(entry));
  }
  return json;
}

std::string points_text(const TuneFlags& flags, const TunedPoints& tuned) {
  const ObjectiveRequest& request = flags.request;
  if (tuned.points.size() < 2 && request.objective == Objective::kStepTime) return "";
  Table table({{"devices"},
               {"batch"},
               {"step"},
               {"tokens/s"},
               {"a device"},
               {"price of 1e6"},
               {"J/token"},
               {"days"},
               {"", true}});
  const auto or_dash = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.4g}", *value) : std::string("-");
  };
  for (size_t i = 0; i < tuned.points.size(); ++i) {
    const ObjectivePoint& point = tuned.points[i];
    std::vector<std::string> cells = {std::to_string(point.devices),
                                      std::to_string(point.global_batch)};
    if (point.found && point.found->best) {
      const Candidate& best = *point.found->best;
      const Economy economy = economy_of(best, request.rates);
      std::optional<double> days;
      if (request.job) days = days_of(*request.job, best);
      cells.insert(cells.end(), {show(best.step_time), show_count(economy.tokens_per_s),
                                 show_count(economy.tokens_per_s_per_device),
                                 or_dash(economy.cost_per_million_tokens),
                                 or_dash(economy.joules_per_token), or_dash(days)});
    } else {
      cells.insert(cells.end(), 6, "-");
    }
    const std::string remark = point_remark(flags, point);
    cells.push_back(i != tuned.best ? remark : remark.empty() ? "the best" : "the best; " + remark);
    table.add(std::move(cells));
  }
  std::string text = fmt::format("by {}:\n{}", flags.objective, table.text());
  if (const auto watts = request.rates.watts) {
    text += fmt::format("J/token at {:g} W a device ({})\n", *watts, flags.watts_source);
  }
  return text + "\n";
}

}  // namespace ballast
