#include "backend/train/resume_notes.h"

#include <fmt/format.h>
#include <sstream>
#include <type_traits>

#include "sim/spec/knobs.h"

namespace ballast {

namespace {

template <auto Member>
double number_of(const OptimizerOptions& options) {
  return static_cast<double>(options.*Member);
}
template <auto Member>
void set_number(OptimizerOptions& options, double value) {
  options.*Member = static_cast<std::remove_reference_t<decltype(options.*Member)>>(value);
}
template <auto Member>
constexpr OptimizerSetting plain(const char* key, const char* flag) {
  return {key, flag, number_of<Member>, set_number<Member>};
}

template <auto Member>
double scheduled(const OptimizerOptions& options) {
  return static_cast<double>(options.learning_rate.*Member);
}
template <auto Member>
void set_scheduled(OptimizerOptions& options, double value) {
  LearningRateSchedule& schedule = options.learning_rate;
  schedule.*Member = static_cast<std::remove_reference_t<decltype(schedule.*Member)>>(value);
}
template <auto Member>
constexpr OptimizerSetting of_schedule(const char* key, const char* flag) {
  return {key, flag, scheduled<Member>, set_scheduled<Member>};
}

constexpr OptimizerSetting kSettings[] = {
    of_schedule<&LearningRateSchedule::peak>("learning_rate", "--lr"),
    of_schedule<&LearningRateSchedule::floor>("learning_rate_floor", "--min-lr"),
    of_schedule<&LearningRateSchedule::warmup_steps>("warmup_steps", "--warmup"),
    of_schedule<&LearningRateSchedule::total_steps>("total_steps", "--steps"),
    plain<&OptimizerOptions::beta1>("beta1", "--beta1"),
    plain<&OptimizerOptions::beta2>("beta2", "--beta2"),
    plain<&OptimizerOptions::epsilon>("epsilon", "--epsilon"),
    plain<&OptimizerOptions::weight_decay>("weight_decay", "--weight-decay"),
    plain<&OptimizerOptions::clip_norm>("clip_norm", "--clip"),
};

}  // namespace

std::span<const OptimizerSetting> optimizer_settings() { return kSettings; }

std::map<std::string, std::string> learning_knobs(const Plan& plan) {
  std::map<std::string, std::string> knobs;
  // Sums of other micro-batches, or of other pieces of one, are rounded elsewhere.
  for (const KnobId id :
       {KnobId::kGlobalBatch, KnobId::kMicroBatch, KnobId::kSequenceLength, KnobId::kLossChunks,
        KnobId::kDtype, KnobId::kProducts, KnobId::kGradients, KnobId::kMoments}) {
    const Knob& knob = knob_of(id);
    knobs[std::string(knob.path)] = text_of(knob, knob.get(plan));
  }
  const bool delays = plan.optimizer.sync == SyncMode::kDelay;
  knobs[std::string(knob_of(KnobId::kSync).path)] = delays ? "delay" : "no delay";
  return knobs;
}

std::vector<std::string> changes_since(const CheckpointHeader& then, const CheckpointHeader& now) {
  std::vector<std::string> notes;
  if (then.data_fingerprint != now.data_fingerprint) {
    notes.push_back(fmt::format("the data are not those that the run had: {} now, {} then",
                                now.data, then.data));
  }
  std::string changed;
  const auto add = [&](const std::string& change) {
    changed += (changed.empty() ? "" : ", ") + change;
  };
  for (const auto& [path, value] : now.knobs) {
    const auto before = then.knobs.find(path);
    if (before == then.knobs.end() || before->second == value) continue;
    add(fmt::format("{} {} (it was {})", path, value, before->second));
  }
  for (const OptimizerSetting& setting : kSettings) {
    const double before = setting.get(then.optimizer);
    const double after = setting.get(now.optimizer);
    if (before == after) continue;
    add(fmt::format("{} {:.6g} (it was {:.6g})", setting.flag, after, before));
  }
  if (!changed.empty()) notes.push_back("the run goes on with " + changed);
  return notes;
}

std::vector<std::string> notes_of_resumed(const CheckpointHeader& then, const CheckpointHeader& now,
                                          const TrainerOptions& options) {
  std::vector<std::string> notes = changes_since(then, now);
  if (options.seed_is_given && options.seed != then.seed) {
    notes.push_back(fmt::format("the run goes on with its seed, {}; --seed {} is not used",
                                then.seed, options.seed));
  }
  if (options.initial_weights) {
    notes.push_back("the run goes on from its checkpoint; --import " + *options.initial_weights +
                    " is not read");
  }
  return notes;
}

std::string first_difference(const std::string& there, const std::string& here) {
  if (there == here || there.empty() || here.empty()) return "";
  std::istringstream theirs(there), ours(here);
  std::string one, other;
  while (std::getline(theirs, one) && std::getline(ours, other)) {
    if (one != other) break;
  }
  const auto bare = [](const std::string& line) {
    const size_t begin = line.find_first_not_of(" ");
    const size_t end = line.find_last_not_of(", ");
    return begin == std::string::npos ? line : line.substr(begin, end + 1 - begin);
  };
  return "there " + bare(one) + ", here " + bare(other);
}

}  // namespace ballast
