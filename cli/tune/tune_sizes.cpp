#include "cli/tune/tune_sizes.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/text/tables.h"
#include "cli/tune/tune_output.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// Of layers, where degrees are chosen: most pipelines divide it.
constexpr int64_t kLayerGrain = 8;

CaseSize size_of(const TuneFlags& flags) {
  const auto devices = parse_counts({"--devices", flags.devices});
  const auto batches = parse_counts({"--global-batch", flags.global_batch});
  CaseSize size;
  if (!devices.empty()) size.devices = devices.front();
  if (!batches.empty()) size.global_batch = batches.front();
  return size;
}

// As in every other search, no strategy is named where all knobs were free.
void name_strategy(const TuneFlags& flags, Setting& setting) {
  if (flags.plan.strategies.empty() && !flags.plan.plan_file) setting.plan.strategy = "tuned";
}

void check_devices(const TuneFlags& flags, const Setting& setting) {
  const auto& most = flags.constraints.most_devices;
  if (most && setting.plan.devices > *most) {
    throw Error(fmt::format("--most-devices {}", *most),
                fmt::format("leaves nothing of {} devices", setting.plan.devices),
                fmt::format("the least that would do is {}", setting.plan.devices));
  }
  if (setting.plan.devices > setting.machine.devices) {
    throw Error(fmt::format("--devices {}", setting.plan.devices),
                fmt::format("{} has {}", setting.machine.name, setting.machine.devices),
                "name fewer, or a larger machine");
  }
}

// The space of one size; nothing where no layout of it is legal.
std::optional<SearchQuestion> question_for(const TuneFlags& flags, const Setting& setting,
                                           const std::string& label) {
  try {
    return SearchQuestion{label, setting.model, setting.machine,
                          open_knobs_of(flags).space(setting)};
  } catch (const Error&) {
    return std::nullopt;
  }
}

// `of` with sequences of so many tokens, and positions for them.
Setting with_tokens(const Setting& setting, int64_t tokens) {
  Setting longer = setting;
  longer.plan.sequence_length = tokens;
  const Model& model = setting.model;
  longer.model = model_of(family_of(model), {model.layers, model.hidden, model.heads}, tokens);
  longer.model.name = model.name;
  return longer;
}

TunedSize tune_sequence(TuneFlags& flags, SearchCache& cache) {
  TunedSize size;
  size.setting = case_for(flags, size_of(flags));
  name_strategy(flags, size.setting);
  check_devices(flags, size.setting);
  const Measurements measurements = measurements_of(size.setting.machine, flags.store);
  SizeSearch sizes;
  const int64_t grain = sequence_grain(size.setting.plan);
  sizes.most = kMostTokens / grain;
  sizes.question = [&](int64_t grains) {
    const int64_t tokens = grains * grain;
    return question_for(flags, with_tokens(size.setting, tokens), fmt::format("{} tokens", tokens));
  };
  size.found = largest_size(sizes, cache.asker(measurements));
  size.value = static_cast<double>(size.found.size * grain);
  size.next_value = static_cast<double>(size.found.next * grain);
  size.grain = fmt::format("multiples of {} tokens", grain);
  if (size.found.size > 0) size.setting = with_tokens(size.setting, size.found.size * grain);
  return size;
}

TunedSize tune_model(TuneFlags& flags, SearchCache& cache) {
  const Family gpt = gpt_family();
  TunedSize size;
  size.setting = case_like(flags, gpt.like);
  name_strategy(flags, size.setting);
  check_devices(flags, size.setting);
  const bool named = !size.setting.plan.model.empty();
  Family family = named ? family_of(size.setting.model) : gpt;
  family.like.vocab = size.setting.model.vocab;  // --set model.vocab
  const bool chosen = size.setting.plan.machine != kHere && size.setting.plan.devices > 1 &&
                      open_knobs_of(flags).knobs().has(KnobId::kPipeline);
  const int64_t grain =
      chosen ? kLayerGrain : size.setting.plan.pipeline * size.setting.plan.virtual_pipeline;
  const std::vector<Shape> shapes = shapes_of(family, grain);
  const Measurements measurements = measurements_of(size.setting.machine, flags.store);
  const auto case_at = [&](int64_t index) {
    Setting setting = size.setting;
    setting.model =
        model_of(family, shapes[static_cast<size_t>(index - 1)], setting.plan.sequence_length);
    return setting;
  };
  SizeSearch sizes;
  sizes.most = static_cast<int64_t>(shapes.size());
  sizes.question = [&](int64_t index) {
    const Setting setting = case_at(index);
    return question_for(flags, setting, setting.model.name);
  };
  size.found = largest_size(sizes, cache.asker(measurements));
  const auto parameters = [&](int64_t index) {
    return index > 0 ? static_cast<double>(parameter_count(case_at(index).model)) : 0;
  };
  size.value = parameters(size.found.size);
  size.next_value = parameters(size.found.next);
  size.grain = fmt::format("shapes of {}, layers in multiples of {}", family.source, grain);
  if (size.found.size > 0) size.setting = case_at(size.found.size);
  return size;
}

}  // namespace

TunedSize tune_size(TuneFlags& flags, SearchCache& cache) {
  const bool sequence = flags.request.objective == Objective::kLongestSequence;
  TunedSize size = sequence ? tune_sequence(flags, cache) : tune_model(flags, cache);
  if (size.found.found && size.found.found->best) size.setting.plan = size.found.found->best->plan;
  return size;
}

OrderedJson size_json(const TuneFlags& flags, const TunedSize& size) {
  OrderedJson json = {{"name", flags.objective},
                      {"value", size.value},
                      {"unit", std::string(unit_of(flags.request.objective))},
                      {"next", size.next_value > 0 ? OrderedJson(size.next_value) : nullptr},
                      {"tried", size.grain},
                      {"searches", size.found.searches},
                      {"proven", size.found.next_stop == SearchStop::kNone},
                      {"stopped_by", stop_json(size.found.next_stop)},
                      {"layers", size.setting.model.layers},
                      {"hidden", size.setting.model.hidden},
                      {"heads", size.setting.model.heads}};
  if (!size.found.next_reasons.empty()) {
    json["next_reason"] = size.found.next_reasons.front().detail;
  }
  return json;
}

std::string size_text(const TuneFlags& flags, const TunedSize& size) {
  const bool sequence = flags.request.objective == Objective::kLongestSequence;
  const auto amount = [&](double value) {
    return sequence ? show_count(value) + " tokens"
                    : fmt::format("{:.2f}B parameters", value * 1e-9);
  };
  const bool decided = size.found.next_stop == SearchStop::kNone;
  std::string text;
  if (size.found.size > 0) {
    text += fmt::format("{}   {} ({} layers of {})\n",
                        decided ? "the longest or largest that fits" : "fits, a larger one may too",
                        amount(size.value), size.setting.model.layers, size.setting.model.hidden);
  }
  if (size.next_value > 0 && decided) {
    const auto& reasons = size.found.next_reasons;
    text += fmt::format("the next does not                  {}: {}\n", amount(size.next_value),
                        reasons.empty() ? "no layout of it is legal" : reasons.front().detail);
  } else if (size.next_value > 0) {
    text += fmt::format("not decided: {}; {}\n", amount(size.next_value),
                        stop_text(size.found.next_stop, flags.deadline_s));
  }
  return text + fmt::format("of {}, by {} searches\n", size.grain, size.found.searches);
}

}  // namespace ballast
