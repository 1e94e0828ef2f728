#include "sim/graph/core/arena.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace ballast {

namespace {

enum class Fit : uint8_t { kBest, kLowest };

// Free space of one arena as disjoint ranges, none beside another, in the order of their offsets.
// They are mostly few, and one list is searched and shifted faster than a tree. A graph of
// thousands of layers leaves tens of thousands: so the list is cut into blocks, of which those
// whose largest range is too small are passed over.
class FreeSpace {
 public:
  explicit FreeSpace(Fit fit) : fit_(fit) {}

  int64_t take(int64_t bytes) {
    const std::optional<Position> chosen = fitting(bytes);
    if (!chosen) return grow(bytes);
    Range& range = at(*chosen);
    const int64_t offset = range.offset;
    if (range.bytes == bytes) {
      erase(*chosen);
    } else {
      range = {offset + bytes, range.bytes - bytes};
      refresh(blocks_[chosen->block]);
    }
    return offset;
  }

  void give(int64_t offset, int64_t bytes) {
    const Position place = place_of(offset);
    const bool ends_block =
        place.block < blocks_.size() && place.index == blocks_[place.block].ranges.size();
    const Position next = ends_block ? Position{place.block + 1, 0} : place;
    const Position before{place.block, place.index - 1};  // of the same block: place_of
    const bool joins_next = next.block < blocks_.size() && offset + bytes == at(next).offset;
    const bool joins_before = place.index > 0 && at(before).end() == offset;
    if (joins_before) {
      at(before).bytes += bytes + (joins_next ? at(next).bytes : 0);
      refresh(blocks_[before.block]);
      if (joins_next) erase(next);
    } else if (joins_next) {
      at(next) = {offset, bytes + at(next).bytes};
      refresh(blocks_[next.block]);
    } else {
      insert(place, {offset, bytes});
    }
  }

  int64_t size() const { return size_; }

 private:
  struct Range {
    int64_t offset = 0;
    int64_t bytes = 0;
    int64_t end() const { return offset + bytes; }
  };
  struct Block {
    std::vector<Range> ranges;  // 1 to kMostRanges
    int64_t largest = 0;        // bytes of one of them
  };
  struct Position {
    size_t block = 0;
    size_t index = 0;
  };
  static constexpr size_t kMostRanges = 64;

  Range& at(Position position) { return blocks_[position.block].ranges[position.index]; }

  std::optional<Position> fitting(int64_t bytes) const {
    std::optional<Position> chosen;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (size_t b = 0; b < blocks_.size(); ++b) {
      if (blocks_[b].largest < bytes) continue;
      const std::vector<Range>& ranges = blocks_[b].ranges;
      for (size_t i = 0; i < ranges.size(); ++i) {
        if (ranges[i].bytes < bytes || ranges[i].bytes >= least) continue;
        chosen = Position{b, i};
        least = ranges[i].bytes;
        // Layers are alike, so that a range of the very size is often there: none fits better.
        if (fit_ == Fit::kLowest || least == bytes) return chosen;
      }
    }
    return chosen;
  }

  // Where a range of that offset belongs: in the last block that begins below it.
  Position place_of(int64_t offset) const {
    auto block = std::partition_point(blocks_.begin(), blocks_.end(), [&](const Block& one) {
      return one.ranges.front().offset < offset;
    });
    if (block != blocks_.begin()) --block;
    if (block == blocks_.end()) return {};
    const std::vector<Range>& ranges = block->ranges;
    const auto place = std::partition_point(
        ranges.begin(), ranges.end(), [&](const Range& range) { return range.offset < offset; });
    return {static_cast<size_t>(block - blocks_.begin()),
            static_cast<size_t>(place - ranges.begin())};
  }

  static void refresh(Block& block) {
    block.largest = 0;
    for (const Range& range : block.ranges) block.largest = std::max(block.largest, range.bytes);
  }

  void insert(Position position, Range range) {
    if (blocks_.empty()) blocks_.emplace_back();
    std::vector<Range>& ranges = blocks_[position.block].ranges;
    ranges.insert(ranges.begin() + static_cast<std::ptrdiff_t>(position.index), range);
    if (ranges.size() > kMostRanges) {
      Block later;
      const auto middle = ranges.begin() + kMostRanges / 2;
      later.ranges.assign(middle, ranges.end());
      ranges.erase(middle, ranges.end());
      refresh(later);
      blocks_.insert(blocks_.begin() + static_cast<std::ptrdiff_t>(position.block) + 1,
                     std::move(later));
    }
    refresh(blocks_[position.block]);
  }

  void erase(Position position) {
    Block& block = blocks_[position.block];
    block.ranges.erase(block.ranges.begin() + static_cast<std::ptrdiff_t>(position.index));
    if (block.ranges.empty()) {
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(position.block));
    } else {
      refresh(block);
    }
  }

  // Extends the arena, using a free range at its end if there is one.
  int64_t grow(int64_t bytes) {
    int64_t offset = size_;
    if (!blocks_.empty() && blocks_.back().ranges.back().end() == size_) {
      const Position last{blocks_.size() - 1, blocks_.back().ranges.size() - 1};
      offset = at(last).offset;
      erase(last);
    }
    size_ = offset + bytes;
    return offset;
  }

  Fit fit_;
  std::vector<Block> blocks_;
  int64_t size_ = 0;
};

int64_t aligned_bytes(const Tensor& tensor) {
  return round_up(tensor.all_bytes().count, kArenaAlignment);
}

