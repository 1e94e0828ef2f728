// One of several ranks of data parallelism whose memory is a GPU's: what it exchanges with the
// others within operations of the data lane, by NCCL, and the gradient norm of what they share.
//
// Exchanges go into the lane's stream and return. Parts that lie side by side are one call of NCCL,
// so nothing is packed for it. A sum is rounded to the type that it is stored in, and then to that
// of gradients on the GPU, as on the host device; what a sum is added to is added behind it. NCCL
// chooses in which order it adds: with two ranks there is one, and sums have the host's bits.
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
#include "backend/execute/rank_norms.h"
#include "backend/execute/rank_shares.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/plan.h"

namespace ballast {

class CudaRanks {
 public:
  struct Setting {
    const Graph& graph;
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

  // A collective of the data lane.
  void exchange(const Op& op, int32_t step, CudaStream stream);

  // A norm needs the values of segments that this rank has a part of. A kSumOfSquares of the GPU
  // puts them aside there, from where the copy of its partial sums takes them along: whoever may
  // read those on the CPU may read these. One of the CPU keeps them at once.
  void put_cuts_aside(const Op& op, int32_t step, CudaStream stream);
  void bring_cuts(const Op& op, CudaStream stream);
  void keep_cuts_of_cpu(const Op& op, int32_t step);
  // The sum of the squares of all gradients, where ranks share them; every rank calls.
  bool share_norms() const { return norms_.has_value(); }
  NormSums sum_of_all(const kernels::Table& table);

  // Returns when the work before `event` is done; throws Error where a rank has failed.
  void wait(CudaEvent event);
  // This rank goes no further; from any thread.
  void fail(const std::string& why);
  // Every rank calls, when its work is done.
  void close();

 private:
  // Of a bucket whose norm the GPU takes: its cut values, on the GPU and where the host reads them.
  struct Cut {
    int64_t begin = 0;  // bytes from the start of either
    int64_t count = 0;  // values
    kernels::Format format{};
  };
  using Cuts = std::map<int32_t, Cut>;  // by bucket
  static Cuts cuts_of(const Setting& at);
  static Bytes bytes_of(const Cuts& cuts);
  static Bytes scratch_of(const Setting& at);
  static bool rounds(const Plan& plan, DType stored);
  void sum_on_all(const NcclGroup& group, std::span<const SummedPart> parts, DType stored,
                  CudaStream stream);
  void sum_on_owners(const NcclGroup& group, std::vector<SummedPart> parts, DType stored,
                     CudaStream stream);
  void round(std::byte* values, int64_t count, DType stored, CudaStream stream);
  bool brings_partials(const Op& op) const;

  Setting at_;
  std::optional<NcclFunctions> functions_;
  std::optional<NcclRanks> nccl_;
  std::optional<RankNorms> norms_;
  Cuts cuts_;
  CudaMemory cuts_on_gpu_, cuts_on_host_;
  CudaMemory scratch_;  // of the data lane's stream
};

}  // namespace ballast
