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

#include "sim/engine/collective.h"
#include "sim/graph/core/graph.h"
#include "sim/graph/core/op_cost.h"
#include "sim/spec/machine.h"
#include "sim/spec/measurements.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

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

// What this machine's host takes for a kernel that it enqueues (StackConstants::launch).
Duration launch_on(const Cpu& cpu, const StackConstants& constants);
// Likewise for an expert of a product by expert: of any host (StackConstants::expert_launch).
Duration expert_launch_on(const Cpu& cpu, const StackConstants& constants);

// Time of a dense matrix product m x n x k that runs at `best` when it is large, on a GPU that
// names no device tables (sim/engine/tables/kernel_model.h has those).
//
// Output tiles are computed `multiprocessors` at a time, so time comes in whole waves (NVIDIA,
// "Matrix Multiplication Background User's Guide", sections on tile and wave quantisation). The
// tile is the one, of those that libraries offer, with the least time: 128 x 256, the largest that
// the registers of an NVIDIA multiprocessor hold, runs at the best rate, and smaller ones slower
// because each operand that they load serves fewer products (see gemm.cpp). k is cut in steps of
// 64 (128 for 8-bit factors), and starting and ending a tile costs as much as one of them. Few
// tiles with a long k are split along k, which fills the device and costs a round trip of the fp32
// partial results; the fastest split is taken.
struct MatrixUnit {
  FlopRate best;
  Bandwidth memory;
  int64_t multiprocessors = 1;
};
Duration gemm_time(const GemmWork& work, const MatrixUnit& unit);
// `batch` independent products of one shape, whose tiles fill the device together.
Duration batched_gemm_time(const GemmWork& work, int64_t batch, const MatrixUnit& unit);

// Blocks of a kernel of Ballast that reads or writes CPU memory, one a multiprocessor: enough to
// fill the link, and few, so that products run beside it (kernels/cuda/geometry.h, whose number a
// test holds against this one).
inline constexpr int64_t kDirectBlocks = 16;

inline double per_second(Bytes bytes, Duration time) {
  return static_cast<double>(bytes.count) / time.seconds();
}

class CostModel {
 public:
  // Of the plan only what says how the machine is used is read: which Adam of the CPU steps
  // (optimizer.adam), what moves state (optimizer.transfers), which memory it is bound to (numa)
  // and how many ranks share it (all degrees but pipeline). The constants of the stack are shares
  // of the rates of the roofline; what was measured is left alone. `measurements` may be null. The
  // machine must outlive this object. Throws Error if no curve has the name of the Adam, if the
  // machine lacks the link of a remote binding, or if machine or stack lack kernels that read and
  // write CPU memory and the plan has state there; so does pricing such a kernel of another plan.
  CostModel(const Machine& machine, const Plan& plan, const Stack& stack,
            const Measurements* measurements);

  // Costs of a program of this graph, whose lanes say on how many devices it runs. Throws Error
  // where the machine lacks a number that the program needs.
  CostTable table(const Program& program, const Graph& graph) const;
  // The same, by the costs that another machine or stack has for the program: operations of one
  // kind there are of one kind here.
  CostTable table(const Program& program, const Graph& graph, const OpCosts& of_another) const;
  // Of a block, which runs on the lanes of device 0, whichever it is that runs it.
  CostTable table_of_block(const Program& block) const;

  // True if any operation was timed, so that times need not grow with sizes.
  bool is_measured() const { return !measured_.empty(); }

 private:
  struct Alone {
    Duration time;
    Provenance provenance = Provenance::kRoofline;
  };
  struct GroupPoint {
    double log_size = 0;
    double rate = 0;  // FLOPs or bytes per second
  };
  // What operations of one device share; after these come the interconnects and disks that there
  // are.
  enum CapacityIndex : int32_t {
    kHbm,
    kDram,
    kHostToDevice,
    kDeviceToHost,
    kLinkTotal,
    kCores,
    kMultiprocessors,  // 1: kernels take turns on what collectives do not hold
  };

  void add_capacities();
  void group_measurements();
  std::vector<Capacity> capacities_of(int all_devices) const;
  CostTable table_on(const Program& program, int all_devices) const;
  OpCost cost_of(const Op& op) const;
  Alone alone(const Op& op) const;
  std::optional<Alone> interpolated(const Op& op) const;
  Alone from_rates(const Op& op) const;
  Duration launched(Duration time) const;
  MatrixUnit matrix_unit(DType dtype) const;
  // `batch` products of one shape, from the tables of the GPU's generation where it has any.
  Duration product_time(const GemmWork& work, int64_t batch) const;
  Duration without_start(Duration time) const;
  Provenance of_tables(DType dtype) const;
  double kernel_rate(DType dtype) const;
  Duration pass(Bytes moved) const;
  Alone fp8_product(const GemmWork& work) const;
  FlopRate flash_rate(const AttentionWork& work, Phase phase) const;
  Alone flash_attention(const AttentionWork& work, Phase phase) const;
  Alone eager_attention(const AttentionWork& work) const;
  Alone gpu_memory_bound(Bytes moved, Duration arithmetic) const;
  Alone on_cpu(const Op& op, const BucketWork& work) const;
  Alone adam(const BucketWork& work) const;
  int64_t threads_of(const Op& op) const;
  double torch_adam_rate() const;
  Alone copy(const CopyWork& work) const;
  static void check_kept_codes(const Stack& stack);
  void check_direct() const;
  Alone direct(const BucketWork& work) const;
  void add_direct_demands(const BucketWork& work, OpCost& cost) const;
  void hold_multiprocessors(double share, bool is_left_room, OpCost& cost) const;
  void add_product_blocks();
  void add_product_demands(OpCost& cost) const;
  Alone between_stages(const CollectiveWork& work) const;
  Alone io(const IoWork& work) const;
  FlopRate matmul_rate(DType dtype) const;
  double most_cores() const;  // of one rank, where all use theirs
  void add_demands(const Op& op, OpCost& cost) const;
  WireShares wire_shares() const;
  void add_collective_demands(const Op& op, const CollectiveWork& work, OpCost& cost) const;
  void demand(OpCost& cost, int32_t capacity, double amount) const;

  const Machine& machine_;
  const std::string adam_;  // a name in machine.cpu.adam, or "best": the fastest at each size
  const NumaBinding numa_;
  const bool by_kernels_;          // which move what state is on the CPU
  const std::string stack_;        // its name
  const bool has_direct_kernels_;  // the stack
  const int64_t ranks_here_;       // that this machine's own CPU runs, each with its part of it
  const StackConstants constants_;
  const double sustained_gemm_;   // on this machine's generation
  const Duration launch_;         // of the host, for a kernel
  const Duration expert_launch_;  // of the host, for an expert of a product by expert
  const bool reads_norms_;        // the host, before it enqueues the optimizer
  const bool reads_routing_;      // the host, before it enqueues what rows of experts pass through
  const double bias_epilogue_;    // what it multiplies a product's time by
  const AttentionKernel attention_kernel_;
  const int64_t torch_adam_threads_;                       // StackFacts::torch_adam_threads
  std::map<std::string, Duration> measured_;               // by cost_key
  std::map<std::string, std::vector<GroupPoint>> groups_;  // by cost_group, ascending size
  std::vector<Capacity> capacities_;                       // of one device
  int32_t node_ = -1;                                      // index of the interconnects, or -1
  int32_t network_ = -1;
  int32_t nvme_ = -1;
  int32_t product_blocks_ = -1;  // of persistent kernels, or -1: products are of many small blocks
};

}  // namespace ballast
