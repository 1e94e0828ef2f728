// Machine: what a computer can do, each number with its source; the input of every cost.
//
// One record serves superchips, PCIe boxes and this very host (whose "GPU" is a compute thread).
// Will not do: read files (profiles/load), or compute a duration (sim/engine/cost).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/dtype.h"

namespace ballast {

class FabricModel;  // sim/engine/tables/fabric_model.h
class KernelModel;  // sim/engine/tables/kernel_model.h

// Where a number came from; every predicted second is booked under one of these.
enum class Provenance : uint8_t {
  kMeasured,      // this very operation was timed on this machine
  kInterpolated,  // between measured points of the same kind
  kRoofline,      // computed from a rate or a bound
};
std::string_view to_string(Provenance value);

template <class Quantity>
struct Sourced {
  Quantity value{};
  bool measured = false;  // else nominal (a vendor's figure) or derived
  std::string source;
};

// Bandwidth as a function of message size, or any rate as a function of size: linear in
// log(size) between points, flat beyond the first and last. Sizes ascend strictly.
struct Curve {
  struct Point {
    double size = 0;  // bytes, or elements where the owner says so
    double rate = 0;  // bytes per second, or elements per second
  };
  std::vector<Point> points;
  std::string source;
  bool measured = false;

  bool empty() const { return points.empty(); }
  double rate_at(double size) const;  // Requires !empty().
};

// Rate of fused attention by length of the sequence, tokens, in FLOP/s as published benchmarks
// count them: the causal half of the square, a backward 2.5 times its forward. For one head size.
struct AttentionRates {
  int64_t head_size = 0;
  Curve forward;
  Curve backward;
};

// The device tables that a GPU's kernels are timed by (sim/spec/kernels.h): "hopper" and "h100".
struct Kernels {
  std::string generation;  // empty: none, and the formulas of sim/engine/cost time every kernel
  std::string part;
  std::shared_ptr<const KernelModel> model;  // shared by all machines of the generation
};

struct Gpu {
  std::string name;
  Kernels kernels = {};
  Sourced<Bytes> memory;    // usable for tensors and libraries
  Sourced<Bytes> reserved;  // context and libraries, not available to tensors
  Sourced<Bandwidth> memory_bandwidth;
  std::map<DType, Sourced<FlopRate>> matmul;  // best achieved dense rate by storage type
  // Dense 16-bit peak of the data sheet, which utilisations (MFU) refer to; no duration is computed
  // from it.
  std::optional<Sourced<FlopRate>> nominal_matmul;
  Sourced<FlopRate> vector;               // elementwise arithmetic, fp32
  Sourced<double> attention_efficiency;   // share of `matmul` that fused attention reaches
  std::vector<AttentionRates> attention;  // by head size; where given, used instead of the share
  Sourced<Duration> launch;               // least time of any operation
  int64_t multiprocessors = 132;          // tiles of a matrix product computed at the same time
  bool is_host_thread = false;            // its lanes run on CPU cores and share them
  int64_t compute_threads = 1;            // of such a GPU's compute lane, as it was measured
};

struct Cpu {
  std::string name;
  int64_t cores = 1;
  int64_t optimizer_threads = 1;
  Sourced<Bytes> memory;
  Sourced<Bytes> reserved;
  Sourced<Bandwidth> memory_bandwidth;  // achievable, read plus write
  // The same of one core alone; without it, as much of the whole as its share of the cores.
  std::optional<Sourced<Bandwidth>> core_bandwidth = {};
  std::map<std::string, Curve> adam;  // by implementation: parameters per second by parameters
  Curve cast;                         // elements per second by elements, 16 <-> 32 bit
  // Of one thread, for one call of a framework: the forward of torch.nn.Linear in 16 bits, without
  // its kernel. Without it the host is as fast as kReferenceDispatch.
  std::optional<Sourced<Duration>> dispatch = {};
};
// Of an Intel Xeon Platinum 8480C in a DGX H100 (NVIDIA/TransformerEngine, issue 2053): the host
// that StackConstants::launch is of.
inline constexpr Duration kReferenceDispatch{13'480'000};

// GPU memory <-> CPU memory of one device.
struct Link {
  std::string kind;      // c2c, pcie, memory (host device)
  Curve host_to_device;  // bytes per second by bytes, pinned
  Curve device_to_host;
  Sourced<Bandwidth> both_total;   // both directions at once
  Sourced<double> pageable_share;  // of the pinned rate
  Sourced<Duration> latency;
  // One direction, to the CPU memory of another chip of the node: what a wrong NUMA binding uses.
  std::optional<Sourced<Bandwidth>> remote;
  // Of what a device sends to and gets from other nodes, the share that crosses this link too: all
  // of it where its network card hangs on the same PCIe switch, none over a link of its own.
  std::optional<Sourced<double>> network_share;
  // Bytes per second by bytes of kernels that read CPU memory and write it, without their start;
  // empty where they are not known.
  Curve kernel_reads;
  Curve kernel_writes;
};

// What nccl-tests prints for all-reduces over `ranks` devices of `nodes` nodes: bus bandwidth,
// 2 (ranks - 1) / ranks * bytes / time, by bytes of the buffer.
struct AllReduceTable {
  int64_t ranks = 0;
  int64_t nodes = 1;
  Curve bus;
};

// Devices of one node, or the network between nodes (see sim/engine/collective.h).
struct Interconnect {
  // What a large ring reaches, per device and direction (a network: per network card).
  Sourced<Bandwidth> bandwidth;
  Sourced<Duration> latency;  // least time from one rank's memory to its neighbour's
  // Bus bandwidth of a large all-reduce where the switch itself reduces (NVIDIA: NVLS).
  std::optional<Sourced<Bandwidth>> switch_reduction = {};
  std::optional<AllReduceTable> all_reduce = {};  // without it: by formula alone
  Curve point_to_point = {};  // bytes per second by bytes of one message; empty: `bandwidth`
  // Collectives as they were measured on the same wires (profiles/fabrics), by the fabric's name;
  // they go before `all_reduce` and the formulas of their kind.
  std::string fabric = {};
  std::shared_ptr<const FabricModel> fabric_model = {};
  // Multiprocessors that a collective keeps from other work: one for each channel of NCCL.
  std::optional<Sourced<double>> multiprocessors = {};
};

// The disks of a device: its share of those of its node.
struct Nvme {
  Sourced<Bytes> capacity;
  Curve read;  // bytes per second by bytes
  Curve write;
  Sourced<Duration> latency;
  // What a read and a write reach at once, each as a share of its own rate alone, in sum: from 1,
  // where both take as long as one after the other, to 2, where neither slows the other. Without it
  // 1.
  std::optional<Sourced<double>> both_share = {};
};

struct Machine {
  std::string name;
  std::string description;
  int64_t devices_per_node = 1;
  int64_t devices = 1;
  // Drawn by a device at most; what of its node that counts is said by the source.
  std::optional<Sourced<double>> power_watts = {};
  Gpu gpu;  // each device
  Cpu cpu;  // the CPU share of each device
  Link link;
  std::optional<Interconnect> node;     // between devices of one node
  std::optional<Interconnect> network;  // between nodes, per device
  std::optional<Nvme> nvme;
  Sourced<Duration> handover;  // from a finished operation to one waiting on another lane
};

// What the host takes for one call of a framework, over what that of kReferenceDispatch takes.
double host_slowness(const Cpu& cpu);
// Bytes per second that one core brings past its caches: as measured, else an even share of what
// all of them do. And what so many bring, at most what the memory does.
double core_bandwidth(const Cpu& cpu);
Bandwidth bandwidth_of(const Cpu& cpu, int64_t cores);

// Throws Error naming the machine and the field where a number is missing, zero or negative.
void check(const Machine& machine);

}  // namespace ballast
