#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/complete/complete.h"
#include "cli/text/confidence.h"
#include "cli/text/prediction.h"
#include "cli/text/tables.h"
#include "sim/base/atomic_file.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {
namespace {

// Operation `i` of the step with its cost, enough to replay it on another simulator.
OrderedJson op_json(const Prediction& prediction, size_t i) {
  const Sequence& step = prediction.graph.step;
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
    predecessors.push_back({{"id", edge.op}, {"steps_ahead", edge.steps_ahead}});
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
           "the rate of each is the share of its demands that it gets, at most 1."},
          {"step_time_s", prediction.step_time.seconds()},
          {"stack", completed.setting.stack.name},
          {"plan", OrderedJson::parse(plan_json(completed.setting.plan))},
          {"capacities", capacities},
          {"ops", ops}};
}

std::string graph_text(const Prediction& prediction) {
  Table table({{"id", true}, {"lane", true}, {"alone"}, {"after"}, {"operation", true}});
  const Sequence& step = prediction.graph.step;
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

// As `predict` does, of a pipeline in the form that was asked for.
Prediction predict_folded(const Setting& of, Folding folding, const Measurements& measurements) {
  if (of.plan.pipeline == 1) throw Error("--coarsen", "the plan has no pipeline", "leave it out");
  StackFacts facts = of.stack.facts;
  facts.attention = {facts.attention.front()};
  Graph graph = build_pipeline(of.model, of.plan, facts, folding);
  graph = run_passes(std::move(graph), {of.model, of.plan, facts}, "place", "link");
  return predict(std::move(graph), of.model, of.plan, of.machine, of.stack, &measurements);
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

  Setting of = load_case(flags, store);
  of.stack = stack_of(stack, of.machine);
  const Measurements measurements = measurements_of(of.machine, store);
  Completed completed = complete(std::move(of), &measurements);
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
  if (output.json || output.out) write_json(output, graph_json(completed));
  if (!output.json && !output.out) {
    fmt::print("{}\n{}", stack_text(completed.setting.stack.name),
               graph_text(completed.prediction));
  }
  return kDone;
}

}  // namespace ballast
