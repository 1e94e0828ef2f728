#include "autotune/calibrate/published_cases.h"

#include <algorithm>
#include <fmt/format.h>

#include "profiles/frameworks/usual_buckets.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "sim/engine/layer_memory.h"
#include "sim/engine/repetition.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

constexpr int64_t kLargestTriedMicroBatch = 64;
constexpr int64_t kMostChunks = 6;
constexpr Bytes kUnlimitedMemory{int64_t{1} << 60};

std::vector<int64_t> micro_batches(const Plan& plan) {
  if (plan.micro_batch) return {*plan.micro_batch};
  const int64_t local = plan.global_batch / plan.data;
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= std::min(local, kLargestTriedMicroBatch); size *= 2) {
    if (local % size == 0) sizes.push_back(size);
  }
  if (sizes.back() != local) sizes.push_back(local);
  return sizes;
}

// What is cheap to make again for the memory it takes: norms and the activation function.
ActivationPlan cheap_recompute() {
  ActivationPlan plan;
  for (const ModuleKind kind : {ModuleKind::kNorm1, ModuleKind::kNorm2, ModuleKind::kActivation}) {
    plan.fate[static_cast<size_t>(kind)] = ActivationFate::kRecompute;
  }
  return plan;
}

std::vector<ActivationPlan> activation_plans(const CaseSetup& setup, AttentionKind attention) {
  if (setup.published.plan.activations) return {*setup.published.plan.activations};
  std::vector<ActivationPlan> plans = {activations_of(Recompute::kNone)};
  if (setup.stack.facts.recomputes_by_module) {
    plans.push_back(cheap_recompute());
    plans.push_back(activations_of(Recompute::kFfnAndNorms));
  }
  if (attention == AttentionKind::kEager) {
    plans.push_back(activations_of(Recompute::kSelective));
  }
  plans.push_back(activations_of(Recompute::kFull));
  return plans;
}

std::vector<int64_t> chunk_counts(const CaseSetup& setup) {
  const Plan& plan = setup.published.plan;
  if (!setup.published.open.has(KnobId::kVirtualPipeline)) return {plan.virtual_pipeline};
  std::vector<int64_t> counts = {1};
  if (!setup.stack.facts.interleaves) return counts;
  if (setup.published.model.layers % plan.pipeline != 0) return counts;
  const int64_t layers = setup.published.model.layers / plan.pipeline;
  for (int64_t chunks = 2; chunks <= layers; ++chunks) {
    // Of 23 layers, say, the only chunks are of one.
    if (chunks > kMostChunks && counts.size() > 1) break;
    if (layers % chunks == 0) counts.push_back(chunks);
  }
  return counts;
}

std::vector<int64_t> zero_stages(const CaseSetup& setup) {
  const Plan& plan = setup.published.plan;
  if (!setup.published.open.has(KnobId::kZeroStage)) return {plan.zero_stage};
  const auto [least, most] = zero_stages_of(setup.stack.facts, plan);
  if (plan.replicas() == 1) return {setup.stack.facts.least_zero_stage};
  std::vector<int64_t> stages;
  for (int64_t stage = least; stage <= most; ++stage) {
    if (plan.pipeline == 1 || stage < 3) stages.push_back(stage);
  }
  return stages;
}

}  // namespace

int64_t most_gpu_buckets(const CaseSetup& setup, int64_t zero_stage) {
  Plan plan = setup.published.plan;
  plan.zero_stage = zero_stage;
  try {
    check(plan, setup.published.model);
  } catch (const Error&) {
    return 1;  // No completion is legal.
  }
  plan.optimizer.gpu_buckets = 0;
  const auto all =
      std::ssize(buckets_of(modules_stepped(setup.published.model, plan), plan.optimizer));
  // A stage has its part of the layers.
  return std::max<int64_t>(1, all / plan.pipeline);
}

