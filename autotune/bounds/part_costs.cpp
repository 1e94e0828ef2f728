#include "autotune/bounds/part_costs.h"

#include <algorithm>
#include <map>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/module_index.h"
#include "sim/graph/passes/passes.h"
#include "sim/graph/report/memory.h"

namespace ballast {
namespace {

// First, middle and last micro-batch: the middle one stands for all between.
constexpr int64_t kSampled = 3;

// Peaks of the tensors that `counts` admits, in program order.
template <class Predicate>
MemoryProfile sweep(const Graph& graph, const std::vector<Life>& lives, const Predicate& counts) {
  MemoryProfile profile;
  for (size_t p = 0; p < kPlaces; ++p) {
    const auto here = [&](size_t t) {
      return static_cast<size_t>(graph.tensors[t].place) == p && counts(t);
    };
    const LivePeak peak = peak_of(live_bytes(graph, lives, here));
    if (peak.at >= 0) profile.peak[p] = held_at(peak.at, graph, lives, here);
  }
  return profile;
}

// A program of the same operations that says of each only which weights it uses.
Graph uses_of_weights(const Graph& graph) {
  Graph uses;
  uses.modules = graph.modules;
  uses.buckets = graph.buckets;
  uses.lanes = graph.lanes;
  uses.tensors = graph.tensors;
  uses.step.ops.reserve(graph.step.ops.size());
  for (const Op& op : graph.step.ops) {
    Op use;
    use.kind = op.kind;
    use.phase = op.phase;
    use.lane = op.lane;
    use.label = op.label;
    for (const Access& access : op.accesses) {
      const Tensor& tensor = graph.tensors[static_cast<size_t>(access.tensor)];
      if (tensor.kind == TensorKind::kWeight) use.accesses.push_back(access);
    }
    uses.step.ops.push_back(std::move(use));
  }
  return uses;
}

// Visits of every module's weights in a program, were they all to flow; `one` and `first_ps` are
// filled where a module has any.
std::vector<FetchProfile> fetches_of(const Graph& uses, const Model& model, const Plan& plan,
                                     const CostModel& costs) {
  Plan flowing = plan;
  flowing.weights.flow_share = 1.0;
  const StackFacts facts;
  const PassContext context{model, flowing, facts};
  Graph graph = run_passes(uses, context, "residency", "residency", ProgramExtent::kCutDown);
  // Stage 3 gathers each visit's weights as well, which is work of the other half.
  std::erase_if(graph.step.ops, [](const Op& op) {
    return op.phase != Phase::kFetch || op.kind == OpKind::kCollective;
  });
  // Buckets have no state here, so a fetch has no tensor to come from.
  for (Op& op : graph.step.ops) {
    std::erase_if(op.accesses, [](const Access& access) { return access.tensor < 0; });
  }
  graph = run_passes(std::move(graph), context, "shard", "direct access", ProgramExtent::kCutDown);
  const Program& fetches = graph.step;
  const CostTable table = costs.table(fetches, graph);
  const ModuleIndex modules(graph.modules);
  std::vector<FetchProfile> result(graph.modules.size());
  for (size_t i = 0; i < fetches.ops.size(); ++i) {
    const Op& op = fetches.ops[i];
    FetchProfile& fetch = result[static_cast<size_t>(modules.of(op.label))];
    const auto* kernel = std::get_if<BucketWork>(&op.work);
    const bool brings = kernel == nullptr || kernel->from_host.count > 0;
    if (brings && op.kind != OpKind::kCollective) ++fetch.visits;
    if (fetch.visits > 1) continue;  // they all move the same
    fetch.one.add(op, table.ops[i], table, 1);
    fetch.first_ps += table.ops[i].alone.ps;
  }
  return result;
}

}  // namespace

Plan sample_plan(const Plan& plan, int64_t micro_batches) {
  Plan sample = plan;
  sample.global_batch = plan.data * plan.micro_batch.value() * micro_batches;
  if (!moves_state_by_kernels(plan.optimizer)) sample.optimizer.transfers = StateTransfers::kCopies;
  sample.optimizer.placement = OptimizerPlacement::kCpu;
  sample.optimizer.bucket_bytes = {int64_t{1} << 40};
  sample.optimizer.gpu_buckets = 0;
  return sample;
}

Graph forward_backward_graph(const Model& model, const Plan& plan) {
  return forward_backward_graph(model, plan, StackFacts{});
}

Graph forward_backward_graph(const Model& model, const Plan& plan, const StackFacts& facts) {
  return run_passes({}, {model, plan, facts}, "plain", "reload");
}

void Workload::add(const Op& op, const OpCost& cost, const CostTable& table, double times) {
  CHECK(device_of(op.lane) == 0 && table.capacities.size() <= kMostCapacities);
  lane[static_cast<size_t>(kind_of(op.lane))] += static_cast<int64_t>(times) * cost.alone.ps;
  host += static_cast<int64_t>(times) * cost.host.ps;
  for (int8_t i = 0; i < cost.demand_count; ++i) {
    const Demand& demand = cost.demands[static_cast<size_t>(i)];
    const auto index = static_cast<size_t>(demand.capacity);
    const double share = demand.amount / table.capacities[index].amount;
    // Several may hold all of it at once, and leave others their least: that takes no time.
    if (demand.held && share > 1 - kLeastShare) continue;
    capacity[index] += times * cost.alone.seconds() * share;
  }
}

void Workload::add(const Workload& other, double times) {
  for (size_t i = 0; i < lane.size(); ++i) lane[i] += static_cast<int64_t>(times) * other.lane[i];
  for (size_t i = 0; i < capacity.size(); ++i) capacity[i] += times * other.capacity[i];
  host += static_cast<int64_t>(times) * other.host;
}

int64_t Workload::busiest_ps() const {
  const double shared = *std::max_element(capacity.begin(), capacity.end());
  return std::max(
      {*std::max_element(lane.begin(), lane.end()), Duration::from_seconds(shared).ps, host});
}

Bytes sum_of(const CategoryBytes& bytes) {
  Bytes sum;
  for (const Bytes part : bytes) sum += part;
  return sum;
}

PlacePeak peak_of(Place place, const CategoryBytes& bytes) {
  PlacePeak peak;
  peak.place = place;
  peak.arena = peak.live = sum_of(bytes);
  for (size_t c = 0; c < bytes.size(); ++c) {
    if (bytes[c].count > 0) peak.holders.push_back({static_cast<Category>(c), bytes[c]});
  }
  std::stable_sort(peak.holders.begin(), peak.holders.end(),
                   [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return peak;
}

Bytes optimizer_state(int64_t parameters, const OptimizerPlan& plan) {
  return bytes_of(parameters, DType::kF32) + bytes_of(2 * parameters, plan.moments);
}

namespace {

Workload work_of(const Graph& graph, const CostTable& table) {
  Workload work;
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    work.add(graph.step.ops[i], table.ops[i], table, 1);
  }
  return work;
}

// Where on the compute lane weights are first read and gradients complete.
void fill_positions(const Graph& graph, const CostTable& table, const std::vector<int32_t>& modules,
                    int64_t last_micro_batch, ForwardBackwardProfile& profile) {
  const size_t count = graph.modules.size();
  profile.first_use_ps.assign(count, -1);
  std::vector<int64_t> left(count, 0);  // work after the gradient's last writer
  int64_t before = 0;                   // in the first micro-batch
  int64_t last_total = 0;               // in the last one
  bool backward = false;
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (kind_of(op.lane) != LaneKind::kCompute) continue;
    const int64_t ps = table.ops[i].alone.ps;
    if (op.label.micro_batch == 0) {
      if (!backward && is_backward(op.phase)) profile.first_backward_ps = before;
      backward = backward || is_backward(op.phase);
      for (const Access& access : op.accesses) {
        if (access.role != Role::kWeight) continue;
        int64_t& first =
            profile.first_use_ps[static_cast<size_t>(modules[static_cast<size_t>(access.tensor)])];
        if (first < 0) first = before;
      }
      before += ps;
    }
    if (op.label.micro_batch != last_micro_batch) continue;
    last_total += ps;
    for (const Access& access : op.accesses) {
      if (access.role != Role::kParameterGradient) continue;
      left[static_cast<size_t>(modules[static_cast<size_t>(access.tensor)])] = last_total;
    }
  }
  const int64_t total = profile.work.lane[static_cast<size_t>(LaneKind::kCompute)];
  profile.gradient_ready_ps.resize(count);
  for (size_t m = 0; m < count; ++m) {
    profile.gradient_ready_ps[m] = total - (last_total - left[m]);
  }
}

}  // namespace

ForwardBackwardProfile forward_backward_profile(const Model& model, const Plan& plan,
                                                const CostModel& costs,
                                                const std::vector<CastPlacement>& fetched) {
  const int64_t micro_batches = plan.accumulation();
  const int64_t sampled = std::min(micro_batches, kSampled);
  const int64_t others = micro_batches - sampled;  // like the one in the middle
  const Plan sample = sample_plan(plan, sampled);
  const Plan less = sample_plan(plan, kSampled - 1);
  const Graph graph = forward_backward_graph(model, sample);
  const Graph fewer = others > 0 ? forward_backward_graph(model, less) : Graph{};
  const CostTable table = costs.table(graph.step, graph);
  const std::vector<int32_t> modules = ModuleIndex(graph.modules).by_tensor(graph);

  ForwardBackwardProfile profile;
  profile.work = work_of(graph, table);
  if (others > 0) {
    const Workload more = profile.work;
    profile.work.add(more, static_cast<double>(others));
    profile.work.add(work_of(fewer, costs.table(fewer.step, fewer)), -static_cast<double>(others));
  }
  fill_positions(graph, table, modules, sampled - 1, profile);

  const std::vector<Life> lives = lives_of(graph);
  // Weights that are gathered come and go, wherever they live.
  const auto counts = [&](size_t t, bool gradients) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.category == Category::kWeights) return tensor.kind == TensorKind::kGathered;
    return gradients || tensor.category != Category::kGradients;
  };
  profile.with_gradients = sweep(graph, lives, [&](size_t t) { return counts(t, true); });
  profile.without_gradients = sweep(graph, lives, [&](size_t t) { return counts(t, false); });

  if (fetched.empty()) return profile;
  const Graph uses = uses_of_weights(graph);
  const Graph fewer_uses = uses_of_weights(fewer);
  for (const CastPlacement cast : fetched) {
    Plan flowing = sample;
    flowing.optimizer.cast = cast;
    std::vector<FetchProfile> fetch = fetches_of(uses, model, flowing, costs);
    if (others > 0) {
      flowing = less;
      flowing.optimizer.cast = cast;
      const std::vector<FetchProfile> two = fetches_of(fewer_uses, model, flowing, costs);
      for (size_t m = 0; m < two.size(); ++m) {
        fetch[m].visits += others * (fetch[m].visits - two[m].visits);
      }
    }
    profile.fetch.push_back(std::move(fetch));
  }
  return profile;
}

