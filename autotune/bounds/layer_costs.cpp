#include "autotune/bounds/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <memory>

#include "sim/base/parallel.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/module_index.h"
#include "sim/graph/report/memory.h"
#include "sim/graph/schedules/chunk.h"
#include "sim/graph/schedules/schedule.h"
#include "sim/spec/knobs.h"

namespace ballast {
namespace {

bool is_compute(const Op& op) { return kind_of(op.lane) == LaneKind::kCompute; }

bool goes_back(Phase phase) { return is_backward(phase) || phase == Phase::kRecompute; }

// Follows the longest path through some operations of a program, from the first of them on the
// compute lane. What none of them made was there long ago.
class Chain {
 public:
  explicit Chain(size_t tensors) : made_(tensors, kLongAgo) { free_.fill(kLongAgo); }

  void append(const Op& op, int64_t ps) {
    const int64_t start = start_of(op);
    auto& free = free_[static_cast<size_t>(kind_of(op.lane))];
    free = start == kLongAgo ? kLongAgo : start + ps;
    for (const Access& access : op.accesses) {
      if (writes(access)) made_[static_cast<size_t>(access.tensor)] = free;
    }
  }

  // When an operation of the compute lane could start that comes next.
  int64_t start_of(const Op& op) const {
    int64_t start = free_[static_cast<size_t>(kind_of(op.lane))];
    if (is_compute(op)) start = std::max<int64_t>(start, 0);
    for (const Access& access : op.accesses) {
      if (reads(access)) start = std::max(start, made_[static_cast<size_t>(access.tensor)]);
    }
    return start;
  }

  int64_t computed() const {
    return std::max<int64_t>(0, free_[static_cast<size_t>(LaneKind::kCompute)]);
  }

 private:
  std::array<int64_t, kLaneKinds> free_{};
  std::vector<int64_t> made_;  // by tensor
};

bool belongs(const Op& op, int64_t layer, Direction direction) {
  if (op.label.layer != layer) return false;
  return direction == Direction::kForward ? op.phase == Phase::kForward : goes_back(op.phase);
}

// By operation of a graph: the turn of its part. Nothing of whole sequences.
std::vector<size_t> turns_of_parts(const Graph& graph, int64_t parts) {
  return parts > 1 ? turns_of_operations(graph.step.ops, parts) : std::vector<size_t>{};
}

// Of turns forward, then back, last part first: those of one part.
int64_t& time_of_turn(LayerCost& part, size_t turn) {
  const size_t parts = part.forward_of_parts_ps.size();
  return turn < parts ? part.forward_of_parts_ps[turn]
                      : part.backward_of_parts_ps[2 * parts - 1 - turn];
}

struct ChainTime {
  int64_t ps = 0;
  int64_t tail_ps = 0;  // of it, after the last computation
};

// `turn_of`: turns_of_parts(); what each adds to the chain is added to `part`.
ChainTime chain_of(const Graph& graph, const CostTable& table, int64_t layer, Direction direction,
                   const std::vector<size_t>& turn_of, LayerCost& part) {
  const std::vector<Op>& ops = graph.step.ops;
  Chain chain(graph.tensors.size());
  size_t last = ops.size();  // of the compute lane
  int64_t before = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!belongs(ops[i], layer, direction)) continue;
    if (is_compute(ops[i])) last = i;
    // A collective before the layer's first computation belongs to what came before.
    if (last == ops.size()) continue;
    chain.append(ops[i], table.ops[i].alone.ps);
    if (turn_of.empty() || last != i) continue;
    time_of_turn(part, turn_of[i]) += chain.computed() - before;
    before = chain.computed();
  }
  if (last == ops.size()) return {};
  const int64_t computed = chain.computed();
  for (size_t i = last + 1; i < ops.size(); ++i) {
    if (!is_compute(ops[i])) continue;
    const int64_t ps = std::max(computed, chain.start_of(ops[i]));
    return {ps, ps - computed};
  }
  return {computed, 0};
}

LayerCost& part_of(LayerProfile& profile, const Label& label) {
  if (label.layer >= 0) return profile.layers[static_cast<size_t>(label.layer)];
  return label.module == ModuleKind::kEmbedding ? profile.first : profile.last;
}