namespace {

// `all`: of the buckets of a rank.
std::vector<int64_t> gpu_bucket_counts(const CaseSetup& setup, int64_t all) {
  const OptimizerPlan& optimizer = setup.published.plan.optimizer;
  if (setup.published.optimizer_share_on_cpu) {
    const double kept = 1 - *setup.published.optimizer_share_on_cpu;
    return {std::llround(kept * static_cast<double>(all))};
  }
  if (optimizer.gpu_buckets) return {*optimizer.gpu_buckets};
  if (optimizer.placement == OptimizerPlacement::kGpu) return {0};
  std::vector<int64_t> counts = {0};
  for (const int64_t part : {16, 8, 4, 2, 1}) {
    if (all / part > counts.back()) counts.push_back(all / part);
  }
  return counts;
}

std::vector<double> flow_shares(const Plan& plan) {
  if (plan.weights.flow_share) return {*plan.weights.flow_share};
  const bool stays = plan.pipeline > 1 || plan.optimizer.placement == OptimizerPlacement::kGpu;
  return stays ? std::vector<double>{0} : std::vector<double>{0, 1};
}

// What the case leaves open and has only one best value.
Plan base_plan(const CaseSetup& setup) {
  Plan plan = setup.published.plan;
  if (setup.published.open.has(KnobId::kBucketBytes)) use_usual_bucket(setup.stack.name, plan);
  if (setup.published.open.has(KnobId::kTensorSequence))
    plan.tensor_sequence = plan.tensor > 1 && setup.stack.facts.splits_norms_by_token;
  const auto& rates = setup.machine.cpu.adam;
  if (setup.published.open.has(KnobId::kAdam) && rates.contains(setup.published.strategy_adam)) {
    plan.optimizer.adam = setup.published.strategy_adam;
  }
  return plan;
}

// Collects the legal plans of one kind of attention.
class CompletionCollector {
 public:
  CompletionCollector(const CaseSetup& setup, AttentionKind attention)
      : setup_(setup), attention_(attention) {}

  void collect(std::vector<std::vector<Completion>>& groups, std::optional<Error>& refusal) {
    Plan plan = base_plan(setup_);
    for (const int64_t stage : zero_stages(setup_)) {
      plan.zero_stage = stage;
      const std::vector<int64_t> buckets =
          gpu_bucket_counts(setup_, most_gpu_buckets(setup_, stage));
      for (const int64_t chunks : chunk_counts(setup_)) {
        plan.virtual_pipeline = chunks;
        for (const double share : flow_shares(setup_.published.plan)) {
          plan.weights.flow_share = share;
          for (size_t i = 0; i < buckets.size(); ++i) {
            // What the GPU steps does not flow, so that nothing would.
            if (share > 0 && buckets.size() > 1 && buckets[i] == buckets.back()) continue;
            plan.optimizer.gpu_buckets = buckets[i];
            collect_activations(plan, groups, refusal);
          }
        }
      }
    }
  }

 private:
  void collect_activations(Plan plan, std::vector<std::vector<Completion>>& groups,
                           std::optional<Error>& refusal) {
    for (const ActivationPlan& activations : activation_plans(setup_, attention_)) {
      plan.activations = activations;
      std::vector<Completion> group;
      for (const int64_t size : micro_batches(setup_.published.plan)) {
        plan.micro_batch = size;
        try {
          check(plan, setup_.published.model);
          group.push_back({plan, attention_});
        } catch (const Error& error) {
          if (!refusal) refusal = error;
        }
      }
      if (!group.empty()) groups.push_back(std::move(group));
    }
  }

