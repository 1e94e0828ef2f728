// What every operation of a graph takes on a machine: the one place where work becomes time.
//
//   measured      this very work was timed on this machine (equal cost_key)
//   interpolated  between measured operations of the same group, or on a measured curve
//   roofline      the formulas below, from the machine's rates
//
// Will not do: schedule (sim/engine/engine), or measure (cli hands measurements over).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/graph/graph.h"
#include "sim/graph/op_cost.h"
#include "sim/spec/machine.h"
#include "sim/spec/measurements.h"

namespace ballast {

// The operations whose rates may be interpolated into one another: kind, phase and number format,
// without sizes. For example "gemm forward bf16".
std::string cost_group(const Op& op);

// A measurement of this operation, ready for Measurements[cost_key(op)].
struct Sample {
  Duration median;
  Duration deviation;
};
Measurement measurement_of(const Op& op, const Sample& sample);

// Time of a dense matrix product m x n x k that runs at `best` when it is large.
//
// Output tiles of 128 x 256 (the largest that the registers of an NVIDIA multiprocessor hold; the
// shape behind the best rates of CUTLASS and cuBLAS) are computed `multiprocessors` at a time, so
// time comes in whole waves (NVIDIA, "Matrix Multiplication Background User's Guide", sections on
// tile and wave quantisation). k is cut in steps of 64, and starting and ending a tile costs as
// much as kTileFill of k. Few tiles with a long k are split along k, which fills the device and
// costs a round trip of the fp32 partial results; the fastest split is taken.
struct MatrixUnit {
  FlopRate best;
  Bandwidth memory;
  int64_t multiprocessors = 1;
};
Duration gemm_time(const GemmWork& work, const MatrixUnit& unit);

// Ring collective: all-reduce moves 2(P-1)/P of the buffer in 2(P-1) messages, reduce-scatter and
// all-gather half of both (Thakur, Rabenseifner and Gropp, 2005, section 4).
struct RingTime {
  Duration time;
  Bytes sent;  // by each rank
};
RingTime ring_time(const CollectiveWork& work, const Interconnect& interconnect);

class CostModel {
 public:
  // `adam`: a name in machine.cpu.adam, or "best" for the fastest at each size. `measurements` may
  // be null. The machine must outlive this object. Throws Error if no curve has that name.
  CostModel(const Machine& machine, const Measurements* measurements, std::string adam);

  // Costs of a sequence of this graph, whose lanes say on how many devices it runs. Throws Error
  // where the machine lacks a number that the sequence needs.
  CostTable table(const Sequence& sequence, const Graph& graph) const;

 private:
  struct Alone {
    Duration time;
    Provenance provenance = Provenance::kRoofline;
  };
  struct GroupPoint {
    double log_size = 0;
    double rate = 0;  // FLOPs or bytes per second
  };
  // What operations of one device share; the last two exist only with an Interconnect.
  enum CapacityIndex : int32_t { kHbm, kDram, kHostToDevice, kDeviceToHost, kLinkTotal, kCores };

  void add_capacities();
  void group_measurements();
  OpCost cost_of(const Op& op) const;
  Alone alone(const Op& op) const;
  std::optional<Alone> interpolated(const Op& op) const;
  Alone from_rates(const Op& op) const;
  Alone attention(const AttentionWork& work) const;
  Alone gpu_memory_bound(Bytes moved, Duration arithmetic) const;
  Alone on_cpu(const Op& op, const BucketWork& work) const;
  Alone adam(const BucketWork& work) const;
  Alone copy(const CopyWork& work) const;
  bool crosses_nodes(const CollectiveWork& work) const;
  const Interconnect& interconnect_of(const CollectiveWork& work) const;
  FlopRate matmul_rate(DType dtype) const;
  void add_demands(const Op& op, OpCost& cost) const;
  void demand(OpCost& cost, int32_t capacity, double amount) const;

  const Machine& machine_;
  std::string adam_;
  std::map<std::string, Duration> measured_;               // by cost_key
  std::map<std::string, std::vector<GroupPoint>> groups_;  // by cost_group, ascending size
  std::vector<Capacity> capacities_;                       // of one device
  int32_t node_ = -1;                                      // index of the interconnects, or -1
  int32_t network_ = -1;
};

}  // namespace ballast
