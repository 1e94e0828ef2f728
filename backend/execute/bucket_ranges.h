// What the operations on buckets do, as plain ranges of memory: copy these bytes, cast those
// values, sum these squares, step those parameters. Every device carries out the same ranges, on
// its CPU threads or on its GPU.
//
// Will not do: touch the memory, or know where it lies.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/execute/operation_arguments.h"
#include "backend/execute/rank_shares.h"
#include "kernels/bf16_moments.h"
#include "kernels/kernels.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/core/stages.h"
#include "sim/spec/plan.h"

namespace ballast {

struct CopyRange {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;
};

struct CastRange {
  const std::byte* from = nullptr;
  kernels::Format from_format{};
  std::byte* to = nullptr;
  kernels::Format to_format{};
  int64_t count = 0;          // values
  bool crosses_link = false;  // a kernel of the GPU reads or writes CPU memory
};

// Values of a segment that other ranks have the rest of.
struct CutRange {
  const std::byte* values = nullptr;
  int64_t count = 0;
};

// One partial sum a segment (kSegment) of `count` values, the first at `sums`. Those of a share lie
// one after another.
struct SumRange {
  const std::byte* values = nullptr;
  kernels::Format format{};
  int64_t count = 0;
  double* sums = nullptr;
};

// One run of parameters of an optimizer step.
struct StepRange {
  // weights null where the operation writes none; moments null where they are stored in bf16.
  kernels::AdamArrays arrays;
  kernels::Bf16Moments bf16_moments;  // null where they are stored in fp32
  bool decays = false;
};

class BucketRanges {
 public:
  // The graph must outlive this, and the shares, which are of one of several ranks.
  BucketRanges(const Graph& graph, const OperationArguments& arguments,
               const RankShares* shares = nullptr);

  const Bucket& bucket_of(const Op& op) const;
  // By bucket: what one call of an optimizer kernel steps; of a module from the start of what this
  // rank's tensors hold of it.
  const std::vector<Run>& runs(int32_t bucket) const { return runs_[static_cast<size_t>(bucket)]; }

  std::vector<CastRange> pack(const Op& op, int32_t step) const;
  std::vector<CastRange> unpack(const Op& op, int32_t step) const;
  CastRange cast(const Op& op, int32_t step) const;
  // Of a gradient norm, in the order of the bucket: of segments that lie in this rank's share, and
  // values of those that it cuts through.
  std::vector<SumRange> sums(const Op& op, int32_t step) const;
  std::vector<CutRange> cuts(const Op& op, int32_t step) const;
  // What of a bucket's segments is in this rank's share, and where a gradient norm reads it.
  struct OwnSegment {
    SegmentRange segment;
    const std::byte* values = nullptr;
  };
  std::vector<OwnSegment> own_segments(const Op& op, int32_t step) const;
  // Copies across the link: of gradients, activations and partial sums, of flowing weights out of
  // the buckets that hold them, and of stepped weights, those that flow left out.
  std::vector<CopyRange> copies(const Op& op, int32_t step) const;
  // Master and both moments between where they rest and where they are stepped (kIo, and those
  // copies that take a kState).
  std::vector<CopyRange> moves_of_state(const Op& op, int32_t step) const;
  // Master and both moments into the snapshot (kSnapshot) or back from it (kUndo).
  std::vector<CopyRange> snapshot(const Op& op, int32_t step) const;
  // Of kAdam and of an exact kUndo, in the order of runs().
  std::vector<StepRange> steps(const Op& op, int32_t step) const;
  // Of collectives among ranks, on buckets or on modules: contributions to sums and where these go,
  // weights and where those of every rank go; of what one sort of modules has (rank_shares.h).
  std::vector<SummedPart> summed(const Op& op, int32_t step, Sort sort) const;
  std::vector<GatheredPart> gathered(const Op& op, int32_t step, Sort sort) const;
  // What this rank has in its share, in place, where several groups of ranks have the same shares.
  struct ShareRange {
    std::byte* values = nullptr;
    int64_t count = 0;
  };
  std::vector<ShareRange> shared_by_groups(const Op& op, int32_t step) const;

  // A piece of a bucket's master and where its module's weights live on the GPU, by copy.
  struct SpreadPiece {
    int64_t offset = 0;  // elements from the bucket's start
    int64_t count = 0;
    TensorId weight = -1;
    int64_t begin = 0;  // elements from the module's start
  };
  // The pieces whose weights are stationary.
  std::vector<SpreadPiece> spread(const Bucket& bucket) const;

 private:
  const Bucket::Piece& piece_of(const Bucket& bucket, const Tensor& module_tensor) const;
  std::vector<CastRange> packed(const Op& op, int32_t step) const;
  std::vector<CastRange> unpacked(const Op& op, int32_t step) const;
  // Weights that return from CPU memory, or flow in from there; gradients that are summed again.
  std::vector<CastRange> brought(const Op& op, int32_t step) const;
  std::vector<CastRange> gradients_of(const Op& op, const Argument& landed,
                                      const std::vector<Argument>& gradients) const;
  std::vector<CastRange> fetches(const std::vector<Argument>& sources,
                                 const Argument& destination) const;
  std::vector<CastRange> homecoming(const Op& op, const Argument& source,
                                    const std::vector<Argument>& destinations) const;
  std::vector<CastRange> homecoming_of_share(const Op& op, const Argument& source,
                                             const std::vector<Argument>& destinations) const;
  void find_stationary_weights();
  bool is_split() const;
  // Elements of a module before the first of those that this rank's tensors of the module hold.
  int64_t kept_before(int32_t module) const;
  // What of a segment this rank has, in what holds its share of a bucket or of modules.
  std::byte* values_at(const std::vector<Argument>& sources, const SegmentRange& segment) const;
  std::vector<SummedPart> summed_modules(const Op& op, int32_t step, Sort sort) const;
  std::vector<GatheredPart> gathered_modules(const Op& op, int32_t step, Sort sort) const;
  std::vector<SumRange> sums_of_share(const Op& op, int32_t step, double* sums) const;
  const Bucket& own_bucket_of(const Op& op) const;
  // Where a part of a bucket lies in: the modules' tensors, piece by piece; a tensor of the whole
  // bucket; one of its owner's share.
  enum class Of : uint8_t { kBucket, kShare };
  static std::byte* part_at(const Bucket& bucket, const std::vector<Argument>& arguments,
                            const SharePart& part, Of owner);
  bool is_own(const SharePart& part) const { return part.owner == shares_->rank(part.sort); }

  const Graph& graph_;
  OperationArguments arguments_;
  const RankShares* shares_;
  std::vector<Bucket> own_;  // what of each bucket this rank steps
  StageModules modules_;
  std::vector<std::vector<Run>> runs_;       // by bucket
  std::vector<TensorId> stationary_weight_;  // by module, -1: its weights flow, or it has none
};

}  // namespace ballast