  const CaseSetup& setup_;
  AttentionKind attention_;
};

std::vector<AttentionKind> attention_kinds(const CaseSetup& setup) {
  if (setup.published.attention) return {*setup.published.attention};
  return setup.stack.facts.attention;
}

// FlashAttention 3 has kernels of Hopper alone: elsewhere a table that names it for all of its rows
// means what the framework takes there.
bool runs_on(AttentionKernel kernel, const Machine& machine) {
  return kernel != AttentionKernel::kFlash3 || machine.gpu.kernels.generation == "hopper";
}

Stack stack_of(const CaseSetup& setup, const StackConstants& constants, AttentionKind attention) {
  Stack stack = setup.stack;
  stack.facts.attention = {attention};
  if (setup.published.attention_kernel &&
      runs_on(*setup.published.attention_kernel, setup.machine)) {
    stack.facts.attention_kernel = *setup.published.attention_kernel;
    stack.facts.attention_kernel_on.clear();
  }
  stack.constants = constants;
  return stack;
}

Duration mean_step(const CaseSetup& setup, const Prediction& prediction) {
  if (!prediction.rollback_time) return prediction.step_time;
  return prediction.step_time + *prediction.rollback_time * setup.published.rollback_rate;
}

std::optional<double> if_known(Bytes bytes, double value) {
  return bytes.count > 0 ? std::optional(value) : std::nullopt;
}

std::optional<double> time_metric(Metric metric, const CaseSetup& setup,
                                  const Completion& completion, Duration step) {
  if (step.ps == 0) return std::nullopt;
  const double seconds = step.seconds();
  const auto devices = static_cast<double>(completion.plan.devices);
  const double tokens = static_cast<double>(completion.plan.tokens_per_step()) / seconds;
  switch (metric) {
    case Metric::kStepTime:
      return seconds;
    case Metric::kTokensPerS:
      return tokens;
    case Metric::kTokensPerDevice:
      return tokens / devices;
    case Metric::kTflopsPerDevice:
    case Metric::kMfu:
    case Metric::kHfu:
      return flops_metric(metric, setup, settled_convention(setup), 1 / seconds);
    default:
      CHECK(false);
  }
}

// The peak as the framework's logs would print it.
double printed_gb(const CaseSetup& setup, const Prediction& prediction) {
  Bytes peak = setup.prints_allocated ? prediction.peaks.front().live : prediction.gpu_peak;
  if (setup.loads_whole_model && setup.published.plan.zero_stage == 3) {
    peak = std::max(peak,
                    bytes_of(parameter_count(setup.published.model), setup.published.plan.dtype));
  }
  return setup.prints_gib ? peak.gib() : peak.gb();
}

std::optional<double> metric_of(Metric metric, const CaseSetup& setup, const Completion& completion,
                                const Prediction& prediction) {
  switch (metric) {
    case Metric::kPeakMemory:
      return if_known(prediction.gpu_peak, printed_gb(setup, prediction));
    case Metric::kMemoryShare:
      return if_known(prediction.gpu_peak,
                      100 * prediction.gpu_peak.gb() / setup.machine.gpu.memory.value.gb());
    case Metric::kLayerStates: {
      const Bytes states =
          layer_memory(prediction.graph, setup.published.model, completion.plan).states;
      return if_known(states, states.gib());
    }
    case Metric::kLayerActivations: {
      const Bytes saved =
          layer_memory(prediction.graph, setup.published.model, completion.plan).activations;
      return if_known(saved, saved.gib());
    }
    case Metric::kFits:
      return prediction.fits ? 1 : 0;
    default:
      return time_metric(metric, setup, completion, mean_step(setup, prediction));
  }
}

CasePrediction result_of(const CaseSetup& setup, const Completion& completion,
                         const Prediction& prediction) {
  CasePrediction result;
  result.fits = prediction.fits;
  result.reason = prediction.reason;
  result.peaks = prediction.peaks;
  result.completion = completion;
  result.considered = 1;
  if (prediction.step_time.ps > 0) result.step_time = mean_step(setup, prediction);
  for (const Measured& measured : setup.published.measured) {
    result.metrics.push_back({measured.metric, measured.value,
                              metric_of(measured.metric, setup, completion, prediction)});
  }
  return result;
}

// The best of those seen: the fastest that fits, or else the smallest.
class Best {
 public:
  void offer(CasePrediction offered, Bytes gpu_peak) {
    ++considered_;
    if (best_ && !is_better(offered, gpu_peak)) return;
    best_ = std::move(offered);
    gpu_peak_ = gpu_peak;
  }
  std::optional<CasePrediction> take() {
    if (best_) best_->considered = considered_;
    return std::move(best_);
  }

 private:
  bool is_better(const CasePrediction& offered, Bytes gpu_peak) const {
    if (offered.fits != best_->fits) return offered.fits;
    return offered.fits ? offered.step_time < best_->step_time : gpu_peak < gpu_peak_;
  }

