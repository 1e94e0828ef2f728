#include "autotune/bounds/cell_bound.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "autotune/bounds/bound.h"
#include "autotune/bounds/cpu_chain.h"
#include "autotune/bounds/shared_turns.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {
namespace {

// Layers [first, last) of a pipeline's chunk.
struct Chunk {
  int64_t first = 0;
  int64_t last = 0;
  bool ends_model = false;  // has head and loss
};

class CellBound {
 public:
  CellBound(const Model& model, const Plan& plan, const LayerProfile& profile, Bounded extent)
      : model_(model), plan_(plan), profile_(profile) {
    steps_on_cpu_ = extent == Bounded::kPlan && plan.pipeline == 1 &&
                    plan.optimizer.placement == OptimizerPlacement::kCpu;
    if (!steps_on_cpu_) return;
    if (plan.weights.flow_share && plan.optimizer.gpu_buckets) on_gpu_ = buckets_on_gpu();
  }

  Duration time(const StepFloor& floor, const Usable& usable) {
    if (steps_on_cpu_) cpu_chain_.emplace(model_, plan_, profile_);
    return lowered(plan_.pipeline > 1 ? pipeline_ps(floor) : one_stage_ps(floor, usable));
  }

  std::vector<PlacePeak> memory(const Usable& usable) const {
    std::vector<PlacePeak> worst;
    Bytes most{-1};
    for (int64_t stage = 0; stage < plan_.pipeline; ++stage) {
      std::vector<PlacePeak> peaks = memory_of(stage, usable);
      Bytes excess;
      for (size_t p = 0; p < kPlaces; ++p) {
        excess = std::max(excess, peaks[p].arena - usable[p]);
      }
      if (excess <= most) continue;
      most = excess;
      worst = std::move(peaks);
    }
    return worst;
  }

 private:
  int64_t chunks() const { return plan_.pipeline * plan_.virtual_pipeline; }
  Chunk chunk(int64_t index) const {
    return {first_layer_of(index, chunks(), model_.layers),
            first_layer_of(index + 1, chunks(), model_.layers), index + 1 == chunks()};
  }
  // Layers of a chunk offload as those of a model of its size.
  const LayerCost& layer(const Chunk& chunk, int64_t i) const {
    const bool ends_model = chunk.ends_model;
    const int64_t leaving =
        leaving_layers(plan_.activations.value(), chunk.last - chunk.first, ends_model);
    return profile_.layer(i, chunk.first + leaving);
  }
  template <class Sum>
  void for_parts(int64_t index, const Sum& sum) const {
    const Chunk here = chunk(index);
    for (int64_t i = here.first; i < here.last; ++i) sum(layer(here, i));
    if (index == 0) sum(profile_.first);
    if (index == chunks() - 1) sum(profile_.last);
  }

  struct StageSums {
    std::array<Bytes, kPlaces> saved{};  // all that waits for its backward
    ParameterCount parameters;
  };

  int64_t one_stage_ps(const StepFloor& floor, const Usable& usable) const {
    int64_t chain = 0;
    Workload work;
    for_parts(0, [&](const LayerCost& part) {
      chain += part.forward_ps + part.backward_ps;
      work.add(part.work, 1);
    });
    const int64_t least = plan_.accumulation() * std::max(chain, work.busiest_ps());
    return with_step(least, work, floor, usable);
  }

  // Of a rank's parameters, those that it steps.
  int64_t stepped(const ParameterCount& parameters) const {
    const bool splits = plan_.zero_stage > 0 && !gathers(plan_);
    if (!splits) return parameters.all;
    const int64_t of_experts =
        parameters.of_experts / std::max<int64_t>(1, plan_.replicas() / plan_.expert);
    return (parameters.all - parameters.of_experts) / plan_.replicas() + of_experts;
  }

  // The ranks that share the step of a parameter which they all hold.
  int64_t most_ranks_stepping() const {
    const bool splits = plan_.zero_stage > 0 && !gathers(plan_);
    return splits ? plan_.replicas() : 1;
  }

