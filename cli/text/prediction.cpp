#include "cli/text/prediction.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/studies/studied_knobs.h"
#include "cli/text/confidence.h"
#include "cli/text/runs_on.h"
#include "cli/text/tables.h"
#include "sim/base/parallel.h"
#include "sim/engine/checkpoint_cost.h"
#include "sim/spec/caveats.h"

namespace ballast {
namespace {

constexpr int kTimelineWidth = 84;
constexpr size_t kHoldersShown = 3;
constexpr double kHeldShown = 0.01;  // of a memory: less is not worth a word

const PlacePeak* peak_at(const Prediction& prediction, Place place) {
  for (const PlacePeak& peak : prediction.peaks) {
    if (peak.place == place) return &peak;
  }
  return nullptr;
}

int64_t arena_bytes(const Prediction& prediction, Place place) {
  const PlacePeak* peak = peak_at(prediction, place);
  return peak == nullptr ? 0 : peak->arena.count;
}

OrderedJson holders_json(const Prediction& prediction) {
  OrderedJson all = OrderedJson::object();
  for (const PlacePeak& peak : prediction.peaks) {
    OrderedJson list = OrderedJson::array();
    for (const Holder& holder : peak.holders) {
      list.push_back({{"category", to_string(holder.category)}, {"bytes", holder.bytes.count}});
    }
    all[std::string(to_string(peak.place))] = {
        {"live_bytes", peak.live.count},
        {"held_bytes", (peak.arena - peak.live).count},
        {"at", peak.at < 0 ? OrderedJson(nullptr) : OrderedJson(peak.at_text)},
        {"categories", list}};
  }
  return all;
}

OrderedJson provenance_json(const Prediction& prediction) {
  OrderedJson shares = OrderedJson::object();
  for (int p = 0; p < kProvenances; ++p) {
    shares[std::string(to_string(static_cast<Provenance>(p)))] =
        prediction.provenance[static_cast<size_t>(p)];
  }
  return shares;
}

std::string provenance_text(const Prediction& prediction) {
  std::vector<std::string> parts;
  for (int p = 0; p < kProvenances; ++p) {
    const double share = prediction.provenance[static_cast<size_t>(p)];
    if (share < 0.0005) continue;
    parts.push_back(
        fmt::format("{} {}", show_percent(100 * share), to_string(static_cast<Provenance>(p))));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string memory_text(const Predicted& predicted) {
  const auto& [setting, prediction, confidence, bottlenecks, refusal, devices] = predicted;
  Table table({{"memory", true}, {"needed"}, {"usable"}, {"", true}});
  for (const PlacePeak& peak : prediction.peaks) {
    if (peak.arena.count == 0) continue;
    std::vector<std::string> holders;
    if (peak.place == Place::kHbm && confidence) {
      holders.push_back(interval_text(confidence->gpu_peak));
    }
    const auto shown = [&](Bytes bytes) {
      return static_cast<double>(bytes.count) > kHeldShown * static_cast<double>(peak.arena.count);
    };
    Bytes others;
    for (size_t i = 0; i < peak.holders.size(); ++i) {
      const Holder& holder = peak.holders[i];
      if (i >= kHoldersShown) {
        others += holder.bytes;
      } else {
        holders.push_back(fmt::format("{} {}", to_string(holder.category), show(holder.bytes)));
      }
    }
    if (shown(others)) holders.push_back("others " + show(others));
    const Bytes held = peak.arena - peak.live;
    const char* const by = setting.stack.memory_is_planned() ? "for reuse" : "by the allocator";
    if (shown(held)) holders.push_back(fmt::format("held {} {}", by, show(held)));
    table.add({memory_name(peak.place), show(peak.arena), show(usable(setting.machine, peak.place)),
               fmt::format("{}", fmt::join(holders, ", "))});
  }
  return table.text();
}

// What the timeline above does not draw.
std::string repetition_text(const Repetition& repetition) {
  return fmt::format(
      "drawn is a step of {} micro-batches; the plan's has {}, and every {} more take {}\n",
      repetition.simulated, repetition.all, repetition.micro_batches, show(repetition.period));
}

OrderedJson repetition_json(const Repetition& repetition) {
  return {{"simulated_micro_batches", repetition.simulated},
          {"micro_batches", repetition.all},
          {"period_micro_batches", repetition.micro_batches},
          {"period_s", repetition.period.seconds()}};
}

// "compute 97 %, copy-in 2 %"; of a pipeline's stages from the least to the most, "compute 94 to 98
// %".
std::string lanes_text(const Prediction& prediction) {
  struct Range {
    LaneKind kind{};
    double least = 0, most = 0;  // percent
  };
  std::vector<Range> ranges;
  for (const LaneUse& use : prediction.lanes) {
    const LaneKind kind = kind_of(use.lane);
    const double percent = 100 * use.share;
    const auto known = std::find_if(ranges.begin(), ranges.end(),
                                    [&](const Range& range) { return range.kind == kind; });
    if (known == ranges.end()) {
      ranges.push_back({kind, percent, percent});
    } else {
      known->least = std::min(known->least, percent);
      known->most = std::max(known->most, percent);
    }
  }
  std::vector<std::string> parts;
  for (const Range& range : ranges) {
    const std::string least = fmt::format("{:.0f}", range.least);
    const std::string most = fmt::format("{:.0f}", range.most);
    const std::string span = least == most ? most : least + " to " + most;
    parts.push_back(fmt::format("{} {} %", to_string(range.kind), span));
  }
  const int64_t stages = prediction.graph.lanes / kLaneKinds;
  return fmt::format("{}{}", fmt::join(parts, ", "),
                     stages > 1 ? fmt::format(" (of {} stages)", stages) : "");
}

// "data 2, tensor 4, ZeRO-1; "; empty for one device.
std::string degrees_text(const Plan& plan) {
  if (plan.devices == 1) return "";
  std::vector<std::string> parts;
  const std::pair<const char*, int64_t> degrees[] = {
      {"data", plan.data},         {"tensor", plan.tensor},   {"pipeline", plan.pipeline},
      {"sequence", plan.sequence}, {"context", plan.context}, {"expert", plan.expert}};
  for (const auto& [name, degree] : degrees) {
    if (degree > 1) parts.push_back(fmt::format("{} {}", name, degree));
  }
  if (plan.virtual_pipeline > 1) {
    parts.push_back(fmt::format("{} chunks a stage", plan.virtual_pipeline));
  }
  if (plan.pipeline > 1 && plan.pipeline_schedule != PipelineSchedule::k1F1B) {
    parts.emplace_back(to_string(plan.pipeline_schedule));
  }
  if (plan.subsequences > 1) {
    parts.push_back(fmt::format("{} parts{}", plan.subsequences,
                                plan.multiplex ? ", the outer ones on all stages" : ""));
  }
  if (plan.tensor_sequence) parts.emplace_back("norms split by token");
  if (plan.replicas() > 1) parts.push_back(fmt::format("ZeRO-{}", plan.zero_stage));
  return fmt::format("{}; ", fmt::join(parts, ", "));
}

// "42.2 % (52.5 % of the 795 TFLOP/s measured)": of the nominal peak, as everybody counts.
std::string mfu_text(const Prediction& prediction) {
  const std::string text = show_percent(100 * prediction.mfu);
  if (!prediction.of_measured) return text;
  return fmt::format("{} ({} of the {} measured)", text,
                     show_percent(100 * prediction.of_measured->mfu),
                     show(prediction.of_measured->peak));
}

// The intervals stand behind what they are of, and take a line of their own.
std::string rates_text(const Predicted& predicted) {
  const auto& [setting, prediction, confidence, bottlenecks, refusal, devices] = predicted;
  const std::string device =
      fmt::format("{} a device ({} with recompute)   MFU {}\n", show(prediction.model_rate),
                  show(prediction.hardware_rate), mfu_text(prediction));
  if (!confidence) {
    return fmt::format("step {}   {} tokens/s   {}", show(prediction.step_time),
                       show_count(prediction.tokens_per_s), device);
  }
  return fmt::format("step {} {}   {} tokens/s {}\n{}", show(prediction.step_time),
                     interval_text(confidence->step_time), show_count(prediction.tokens_per_s),
                     tokens_interval_text(confidence->step_time, setting.plan.tokens_per_step()),
                     device);
}

// `buckets`: of all, where that is known.
std::string optimizer_text(const OptimizerPlan& plan, std::optional<int64_t> buckets) {
  const bool all_on_gpu = buckets && plan.gpu_buckets.value_or(0) >= *buckets;
  if (plan.placement == OptimizerPlacement::kGpu) {
    return fmt::format("Adam on the GPU, {}", to_string(plan.sync));
  }
  if (plan.placement == OptimizerPlacement::kCpu && all_on_gpu) {
    return fmt::format("Adam on the GPU (all {} buckets of {}), {}", *buckets,
                       show(plan.bucket_bytes), to_string(plan.sync));
  }
  const std::string on_gpu = plan.gpu_buckets ? std::to_string(*plan.gpu_buckets) : "auto";
  const std::string of_all = buckets ? fmt::format(" of {}", *buckets) : "";
  const bool direct = plan.transfers == StateTransfers::kDirect;
  return fmt::format("Adam on the {}, buckets of {} ({}{} on the GPU), cast on the {}{}, {}",
                     plan.placement == OptimizerPlacement::kCpu ? "CPU" : "NVMe",
                     show(plan.bucket_bytes), on_gpu, of_all,
                     plan.cast == CastPlacement::kGpu ? "GPU" : "CPU",
                     direct ? ", moved by kernels" : "", to_string(plan.sync));
}

}  // namespace

namespace {

// Empty where the plan writes none.
std::optional<CheckpointCost> cost_of(const Predicted& predicted) {
  return checkpoint_cost(predicted.setting.model, predicted.setting.plan,
                         predicted.setting.machine);
}

std::optional<BackgroundCheckpoint> background_of(const CheckpointCost& cost,
                                                  const Predicted& predicted,
                                                  std::optional<Duration> write) {
  if (!predicted.prediction.fits) return std::nullopt;
  return background_checkpoint(cost, predicted.prediction, predicted.setting.plan,
                               predicted.setting.machine, write);
}

std::string checkpoints_text(const CheckpointCost& cost, const BackgroundCheckpoint& beside,
                             bool write_is_given) {
  std::string text =
      fmt::format("a checkpoint of {} every {} steps is not in the step time: training rests {} ",
                  show(cost.total), cost.period_steps, show(beside.copy));
  if (!beside.write) {
    return text +
           "for its copy; the machine's file describes no disk that it could be written to "
           "(--checkpoint-write-seconds)\n";
  }
  return text +
         fmt::format(
             "for its copy of {} in CPU memory, the step after it is {} longer, as lanes begin "
             "empty, and it is written beside the steps for {}{}, {} each then: {} more time\n",
             show(cost.device), show(beside.refill), show(*beside.write),
             write_is_given ? "" : " at the rate of the NVMe", show(*beside.step_beside),
             show_percent(100 * *beside.overhead));
}

OrderedJson checkpoints_json(const CheckpointCost& cost,
                             const std::optional<BackgroundCheckpoint>& beside) {
  const auto seconds = [](const std::optional<Duration>& time) {
    return time ? OrderedJson(time->seconds()) : OrderedJson(nullptr);
  };
  OrderedJson json = {{"period_steps", cost.period_steps},
                      {"bytes", cost.total.count},
                      {"device_bytes", cost.device.count},
                      {"time_s", seconds(cost.time)},
                      {"time_per_step_s", seconds(cost.time_per_step)}};
  if (!beside) return json;
  json["copy_s"] = beside->copy.seconds();
  json["refill_s"] = beside->refill.seconds();
  json["write_s"] = seconds(beside->write);
  json["step_beside_write_s"] = seconds(beside->step_beside);
  json["overhead_percent"] =
      beside->overhead ? OrderedJson(100 * *beside->overhead) : OrderedJson(nullptr);
  return json;
}

// A rate of a plan that does not fit is none.
OrderedJson if_fits(const Prediction& prediction, double value) {
  return prediction.fits ? OrderedJson(value) : OrderedJson(nullptr);
}

}  // namespace

OrderedJson kinds_json(const std::vector<KindTime>& kinds) {
  OrderedJson list = OrderedJson::array();
  for (const KindTime& kind : kinds) {
    list.push_back({{"kind", name_of(kind)},
                    {"seconds", kind.time.seconds()},
                    {"operations", kind.operations}});
  }
  return list;
}

OrderedJson lanes_json(const Graph& graph, const std::vector<LaneUse>& lanes) {
  OrderedJson list = OrderedJson::array();
  for (const LaneUse& use : lanes) {
    list.push_back({{"lane", lane_name(graph, use.lane)},
                    {"busy_s", use.busy.seconds()},
                    {"share", use.share}});
  }
  return list;
}

Predicted judged(Setting setting, Prediction prediction, const Measurements& measurements,
                 AskLimits ask) {
  Predicted all;
  run_all({[&] {
             all.confidence = confidence_of(prediction, setting.model, setting.plan,
                                            setting.machine, setting.stack, &measurements);
           },
           [&] { all.runs_on = runs_on(setting.model, setting.plan, setting.stack); }},
          hardware_threads());
  all.bottlenecks = bottlenecks_of(setting, prediction, measurements, ask);
  all.setting = std::move(setting);
  all.prediction = std::move(prediction);
  return all;
}

OrderedJson prediction_json(const Predicted& predicted, std::optional<Duration> checkpoint_write) {
  const auto& [setting, prediction, confidence, bottlenecks, refusal, devices] = predicted;
  OrderedJson json = {{"model", setting.model.name},     {"machine", setting.machine.name},
                      {"stack", setting.stack.name},     {"strategy", setting.plan.strategy},
                      {"devices", setting.plan.devices}, {"fits", prediction.fits},
                      {"reason", prediction.reason}};
  json["notes"] = notes_of(predicted);
  json["confidence"] =
      confidence_json(setting.stack.name, confidence, setting.plan.tokens_per_step());
  json["step_time_s"] = if_fits(prediction, prediction.step_time.seconds());
  json["settled"] = prediction.settled;
  if (prediction.repetition) json["repetition"] = repetition_json(*prediction.repetition);
  json["tokens_per_s"] = if_fits(prediction, prediction.tokens_per_s);
  json["tokens_per_s_per_device"] = if_fits(prediction, prediction.tokens_per_s_per_device);
  json["tflops_per_device"] = if_fits(prediction, prediction.model_rate.tflops());
  json["hardware_tflops_per_device"] = if_fits(prediction, prediction.hardware_rate.tflops());
  json["mfu_percent"] = if_fits(prediction, 100 * prediction.mfu);
  json["mfu_of_measured_percent"] = prediction.of_measured
                                        ? OrderedJson(100 * prediction.of_measured->mfu)
                                        : OrderedJson(nullptr);
  json["rollback_time_s"] = prediction.rollback_time
                                ? OrderedJson(prediction.rollback_time->seconds())
                                : OrderedJson(nullptr);
  // Only where the plan writes any: the time is not part of a step's.
  if (const auto cost = cost_of(predicted)) {
    json["checkpoints"] =
        checkpoints_json(*cost, background_of(*cost, predicted, checkpoint_write));
  }
  json["peak_gpu_bytes"] = arena_bytes(prediction, Place::kHbm);
  json["peak_cpu_bytes"] = arena_bytes(prediction, Place::kDram);
  json["peak_nvme_bytes"] = arena_bytes(prediction, Place::kNvme);
  json["usable_gpu_bytes"] = usable(setting.machine, Place::kHbm).count;
  json["usable_cpu_bytes"] = usable(setting.machine, Place::kDram).count;
  const bool disks = setting.machine.nvme.has_value();
  json["usable_nvme_bytes"] =
      disks ? OrderedJson(usable(setting.machine, Place::kNvme).count) : OrderedJson(nullptr);
  json["holders"] = holders_json(prediction);
  json["lanes"] = lanes_json(prediction.graph, prediction.lanes);
  json["kinds"] = kinds_json(prediction.kinds);
  json["bottlenecks"] = bottlenecks_json(bottlenecks);
  json["longest_path"] = {{"kinds", kinds_json(prediction.longest_path.by_kind)},
                          {"waiting_s", prediction.longest_path.waiting.seconds()}};
  json["provenance"] = provenance_json(prediction);
  json["runs_on"] = runs_on_json(devices);
  json["plan"] = OrderedJson::parse(plan_json(setting.plan));
  return json;
}

std::string plan_text(const Plan& plan, std::optional<int64_t> buckets) {
  const std::string batch =
      plan.micro_batch ? fmt::format(", {} micro-batch{} of {} on a device", plan.accumulation(),
                                     plan.accumulation() == 1 ? "" : "es", *plan.micro_batch)
                       : std::string(", micro-batch auto");
  const std::string flow =
      !plan.weights.flow_share ? std::string("auto")
      : *plan.weights.flow_share == 0
          ? std::string("stay")
          : fmt::format("of {:.0f} % of the layers flow", 100 * *plan.weights.flow_share);
  const char* plural = plan.global_batch == 1 ? "" : "s";
  const char* products = plan.products != ProductFormat::kFp8 ? ""
                         : plan.weights.keep_codes
                             ? ", products in fp8 of weights rounded once a step"
                             : ", products in fp8";
  const bool wide = plan.gradients == GradientFormat::kF32 && plan.dtype != DType::kF32;
  const char* gradients = wide ? ", gradients in fp32" : "";
  const char* reuse = plan.memory_reuse == MemoryReuse::kAtOnce ? "; memory reused at once" : "";
  return fmt::format("{} sequence{} of {} tokens{}, {}{}{}; {};\n{}weights {}; activations: {}{}",
                     plan.global_batch, plural, plan.sequence_length, batch, to_string(plan.dtype),
                     products, gradients, optimizer_text(plan.optimizer, buckets),
                     degrees_text(plan), flow, activations_text(plan.activations), reuse);
}

std::string prediction_text(const Predicted& predicted, std::optional<Duration> checkpoint_write) {
  const auto& [setting, prediction, confidence, bottlenecks, refusal, devices] = predicted;
  // Of a pipeline each stage has buckets of its own.
  const bool counts = setting.plan.pipeline == 1 && !prediction.graph.buckets.empty();
  const auto buckets = counts ? std::optional(std::ssize(prediction.graph.buckets)) : std::nullopt;
  std::string text =
      fmt::format("{} on {}, {} {}, {}\n{}\n{}\n{}\n", setting.model.name, setting.machine.name,
                  setting.plan.devices, setting.plan.devices == 1 ? "device" : "devices",
                  setting.plan.strategy.empty() ? "no strategy" : setting.plan.strategy,
                  stack_text(setting.stack.name), plan_text(setting.plan, buckets),
                  notes_text(notes_of(predicted)));
  text += verdict_text(prediction.fits, confidence);
  if (!prediction.fits) {
    text += ": " + prediction.reason + "\n\n";
    return prediction.peaks.empty() ? text : text + memory_text(predicted);
  }
  text += "\n" + rates_text(predicted);
  if (prediction.rollback_time) {
    text +=
        fmt::format("a step that is rolled back takes {} more\n", show(*prediction.rollback_time));
  }
  if (const auto cost = cost_of(predicted)) {
    text += checkpoints_text(*cost, *background_of(*cost, predicted, checkpoint_write),
                             checkpoint_write.has_value());
  }
  if (!prediction.settled) text += "the step time had not settled: it is a mean\n";
  text += "\n" + memory_text(predicted) + "\n";
  text += text_timeline(prediction.graph, prediction.timeline, kTimelineWidth) + "\n";
  if (prediction.repetition) text += repetition_text(*prediction.repetition) + "\n";
  text += "lanes in use    " + lanes_text(prediction) + "\n";
  text += bottlenecks_text(bottlenecks);
  text += "times are       " + provenance_text(prediction) + "\n";
  text += "to run it       " + runs_on_text(devices) + "\n";
  return text;
}

std::string outcome_text(const Predicted& predicted) {
  const auto& [setting, prediction, confidence, bottlenecks, refusal, devices] = predicted;
  if (!refusal.empty()) return refusal;
  const std::string verdict = verdict_text(prediction.fits, confidence);
  if (!prediction.fits) return fmt::format("{}: {}", verdict, prediction.reason);
  const std::string step = show(prediction.step_time);
  const std::string rate = show_count(prediction.tokens_per_s);
  if (!confidence || !confidence->step_time) {
    return fmt::format("{}; step {}, {} tokens/s", verdict, step, rate);
  }
  const int64_t tokens = setting.plan.tokens_per_step();
  return fmt::format("{}; step {} {}, {} tokens/s {}", verdict, step,
                     interval_text(confidence->step_time), rate,
                     tokens_interval_text(confidence->step_time, tokens));
}

OrderedJson outcome_json(const Predicted& predicted) {
  const auto& [setting, prediction, confidence, bottlenecks, refusal, devices] = predicted;
  return {{"stack", setting.stack.name},
          {"fits", refusal.empty() ? OrderedJson(prediction.fits) : OrderedJson(nullptr)},
          {"reason", refusal.empty() ? prediction.reason : refusal},
          {"step_time_s", if_fits(prediction, prediction.step_time.seconds())},
          {"tokens_per_s", if_fits(prediction, prediction.tokens_per_s)},
          {"confidence",
           confidence_json(setting.stack.name, confidence, setting.plan.tokens_per_step())}};
}

std::string prediction_table(const std::vector<Predicted>& cases) {
  Table table({{"model", true},
               {"machine", true},
               {"GPUs"},
               {"strategy", true},
               {"as", true},
               {"step"},
               {"tokens/s"},
               {"TFLOP/s a GPU"},
               {"MFU"},
               {"GPU memory"},
               {"CPU memory"},
               {"runs on", true}});
  std::vector<std::string> notes;  // each once
  for (const Predicted& one : cases) {
    const auto& [setting, prediction, confidence, bottlenecks, refusal, devices] = one;
    for (std::string& note : notes_of(one)) {
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
    std::vector<std::string> cells = {setting.model.name, setting.machine.name,
                                      std::to_string(setting.plan.devices), setting.plan.strategy,
                                      setting.stack.name};
    if (!refusal.empty()) {
      cells.push_back("illegal: " + refusal);
    } else if (!prediction.fits) {
      // What to do about it takes a line of its own, which `predict` of this plan alone has.
      cells.push_back(verdict_text(false, confidence) + ": " +
                      prediction.reason.substr(0, prediction.reason.find(';')));
    } else {
      cells.insert(cells.end(),
                   {show(prediction.step_time), show_count(prediction.tokens_per_s),
                    show_count(prediction.model_rate.tflops()), show_percent(100 * prediction.mfu),
                    show(Bytes{arena_bytes(prediction, Place::kHbm)}),
                    show(Bytes{arena_bytes(prediction, Place::kDram)}), runs_on_cell(devices)});
    }
    table.add(std::move(cells));
  }
  return table.text() + notes_text(notes);
}

std::vector<std::string> notes_of(const Predicted& predicted) {
  const Setting& setting = predicted.setting;
  std::vector<std::string> notes = notes_of(setting.model, setting.plan, setting.stack.facts);
  auto full = nearly_full_note(predicted.prediction, setting.machine, setting.stack);
  if (full) notes.push_back(std::move(*full));
  return notes;
}

std::string notes_text(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += "note: " + note + "\n";
  return text;
}

OrderedJson or_null(const std::optional<double>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

}  // namespace ballast