  std::optional<CasePrediction> best_;
  Bytes gpu_peak_;
  int64_t considered_ = 0;
};

bool asks_only_whether_it_fits(const CaseSetup& setup) {
  return std::all_of(setup.published.measured.begin(), setup.published.measured.end(),
                     [](const Measured& measured) { return measured.metric == Metric::kFits; });
}

bool asks_for_time(const CaseSetup& setup) {
  return std::any_of(setup.published.measured.begin(), setup.published.measured.end(),
                     [](const Measured& measured) { return is_time(measured.metric); });
}

CasePrediction too_many_devices(const CaseSetup& setup) {
  CasePrediction result;
  result.reason =
      fmt::format("the case uses {} devices, and machine {} has {}", setup.published.plan.devices,
                  setup.machine.name, setup.machine.devices);
  for (const Measured& measured : setup.published.measured) {
    const bool verdict = measured.metric == Metric::kFits;
    result.metrics.push_back(
        {measured.metric, measured.value, verdict ? std::optional<double>(0) : std::nullopt});
  }
  return result;
}

void override_facts(const CaseFacts& own, StackFacts& facts) {
  const auto set = [](const auto& from, auto& to) {
    if (from) to = *from;
  };
  set(own.loss, facts.loss);
  set(own.loss_bytes, facts.loss_bytes);
  set(own.loss_chunks, facts.loss_chunks);
  set(own.gradients, facts.gradients);
  set(own.reduction, facts.reduction);
  set(own.tensor_overlap, facts.tensor_overlap);
  set(own.expert_overlap, facts.expert_overlap);
  set(own.sends_tokens_once, facts.sends_tokens_once);
  set(own.keeps_experts_whole, facts.keeps_experts_whole);
  set(own.fp8_scaling, facts.fp8_scaling);
  if (!facts.where_offloaded.facts) return;
  StackFacts offloading = *facts.where_offloaded.facts;
  override_facts(own, offloading);
  facts.where_offloaded.facts = std::make_shared<const StackFacts>(std::move(offloading));
}

// Where optimizer state is and who shares it, as far as the machine and the stack say it.
void resolve_state(CaseSetup& setup) {
  Plan& plan = setup.published.plan;
  const int64_t in_node = setup.machine.devices_per_node / plan.tensor;
  if (setup.published.shards_by_node && in_node > 1 && in_node < plan.replicas()) {
    plan.zero_group = in_node;
  }
  if (setup.published.offloads_state && setup.stack.facts.steps_offloaded_state_on_cpu) {
    plan.optimizer.stream_share = 0;
    plan.optimizer.cast = CastPlacement::kCpu;
    if (setup.published.strategy_adam.empty()) setup.published.strategy_adam = "cpu-adam";
    setup.published.open.set(KnobId::kAdam, plan.optimizer.adam == "best");
  }
}

}  // namespace

CaseSetup set_up(const PublishedCase& published) {
  return set_up(published, load_stack(published.stack));
}

CaseSetup set_up(const PublishedCase& published, Stack stack) {
  CaseSetup setup{published, load_machine(published.machine), std::move(stack)};
  setup.profile = setup.stack.facts;
  setup.prints_allocated = setup.stack.facts.prints_allocated;
  setup.prints_gib = setup.stack.facts.prints_gib;
  setup.loads_whole_model = setup.stack.facts.loads_whole_model;
  override_facts(published.facts, setup.stack.facts);
  resolve_state(setup);
  check(setup.machine);
  return setup;
}

CaseSetup as_run_by(CaseSetup setup, Stack stack) {
  setup.stack = std::move(stack);
  setup.profile = setup.stack.facts;
  // The name stays that of whom the source names, and says nothing of buckets any more.
  setup.published.open.set(KnobId::kBucketBytes, false);
  override_facts(setup.published.facts, setup.stack.facts);
  return setup;
}

std::vector<std::vector<Completion>> completions_of(const CaseSetup& setup) {
  std::vector<std::vector<Completion>> groups;
  std::optional<Error> refusal;
  for (const AttentionKind attention : attention_kinds(setup)) {
    CompletionCollector(setup, attention).collect(groups, refusal);
    if (!setup.published.state_may_be_anywhere || !setup.stack.facts.may_stream_state) continue;
    CaseSetup streamed = setup;
    OptimizerPlan& optimizer = streamed.published.plan.optimizer;
    optimizer.placement = OptimizerPlacement::kCpu;
    optimizer.gpu_buckets = 0;
    optimizer.stream_share = 1;
    optimizer.cast = CastPlacement::kGpu;
    optimizer.sync = SyncMode::kWait;
    streamed.published.plan.weights.flow_share = 0;
    CompletionCollector(streamed, attention).collect(groups, refusal);
  }
  if (groups.empty()) {
    throw refusal.value_or(Error("plan", "leaves no way to run it", "leave more of it open"));
  }
  return groups;
}