// When the memory of each tensor may be used again, as the number of its last operation.
class Releases {
 public:
  Releases(const Graph& graph, const std::vector<Life>& lives, const std::vector<uint64_t>& lanes)
      : lives_(lives), lanes_(lanes), at_once_(graph.reuse == MemoryReuse::kAtOnce) {
    int64_t computed = 0;
    for (size_t i = 0; i < graph.step.ops.size(); ++i) {
      if (kind_of(graph.step.ops[i].lane) == LaneKind::kCompute) {
        compute_.push_back(static_cast<OpId>(i));
        ++computed;
      }
      computed_.push_back(computed);
    }
  }
  OpId of(TensorId tensor) const {
    const OpId last = lives_[static_cast<size_t>(tensor)].last;
    if (at_once_ || std::has_single_bit(lanes_[static_cast<size_t>(tensor)])) return last;
    const auto later =
        static_cast<size_t>(computed_[static_cast<size_t>(last)] + kGraceOperations - 1);
    return later < compute_.size() ? std::max(last, compute_[later]) : std::max(last, end());
  }

 private:
  OpId end() const { return static_cast<OpId>(computed_.size()); }
  const std::vector<Life>& lives_;
  const std::vector<uint64_t>& lanes_;
  bool at_once_;
  std::vector<OpId> compute_;      // operations of the compute lanes
  std::vector<int64_t> computed_;  // how many of them up to each operation
};

// Lanes that touch each tensor, as a set of bits.
std::vector<uint64_t> lanes_of(const Graph& graph) {
  std::vector<uint64_t> lanes(graph.tensors.size(), 0);
  for (const Program* program : {&graph.step, &graph.repair}) {
    for (const Op& op : program->ops) {
      for (const Access& access : op.accesses) {
        lanes[static_cast<size_t>(access.tensor)] |= uint64_t{1} << (op.lane % 64);
      }
    }
  }
  return lanes;
}

struct PoolSize {
  int64_t bytes = 0;
  int64_t least = 0;  // bytes that are taken at once, which no other order of places does with less
};

// Plans one pool of tensors in program order; returns its size and fills their `offset`.
PoolSize plan_pool(const Graph& graph, const std::vector<Life>& lives, const Releases& releases,
                   const std::vector<TensorId>& members, Fit fit, std::vector<int64_t>& offset) {
  FreeSpace space(fit);
  PoolSize size;
  int64_t taken = 0;
  // The order of equals does not show in what is free. What is released before an operation was
  // taken before it.
  std::vector<std::pair<OpId, TensorId>> by_release;
  by_release.reserve(members.size());
  for (const TensorId id : members) by_release.emplace_back(releases.of(id), id);
  std::sort(by_release.begin(), by_release.end());
  auto released = by_release.begin();
  for (const TensorId id : members) {
    const auto index = static_cast<size_t>(id);
    while (released->first < lives[index].first) {
      const auto dead = static_cast<size_t>(released->second);
      const int64_t bytes = aligned_bytes(graph.tensors[dead]);
      space.give(offset[dead], bytes);
      taken -= bytes;
      ++released;
    }
    const int64_t bytes = aligned_bytes(graph.tensors[index]);
    offset[index] = space.take(bytes);
    taken += bytes;
    size.least = std::max(size.least, taken);
  }
  size.bytes = space.size();
  return size;
}

}  // namespace

ArenaPlan plan_arenas(const Graph& graph, const std::vector<Life>& lives) {
  using Where = std::pair<int8_t, Place>;
  constexpr uint64_t kCarried = 0;  // no lanes: the pool of what is never released
  constexpr uint64_t kAny = 1;      // the one pool where memory is reused at once
  const bool at_once = graph.reuse == MemoryReuse::kAtOnce;
  const std::vector<uint64_t> lanes = lanes_of(graph);
  std::map<std::pair<Where, uint64_t>, std::vector<TensorId>> pools;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if (lives[i].first < 0) continue;
    const Where where{graph.tensors[i].device, graph.tensors[i].place};
    pools[{where, lives[i].carried ? kCarried
                  : at_once        ? kAny
                                   : lanes[i]}]
        .push_back(static_cast<TensorId>(i));
  }
  ArenaPlan plan;
  plan.offset.assign(graph.tensors.size(), -1);
  const Releases releases(graph, lives, lanes);
  std::map<Where, int64_t> used;
  // Of all tensors, each pool fills in its own: a graph of many stages has thousands of pools.
  std::vector<int64_t> best(graph.tensors.size());
  std::vector<int64_t> lowest(graph.tensors.size());
  for (auto& [key, members] : pools) {
    const auto& [where, touched_by] = key;
    int64_t& base = used[where];
    if (touched_by == kCarried) {
      for (const TensorId id : members) {
        plan.offset[static_cast<size_t>(id)] = base;
        base += aligned_bytes(graph.tensor(id));
      }
      continue;
    }
    std::stable_sort(members.begin(), members.end(), [&](TensorId a, TensorId b) {
      return lives[static_cast<size_t>(a)].first < lives[static_cast<size_t>(b)].first;
    });
    const PoolSize best_size = plan_pool(graph, lives, releases, members, Fit::kBest, best);
    int64_t size = best_size.bytes;
    bool is_best = true;
    if (size > best_size.least) {
      const int64_t other = plan_pool(graph, lives, releases, members, Fit::kLowest, lowest).bytes;
      is_best = size <= other;
      size = std::min(size, other);
    }
    const std::vector<int64_t>& chosen = is_best ? best : lowest;
    for (const TensorId id : members) {
      plan.offset[static_cast<size_t>(id)] = base + chosen[static_cast<size_t>(id)];
    }
    base += size;
  }
  for (const auto& [where, bytes] : used) {
    Bytes& size = plan.size[static_cast<size_t>(where.second)];
    size = std::max(size, Bytes{bytes});
  }
  return plan;
}

}  // namespace ballast
