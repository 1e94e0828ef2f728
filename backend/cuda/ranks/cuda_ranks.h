// One of several ranks whose memory is a GPU's: what it exchanges with those that see other data
// and with those that split products, by NCCL, and the gradient norm of what they share.
//
// Exchanges go into the lane's stream and return. Parts that lie side by side are one call of NCCL,
// so nothing is packed for it. A sum is rounded to the type that it is stored in, and then to that
// of gradients on the GPU, as on the host device; what a sum is added to is added behind it. NCCL
// chooses in which order it adds: with two ranks there is one, and sums have the host's bits.
// Ranks that split products exchange in the tensor lane's stream; what they sum of the gradients of
// norms over split tokens in that of the norm, by a communicator of its own.
// What only this rank's host knows (losses, verdicts, partial sums) goes by its own communicator.
// Will not do: exchange what other degrees do (their ranks are refused), or judge.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_math.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/libraries/nccl_ranks.h"
#include "backend/execute/bucket_ranges.h"
#include "backend/execute/operation_arguments.h"
#include "backend/execute/parameter_slices.h"
#include "backend/execute/rank_norms.h"
#include "backend/execute/rank_place.h"
#include "backend/execute/rank_shares.h"
#include "backend/host/bucket_updates.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

class CudaRanks {
 public:
  struct Setting {
    const Graph& graph;
    const Model& model;  // of all ranks
    const Plan& plan;
    const BucketRanges& ranges;
    const OperationArguments& arguments;
    const RankShares& shares;
    CudaRuntime& runtime;
    CudaMath& math;
  };
  // Returns when all ranks have come, as NcclRanks does. Without functions the others are not
  // there (LoneRank), and exchanges leave everything as it is. All of what is referred to must
  // outlive this.
  CudaRanks(const Setting& setting, std::optional<NcclFunctions> functions);

  // Whether an operation exchanges with other ranks.
  bool exchanges(const Op& op) const;
  // One that does: a collective, or the backward of a norm.
  void exchange(const Op& op, int32_t step, CudaStream stream);

  // A gradient norm needs the values of segments that this rank has a part of, and of what ranks
  // that split modules have alike. A kSumOfSquares of the GPU puts them aside there, from where the
  // copy of its partial sums takes them along: whoever may read those on the CPU may read these.
  void put_aside(const Op& op, int32_t step, CudaStream stream);
  void bring(const Op& op, CudaStream stream);
  // The sum of the squares of the gradients of the whole model, of which `updates` has partial
  // sums; every rank calls.
  double sum_of_all(const BucketUpdates& updates);
  // Null where no rank splits modules.
  const ParameterSlices* slices() const { return slices_ ? &*slices_ : nullptr; }

  // Returns when the work before `event` is done; throws Error where a rank has failed.
  void wait(CudaEvent event);
  // This rank goes no further; from any thread.
  void fail(const std::string& why);
  // Every rank calls, when its work is done.
  void close();

 private:
  // Of a bucket whose norm the GPU takes: cut values and then those that ranks have alike, on the
  // GPU and where the host reads them.
  struct Aside {
    int64_t begin = 0;  // bytes from the start of either
    int64_t cut = 0;    // values
    int64_t count = 0;  // all values
    kernels::Format format{};
    std::vector<SplitNorms::Alike> alike;  // where the host reads it
    Bytes bytes() const { return {count * kernels::bytes_of(format)}; }
  };
  using Asides = std::map<int32_t, Aside>;  // by bucket
  Asides asides_of() const;
  Bytes bytes_aside() const;
  void find_alike_aside();
  static Bytes scratch_of(const Setting& at);
  static bool rounds(const Plan& plan, DType stored);
  std::vector<NcclGroup> groups() const;
  bool sums_gradient(const Op& op) const;
  Bytes norm_scratch() const;
  void exchange_data(const Op& op, int32_t step, CudaStream stream);
  // Among ranks with the same shares (zero_group).
  static bool is_over_copies(const Plan& plan, const Op& op);
  void sum_over_copies(const Op& op, int32_t step, CudaStream stream);
  void exchange_rows(const Op& op, int32_t step, CudaStream stream);
  // What ranks that share the vocabulary tell each other of logits.
  void exchange_loss(const Op& op, int32_t step, CudaStream stream);
  Bytes told_of_loss() const;  // by one rank, at most
  void norm(const Op& op, int32_t step, CudaStream stream);
  void sum_on_all(const NcclGroup& group, std::span<const SummedPart> parts, DType stored,
                  CudaStream stream);
  void sum_on_owners(const NcclGroup& group, std::vector<SummedPart> parts, DType stored,
                     CudaStream stream);
  void round(std::byte* values, int64_t count, DType stored, CudaStream stream);

  Setting at_;
  RankPlace place_;
  std::optional<NcclFunctions> functions_;
  std::optional<NcclRanks> nccl_;
  std::optional<RankNorms> norms_;
  std::optional<ParameterSlices> slices_;
  std::optional<SplitNorms> split_norms_;
  Asides asides_;
  CudaMemory aside_on_gpu_, aside_on_host_;
  CudaMemory scratch_;       // of the data lane's stream
  CudaMemory told_;          // of the tensor lane's: of logits, by rank
  CudaMemory norm_scratch_;  // of the compute lane's: a norm's gradient, and what it is added to
};

}  // namespace ballast