void add_operations(const Graph& graph, const CostTable& table, const std::vector<size_t>& turn_of,
                    LayerProfile& profile) {
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    LayerCost& part = part_of(profile, op.label);
    part.work.add(op, table.ops[i], table, 1);
    if (op.kind == OpKind::kCollective && op.phase == Phase::kFetch) {
      part.gathers.add(op, table.ops[i], table, 1);
    }
    if (op.phase == Phase::kOptimizer) {
      part.scatters.add(op, table.ops[i], table, 1);
    }
    if (!is_compute(op)) continue;
    if (op.label.subsequence == 0 && op.phase != Phase::kRecompute) {
      (goes_back(op.phase) ? part.first_part_backward_ps : part.first_part_forward_ps) +=
          table.ops[i].alone.ps;
    }
    // Of an end of the model that is all; of a layer its chain takes the place. Exchanges of shards
    // are in neither: not every micro-batch has them.
    if (op.phase == Phase::kFetch || op.phase == Phase::kOptimizer) continue;
    (goes_back(op.phase) ? part.backward_ps : part.forward_ps) += table.ops[i].alone.ps;
    const bool of_end = op.label.layer < 0;
    if (of_end && !turn_of.empty()) time_of_turn(part, turn_of[i]) += table.ops[i].alone.ps;
  }
}

// Gives every part of every layer, and of the ends, a time of 0.
void begin_parts(int64_t parts, LayerProfile& profile) {
  if (parts == 1) return;
  const auto begin = [&](LayerCost& part) {
    part.forward_of_parts_ps.assign(static_cast<size_t>(parts), 0);
    part.backward_of_parts_ps = part.forward_of_parts_ps;
  };
  begin(profile.first);
  begin(profile.last);
  for (LayerCost& layer : profile.layers) begin(layer);
}

void add_saved(const Graph& graph, const std::vector<Life>& lives, LayerProfile& profile) {
  const auto middle = static_cast<OpId>(first_backward(graph.step.ops));
  const ModuleIndex modules(graph.modules);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    LayerCost& part = part_of(profile, tensor.label);
    if (tensor.kind == TensorKind::kWeight) {
      const bool of_experts = graph.module(modules.of(tensor.label)).expert_ranks > 1;
      part.parameters += {tensor.elements, of_experts ? tensor.elements : 0};
      ++part.weights;
    }
    const bool state =
        tensor.category == Category::kWeights || tensor.category == Category::kGradients;
    const Life& life = lives[t];
    if (state || life.first < 0 || life.carried || life.first >= middle || life.last < middle) {
      continue;
    }
    part.saved[static_cast<size_t>(tensor.place)] += tensor.all_bytes();
  }
}

// What a stage of a pipeline over parts has on its GPU between the backward of the last part and
// that of the part before it, where keys and values of all others are there, and the sums of their
// gradients: what turns before use as well as turns after. When it leaves or returns does not
// count, for here the layers follow each other within a part's turn.
void add_between_parts(const Graph& graph, const std::vector<Life>& lives, int64_t parts,
                       LayerProfile& profile) {
  if (parts == 1) return;
  const std::vector<Op>& ops = graph.step.ops;
  const std::vector<size_t> turn_of = turns_of_operations(ops, parts);
  struct Uses {
    size_t first = SIZE_MAX, last = 0;  // turns
  };
  std::vector<Uses> uses(graph.tensors.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].phase == Phase::kOffload || ops[i].phase == Phase::kReload) continue;
    for (const Access& access : ops[i].accesses) {
      Uses& one = uses[static_cast<size_t>(access.tensor)];
      one.first = std::min(one.first, turn_of[i]);
      one.last = std::max(one.last, turn_of[i]);
    }
  }
  const auto last_part = static_cast<size_t>(parts);  // its backward: all forwards come before
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const bool counts =
        tensor.place == Place::kHbm && !lives[t].carried && tensor.kind != TensorKind::kGradient;
    if (!counts || uses[t].first > last_part || uses[t].last <= last_part) continue;
    LayerCost& part = part_of(profile, tensor.label);
    part.between_parts += tensor.all_bytes();
    const bool is_pair =
        tensor.kind == TensorKind::kKeysValues || tensor.kind == TensorKind::kKeyGradient;
    if (is_pair) part.pairs_between_parts += tensor.all_bytes();
  }
}

void add_memory(const Graph& graph, int64_t parts, LayerProfile& profile) {
  const std::vector<Life> lives = lives_of(graph);
  add_saved(graph, lives, profile);
  add_between_parts(graph, lives, parts, profile);
}

// The first layer stands for those whose activations leave, the last for those that stay. What the
// one between offloads is back before the first backward, which starts from it.
constexpr int64_t kLayersProfiled = 3;