  // Parameters of the last buckets, those that the GPU steps: all but the model's first one are
  // full to within a segment.
  struct OnGpu {
    int64_t least = 0, most = 0;                  // whole ones
    int64_t least_stepped = 0, most_stepped = 0;  // of them, a rank's share
  };
  OnGpu buckets_on_gpu() const {
    const ParameterCount all = sums_of(0).parameters;
    const int64_t size = plan_.optimizer.bucket_bytes.count / size_of(DType::kF32);
    const int64_t count = *plan_.optimizer.gpu_buckets;
    const auto times = [&](int64_t buckets, int64_t elements) {
      const double product = static_cast<double>(buckets) * static_cast<double>(elements);
      return static_cast<int64_t>(std::min(product, static_cast<double>(all.all)));
    };
    OnGpu found;
    found.least = times(std::max<int64_t>(0, count - 1), std::max<int64_t>(0, size - kSegment));
    found.most = times(count, std::max(size, kSegment));
    const int64_t most_ranks = most_ranks_stepping();
    const int64_t least_ranks =
        all.of_experts > 0 ? std::max<int64_t>(1, most_ranks / plan_.expert) : most_ranks;
    const int64_t stepped_here = stepped(all);
    found.least_stepped = std::min(stepped_here, found.least / most_ranks);
    found.most_stepped = std::min(stepped_here, div_ceil(found.most, least_ranks));
    return found;
  }

  // Parameters of the layers' weights that flow where all of them do that the GPU does not step.
  // Of a module that is cut between both places none flows.
  double flowing_at_least() const {
    if (*plan_.weights.flow_share < 1) return 0;
    int64_t layers = 0, largest = 0;
    const Chunk all = chunk(0);
    for (int64_t i = all.first; i < all.last; ++i) {
      const int64_t one = layer(all, i).parameters.all;
      layers += one;
      largest = std::max(largest, one);
    }
    return static_cast<double>(std::max<int64_t>(0, layers - on_gpu_->most - largest));
  }

  // The least time, not below `least`, in which every lane can do its share of the step as well.
  // A lane has the more time the more another one takes over; what that needs in memory decides.
  int64_t with_step(int64_t least, const Workload& work, const StepFloor& floor,
                    const Usable& usable) const {
    if (plan_.optimizer.placement == OptimizerPlacement::kNvme) return least;
    const StageSums sums = sums_of(0);
    const int64_t all_stepped = stepped(sums.parameters);
    const auto all = static_cast<double>(all_stepped);
    const auto weights = static_cast<double>(sums.parameters.all);
    const auto dense = static_cast<double>(sums.parameters.dense());
    const bool gpu_alone = plan_.optimizer.placement == OptimizerPlacement::kGpu;
    const double bytes = static_cast<double>(bytes_of(1, plan_.dtype).count);
    const double state = static_cast<double>(optimizer_state(1, plan_.optimizer).count);
    const double room = room_for_weights(sums, usable);
    const FlowLimits flow = flow_limits(weights, floor);
    const auto micro_batches = static_cast<double>(plan_.accumulation());
    const auto busy = [&](LaneKind kind) {
      return micro_batches * static_cast<double>(work.lane[static_cast<size_t>(kind)]);
    };
    const double host = micro_batches * static_cast<double>(work.host);
    const double must_flow = on_gpu_ ? flowing_at_least() : 0;
    const double around_cpu = on_gpu_ ? around_cpu_ps(all_stepped, floor) : 0;
    const auto enough = [&](double ps) {
      double on_gpu = all;
      if (on_gpu_) {
        const double on_cpu = all - static_cast<double>(on_gpu_->most_stepped);
        if (on_cpu * floor.cpu_adam > ps) return false;
        if (busy(LaneKind::kCopyOut) + on_cpu * floor.out > ps) return false;
        if (around_cpu > ps) return false;
        on_gpu = static_cast<double>(on_gpu_->least_stepped);
      } else if (!gpu_alone) {
        const double cpu = floor.cpu_adam > 0 ? ps / floor.cpu_adam : all;
        const double time_out = std::max(0.0, ps - busy(LaneKind::kCopyOut));
        const double out = floor.out > 0 ? time_out / floor.out : all;
        on_gpu = std::max(least_around_cpu(ps, all_stepped, floor), all - std::min(cpu, out));
        if (on_gpu > 0 && !floor.on_gpu) return false;
      }
      if (busy(LaneKind::kCompute) + on_gpu * floor.gpu_adam > ps) return false;
      double flowing = std::max(0.0, (state * on_gpu - room) / bytes + weights);
      if (flowing > flow.most) return false;
      flowing = std::max(flowing, must_flow);
      const double twice = std::max(0.0, flowing - flow.free);
      if (busy(LaneKind::kCopyIn) + twice * flow.visits * floor.fetch > ps) return false;
      const double whole = std::max(0.0, twice - flow.cut);
      if (host + whole * flow.visits * flow.host > ps) return false;
      const double gathered = dense + std::max(0.0, twice - (weights - dense)) * (flow.visits - 1);
      return busy(LaneKind::kDataNetwork) + dense * floor.reduce + gathered * floor.gather <= ps;
    };
    auto low = static_cast<double>(least);
    if (enough(low)) return least;
    double high = 2 * low + 1;
    for (int i = 0; i < 64 && !enough(high); ++i) high *= 2;
    if (!enough(high)) return least;  // no time is enough: a matter of memory
    while (high - low > 1e-4 * high) {
      const double middle = (low + high) / 2;
      (enough(middle) ? high : low) = middle;
    }
    return static_cast<int64_t>(low);
  }

