#include "autotune/cell_bound.h"

#include <algorithm>

#include "autotune/bound.h"
#include "sim/graph/rewrite.h"

namespace ballast {
namespace {

// Layers [first, last) of a pipeline's chunk.
struct Chunk {
  int64_t first = 0;
  int64_t last = 0;
};

class CellBound {
 public:
  CellBound(const Model& model, const Plan& plan, const LayerProfile& profile)
      : model_(model), plan_(plan), profile_(profile) {}

  Duration time() const {
    const int64_t ps = plan_.pipeline > 1 ? pipeline_ps() : one_stage_ps();
    return lowered(ps);
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
    return {index * model_.layers / chunks(), (index + 1) * model_.layers / chunks()};
  }
  // Layers of a chunk offload as those of a model of its size.
  const LayerCost& layer(const Chunk& of, int64_t i) const {
    const int64_t leaving = leaving_layers(plan_.activations.value(), of.last - of.first);
    return profile_.layer(i, of.first + leaving);
  }
  template <class Sum>
  void for_parts(int64_t index, const Sum& sum) const {
    const Chunk of = chunk(index);
    for (int64_t i = of.first; i < of.last; ++i) sum(layer(of, i));
    if (index == 0) sum(profile_.first);
    if (index == chunks() - 1) sum(profile_.last);
  }

  int64_t one_stage_ps() const {
    int64_t chain = 0;
    Workload work;
    for_parts(0, [&](const LayerCost& part) {
      chain += part.forward_ps + part.backward_ps;
      work.add(part.work, 1);
    });
    const int64_t lane = *std::max_element(work.lane.begin(), work.lane.end());
    const double capacity = *std::max_element(work.capacity.begin(), work.capacity.end());
    return plan_.accumulation() * std::max({chain, lane, Duration::from_seconds(capacity).ps});
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
      forward_tail = std::max(forward_tail, part.forward_ps - part.forward_compute_ps);
      backward_tail = std::max(backward_tail, part.backward_ps - part.backward_compute_ps);
    });
    time.forward -= forward_tail;
    time.backward -= backward_tail;
    return time;
  }

  int64_t pipeline_ps() const {
    std::vector<int64_t> work(static_cast<size_t>(plan_.pipeline), 0);
    std::vector<int64_t> around(work.size(), 0);  // one way to the stage and back
    for (int64_t c = 0; c < chunks(); ++c) {
      const BlockTime time = block(c);
      work[static_cast<size_t>(c % plan_.pipeline)] += time.forward + time.backward;
      if (c + 1 < plan_.pipeline) {
        const auto s = static_cast<size_t>(c);
        around[s + 1] = around[s] + time.forward + time.backward;
      }
    }
    int64_t longest = 0;
    for (size_t s = 0; s < work.size(); ++s) {
      longest = std::max(longest, around[s] + plan_.accumulation() * work[s]);
    }
    return longest;
  }

  // Micro-batches, or chunks of them, whose activations a stage holds at once.
  int64_t in_flight(int64_t stage) const {
    if (plan_.pipeline == 1) return 1;
    const int64_t total = plan_.accumulation() * plan_.virtual_pipeline;
    int64_t ahead = plan_.pipeline - stage - 1;
    if (plan_.virtual_pipeline > 1) {
      ahead = 2 * ahead + (plan_.virtual_pipeline - 1) * plan_.pipeline;
    }
    return std::min(ahead + 1, total);
  }

  struct StageSums {
    std::array<Bytes, kPlaces> saved{};  // all that waits for its backward
    int64_t parameters = 0;
  };
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
    for (size_t p = 0; p < kPlaces; ++p) sums.saved[p] = least[p] * in_flight(stage);
    return sums;
  }

  std::vector<PlacePeak> memory_of(int64_t stage, const Usable& usable) const {
    const StageSums sums = sums_of(stage);
    const bool pipeline = plan_.pipeline > 1;
    const bool on_gpu = plan_.optimizer.placement == OptimizerPlacement::kGpu;
    const bool splits = plan_.zero_stage > 0 && !gathers(plan_);
    const int64_t shard = splits ? sums.parameters / plan_.replicas() : sums.parameters;
    const Bytes weights = bytes_of(sums.parameters, plan_.dtype);
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
    // Of several micro-batches they add up; a single one's may leave as soon as they are made.
    if (pipeline || plan_.accumulation() > 1) at(Place::kHbm, Category::kGradients) = weights;
    if (on_gpu) {
      at(Place::kHbm, Category::kMoments) = state;
    } else if (plan_.optimizer.placement == OptimizerPlacement::kCpu) {
      Bytes room;
      const auto hbm = static_cast<size_t>(Place::kHbm);
      if (!pipeline) room = std::max(Bytes{}, usable[hbm] - sum_of(least[hbm]));
      at(Place::kDram, Category::kMoments) = std::max(Bytes{}, state - room);
    }
    std::vector<PlacePeak> peaks;
    for (size_t p = 0; p < kPlaces; ++p) {
      peaks.push_back(peak_of(static_cast<Place>(p), least[p]));
    }
    return peaks;
  }

  const Model& model_;
  const Plan& plan_;
  const LayerProfile& profile_;
};

}  // namespace

Duration cell_time(const Model& model, const Plan& plan, const LayerProfile& profile) {
  return CellBound(model, plan, profile).time();
}

std::vector<PlacePeak> cell_memory(const Model& model, const Plan& plan,
                                   const LayerProfile& profile, const Usable& usable) {
  return CellBound(model, plan, profile).memory(usable);
}

}  // namespace ballast