bool leaves_any(const ActivationPlan& plan) {
  return plan.dispatched == ActivationFate::kOffload ||
         std::find(plan.fate.begin(), plan.fate.end(), ActivationFate::kOffload) != plan.fate.end();
}

// Where nothing leaves there need be none between.
int64_t layers_to_profile(const ActivationPlan& plan) {
  return leaves_any(plan) ? kLayersProfiled : kLayersProfiled - 1;
}

// From which layer on all are alike.
int64_t first_alike(const Model& model) {
  int64_t first = model.layers - 1;
  while (first > 0 && model.are_alike(first - 1, first)) --first;
  return first;
}

// The layers of a model that begins otherwise than it goes on, so that all but three of those that
// are alike were left out: the first of these stands for what was, which leaves where activations
// do; the last one stays.
void insert_alike(LayerProfile& profile, int64_t layers) {
  const auto first = profile.layers.end() - kLayersProfiled;
  const LayerCost stands = *first;
  profile.layers.insert(first, static_cast<size_t>(layers) - profile.layers.size(), stands);
  *(profile.layers.end() - 2) = stands;
}

// Whether it is not by layer alone what leaves: then a bound counts all as gone, and no copy.
bool leaves_otherwise(const ActivationPlan& plan) {
  const bool otherwise = plan.reload == ReloadOrder::kByModule || plan.offload_share_fall > 0 ||
                         plan.offload_least.count > 0;
  return otherwise && leaves_any(plan);
}

// The same where nothing leaves; how it would does not matter then.
Plan without_copies(Plan plan) {
  const ActivationPlan& asked = *plan.activations;
  ActivationPlan stays;
  stays.fate = asked.fate;
  stays.dispatched = asked.dispatched;
  stays.scores = asked.scores;
  stays.recompute_share = asked.recompute_share;
  stays.recompute_fc1_part = asked.recompute_fc1_part;
  const auto stay = [](ActivationFate& fate) {
    if (fate == ActivationFate::kOffload) fate = ActivationFate::kKeep;
  };
  for (ActivationFate& fate : stays.fate) stay(fate);
  stay(stays.dispatched);
  plan.activations = stays;
  return plan;
}

// As much as may leave; the last layer, whose like ones leave, with them.
void leave_all(LayerProfile& profile) {
  std::vector<LayerCost>& layers = profile.layers;
  const LayerCost& before = layers[layers.size() > 1 ? layers.size() - 2 : 0];
  for (size_t p = 0; p < kPlaces; ++p) {
    const bool away = static_cast<Place>(p) == Place::kDram;
    Bytes& last = layers.back().saved[p];
    last = away || layers.size() == 1 ? Bytes{} : std::min(last, before.saved[p]);
    for (LayerCost& layer : layers) {
      if (away) layer.saved[p] = {};
    }
  }
  layers.back().between_parts = std::min(layers.back().between_parts, before.between_parts);
  layers.back().pairs_between_parts =
      std::min(layers.back().pairs_between_parts, before.pairs_between_parts);
}

// The part of the model that is profiled, as one stage without a pipeline.
struct Profiled {
  Model model;
  Plan plan;
  bool shortened = false;  // of layers that are not all alike
};

Profiled profiled(const Model& model, const Plan& plan) {
  const bool alike = layers_are_alike(model);
  const int64_t few = first_alike(model) + kLayersProfiled;
  // Shares of the layers are of all of them.
  const bool by_share =
      plan.activations->offload_share < 1 || plan.activations->recompute_share < 1;
  Profiled part{model, plan, !alike && few < model.layers && !by_share};
  part.plan.devices = plan.devices / plan.pipeline;
  part.plan.pipeline = part.plan.virtual_pipeline = 1;
  if (alike) {
    part.model.layers = layers_to_profile(*plan.activations);
    part.plan.activations->offload_share = 1;
  }
  if (part.shortened) part.model.layers = few;
  return part;
}

// With the least activations, whatever share of the layers keeps.
void add_least_memory(const Profiled& part, LayerProfile& profile) {
  Plan lean = part.plan;
  lean.activations->recompute_share = 1;
  if (leaves_otherwise(*lean.activations)) lean.activations->offload_share = 1;
  lean.activations->offload_least = {};
  add_memory(forward_backward_graph(part.model, sample_plan(lean, 1)), lean.subsequences, profile);
}