  // Of `all` parameters that a rank steps, where it is said how many buckets of them the GPU does.
  double around_cpu_ps(int64_t all, const StepFloor& floor) const {
    const int64_t on_cpu = all - on_gpu_->most_stepped;
    return static_cast<double>(cpu_chain_->step_ps(on_cpu, on_gpu_->most, floor.cpu_adam));
  }
  // Where it is not, those that the GPU steps at least in a step of `ps`.
  double least_around_cpu(double ps, int64_t all, const StepFloor& floor) const {
    if (!cpu_chain_) return 0;
    const int64_t ranks = most_ranks_stepping();
    return static_cast<double>(cpu_chain_->least_on_gpu(ps, all, ranks, floor.cpu_adam));
  }

  DType gradient_type() const { return gradient_dtype(plan_, {}); }

  // Bytes of the GPU that activations and gradients leave to weights and state.
  double room_for_weights(const StageSums& sums, const Usable& usable) const {
    const auto hbm = static_cast<size_t>(Place::kHbm);
    Bytes room = usable[hbm] - sums.saved[hbm];
    if (plan_.accumulation() > 1) room -= bytes_of(sums.parameters.all, gradient_type());
    return static_cast<double>(room.count);
  }

  // Weights of the layers flow, each once for a forward and once for a backward. Where these two,
  // or a backward and the next micro-batch's forward, lie within the look-ahead, one fetch serves
  // both: near the ends, by so many layers as it reaches over.
  struct FlowLimits {
    double most = 0;    // parameters
    double free = 0;    // of them, those that need no second copy
    double visits = 0;  // a step
    // Picoseconds a parameter and visit, of the thread that enqueues a layer's copies: of layers of
    // which all flows, so of all but a few parameters.
    double host = 0;
    double cut = 0;  // parameters
  };
  FlowLimits flow_limits(double weights, const StepFloor& floor) const {
    constexpr int64_t kLeastOperations = 4;  // of the GPU in a layer, forward and backward
    FlowLimits limits;
    limits.visits = 2.0 * static_cast<double>(plan_.accumulation());
    double layers = weights;
    for (const LayerCost* end : {&profile_.first, &profile_.last}) {
      layers -= static_cast<double>(end->parameters.all);
    }
    const Chunk all = chunk(0);
    const int64_t near =
        std::min(all.last - all.first, 1 + plan_.weights.look_ahead / kLeastOperations);
    for (int64_t i = 0; i < near; ++i) {
      limits.free += static_cast<double>(layer(all, all.first + i).parameters.all) +
                     static_cast<double>(layer(all, all.last - 1 - i).parameters.all);
    }
    for (int64_t i = all.first; i < all.last; ++i) {
      const LayerCost& one = layer(all, i);
      const auto parameters = static_cast<double>(std::max<int64_t>(1, one.parameters.all));
      const double host = static_cast<double>(one.weights * floor.fetch_host) / parameters;
      limits.host = i == all.first ? host : std::min(limits.host, host);
      limits.cut = std::max(limits.cut, parameters);
    }
    // Shares are rounded to whole layers.
    limits.most = floor.most_flow > 0 ? floor.most_flow * layers + limits.free : 0;
    limits.free = std::min(limits.free, limits.most);
    return limits;
  }

