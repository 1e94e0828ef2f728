#include "autotune/complete/least_changes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "sim/base/error.h"
#include "sim/base/parallel.h"
#include "sim/engine/predict.h"

namespace ballast {
namespace {

constexpr double kGb = 1e9;
constexpr int64_t kGrainTokens = 1024;
constexpr int64_t kMostCuts = 32;  // of a sequence

std::shared_ptr<CompletionEstimates> estimates_for(const LeastChangeQuestion& question) {
  auto known = std::make_shared<CompletionEstimates>();
  known->stop_when(question.interrupted);
  return known;
}

class LeastChanges {
 public:
  explicit LeastChanges(const LeastChangeQuestion& question)
      : question_(question),
        setting_(question.setting),
        memories_(question.setting, estimates_for(question)),
        on_this_machine_(estimates_for(question)) {}

  // Two threads of work, each with what it learned of plans for itself: which plan is found first
  // depends on what is known already.
  std::vector<LeastChange> run() {
    if (setting_.plan.devices > setting_.machine.devices) return {};
    Found of_memories, of_the_run;
    run_all({[&] {
               add(of_memories, memory(Limit::kGpuMemory, Place::kHbm));
               add(of_memories, memory(Limit::kCpuMemory, Place::kDram));
             },
             [&] {
               add(of_the_run, devices());
               add(of_the_run, sequence());
               add(of_the_run, batch());
               add(of_the_run, micro_batch());
             }},
            hardware_threads());
    of_memories.insert(of_memories.end(), of_the_run.begin(), of_the_run.end());
    return of_memories;
  }

 private:
  using Found = std::vector<LeastChange>;

  bool interrupted() const { return question_.interrupted && question_.interrupted(); }

  void tell(Limit limit, int64_t value) const {
    if (question_.looks_at) question_.looks_at(limit, static_cast<double>(value));
  }

  void add(Found& found, const std::optional<LeastChange>& change) const {
    if (change && !interrupted()) found.push_back(*change);
  }

  // Where no such plan is legal it is no way out either.
  static bool fits(const std::function<Setting()>& changed,
                   const std::shared_ptr<CompletionEstimates>& known) {
    try {
      const Setting setting = changed();
      return Feasibility(setting, known).fitting_on(setting.machine).has_value();
    } catch (const Error&) {
      return false;
    }
  }

  // The least memory of which this plan's peak leaves what is reserved.
  int64_t gb_for(const Verdict& verdict, Place place) const {
    Bytes total = setting_.machine.gpu.reserved.value;
    if (place == Place::kDram) total = setting_.machine.cpu.reserved.value;
    for (const PlacePeak& peak : verdict.peaks) {
      if (peak.place == place) total += peak.arena;
    }
    return static_cast<int64_t>(std::ceil(static_cast<double>(total.count) / kGb));
  }

