#include "sim/graph/core/occupied_memory.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace ballast {

void OccupiedMemory::take(int64_t begin, int64_t end, TensorId tensor,
                          std::vector<TensorId>& replaced) {
  if (begin >= end) return;
  const auto home = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) -
                                        begins_.begin() - 1);
  Block& block = blocks_[home];
  auto from = std::partition_point(block.begin(), block.end(),
                                   [&](const Range& range) { return range.end <= begin; });
  // Most often the one before was as large and lay in the same place.
  if (from != block.end() && from->begin == begin && from->end == end) {
    replaced.push_back(from->tensor);
    from->tensor = tensor;
    return;
  }
  // What is left of those at either end stays theirs.
  std::array<Range, 3> kept;
  size_t count = 0;
  const bool is_cut = from != block.end() && from->begin < begin;
  if (is_cut) kept[count++] = {from->begin, begin, from->tensor};
  kept[count++] = {begin, end, tensor};
  const auto end_of_replaced = [&](Block& in, Block::iterator first) {
    for (; first != in.end() && first->begin < end; ++first) {
      replaced.push_back(first->tensor);
      if (first->end > end) kept[count++] = {end, first->end, first->tensor};
    }
    return first;
  };
  const auto to = end_of_replaced(block, from);
  // Of the blocks behind it whole ones may go, and some ranges of the last.
  size_t next = home + 1;
  for (; to == block.end() && next < blocks_.size() && begins_[next] < end; ++next) {
    Block& other = blocks_[next];
    other.erase(other.begin(), end_of_replaced(other, other.begin()));
    if (other.empty()) continue;
    begins_[next] = other.front().begin;
    break;
  }
  block.insert(block.erase(from, to), kept.begin(), kept.begin() + count);
  const auto emptied = static_cast<std::ptrdiff_t>(home) + 1;
  blocks_.erase(blocks_.begin() + emptied, blocks_.begin() + static_cast<std::ptrdiff_t>(next));
  begins_.erase(begins_.begin() + emptied, begins_.begin() + static_cast<std::ptrdiff_t>(next));
  cut_if_large(home);
}

void OccupiedMemory::cut_if_large(size_t index) {
  if (blocks_[index].size() <= kMostRanges) return;
  const auto middle = blocks_[index].begin() + kMostRanges / 2;
  Block later(middle, blocks_[index].end());
  blocks_[index].erase(middle, blocks_[index].end());
  const auto after = static_cast<std::ptrdiff_t>(index) + 1;
  begins_.insert(begins_.begin() + after, later.front().begin);
  blocks_.insert(blocks_.begin() + after, std::move(later));
}

}  // namespace ballast