  struct BlockTime {
    int64_t forward = 0;
    int64_t backward = 0;
  };
  // The last layer's collectives may end after its block has computed.
  BlockTime block(int64_t index) const {
    BlockTime time;
    int64_t forward_tail = 0, backward_tail = 0;
    for_parts(index, [&](const LayerCost& part) {
      time.forward += part.forward_ps;
      time.backward += part.backward_ps;
      forward_tail = std::max(forward_tail, part.forward_tail_ps);
      backward_tail = std::max(backward_tail, part.backward_tail_ps);
    });
    time.forward -= forward_tail;
    time.backward -= backward_tail;
    return time;
  }

  int64_t pipeline_ps(const StepFloor& floor) const {
    std::vector<int64_t> work(static_cast<size_t>(plan_.pipeline), 0);
    std::vector<int64_t> around(work.size(), 0);  // one way to the stage and back
    for (int64_t c = 0; c < chunks(); ++c) {
      const BlockTime time = block(c);
      work[static_cast<size_t>(c % plan_.pipeline)] += time.forward + time.backward;
      if (c + 1 >= plan_.pipeline) continue;
      const auto s = static_cast<size_t>(c);
      if (plan_.subsequences > 1) {
        // The first part is the first to come, and goes back last.
        around[s + 1] = around[s];
        for_parts(c, [&](const LayerCost& part) {
          around[s + 1] += part.first_part_forward_ps + part.first_part_backward_ps;
        });
      } else {
        // What a spread backward recomputes, no more than a forward, need not wait for its turn.
        const int64_t back = overlaps_inside(plan_)
                                 ? std::max<int64_t>(0, time.backward - time.forward)
                                 : time.backward;
        around[s + 1] = around[s] + time.forward + back;
      }
    }
    int64_t longest = plan_.multiplex ? std::max(all_work(work), with_shared_turns(floor)) : 0;
    for (size_t s = 0; s < work.size(); ++s) {
      longest = std::max(longest, own_work(around[s] + plan_.accumulation() * work[s], work[s]));
    }
    // A step that does not wait runs beside the next forward, and the first chunk of a spread stage
    // begins before all of its weights are there.
    if (overlaps_inside(plan_)) return longest;
    const int64_t computed = plan_.accumulation() * work.front();
    return longest_with_step(longest, own_work(computed, work.front()), floor);
  }

