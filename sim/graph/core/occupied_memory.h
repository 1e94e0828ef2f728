// Who holds which part of an arena, while one tensor after the other takes some of it over.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/graph/core/graph.h"

namespace ballast {

// Disjoint ranges in the order of their addresses. They are cut into blocks, since a graph of a
// thousand layers holds ten thousand, and each tensor replaces a few: a tree would be searched and
// rebalanced in memory that is scattered.
class OccupiedMemory {
 public:
  // [begin, end) becomes the tensor's. Appends to `replaced` every tensor that held part of it,
  // once for each stretch, in the order of addresses. Bytes; an empty range replaces nothing.
  void take(int64_t begin, int64_t end, TensorId tensor, std::vector<TensorId>& replaced);

 private:
  struct Range {
    int64_t begin = 0, end = 0;
    TensorId tensor = -1;
  };
  using Block = std::vector<Range>;  // 1 to kMostRanges, but for the first of all
  static constexpr size_t kMostRanges = 64;

  void cut_if_large(size_t block);

  // Never none, so that every address has a block: the last that does not begin above it.
  std::vector<Block> blocks_ = {{}};
  std::vector<int64_t> begins_ = {INT64_MIN};  // of the blocks; of the first, no address is below
};

}  // namespace ballast
