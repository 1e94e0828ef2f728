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
void name_strategy(const TuneFlags& flags, Setting& of) {
  if (flags.plan.strategies.empty() && !flags.plan.plan_file) of.plan.strategy = "tuned";
}

void check_devices(const TuneFlags& flags, const Setting& of) {
  const auto& most = flags.constraints.most_devices;
  if (most && of.plan.devices > *most) {
    throw Error(fmt::format("--most-devices {}", *most),
                fmt::format("leaves nothing of {} devices", of.plan.devices),
                fmt::format("the least that would do is {}", of.plan.devices));
  }
  if (of.plan.devices > of.machine.devices) {
    throw Error(fmt::format("--devices {}", of.plan.devices),
                fmt::format("{} has {}", of.machine.name, of.machine.devices),
                "name fewer, or a larger machine");
  }
}

// The space of one size; nothing where no layout of it is legal.
std::optional<SearchQuestion> question_for(const TuneFlags& flags, const Setting& of,
                                           const std::string& label) {
  try {
    const OpenKnobsOfFlags open = open_knobs_of(flags);
    return SearchQuestion{
        label, of.model, of.machine, {open.layouts(of.model, of.plan), open.knobs()}};
  } catch (const Error&) {
    return std::nullopt;
  }
}

// `of` with sequences of so many tokens, and positions for them.
Setting with_tokens(const Setting& of, int64_t tokens) {
  Setting longer = of;
  longer.plan.sequence_length = tokens;
  const Model& model = of.model;
  longer.model = model_of(family_of(model), {model.layers, model.hidden, model.heads}, tokens);
  longer.model.name = model.name;
  return longer;
}

TunedSize tune_sequence(TuneFlags& flags, SearchCache& cache) {
  TunedSize size;
  size.of = case_for(flags, size_of(flags));
  name_strategy(flags, size.of);
  check_devices(flags, size.of);
  const Measurements measurements = measurements_of(size.of.machine, flags.store);
  SizeSearch sizes;
  const int64_t grain = sequence_grain(size.of.plan);
  sizes.most = kMostTokens / grain;
  sizes.question = [&](int64_t grains) {
    const int64_t tokens = grains * grain;
    return question_for(flags, with_tokens(size.of, tokens), fmt::format("{} tokens", tokens));
  };
  size.found = largest_size(sizes, cache.asker(measurements));
  size.value = static_cast<double>(size.found.size * grain);
  size.next_value = static_cast<double>(size.found.next * grain);
  size.grain = fmt::format("multiples of {} tokens", grain);
  if (size.found.size > 0) size.of = with_tokens(size.of, size.found.size * grain);
  return size;
}

TunedSize tune_model(TuneFlags& flags, SearchCache& cache) {
  const Family gpt = gpt_family();
  TunedSize size;
  size.of = case_like(flags, gpt.like);
  name_strategy(flags, size.of);
  check_devices(flags, size.of);
  const bool named = !size.of.plan.model.empty();
  Family family = named ? family_of(size.of.model) : gpt;
  family.like.vocab = size.of.model.vocab;  // --set model.vocab
  const bool chosen = size.of.plan.machine != kHere && size.of.plan.devices > 1 &&
                      open_knobs_of(flags).knobs().has(KnobId::kPipeline);
  const int64_t grain =
      chosen ? kLayerGrain : size.of.plan.pipeline * size.of.plan.virtual_pipeline;
  const std::vector<Shape> shapes = shapes_of(family, grain);
  const Measurements measurements = measurements_of(size.of.machine, flags.store);
  const auto case_at = [&](int64_t index) {
    Setting of = size.of;
    of.model = model_of(family, shapes[static_cast<size_t>(index - 1)], of.plan.sequence_length);
    return of;
  };
  SizeSearch sizes;
  sizes.most = static_cast<int64_t>(shapes.size());
  sizes.question = [&](int64_t index) {
    const Setting of = case_at(index);
    return question_for(flags, of, of.model.name);
  };
  size.found = largest_size(sizes, cache.asker(measurements));
  const auto parameters = [&](int64_t index) {
    return index > 0 ? static_cast<double>(parameter_count(case_at(index).model)) : 0;
  };
  size.value = parameters(size.found.size);
  size.next_value = parameters(size.found.next);
  size.grain = fmt::format("shapes of {}, layers in multiples of {}", family.source, grain);
  if (size.found.size > 0) size.of = case_at(size.found.size);
  return size;
}

}  // namespace

TunedSize tune_size(TuneFlags& flags, SearchCache& cache) {
  const bool sequence = flags.request.objective == Objective::kLongestSequence;
  TunedSize size = sequence ? tune_sequence(flags, cache) : tune_model(flags, cache);
  if (size.found.found && size.found.found->best) size.of.plan = size.found.found->best->plan;
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
                      {"layers", size.of.model.layers},
                      {"hidden", size.of.model.hidden},
                      {"heads", size.of.model.heads}};
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
                        amount(size.value), size.of.model.layers, size.of.model.hidden);
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