  // Of what a stage does the part that no other device shares (Plan::multiplex): all but p - 1 of
  // its N parts, the longest ones. Parts of equal tokens take the longer the later they are, at
  // most as the odd numbers grow, so that the others have a share of ((N - p + 1) / N)^2 or more.
  int64_t own_work(int64_t alone, int64_t work) const {
    if (!plan_.multiplex) return alone;
    const double share = own_share();
    return static_cast<int64_t>(static_cast<double>(work) * share * share);
  }
  // What all stages share takes each of p devices a p-th of it at least, and what they do not share
  // lies on one: none is done before it has done a p-th of all.
  int64_t all_work(const std::vector<int64_t>& work) const {
    return std::accumulate(work.begin(), work.end(), int64_t{0}) / plan_.pipeline;
  }
  // The same turn by turn, with what is sent for each.
  int64_t with_shared_turns(const StepFloor& floor) const {
    std::vector<StageParts> stages;
    for (int64_t c = 0; c < chunks(); ++c) {
      StageParts& stage = stages.emplace_back();
      stage.forward_ps.assign(static_cast<size_t>(plan_.subsequences), 0);
      stage.backward_ps = stage.forward_ps;
      for_parts(c, [&](const LayerCost& part) {
        add(part.forward_of_parts_ps, stage.forward_ps);
        add(part.backward_of_parts_ps, stage.backward_ps);
      });
      const Chunk here = chunk(c);
      stage.layers = here.last - here.first;
      for (int64_t i = here.first; i < here.last; ++i) {
        stage.parameters += layer(here, i).parameters.all;
      }
    }
    return least_with_shared_turns(model_, plan_, stages, floor);
  }
  static void add(const std::vector<int64_t>& of_parts, std::vector<int64_t>& sums) {
    for (size_t i = 0; i < of_parts.size(); ++i) sums[i] += of_parts[i];
  }
  double own_share() const {
    const int64_t parts = plan_.subsequences;
    return static_cast<double>(parts - plan_.pipeline + 1) / static_cast<double>(parts);
  }
  // Of what a stage's parts hold the part that lies on it whoever shares the others. Parts of equal
  // FLOPs hold the more the earlier they are: k of N the square root of k / N at most.
  Bytes own_bytes(Bytes all) const {
    if (!plan_.multiplex) return all;
    return scaled(all, 1 - std::sqrt(1 - own_share()));
  }

  // What the first stage does between its last backward and the next forward, chunk by chunk. From
  // the last backward of its chunk j: gradients of chunks j to 0 are reduced, which decides the
  // step; then chunk after chunk is stepped and gathered, up to the chunk k that starts the next
  // step's forward. Between this forward and that backward lies all that the stage computes, but
  // for `pipeline` forwards of each chunk before k and as many backwards of each before j.
  int64_t longest_with_step(int64_t longest, int64_t computed, const StepFloor& floor) const {
    const bool on_cpu = plan_.optimizer.placement == OptimizerPlacement::kCpu;
    // Bucket after bucket: what one bucket waits for runs beside the next one's, so that only the
    // slowest part is sure. What the CPU steps is out before the decision.
    const double step = on_cpu ? floor.out + std::max(floor.cpu_adam, floor.fetch) : floor.gpu_adam;
    struct ChunkStep {
      int64_t forwards = 0, backwards = 0;  // of the chunks before it
      int64_t reduced = 0, gathered = 0;    // up to this one
    };
    std::vector<ChunkStep> steps;
    ChunkStep sum;
    const int64_t round = std::min(plan_.pipeline, plan_.accumulation());
    int64_t first_step = 0;
    for (int64_t c = 0; c < chunks(); c += plan_.pipeline) {
      ParameterCount parameters;
      for_parts(c, [&](const LayerCost& part) { parameters += part.parameters; });
      const auto dense = static_cast<double>(parameters.dense());
      if (c == 0)
        first_step = static_cast<int64_t>(static_cast<double>(stepped(parameters)) * step);
      sum.reduced += static_cast<int64_t>(dense * floor.reduce);
      sum.gathered += static_cast<int64_t>(dense * floor.gather);
      steps.push_back(sum);
      const BlockTime time = block(c);
      sum.forwards += round * time.forward;
      sum.backwards += round * time.backward;
    }
    const int64_t most =
        longest + steps.front().reduced + std::max(first_step, steps.front().gathered);
    int64_t reduced = 0, gathered = 0;
    for (const ChunkStep& each : steps) {
      reduced = std::max(reduced, each.reduced - each.backwards);
      gathered = std::max(gathered, each.gathered - each.forwards);
    }
    return std::max(most, computed + reduced + std::max(first_step, gathered));
  }

  // Micro-batches, or chunks of them, whose activations a stage holds at once.
  // Of parts those that make whole ones: parts differ.
  int64_t in_flight(int64_t stage) const {
    return plan_.pipeline == 1 ? 1 : most_in_flight(stage, plan_) / plan_.subsequences;
  }