// One micro-batch of what is profiled, as the framework with these facts runs it. Where it steps
// says what it keeps in 16 bits.
// One micro-batch stands for all, so none makes the codes of weights, which the first alone does.
Graph timed_graph(const Profiled& part, const Plan& timed, const std::optional<StackFacts>& facts) {
  Plan sample = sample_plan(timed, 1);
  if (facts && timed.optimizer.placement == OptimizerPlacement::kGpu) {
    sample.optimizer.placement = OptimizerPlacement::kGpu;
  }
  Graph graph = facts ? forward_backward_graph(part.model, sample, facts_of(*facts, timed))
                      : forward_backward_graph(part.model, sample);
  for (Op& op : graph.step.ops) {
    auto* work = std::get_if<GemmWork>(&op.work);
    if (work == nullptr || work->weight_codes != WeightCodes::kMakes) continue;
    work->weight_codes = WeightCodes::kTakes;
  }
  return graph;
}

LayerProfile profile_layers(const Model& model, const Plan& plan, const CostModel& costs,
                            const std::optional<StackFacts>& facts) {
  const Profiled part = profiled(model, plan);
  // Where some layers recompute and some keep, none counts as repeating anything, and (below) none
  // as keeping.
  const bool otherwise = leaves_otherwise(*part.plan.activations);
  Plan timed = otherwise ? without_copies(part.plan) : part.plan;
  const bool by_share = timed.activations->recompute_share < 1;
  if (by_share) timed.activations->recompute_share = 0;
  const Graph graph = timed_graph(part, timed, facts);
  const CostTable table = costs.table(graph.step, graph);
  LayerProfile profile;
  profile.of_framework = facts.has_value();
  profile.layers.resize(static_cast<size_t>(part.model.layers));
  begin_parts(plan.subsequences, profile);
  const std::vector<size_t> turn_of = turns_of_parts(graph, plan.subsequences);
  add_operations(graph, table, turn_of, profile);
  if (by_share || otherwise || facts) {
    add_least_memory(part, profile);
  } else {
    add_memory(graph, plan.subsequences, profile);
  }
  if (otherwise) leave_all(profile);
  for (int64_t i = 0; i < part.model.layers; ++i) {
    LayerCost& layer = profile.layers[static_cast<size_t>(i)];
    const auto chain = [&](Direction direction) {
      return chain_of(graph, table, i, direction, turn_of, layer);
    };
    const ChainTime forward = chain(Direction::kForward);
    const ChainTime backward = chain(Direction::kBackward);
    layer.forward_ps = forward.ps;
    layer.forward_tail_ps = forward.tail_ps;
    layer.backward_ps = backward.ps;
    layer.backward_tail_ps = backward.tail_ps;
  }
  if (part.shortened) insert_alike(profile, model.layers);
  if (layers_are_alike(model)) profile.alike = {profile.layers.front(), profile.layers.back()};
  return profile;
}

// Of layers alike that leave otherwise: what they take is known from `timed`, the profile of the
// same plan without copies.
LayerProfile profile_leaving(const Model& model, const Plan& plan, const LayerProfile& timed) {
  const Profiled part = profiled(model, plan);
  LayerProfile profile;
  profile.of_framework = timed.of_framework;
  profile.layers.resize(static_cast<size_t>(part.model.layers));
  add_least_memory(part, profile);
  leave_all(profile);
  const auto take_times = [](LayerCost& to, const LayerCost& from) {
    const LayerCost own = to;
    to = from;
    to.saved = own.saved;
    to.between_parts = own.between_parts;
    to.pairs_between_parts = own.pairs_between_parts;
    to.parameters = own.parameters;
    to.weights = own.weights;
  };
  take_times(profile.first, timed.first);
  take_times(profile.last, timed.last);
  take_times(profile.layers.front(), timed.alike.front());
  // What is beyond the share of the layers that leave keeps all that the plan without copies does.
  profile.alike = {profile.layers.front(), timed.alike.back()};
  return profile;
}

}  // namespace

bool layers_are_alike(const Model& model) {
  return model.layers >= kLayersProfiled && first_alike(model) == 0;
}

int64_t leaving_layers(const ActivationPlan& plan, int64_t layers, bool ends_model) {
  if (!leaves_any(plan)) return 0;
  const double share = plan.offload_share * static_cast<double>(layers);
  // By module it may be the last layer's last part alone that stays (checkpoint.cpp).
  const bool last_stays = ends_model && plan.reload != ReloadOrder::kByModule;
  return std::min(static_cast<int64_t>(std::ceil(share)), last_stays ? layers - 1 : layers);
}