OptimizerProfiler::OptimizerProfiler(const Model& model, const Plan& base, const CostModel& costs)
    : model_(model), costs_(costs) {
  Plan plan = base;
  plan.micro_batch = 1;
  plan.global_batch = plan.data;
  plan = sample_plan(plan, 1);
  const StackFacts facts;
  skeleton_ = run_passes(build_plain(model, plan), {model, plan, facts}, "gather", "gather");
  std::vector<Op> kept;
  for (Op& op : skeleton_.step.ops) {
    // What is gathered lives until after its visit: without that write it would seem always there.
    std::erase_if(op.accesses, [&](const Access& access) {
      return access.role != Role::kWeight && access.role != Role::kParameterGradient &&
             skeleton_.tensor(access.tensor).kind != TensorKind::kGathered;
    });
    // What scatters gradients belongs to the backward, which the other half counts.
    if (op.phase == Phase::kOptimizer) op.phase = Phase::kBackwardWeight;
    if (!op.accesses.empty()) kept.push_back(std::move(op));
  }
  skeleton_.step.ops = std::move(kept);
  // The bucket state comes last; every plan adds its own.
  TensorId last = -1;
  for (const Op& op : skeleton_.step.ops) {
    for (const Access& access : op.accesses) last = std::max(last, access.tensor);
  }
  skeleton_.tensors.resize(static_cast<size_t>(last + 1));
  skeleton_.buckets.clear();
}

