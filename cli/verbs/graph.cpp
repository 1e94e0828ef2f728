#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/complete/complete.h"
#include "cli/text/confidence.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"
#include "cli/tune/choice_progress.h"
#include "sim/base/atomic_file.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/report/waits.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {
namespace {

// Operation `i` of the step with its cost, enough to replay it on another simulator.
OrderedJson op_json(const Prediction& prediction, size_t i) {
  const Program& step = prediction.graph.step;
  const Op& op = step.ops[i];
  const OpCost& cost = prediction.costs.ops[i];
  OrderedJson demands = OrderedJson::array();
  for (int d = 0; d < cost.demand_count; ++d) {
    const Demand& demand = cost.demands[static_cast<size_t>(d)];
    demands.push_back({{"capacity", demand.capacity}, {"units_per_s", demand.amount}});
    if (demand.held) demands.back()["held"] = true;
  }
  OrderedJson predecessors = OrderedJson::array();
  for (int32_t e = step.edge_begin[i]; e < step.edge_begin[i + 1]; ++e) {
    const Edge& edge = step.edges[static_cast<size_t>(e)];
    const EdgeCause cause = cause_of(prediction.graph, static_cast<OpId>(i), edge);
    predecessors.push_back(
        {{"id", edge.op}, {"steps_ahead", edge.steps_ahead}, {"cause", to_string(cause.cause)}});
  }
  return {{"id", i},
          {"kind", to_string(op.kind)},
          {"phase", to_string(op.phase)},
          {"lane", lane_name(prediction.graph, op.lane)},
          {"label", describe(op)},
          {"alone_s", cost.alone.seconds()},
          {"handover_s", cost.handover.seconds()},
          {"provenance", to_string(cost.provenance)},
          {"flops", flops_of(op.work).count},
          {"bytes", bytes_of(op.work).count},
          {"demands", demands},
          {"predecessors", predecessors}};
}

OrderedJson graph_json(const Completed& completed) {
  const Prediction& prediction = completed.prediction;
  OrderedJson ops = OrderedJson::array();
  for (size_t i = 0; i < prediction.graph.step.ops.size(); ++i) {
    ops.push_back(op_json(prediction, i));
  }
  OrderedJson capacities = OrderedJson::array();
  for (size_t c = 0; c < prediction.costs.capacities.size(); ++c) {
    const Capacity& capacity = prediction.costs.capacities[c];
    capacities.push_back({{"id", c}, {"name", capacity.name}, {"units_per_s", capacity.amount}});
  }
  return {{"schema", "ballast.graph/1"},
          {"rules",
           "A lane runs its operations in the order of their ids and then begins the next step. "
           "An operation starts when its lane is free and every predecessor has finished the "
           "step steps_ahead steps before its own; if it had to wait for another lane, "
           "handover_s later. Operations that run together share capacities by max-min fairness: "
           "the rate of each is the share of its demands that it gets, at most 1. What is held is "
           "taken first, for as long as its operation runs; least_share of a capacity is left to "
           "the others however much is held."},
          {"least_share", kLeastShare},
          {"step_time_s", prediction.step_time.seconds()},
          {"stack", completed.setting.stack.name},
          {"plan", OrderedJson::parse(plan_json(completed.setting.plan))},
          {"capacities", capacities},
          {"ops", ops}};
}

std::string graph_text(const Prediction& prediction) {
  Table table({{"id", true}, {"lane", true}, {"alone"}, {"after"}, {"operation", true}});
  const Program& step = prediction.graph.step;
  for (size_t i = 0; i < step.ops.size(); ++i) {
    std::vector<std::string> after;
    for (int32_t e = step.edge_begin[i]; e < step.edge_begin[i + 1]; ++e) {
      const Edge& edge = step.edges[static_cast<size_t>(e)];
      after.push_back(fmt::format("{}{:'<{}}", edge.op, "", edge.steps_ahead));
    }
    table.add({std::to_string(i), lane_name(prediction.graph, step.ops[i].lane),
               show(prediction.costs.ops[i].alone), fmt::format("{}", fmt::join(after, " ")),
               describe(step.ops[i])});
  }
  return "after: what must finish first, on other lanes; a ' is one step earlier\n\n" +
         table.text();
}

// --- one operation
// ---------------------------------------------------------------------------------

std::string cause_text(const Graph& graph, const EdgeCause& cause) {
  switch (cause.cause) {
    case WaitCause::kLane:
      return "before it on its lane";
    case WaitCause::kTensor:
      return describe(graph.tensor(cause.tensor));
    case WaitCause::kMemory:
      return fmt::format("memory of {}, which {} takes over", describe(graph.tensor(cause.other)),
                         describe(graph.tensor(cause.tensor)));
    case WaitCause::kFence:
      return "a fence of all lanes";
  }
  CHECK(false && "a cause");
}

// What an operation waited for in the last recorded step.
struct OneOperation {
  const Prediction& prediction;
  Waits waits;
  Span span;
  std::vector<Release> releases;
  std::optional<std::pair<Duration, const Span*>> slack;
};

OneOperation operation_of(const Prediction& prediction, int64_t id) {
  const auto operations = static_cast<int64_t>(prediction.graph.step.ops.size());
  if (id < 0 || id >= operations) {
    throw Error("--operation", fmt::format("there is no operation {}", id),
                fmt::format("name one from 0 to {}; ballast graph lists them", operations - 1));
  }
  Waits waits(prediction.graph, prediction.timeline);
  const Timeline& timeline = prediction.timeline;
  for (int32_t step = timeline.first_step + timeline.steps - 1; step >= timeline.first_step;
       --step) {
    const Span* span = waits.span_of(static_cast<OpId>(id), step);
    if (span == nullptr) continue;
    std::vector<Release> releases = waits.releases_of(*span);
    const auto slack = waits.slack_of(*span);
    // Its last run may have no later one to show what waits for it.
    if (!slack && step > timeline.first_step) continue;
    return {prediction, std::move(waits), *span, std::move(releases), slack};
  }
  throw Error("--operation", fmt::format("operation {} was not recorded", id), "name another one");
}

OrderedJson operation_json(const OneOperation& one) {
  const Graph& graph = one.prediction.graph;
  OrderedJson json = op_json(one.prediction, static_cast<size_t>(one.span.op));
  OrderedJson waited = OrderedJson::array();
  for (const Release& release : one.releases) {
    waited.push_back({{"id", release.span->op},
                      {"step", release.span->step},
                      {"label", describe(graph.op(release.span->op))},
                      {"lane", lane_name(graph, graph.op(release.span->op).lane)},
                      {"ended_before_s", (one.span.begin - release.span->end).seconds()},
                      {"cause", to_string(release.cause.cause)},
                      {"because", cause_text(graph, release.cause)}});
  }
  json.erase("predecessors");
  json["step"] = one.span.step;
  json["took_s"] = (one.span.end - one.span.begin).seconds();
  json["waited_for"] = std::move(waited);
  json["slack_s"] = one.slack ? OrderedJson(one.slack->first.seconds()) : OrderedJson(nullptr);
  json["first_to_wait"] = one.slack ? OrderedJson(one.slack->second->op) : OrderedJson(nullptr);
  return json;
}

std::string operation_text(const OneOperation& one) {
  const Graph& graph = one.prediction.graph;
  const Op& op = graph.op(one.span.op);
  const OpCost& cost = one.prediction.costs.ops[static_cast<size_t>(one.span.op)];
  std::string text =
      fmt::format("{}  {}  {}\ntakes {}, alone {}\n\n", one.span.op, lane_name(graph, op.lane),
                  describe(op), show(one.span.end - one.span.begin), show(cost.alone));
  Table table({{"began", true},
               {"after", true},
               {"lane", true},
               {"operation", true},
               {"because of", true}});
  for (const Release& release : one.releases) {
    const Op& first = graph.op(release.span->op);
    table.add({show(one.span.begin - release.span->end),
               fmt::format("{}{:'<{}}", release.span->op, "", one.span.step - release.span->step),
               lane_name(graph, first.lane), describe(first), cause_text(graph, release.cause)});
  }
  text += one.releases.empty() ? "It waited for nothing that was recorded.\n" : table.text();
  text += fmt::format(
      "\nbegan: so long after the other had ended; {} of it is the hand-over between lanes where "
      "it "
      "waited for another\n",
      show(cost.handover));
  if (one.slack) {
    text += fmt::format("{} after its end began the first that waits for it: {} {}\n",
                        show(one.slack->first), one.slack->second->op,
                        describe(graph.op(one.slack->second->op)));
  }
  return text;
}

// As `predict` does, of a pipeline in the form that was asked for.
Prediction predict_folded(const Setting& setting, Folding folding,
                          const Measurements& measurements) {
  if (setting.plan.pipeline == 1)
    throw Error("--coarsen", "the plan has no pipeline", "leave it out");
  StackFacts facts = setting.stack.facts;
  facts.attention = {facts.attention.front()};
  Graph graph = build_pipeline(setting.model, setting.plan, facts, folding);
  graph = run_passes(std::move(graph), {setting.model, setting.plan, facts}, "place", "link");
  return predict(std::move(graph), setting.model, setting.plan, setting.machine, setting.stack,
                 &measurements);
}

// Which passes apply to a plan; every one may, where none is given.
std::string passes_text(const PassContext* context) {
  Table table({{"pass", true}, {"applies", true}, {"file", true}, {"does", true}});
  for (const Pass& pass : passes()) {
    const std::string applies = context == nullptr ? "" : pass.applies(*context) ? "yes" : "no";
    table.add({std::string(pass.name), applies, std::string(pass.file), std::string(pass.does)});
  }
  return table.text();
}

OrderedJson passes_json(const PassContext* context) {
  OrderedJson list = OrderedJson::array();
  for (const Pass& pass : passes()) {
    OrderedJson one = {
        {"name", pass.name}, {"file", "sim/graph/" + std::string(pass.file)}, {"does", pass.does}};
    if (context != nullptr) one["applies"] = pass.applies(*context);
    list.push_back(std::move(one));
  }
  return {{"schema", "ballast.passes/1"}, {"passes", list}};
}

void write_json(const OutputFlags& output, const OrderedJson& value) {
  const std::string json = value.dump(1) + "\n";
  if (output.out) atomic_write(*output.out, json);
  if (output.json) fmt::print("{}", json);
}

void print_passes(const OutputFlags& output, const PassContext* context) {
  write_json(output, passes_json(context));
  if (!output.json && !output.out) fmt::print("{}", passes_text(context));
}

void print_graph(const OutputFlags& output, const Completed& completed,
                 std::optional<int64_t> operation) {
  if (operation) {
    const OneOperation one = operation_of(completed.prediction, *operation);
    if (output.json || output.out) write_json(output, operation_json(one));
    if (!output.json && !output.out) fmt::print("{}", operation_text(one));
    return;
  }
  if (output.json || output.out) write_json(output, graph_json(completed));
  if (!output.json && !output.out) {
    fmt::print("{}\n{}", stack_text(completed.setting.stack.name),
               graph_text(completed.prediction));
  }
}

}  // namespace