LayerProfiles::LayerProfiles(const Model& model, const CostModel& costs)
    : model_(model), costs_(costs), alike_(layers_are_alike(model)) {}

LayerProfiles::LayerProfiles(const Model& model, const CostModel& costs, const StackFacts& facts)
    : model_(model), costs_(costs), facts_(facts), alike_(layers_are_alike(model)) {}

std::string LayerProfiles::key_of(const Plan& asked) const {
  CHECK(asked.activations && asked.micro_batch);
  const Plan plan = leaves_any(*asked.activations) ? asked : without_copies(asked);
  // What no operation of a layer's two halves depends on: how often and in which order they run,
  // what the optimizer does, and where weights and memory are. A knob that is not named here is
  // part of the key.
  static const KnobSet apart = {KnobId::kModel,
                                KnobId::kMachine,
                                KnobId::kStrategy,
                                KnobId::kDevices,
                                KnobId::kData,
                                KnobId::kPipeline,
                                KnobId::kVirtualPipeline,
                                KnobId::kPipelineSchedule,
                                KnobId::kMultiplex,
                                KnobId::kZeroStage,
                                KnobId::kGlobalBatch,
                                KnobId::kFlowShare,
                                KnobId::kWeightsLookAhead,
                                KnobId::kPlacement,
                                KnobId::kBucketBytes,
                                KnobId::kGpuBuckets,
                                KnobId::kCast,
                                KnobId::kSync,
                                KnobId::kUndo,
                                KnobId::kAdam,
                                KnobId::kStreamShare,
                                KnobId::kMoments,
                                KnobId::kTransfers,
                                KnobId::kMemoryReuse,
                                KnobId::kActivationsLookAhead,
                                KnobId::kCheckpointPeriodSteps};
  static const KnobSet apart_if_alike = KnobSet(apart).add(KnobId::kOffloadShare);
  // Gathers, and experts' all-to-alls, go over the ranks that see other sequences.
  const bool data = gathers(plan) || plan.expert > 1;
  std::string key = plan_key(plan, alike_ ? apart_if_alike : apart) +
                    fmt::format("{} {}", gathers(plan), data ? plan.data : 0);
  // Of whole sequences the order of a pipeline says what stays where layers leave by module.
  if (plan.subsequences == 1) key += to_string(plan.pipeline_schedule);
  // Which facts hold (facts_of()), and what is in 16 bits.
  if (facts_) {
    key += fmt::format(" {} {}", plan.optimizer.placement == OptimizerPlacement::kGpu,
                       plan.zero_stage > 0 || plan.replicas() == 1);
  }
  return key;
}

void LayerProfiles::prepare(const std::vector<Plan>& plans, int threads) {
  struct Missing {
    LayerProfile* profile;
    Plan plan;
    const LayerProfile* timed;  // or null
  };
  std::vector<Missing> missing, leaving;
  const auto add = [&](std::vector<Missing>& list, const Plan& plan, const LayerProfile* timed) {
    const auto [found, is_new] = profiles_.try_emplace(key_of(plan));
    if (is_new) {
      found->second = std::make_unique<LayerProfile>();
      list.push_back({found->second.get(), plan, timed});
    }
    return found->second.get();
  };
  for (const Plan& plan : plans) {
    if (profiles_.contains(key_of(plan))) continue;
    if (alike_ && leaves_otherwise(*plan.activations)) {
      add(leaving, plan, add(missing, without_copies(plan), nullptr));
    } else {
      add(missing, plan, nullptr);
    }
  }
  // What was stopped before it was filled in is missing still.
  bool is_filled = false;
  const std::shared_ptr<void> ends(nullptr, [&](void*) {
    if (is_filled) return;
    for (const std::vector<Missing>* list : {&missing, &leaving}) {
      for (const Missing& one : *list) profiles_.erase(key_of(one.plan));
    }
  });
  for (const std::vector<Missing>* list : {&missing, &leaving}) {
    parallel_for(list->size(), threads, [&](size_t i) {
      const Missing& one = (*list)[i];
      *one.profile = one.timed != nullptr ? profile_leaving(model_, one.plan, *one.timed)
                                          : profile_layers(model_, one.plan, costs_, facts_);
    });
  }
  is_filled = true;
}

const LayerProfile& LayerProfiles::of(const Plan& plan) const {
  return *profiles_.at(key_of(plan));
}

}  // namespace ballast