  // Whether a stage holds as many activations once more when every gradient has been begun.
  bool holds_again(int64_t stage) const { return plan_.pipeline == 1 || fills_again(stage, plan_); }

  StageSums sums_of(int64_t stage) const {
    StageSums sums;
    std::array<Bytes, kPlaces> least{};  // of its chunks
    for (int64_t c = stage; c < chunks(); c += plan_.pipeline) {
      std::array<Bytes, kPlaces> saved{};
      for_parts(c, [&](const LayerCost& part) {
        sums.parameters += part.parameters;
        for (size_t p = 0; p < kPlaces; ++p) saved[p] += part.saved[p];
      });
      for (size_t p = 0; p < kPlaces; ++p) {
        least[p] = c == stage ? saved[p] : std::min(least[p], saved[p]);
      }
    }
    for (size_t p = 0; p < kPlaces; ++p) sums.saved[p] = own_bytes(least[p] * in_flight(stage));
    Bytes& away = sums.saved[static_cast<size_t>(Place::kDram)];
    away = std::max(away, mean_away());
    return sums;
  }

  // Where stages share parts all that has left waits on some device when the forward is over, and
  // one has the mean of it. Nothing else of a stage is there then, where the GPU steps. What is
  // shared on the right, and the turns that a reload's look-ahead reaches over from there, go back
  // so soon that they may never be away together; of the other parts, the first ones, as great a
  // share leaves as they are of all at least. The input of a chunk's first layer, which was sent,
  // stays, while that of each layer after it leaves as an output.
  Bytes mean_away() const {
    if (!plan_.multiplex || plan_.optimizer.placement != OptimizerPlacement::kGpu) return {};
    const Bytes input = bytes_of(plan_.tokens_per_micro_batch() * model_.hidden, plan_.dtype);
    const int64_t near = div_ceil(int64_t{plan_.activations->look_ahead}, 2);
    Bytes all;
    for (int64_t c = 0; c < chunks(); ++c) {
      Bytes of_stage;
      for_parts(c, [&](const LayerCost& part) {
        of_stage += part.saved[static_cast<size_t>(Place::kDram)];
      });
      const int64_t parts = std::max<int64_t>(0, shared_parts(plan_, c).right - near);
      all += scaled(std::max(Bytes{}, of_stage - input),
                    static_cast<double>(parts) / static_cast<double>(plan_.subsequences));
    }
    return Bytes{all.count / plan_.pipeline};
  }

  std::vector<PlacePeak> memory_of(int64_t stage, const Usable& usable) const {
    const StageSums sums = sums_of(stage);
    const bool pipeline = plan_.pipeline > 1;
    const bool on_gpu = plan_.optimizer.placement == OptimizerPlacement::kGpu;
    const int64_t shard = stepped(sums.parameters);
    const Bytes weights = bytes_of(sums.parameters.all, plan_.dtype);
    const Bytes state = optimizer_state(shard, plan_.optimizer);
    std::array<CategoryBytes, kPlaces> least{};
    const auto at = [&](Place place, Category category) -> Bytes& {
      return least[static_cast<size_t>(place)][static_cast<size_t>(category)];
    };
    for (size_t p = 0; p < kPlaces; ++p) {
      at(static_cast<Place>(p), Category::kActivations) = sums.saved[p];
    }
    const bool stays = on_gpu || plan_.weights.flow_share == 0.0;
    if (stays) at(Place::kHbm, Category::kWeights) = weights;
    // Of several micro-batches gradients add up; a single one's may leave as soon as they are made.
    const Bytes gradients =
        plan_.accumulation() > 1 ? bytes_of(sums.parameters.all, gradient_type()) : Bytes{};
    Bytes& activations = at(Place::kHbm, Category::kActivations);
    if (holds_again(stage)) {
      at(Place::kHbm, Category::kGradients) = gradients;
    } else if (gradients > activations) {
      activations = {};
      at(Place::kHbm, Category::kGradients) = gradients;
    }
    raise_to_between_parts(stage, at);
    if (on_gpu) {
      at(Place::kHbm, Category::kMoments) = state;
    } else if (on_gpu_) {
      add_named_state(shard, stays, at);
    } else if (plan_.optimizer.placement == OptimizerPlacement::kCpu) {
      const bool some_on_gpu = !pipeline || plan_.optimizer.gpu_buckets.value_or(1) > 0;
      // What the GPU steps does not flow: its weights are there too.
      const Bytes with_state = stays ? state : state + weights;
      const auto hbm = static_cast<size_t>(Place::kHbm);
      const Bytes room = std::max(Bytes{}, usable[hbm] - sum_of(least[hbm]));
      const double on_cpu = some_on_gpu ? 1 - std::min(1.0, share(room, with_state)) : 1;
      at(Place::kDram, Category::kMoments) = scaled(state, on_cpu);
      // Every gradient of what the CPU steps is there before the first is forgotten.
      if (plan_.optimizer.stream_share == 0.0) {
        at(Place::kDram, Category::kGradients) = scaled(bytes_of(shard, gradient_type()), on_cpu);
      }
    }
    std::vector<PlacePeak> peaks;
    for (size_t p = 0; p < kPlaces; ++p) {
      peaks.push_back(peak_of(static_cast<Place>(p), least[p]));
    }
    return peaks;
  }