  LeastChange memory(Limit limit, Place place) {
    Machine machine = setting_.machine;
    const double now = static_cast<double>(memory_at(machine, place).value.count) / kGb;
    const auto with = [&](int64_t gb) -> std::optional<Verdict> {
      tell(limit, gb);
      memory_at(machine, place).value = Bytes{gb * 1'000'000'000};
      try {
        return memories_.fitting_on(machine);
      } catch (const Error&) {
        if (interrupted()) return std::nullopt;
        throw;
      }
    };
    int64_t low = static_cast<int64_t>(std::floor(now));                     // does not fit
    int64_t high = kMostTimesMemory * static_cast<int64_t>(std::ceil(now));  // fits
    const std::optional<Verdict> ample = with(high);
    if (!ample) return LeastChange{limit, now, std::nullopt, static_cast<double>(high)};
    const auto found = [&](int64_t gb, const Verdict& verdict) {
      high = std::clamp(gb_for(verdict, place), low + 1, gb);
    };
    found(high, *ample);
    // The plan that needs little is often the one that needs least: look just below it first.
    for (int64_t below = 1; high - low > 1 && !interrupted(); below *= 2) {
      const int64_t gb = std::max(high - below, low + (high - low) / 2);
      if (const std::optional<Verdict> verdict = with(gb)) {
        found(gb, *verdict);
      } else {
        low = gb;
        below = 1;
      }
    }
    return LeastChange{limit, now, static_cast<double>(high),
                       std::max(static_cast<double>(low), now)};
  }

  // The first of these values that fits.
  template <class Next, class Changed>
  LeastChange first_of(Limit limit, int64_t now, const Next& next, const Changed& changed,
                       const std::shared_ptr<CompletionEstimates>& known) const {
    LeastChange change{limit, static_cast<double>(now), std::nullopt, static_cast<double>(now)};
    for (std::optional<int64_t> value = next(now); value && !interrupted(); value = next(*value)) {
      tell(limit, *value);
      if (fits([&] { return changed(*value); }, known)) {
        change.fits = static_cast<double>(*value);
        break;
      }
      change.does_not_fit = static_cast<double>(*value);
    }
    return change;
  }

  std::optional<LeastChange> devices() const {
    const int64_t now = setting_.plan.devices;
    const int64_t most = setting_.machine.devices;
    if (!question_.on_devices || 2 * now > most) return std::nullopt;
    const auto next = [&](int64_t value) -> std::optional<int64_t> {
      if (2 * value > most) return std::nullopt;
      return 2 * value;
    };
    return first_of(Limit::kDevices, now, next, question_.on_devices, estimates_for(question_));
  }

  std::optional<LeastChange> batch() const {
    const int64_t now = setting_.plan.global_batch;
    if (now == 1) return std::nullopt;
    const auto with = [&](int64_t sequences) {
      return with_plans(setting_, [&](Plan& plan) { plan.global_batch = sequences; });
    };
    return first_of(Limit::kBatch, now, halved, with, on_this_machine_);
  }

  std::optional<LeastChange> micro_batch() const {
    const int64_t now = setting_.plan.micro_batch.value_or(1);
    if (now == 1) return std::nullopt;
    const auto with = [&](int64_t sequences) {
      return with_plans(setting_, [&](Plan& plan) { plan.micro_batch = sequences; });
    };
    return first_of(Limit::kMicroBatch, now, halved, with, on_this_machine_);
  }

  static std::optional<int64_t> halved(int64_t value) {
    if (value % 2 != 0) return std::nullopt;
    return value / 2;
  }

  std::optional<LeastChange> sequence() const {
    const Plan& plan = setting_.plan;
    const int64_t now = plan.sequence_length;
    int64_t grain = kGrainTokens * plan.sequence * plan.context;
    while (grain * kMostCuts < now) grain *= 2;
    if (now <= grain) return std::nullopt;
    const auto fitting = [&](int64_t grains) {
      tell(Limit::kSequence, grains * grain);
      const auto cut = [&](Plan& changed) { changed.sequence_length = grains * grain; };
      return fits([&] { return with_plans(setting_, cut); }, on_this_machine_);
    };
    LeastChange change{Limit::kSequence, static_cast<double>(now), std::nullopt, 0};
    int64_t high = (now + grain - 1) / grain;  // does not fit
    // What the shortest does not let fit, none does.
    if (!fitting(1)) {
      change.does_not_fit = static_cast<double>(std::min(grain, now));
      return change;
    }
    int64_t low = 0;
    for (int64_t step = 1; low == 0 && high > 1 && !interrupted(); step *= 2) {
      const int64_t grains = std::max<int64_t>(high - step, 1);
      (fitting(grains) ? low : high) = grains;
    }
    while (low > 0 && high - low > 1 && !interrupted()) {
      const int64_t middle = low + (high - low) / 2;
      (fitting(middle) ? low : high) = middle;
    }
    if (low > 0) change.fits = static_cast<double>(low * grain);
    change.does_not_fit = static_cast<double>(std::min(high * grain, now));
    return change;
  }

  const LeastChangeQuestion& question_;
  const Setting& setting_;
  Feasibility memories_;
  // Of this machine's plans of other batches and lengths, many are alike in a few micro-batches.
  std::shared_ptr<CompletionEstimates> on_this_machine_;
};

}  // namespace

std::string_view to_string(Limit value) {
  // In the order of the enumeration.
  constexpr auto kNames = std::to_array<std::string_view>(
      {"gpu_memory", "cpu_memory", "devices", "sequence", "batch", "micro_batch"});
  static_assert(kNames.size() == kLimits);
  return kNames.at(static_cast<size_t>(value));
}

std::vector<LeastChange> least_changes(const LeastChangeQuestion& question) {
  return LeastChanges(question).run();
}

}  // namespace ballast