namespace {

// Numbers the values that optimizer operations pass on, and records who reads and writes them.
class ChainBuilder {
 public:
  ChainBuilder(const Graph& graph, OptimizerProfile& profile)
      : graph_(graph),
        modules_(ModuleIndex(graph.modules).by_tensor(graph)),
        profile_(profile),
        value_(graph.tensors.size(), -1),
        last_written_(graph.tensors.size(), 0) {
    profile.values = 2 * static_cast<int32_t>(graph.modules.size());
    for (size_t i = 0; i < graph.step.ops.size(); ++i) {
      for (const Access& access : graph.step.ops[i].accesses) {
        if (access.role == Role::kParameterGradient) {
          last_written_[static_cast<size_t>(access.tensor)] = i;
        }
      }
    }
  }

  int32_t value(TensorId tensor) {
    int32_t& value = value_[static_cast<size_t>(tensor)];
    if (value >= 0) return value;
    const int32_t module = modules_[static_cast<size_t>(tensor)];
    const TensorKind kind = graph_.tensors[static_cast<size_t>(tensor)].kind;
    if (module >= 0 && kind == TensorKind::kGradient) {
      value = module;
    } else if (module >= 0) {
      value = static_cast<int32_t>(graph_.modules.size()) + module;
    } else {
      value = profile_.values++;
    }
    return value;
  }