int run_graph(Words words) {
  VerbParser parser("graph");
  OutputFlags output;
  PlanFlags flags;
  StoreFlag store;
  StackFlag stack;
  parser.add(flags, VerbParser::Lists::kNo);
  parser.add(store);
  parser.add(stack);
  parser.add(output, "Write the JSON to this file");
  std::string folded;
  parser.app()
      .add_option("--coarsen", folded,
                  "A pipeline's turns as one operation each: on, off [on, unless the plan asks for "
                  "overlap with their inside and is of moderate size]")
      ->check(CLI::IsMember({"on", "off"}));
  std::optional<int64_t> operation;
  parser.app().add_option(
      "--operation", operation,
      "Of the operation with this number: what it waited for, why, and how much "
      "later it could have ended");
  bool show_passes = false;
  parser.app().add_flag(
      "--passes", show_passes,
      "Print the passes that make the graph, and with a plan which of them apply");
  if (!parser.parse(words)) return kDone;
  const bool names_plan =
      !flags.models.empty() || !flags.machines.empty() || flags.plan_file.has_value();
  if (show_passes && !names_plan) {
    print_passes(output, nullptr);
    return kDone;
  }

  Setting setting = load_case(flags, store);
  adopt(setting, stack_of(stack, setting.machine));
  const Measurements measurements = measurements_of(setting.machine, store);
  Completed completed = complete_in_sight(std::move(setting), &measurements);
  if (!folded.empty()) {
    const Folding folding = folded == "on" ? Folding::kOn : Folding::kOff;
    completed.prediction = predict_folded(completed.setting, folding, measurements);
  }
  if (show_passes) {
    const PassContext context{completed.setting.model, completed.setting.plan,
                              completed.setting.stack.facts};
    print_passes(output, &context);
    return kDone;
  }
  if (!completed.prediction.fits) {
    fmt::print("does not fit: {}\n", completed.prediction.reason);
    return kInfeasible;
  }
  print_graph(output, completed, operation);
  return kDone;
}

}  // namespace ballast
