#include "sim/graph/arena.h"

#include <algorithm>
#include <map>

namespace ballast {

namespace {

enum class Fit : uint8_t { kBest, kLowest };

// Free space of one arena as disjoint ranges; the last one has no end.
class FreeSpace {
 public:
  explicit FreeSpace(Fit fit) : fit_(fit) {}

  int64_t take(int64_t bytes) {
    auto chosen = free_.end();
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      if (range->second < bytes) continue;
      if (chosen == free_.end() || range->second < chosen->second) chosen = range;
      if (fit_ == Fit::kLowest) break;
    }
    if (chosen == free_.end()) return grow(bytes);
    const int64_t offset = chosen->first;
    const int64_t left = chosen->second - bytes;
    free_.erase(chosen);
    if (left > 0) free_.emplace(offset + bytes, left);
    return offset;
  }

  void give(int64_t offset, int64_t bytes) {
    auto at = free_.emplace(offset, bytes).first;
    if (const auto next = std::next(at); next != free_.end() && offset + bytes == next->first) {
      at->second += next->second;
      free_.erase(next);
    }
    if (at == free_.begin()) return;
    if (const auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }

  int64_t size() const { return size_; }

 private:
  // Extends the arena, using a free range at its end if there is one.
  int64_t grow(int64_t bytes) {
    int64_t offset = size_;
    if (!free_.empty()) {
      const auto last = std::prev(free_.end());
      if (last->first + last->second == size_) {
        offset = last->first;
        free_.erase(last);
      }
    }
    size_ = offset + bytes;
    return offset;
  }

  Fit fit_;
  std::map<int64_t, int64_t> free_;  // offset -> bytes
  int64_t size_ = 0;
};

int64_t aligned_bytes(const Tensor& tensor) {
  return round_up(tensor.all_bytes().count, kArenaAlignment);
}

// Plans one arena; returns its size and fills `offset` of its tensors.
int64_t plan_one(const Graph& graph, const std::vector<Life>& lives,
                 const std::vector<TensorId>& members, Fit fit, std::vector<int64_t>& offset) {
  FreeSpace space(fit);
  std::vector<TensorId> order;
  for (const TensorId id : members) {
    if (lives[static_cast<size_t>(id)].carried) {
      offset[static_cast<size_t>(id)] = space.take(aligned_bytes(graph.tensors[static_cast<size_t>(id)]));
    } else {
      order.push_back(id);
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](TensorId a, TensorId b) {
    return lives[static_cast<size_t>(a)].first < lives[static_cast<size_t>(b)].first;
  });
  std::multimap<OpId, TensorId> alive;  // by last operation
  for (const TensorId id : order) {
    const Life& life = lives[static_cast<size_t>(id)];
    while (!alive.empty() && alive.begin()->first < life.first) {
      const TensorId dead = alive.begin()->second;
      space.give(offset[static_cast<size_t>(dead)],
                 aligned_bytes(graph.tensors[static_cast<size_t>(dead)]));
      alive.erase(alive.begin());
    }
    offset[static_cast<size_t>(id)] = space.take(aligned_bytes(graph.tensors[static_cast<size_t>(id)]));
    alive.emplace(life.last, id);
  }
  return space.size();
}

}  // namespace

ArenaPlan plan_arenas(const Graph& graph, const std::vector<Life>& lives) {
  std::map<std::pair<int8_t, Place>, std::vector<TensorId>> arenas;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if (lives[i].first < 0) continue;
    const Tensor& tensor = graph.tensors[i];
    arenas[{tensor.device, tensor.place}].push_back(static_cast<TensorId>(i));
  }
  ArenaPlan plan;
  plan.offset.assign(graph.tensors.size(), -1);
  for (const auto& [where, members] : arenas) {
    std::vector<int64_t> best = plan.offset;
    std::vector<int64_t> lowest = plan.offset;
    const int64_t best_size = plan_one(graph, lives, members, Fit::kBest, best);
    const int64_t lowest_size = plan_one(graph, lives, members, Fit::kLowest, lowest);
    plan.offset = best_size <= lowest_size ? std::move(best) : std::move(lowest);
    Bytes& size = plan.size[static_cast<size_t>(where.second)];
    size = std::max(size, Bytes{std::min(best_size, lowest_size)});
  }
  return plan;
}

}  // namespace ballast