  void append(const Op& op, size_t position, int64_t ps, bool at_end) {
    ChainOp link;
    link.lane = kind_of(op.lane);
    link.at_end = at_end;
    link.ps = ps;
    for (const Access& access : op.accesses) {
      if (reads(access) && !is_older(access.tensor, position)) {
        profile_.accesses.push_back(value(access.tensor));
        ++link.reads;
      }
    }
    for (const Access& access : op.accesses) {
      if (writes(access)) {
        profile_.accesses.push_back(value(access.tensor));
        ++link.writes;
      }
    }
    const auto next = static_cast<int32_t>(profile_.distinct.size());
    const auto [known, is_new] = distinct_.try_emplace(link, next);
    if (is_new) profile_.distinct.push_back(link);
    profile_.chain.push_back(known->second);
  }

 private:
  // A gradient read before this step has written it is that of a step before (delay).
  bool is_older(TensorId tensor, size_t position) const {
    return position < last_written_[static_cast<size_t>(tensor)];
  }

  const Graph& graph_;
  std::vector<int32_t> modules_;  // by tensor
  OptimizerProfile& profile_;
  std::map<ChainOp, int32_t> distinct_;
  std::vector<int32_t> value_;        // by tensor
  std::vector<size_t> last_written_;  // by tensor: the last backward operation that writes it
};

void fill_chain(const Graph& graph, const CostTable& table, OptimizerProfile& profile) {
  size_t last_backward = 0;
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    if (graph.step.ops[i].phase != Phase::kOptimizer) last_backward = i;
  }
  ChainBuilder builder(graph, profile);
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (op.phase != Phase::kOptimizer) continue;
    if (op.kind == OpKind::kCommit) {
      for (const Access& access : op.accesses) {
        if (reads(access)) profile.commit_reads.push_back(builder.value(access.tensor));
      }
      continue;
    }
    builder.append(op, i, table.ops[i].alone.ps, i > last_backward);
  }
  for (const Bucket& bucket : graph.buckets) {
    for (const Bucket::Piece& piece : bucket.pieces) {
      if (!profile.flowing[static_cast<size_t>(piece.module)]) continue;
      const TensorId home = bucket.weights >= 0 ? bucket.weights : bucket.master;
      profile.homes.push_back({builder.value(home), piece.module});
    }
  }
}

void fill_memory(const Graph& graph, OptimizerProfile& profile) {
  const std::vector<Life> lives = lives_of(graph);
  const std::vector<int32_t> modules = ModuleIndex(graph.modules).by_tensor(graph);
  // Weights that flow are not there but during a visit.
  const auto stays = [&](size_t t) {
    if (graph.tensors[t].kind != TensorKind::kWeight) return true;
    return !profile.flowing[static_cast<size_t>(modules[t])];
  };
  profile.peak = sweep(graph, lives, stays);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (!lives[t].carried || !stays(t)) continue;
    const auto place = static_cast<size_t>(tensor.place);
    if (tensor.category == Category::kGradients && tensor.place == Place::kHbm) {
      profile.carried_gradients[place] += tensor.all_bytes();
    } else {
      profile.carried[place][static_cast<size_t>(tensor.category)] += tensor.all_bytes();
    }
  }
}

}  // namespace

OptimizerProfile OptimizerProfiler::profile(const Plan& plan) const {
  Graph graph = skeleton_;
  graph.buckets = buckets_of(graph.modules, plan.optimizer);
  add_bucket_state(graph, plan, StackFacts{});
  OptimizerProfile profile;
  profile.flowing = flowing_modules(graph, plan);
  const StackFacts facts;
  graph = run_passes(std::move(graph), {model_, plan, facts}, "optimizer", "direct access",
                     ProgramExtent::kCutDown);
  // Forward and backward cost nothing here.
  for (Op& op : graph.step.ops) {
    if (op.phase != Phase::kOptimizer) op.work = std::monostate{};
  }
  const CostTable table = costs_.table(graph.step, graph);
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    profile.work.add(graph.step.ops[i], table.ops[i], table, 1);
  }
  fill_chain(graph, table, profile);
  fill_memory(graph, profile);
  profile.accesses.shrink_to_fit();
  profile.chain.shrink_to_fit();
  profile.homes.shrink_to_fit();
  return profile;
}

}  // namespace ballast