  // Parts that pass through a pipeline leave keys, values and sums of a whole chunk's layers behind
  // when the last of them went back, which has begun every gradient of the chunk.
  template <class At>
  void raise_to_between_parts(int64_t stage, const At& at) const {
    if (plan_.pipeline == 1 || plan_.subsequences == 1) return;
    for (int64_t c = stage; c < chunks(); c += plan_.pipeline) {
      Bytes between;
      ParameterCount parameters;
      for_parts(c, [&](const LayerCost& part) {
        between += own_bytes(part.between_parts);
        parameters += part.parameters;
      });
      const Bytes gradients = bytes_of(parameters.all, gradient_type());
      Bytes& activations = at(Place::kHbm, Category::kActivations);
      Bytes& begun = at(Place::kHbm, Category::kGradients);
      if (between + gradients <= activations + begun) continue;
      activations = between;
      begun = gradients;
    }
  }

  // The same where it is said how many buckets the GPU steps.
  template <class At>
  void add_named_state(int64_t shard, bool stays, const At& at) const {
    at(Place::kHbm, Category::kMoments) = optimizer_state(on_gpu_->least_stepped, plan_.optimizer);
    // What the GPU steps does not flow: its weights are there too.
    if (!stays) at(Place::kHbm, Category::kWeights) = bytes_of(on_gpu_->least, plan_.dtype);
    const int64_t on_cpu = shard - on_gpu_->most_stepped;
    at(Place::kDram, Category::kMoments) = optimizer_state(on_cpu, plan_.optimizer);
    if (plan_.optimizer.stream_share == 0.0) {
      at(Place::kDram, Category::kGradients) = bytes_of(on_cpu, gradient_type());
    }
  }

  static double share(Bytes part, Bytes whole) {
    return whole.count > 0 ? static_cast<double>(part.count) / static_cast<double>(whole.count) : 1;
  }
  static Bytes scaled(Bytes bytes, double by) {
    return Bytes{static_cast<int64_t>(static_cast<double>(bytes.count) * by)};
  }

  const Model& model_;
  const Plan& plan_;
  const LayerProfile& profile_;
  bool steps_on_cpu_ = false;          // of a plan, not of a cell
  std::optional<CpuChain> cpu_chain_;  // of such a one, once its time is asked for
  std::optional<OnGpu> on_gpu_;        // where the plan says it
};

}  // namespace

Duration cell_time(const Model& model, const Plan& plan, const LayerProfile& profile,
                   const StepFloor& floor, const Usable& usable, Bounded extent) {
  return CellBound(model, plan, profile, extent).time(floor, usable);
}

std::vector<PlacePeak> cell_memory(const Model& model, const Plan& plan,
                                   const LayerProfile& profile, const Usable& usable,
                                   Bounded extent) {
  return CellBound(model, plan, profile, extent).memory(usable);
}

}  // namespace ballast