std::vector<std::vector<Completion>> completions_of_case(const CaseSetup& setup) {
  try {
    return completions_of(setup);
  } catch (const Error& error) {
    throw Error("case " + setup.published.id, std::string("has no legal plan: ") + error.what(),
                "correct its run");
  }
}

BuiltCompletion::BuiltCompletion(const CaseSetup& setup, Completion completion)
    : setup_(setup), completion_(std::move(completion)) {
  const Plan& plan = completion_.plan;
  if (is_long(setup.published.model, plan)) return;
  const Stack stack = stack_of(setup, setup.stack.constants, completion_.attention);
  graph_ = build(setup.published.model, plan, stack.facts);
}

CasePrediction BuiltCompletion::predict(const StackConstants& constants, Ask ask) {
  const Stack stack = stack_of(setup_, constants, completion_.attention);
  Machine machine = setup_.machine;
  if (ask == Ask::kUnlimited) {
    machine.gpu.memory.value = machine.cpu.memory.value = kUnlimitedMemory;
    if (machine.nvme) machine.nvme->capacity.value = kUnlimitedMemory;
  }
  Prediction prediction = predict_on(machine, stack, ask);
  CasePrediction result = result_of(setup_, completion_, prediction);
  gpu_peak_ = prediction.gpu_peak;
  if (graph_) graph_ = std::move(prediction.graph);
  return result;
}

Prediction BuiltCompletion::predict_on(const Machine& machine, const Stack& stack, Ask ask) {
  const Model& model = setup_.published.model;
  const Plan& plan = completion_.plan;
  if (!graph_) return ballast::predict(model, plan, machine, stack, nullptr);
  if (ask == Ask::kMemory) return predict_memory(*std::move(graph_), plan, machine, stack);
  return ballast::predict(*std::move(graph_), model, plan, machine, stack, nullptr);
}

CasePrediction predict_case(const CaseSetup& setup, const StackConstants& constants) {
  if (setup.published.plan.devices > setup.machine.devices) return too_many_devices(setup);
  const std::vector<std::vector<Completion>> groups = completions_of_case(setup);
  const bool one_completion = groups.size() == 1 && groups.front().size() == 1;
  const bool first_fit_is_enough = asks_only_whether_it_fits(setup);
  const auto ask = first_fit_is_enough || (one_completion && !asks_for_time(setup))
                       ? BuiltCompletion::Ask::kMemory
                       : BuiltCompletion::Ask::kAll;
  Best best;
  std::string refusal;
  std::optional<AttentionKind> settled;
  for (const std::vector<Completion>& group : groups) {
    if (settled && group.front().attention != *settled) break;
    for (const Completion& completion : group) {
      try {
        BuiltCompletion built(setup, completion);
        CasePrediction prediction = built.predict(constants, ask);
        const bool fits = prediction.fits;
        best.offer(std::move(prediction), built.gpu_peak());
        if (!fits) break;
        settled = completion.attention;
        if (first_fit_is_enough) return *best.take();
      } catch (const Error& error) {
        if (refusal.empty()) refusal = error.what();
      }
    }
  }
  std::optional<CasePrediction> result = best.take();
  // What was timed did run: its time is that of a machine with memory enough, and that none of its
  // plans was predicted to fit stays said.
  if (result && !result->fits && asks_for_time(setup)) {
    BuiltCompletion built(setup, result->completion);
    CasePrediction timed = built.predict(constants, BuiltCompletion::Ask::kUnlimited);
    for (size_t i = 0; i < timed.metrics.size(); ++i) {
      if (is_time(timed.metrics[i].metric)) result->metrics[i] = timed.metrics[i];
    }
    result->step_time = timed.step_time;
  }
  if (!result) {
    throw Error("case " + setup.published.id, "none of its plans can be predicted: " + refusal,
                "correct its run");
  }
  return *std::move(result);
}

}  // namespace ballast
