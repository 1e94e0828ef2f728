// The optimizer state of a graph that rests on NVMe: which tensors, and how they move.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/disk/state_file.h"
#include "backend/execute/bucket_ranges.h"
#include "sim/graph/core/graph.h"

namespace ballast {

class DiskState {
 public:
  // A region for each tensor of NVMe. The graph must outlive this. Throws Error where the disk has
  // no room.
  DiskState(const Graph& graph, const DiskOptions& options);

  bool has(TensorId tensor) const { return regions_.contains(tensor); }
  // Whether a copy is of what lies here: buckets that the GPU steps move so.
  bool is_moved_by(const Op& op) const { return resting(op) != nullptr; }
  // All of a bucket's state, in or out, as BucketRanges::moves_of_state has it.
  void move(const Op& op, const std::vector<CopyRange>& ranges);
  void read(TensorId tensor, int64_t begin, std::span<std::byte> to);
  void write(TensorId tensor, int64_t begin, std::span<const std::byte> from);
  // Of the disk, as the system counts it.
  Bytes taken_by_largest_stage() const;
  // One line.
  std::string described() const;

 private:
  const Access* resting(const Op& op) const;

  const Graph& graph_;
  StateFile file_;
  std::unordered_map<TensorId, size_t> regions_;
};

}  // namespace ballast
