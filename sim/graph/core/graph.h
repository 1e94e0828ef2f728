// Graph: one training step as operations, tensors and lanes; what both clocks run.
//
// A graph is a *sequential program*: run its operations one after another, in order, and you have
// the reference result ("wait on one lane"). Concurrency comes from two things only: every lane
// runs its own operations in program order, and `link` derives from the tensors that operations
// read and write which operation of another lane must finish first. So a pass never writes an
// edge: it inserts operations and says what they touch, and cannot race or deadlock.
//
// Lanes wrap around: the program of step s+1 follows that of step s, and edges may reach one or
// two steps back ("steps_ahead"). A tensor that is read before it is written carries its value
// over from the step before.
//
// Will not do: know a duration (sim/engine), an address (backend), or a file format (profiles).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/dtype.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"
#include "sim/spec/stack.h"

namespace ballast {

using OpId = int32_t;
using TensorId = int32_t;
using LaneId = int32_t;

// What runs in order on its own: per device a stream, a pool of threads or a queue.
enum class LaneKind : uint8_t {
  kCompute,  // the GPU's main stream
  kCopyIn,   // CPU to GPU: batches, weights that flow, activations that return
  kCopyOut,  // GPU to CPU copies, and the small kernels that pack them
  kUpload,  // CPU to GPU: stepped weights coming home, and the kernels that unpack them; apart from
            // kCopyIn so that a reload never queues behind a step that is still running
  kCpu,     // the optimizer's worker threads
  kCheck,   // verdicts on a step's gradients
  // Collectives, a lane per communicator: ranks that talk about one thing queue behind each other,
  // and not behind those of another group. What they share are wires and multiprocessors.
  kTensorNetwork,    // ranks that split every product
  kSequenceNetwork,  // ranks that split sequences: all-to-alls of Ulysses, rings of context ranks
  kExpertNetwork,    // tokens to the ranks of their experts, and back
  kDataNetwork,      // ranks that hold the same weights, or shards of them
  kPipelineNetwork,  // between stages
  // A read of the next bucket's state does not queue behind the write of one that was stepped. What
  // the two share is the disk (Nvme::both_share).
  kNvmeRead,
  kNvmeWrite,
};
inline constexpr int kLaneKinds = static_cast<int>(LaneKind::kNvmeWrite) + 1;
std::string_view to_string(LaneKind kind);

constexpr LaneId lane_of(int device, LaneKind kind) {
  return device * kLaneKinds + static_cast<int>(kind);
}
constexpr LaneKind kind_of(LaneId lane) { return static_cast<LaneKind>(lane % kLaneKinds); }
constexpr int device_of(LaneId lane) { return lane / kLaneKinds; }

enum class Place : uint8_t { kHbm, kDram, kNvme };
inline constexpr int kPlaces = static_cast<int>(Place::kNvme) + 1;
std::string_view to_string(Place place);

// What a tensor is for, as the memory reports sum it.
enum class Category : uint8_t {
  kWeights,
  kGradients,
  kMaster,
  kMoments,
  kActivations,
  kWorkspace,
  kStaging,
  kSnapshot,
  kData,
};
inline constexpr int kCategories = static_cast<int>(Category::kData) + 1;
std::string_view to_string(Category category);

// Which value a tensor holds; with its Label it identifies the tensor.
enum class TensorKind : uint8_t {
  kTokens,              // int32 [B, S+1]
  kWeight,              // dtype [module.count], on the GPU
  kGradient,            // dtype [module.count]
  kOutput,              // dtype [T, width of the module's output]
  kNormStatistics,      // fp32 [T, 2]: mean and reciprocal deviation (RMSNorm: 0 and that)
  kLogSumExp,           // fp32 [B, H, S]
  kOutputGradient,      // dtype, the gradient of the module's output
  kHostOutput,          // an offloaded kOutput (or statistics) in DRAM
  kPacked,              // gradients of a bucket on their way out, [bucket.count]
  kArriving,            // weights of a bucket or module on their way in
  kBucketGradient,      // landed gradients of a bucket, DRAM; fp32 (cast on GPU) or dtype
  kBucketGradientFp32,  // the same after a cast on the CPU
  kBucketWeights,       // dtype [bucket.count] in DRAM after a cast on the CPU; home of what flows
  kMaster,              // fp32 [bucket.count]
  kMoment1,
  kMoment2,
  kUndoRecord,      // what a rollback needs: a snapshot of master and moments, or their lost bits
  kNormPartials,    // fp64 [segments of the bucket]: sums of squares
  kDecision,        // the verdict of a step: scale and validity
  kRepairArriving,  // staging that a rollback uploads through, GPU
  kScores,          // dtype [B, H, S, S]: softmax of eager attention, and again after its dropout
  kMask,            // bytes: which values a dropout kept, or where its random numbers began
  kGathered,        // what ranks hold together, for the operations that need it whole
  kPartial,         // a sum over ranks that is still to be made
  kFullGradient,    // dtype [module.count]: of all ranks' weights, before it is scattered
  kReduced,         // a rank's share of a bucket's gradient
  kState,           // master and moments where they rest between steps, one after another
  kSaved,           // all that a block leaves for its backward
  kCodes,           // bytes: the operands of a product in 8 bits
  kRouting,         // int32 [T, experts a token]: to which experts each token is sent
  kBalance,         // fp64 [2, E]: tokens sent to each expert and its probability, summed over
                    // layers; after the loss, what balancing adds to gradients of the latter
  kKeysValues,      // dtype [B*length, 2 K*D]: keys, then values of a part of the sequences
  kKeyGradient,     // fp32, like kKeysValues: sums over the parts after it that saw them; keys as
                    // attention takes them (normalised and rotated)
};
inline constexpr int kTensorKinds = static_cast<int>(TensorKind::kKeyGradient) + 1;
std::string_view to_string(TensorKind kind);

// Of a module that is a chain of products, as kQkv is with latent attention (DeepSeek-V2, arXiv
// 2405.04434, section 2.1): down to a latent and its norm, up to the heads; of queries, and of keys
// with values.
enum class ChainPart : int8_t { kWhole, kQueryDown, kQueryUp, kKeyDown, kKeyUp };

struct Label {
  int16_t layer = -1;
  ModuleKind module = ModuleKind::kEmbedding;
  int16_t micro_batch = -1;
  int32_t bucket = -1;
  ChainPart part = ChainPart::kWhole;
  int16_t subsequence = -1;  // of the sequences the part (Plan::subsequences); -1: they are whole
  int16_t loss_chunk = -1;   // of head and loss the piece (Plan::loss_chunks); -1: of all tokens
  bool operator==(const Label&) const = default;
};

struct Tensor {
  TensorKind kind{};
  Category category{};
  Place place{};
  DType dtype = DType::kF32;
  int8_t device = 0;
  int8_t copies = 1;  // 2: one copy for even steps, one for odd ones (see Access::step_offset)
  Label label;
  int64_t elements = 0;  // of one copy
  Bytes bytes() const { return bytes_of(elements, dtype); }
  Bytes all_bytes() const { return bytes() * copies; }
};

enum class OpKind : uint8_t {
  kLoadBatch,
  kEmbedding,
  kNorm,
  kGemm,
  kAttention,
  kActivation,
  kLoss,
  kPack,          // module gradients -> bucket, with the cast where the GPU casts
  kUnpack,        // bucket or module arriving -> module weights, likewise
  kCast,          // on the CPU
  kSumOfSquares,  // gradient norm of a bucket
  kDecide,        // all norms -> clip factor, or skip; before the step (wait, delay)
  kCommit,        // all norms -> accept, or roll back; after a speculative step
  kSnapshot,
  kAdam,
  kUndo,
  kCopy,  // across the link
  kCollective,
  kIo,       // between CPU memory and NVMe
  kScale,    // gradients of a bucket multiplied in place, where that is a pass of its own
  kBlock,    // a whole program, run as one (see Graph::blocks)
  kPermute,  // rows of tokens into the order of experts
  kCombine,  // rows of experts back into the order of tokens, those of a token summed
};
inline constexpr int kOpKinds = static_cast<int>(OpKind::kCombine) + 1;
std::string_view to_string(OpKind kind);

enum class Phase : uint8_t {
  kForward,
  kRecompute,       // a forward repeated during the backward
  kBackward,        // of modules without a matrix: all gradients at once
  kBackwardInput,   // GEMM: gradient of the input
  kBackwardWeight,  // GEMM: gradient of the weight and bias
  kOptimizer,       // buckets, steps, weights coming home
  kFetch,           // flowing weights coming in
  kOffload,         // activations leaving
  kReload,          // activations coming back
};
inline constexpr int kPhases = static_cast<int>(Phase::kReload) + 1;
std::string_view to_string(Phase phase);

enum class CopyDirection : uint8_t { kHostToDevice, kDeviceToHost };
// What a copy finds on the side of the CPU. A copy from or to pageable memory goes through buffers
// of the driver, at Link::pageable_share of the rate.
enum class HostMemory : uint8_t { kPinned, kPageable };
enum class Site : uint8_t { kGpu, kCpu };
enum class IoDirection : uint8_t { kRead, kWrite };
enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSendReceive,
};
inline constexpr int kCollectiveKinds = static_cast<int>(CollectiveKind::kSendReceive) + 1;
std::string_view to_string(CollectiveKind kind);

// How operands of an 8-bit product come to have 8 bits, beside the passes that made them.
//   kJustInTime  both before every product: a pass for the largest value, one that writes the codes
//   kCurrent     the first so, in every layout that a product may want
//   kFirst       the first in one pass, by a scale that is known before, in every layout
//   kBoth        both so
//   kForNext     both just in time, the first in every layout: the next product reads its codes
//   kSecond      the second just in time; the first has the codes of the product before
//   kTransposed  the second, which has 8 bits already, in one pass into its other layout
//   kNone        they have them already
enum class Rounding : uint8_t {
  kJustInTime,
  kCurrent,
  kFirst,
  kBoth,
  kForNext,
  kSecond,
  kTransposed,
  kNone
};
std::string_view to_string(Rounding rounding);

// Where the codes of a weight come from, the second factor of a product that rounds it:
//   kOwn    rounded for this product, as its Rounding says
//   kMakes  rounded in both orders, for all products of the step that take it
//   kTakes  made by an earlier product
enum class WeightCodes : uint8_t { kOwn, kMakes, kTakes };
std::string_view to_string(WeightCodes codes);  // behind a space, as in cost_key; "" for kOwn

// m x n output, k summed over: forward m=T, n=out, k=in; backward input m=T, n=in, k=out; backward
// weight m=out, n=in, k=T.
struct GemmWork {
  int64_t m = 0, n = 0, k = 0;
  DType dtype{};            // of operands in memory, and of the output unless it is wide
  bool accumulate = false;  // adds to what the output holds
  ProductFormat format = ProductFormat::kAsStored;
  Rounding rounding = Rounding::kJustInTime;     // of 8-bit products
  WeightCodes weight_codes = WeightCodes::kOwn;  // likewise
  // Experts whose weights these are: the tokens' rows lie one expert after another, as many as the
  // router sent to each, together the m (or, of a weight's gradient, the k) given. 0: one product.
  int64_t experts = 0;
  bool wide_output = false;  // in 32 bits, whatever the factors are in
  bool by_expert = false;    // a kernel for each of the experts, not one for all
  bool sums_bias = false;    // of a weight's gradient: its epilogue makes that of the bias as well
  bool operator==(const GemmWork&) const = default;
};

// Causal attention over `sequences` of `length` tokens, heads as on one rank; or of so many tokens
// in the midst of sequences, which see what was before them too.
struct AttentionWork {
  int64_t sequences = 0, length = 0, heads = 0, kv_heads = 0, head_size = 0;
  DType dtype{};
  // Flash: least bytes read and written, scores never stored; flops of the causal half, where a
  // backward counts the recomputed scores. Eager: every pass over the scores; flops of the whole
  // square.
  Bytes moved;
  Flops flops;
  AttentionKind kind = AttentionKind::kFlash;
  int64_t tokens_before = 0;  // in the sequence, whether in the window or not
  int64_t window = 0;         // keys that a query sees at most; 0: all up to its own
  // What passes of their own read and write around the kernel: rotary positions, other layouts,
  // repeated keys and values.
  Bytes passed = {};
  // Ranks of a ring attend for one another (ContextBalance::kHelpers), which takes another time
  // than the same queries after the same tokens on one device.
  bool is_helped = false;
  bool operator==(const AttentionWork&) const = default;
};

// Row-wise operations (norm, activation, embedding, loss): `rows` of `columns`.
struct RowWork {
  int64_t rows = 0, columns = 0;
  DType dtype{};
  Bytes moved;  // least bytes read and written
  Flops flops;
  bool operator==(const RowWork&) const = default;
};

// Elementwise work on a bucket (pack, unpack, cast, sum of squares, Adam, snapshot, undo).
struct BucketWork {
  int64_t elements = 0;
  DType from{}, to{};
  Site site = Site::kGpu;
  Bytes moved;
  bool exact_undo = false;  // Adam that records what an exact undo needs, or that undo
  int64_t launches = 0;     // of a framework that goes tensor by tensor; 0: as multi-tensor kernels
  int64_t core_percent = 0;  // of the CPU's cores, where it does not have all
  // Of what is moved, that which a kernel of the GPU reads from CPU memory, and writes there
  // (StateTransfers::kDirect).
  Bytes from_host = {}, to_host = {};
  bool operator==(const BucketWork&) const = default;
};

// Whether a kernel reads or writes CPU memory, and " from host", " to host", both or nothing.
bool crosses_link(const BucketWork& work);
std::string_view across_link(const BucketWork& work);

// Across the link. A framework that copies tensor by tensor makes several calls, each of which
// has the rate of its own size and starts anew.
struct CopyWork {
  Bytes bytes;  // of all calls together
  CopyDirection direction{};
  HostMemory host = HostMemory::kPinned;
  int64_t calls = 1;  // of equal size, one after another
  bool operator==(const CopyWork&) const = default;
};

// How the experts of a token lie among those of a layer, all equally likely: `per_token` of
// `experts`, out of `chosen_groups` of `groups` of neighbours.
struct TokenRouting {
  int64_t experts = 0;
  int64_t per_token = 0;
  int64_t groups = 1;
  int64_t chosen_groups = 1;
  bool operator==(const TokenRouting&) const = default;
};

struct CollectiveWork {
  CollectiveKind kind{};
  // Of the full (unsharded) buffer on one rank; all-to-all: what a rank holds before and after;
  // send and receive: the message.
  Bytes bytes;
  int64_t ranks = 1;
  // Devices from one rank of the group to the next, in the order in which devices fill nodes:
  // tensor-parallel ranks are neighbours (stride 1), then context, sequence, data, pipeline.
  int64_t stride = 1;
  // Of an all-to-all whose bytes are a row for each expert of a token: it goes but once to each
  // rank that has any of them, and between nodes once to each node. No experts: each row goes.
  TokenRouting once = {};
  int64_t multiprocessors = 0;  // that it holds; 0: as many as other collectives
  bool operator==(const CollectiveWork&) const = default;
};

struct IoWork {
  Bytes bytes;
  IoDirection direction{};
  bool operator==(const IoWork&) const = default;
};

// One run of Graph::blocks[block].
struct BlockWork {
  int32_t block = 0;
  bool is_shared = false;  // by the devices of all stages, which run it at once (Plan::multiplex)
  bool operator==(const BlockWork&) const = default;
};

// std::monostate: no cost of its own (decisions, commits, batch loading is a copy).
using Work = std::variant<std::monostate, GemmWork, AttentionWork, RowWork, BucketWork, CopyWork,
                          CollectiveWork, IoWork, BlockWork>;

// How an operation uses a tensor; the backend finds its arguments by role.
enum class Role : uint8_t {
  kTokens,
  kInput,
  kWeight,
  kResidual,    // added to the output
  kStatistics,  // norm statistics or log-sum-exp
  kOutput,
  kOutputGradient,    // gradient of the operation's output, read
  kInputGradient,     // gradient of its input, written
  kResidualGradient,  // added to the input gradient
  kParameterGradient,
  kSource,  // of copies, casts, packs
  kDestination,
  kMaster,
  kMoment1,
  kMoment2,
  kGradient,
  kUndoRecord,
  kNormPartials,
  kDecision,
  kScratch,
  kCodes,          // where a product's operands are rounded to
  kGradientCodes,  // where the gradient of an output is, for both products that take it
  kWeightCodes,    // where a weight is, for all products of the step
  kRouting,        // which experts a token is sent to
  kBalance,        // how evenly tokens were sent to experts
  kKeysValues,     // of a part of the sequences, attention's own last
  kKeyGradient,    // sums of gradients of keys and values, in the same order
};

enum class AccessMode : uint8_t { kRead, kWrite, kReadWrite };

struct Access {
  TensorId tensor = -1;
  Role role{};
  AccessMode mode{};
  int8_t step_offset = 0;  // copy used: (step + step_offset) mod copies
};

struct Op {
  OpKind kind{};
  Phase phase{};
  LaneId lane = 0;
  Label label;
  Work work;
  std::vector<Access> accesses;
  // A fence: later operations of the step, on every lane, wait for it (the commit).
  bool fence = false;
};

// Must finish before an operation starts: `op` of the step `steps_ahead` steps earlier.
struct Edge {
  OpId op = -1;
  int32_t steps_ahead = 0;
  bool operator==(const Edge&) const = default;
};

// Operations in program order, and their edges once linked: those of op i are
// edges[edge_begin[i]] .. edges[edge_begin[i+1]-1], at most one a lane.
struct Program {
  std::vector<Op> ops;
  std::vector<Edge> edges;
  std::vector<int32_t> edge_begin;
};

// Modules are cut into segments of this many parameters (the last one shorter). Buckets hold whole
// segments and the gradient norm sums by segment, so that no norm depends on a plan's buckets.
inline constexpr int64_t kSegment = 65536;

// A contiguous range of the flat parameter space that is packed, moved and stepped together.
// Bucket 0 holds the end of the space, whose gradients come first.
struct Bucket {
  struct Piece {
    int32_t module = 0;  // index into Graph::modules
    int64_t begin = 0;   // elements from the module's start, a multiple of kSegment
    int64_t count = 0;
    int64_t offset = 0;  // elements from the bucket's start
  };
  int64_t begin = 0;  // in the flat space
  int64_t count = 0;
  int64_t segments = 0;
  Site site = Site::kCpu;  // where it is stepped, and where master and moments live
  TensorId rest = -1;  // kState in DRAM or on NVMe, from which they come for the step only; or -1
  // Its state, made by the optimizer's passes; -1 where there is none.
  TensorId master = -1, moment1 = -1, moment2 = -1;
  TensorId weights = -1;  // kBucketWeights, where the CPU casts
  std::vector<Piece> pieces;
};

// Where a tensor lies in the arena of its place and device, bytes from the arena's start.
struct ArenaPlan {
  std::vector<int64_t> offset;        // by tensor; copies lie one after another
  std::array<Bytes, kPlaces> size{};  // of each arena, on one device
};

struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Module> modules;
  std::vector<Bucket> buckets;
  int lanes = 0;
  Program step;
  // What operations of kind kBlock stand for: the forward or backward of one chunk of layers for
  // one micro-batch, or for parts of it, on the lanes of device 0 whichever device runs it. A block
  // starts when its operation does, with nothing else running, and its tensors are its own.
  std::vector<Program> blocks;
  // What a failed commit runs before it lets the step go on: undo, redo, upload. After it the
  // operations of the step before the commit are run once more. Empty where nothing speculates.
  Program repair;
  OpId commit = -1;  // index in step.ops, or -1
  MemoryReuse reuse = MemoryReuse::kApart;
  ArenaPlan arenas;  // filled by link

  // By id; for a label's module see sim/graph/core/module_index.h.
  const Tensor& tensor(TensorId id) const { return tensors[static_cast<size_t>(id)]; }
  Tensor& tensor(TensorId id) { return tensors[static_cast<size_t>(id)]; }
  const Op& op(OpId id) const { return step.ops[static_cast<size_t>(id)]; }
  Op& op(OpId id) { return step.ops[static_cast<size_t>(id)]; }
  const Bucket& bucket(int32_t index) const { return buckets[static_cast<size_t>(index)]; }
  const Module& module(int32_t index) const { return modules[static_cast<size_t>(index)]; }
};

// "forward layer 3 fc1 micro-batch 0", for people and traces.
std::string describe(const Op& op);
std::string describe(const Tensor& tensor);

// The phase of operations whose work differs though its sizes may not, behind a space, or nothing.
// A recomputed forward costs what the forward costs; whose bucket is moved does not matter.
std::string_view cost_phase(const Op& op);

// Canonical text of an operation's kind, phase and work: equal text means equal cost; the key of
// measurements in the store. For example "gemm forward m=512 n=768 k=256 bf16".
std::string cost_key(const Op& op);

// Least arithmetic and traffic of an operation's work.
Flops flops_of(const Work& work);
Bytes bytes_of(const Work& work);

// The parts of a product's traffic: of the product itself, whose operands may have 8 bits, and of
// what rounds them to 8 bits (0 where they are multiplied as stored): see Rounding. Just in time
// that is one pass that reads an operand for its largest value, one that reads it again and writes
// the codes.
Bytes product_bytes(const GemmWork& work);
// On a GPU whose products want codes in so many layouts (KernelTables::code_layouts).
Bytes rounding_bytes(const GemmWork& work, int64_t layouts = 2);
int64_t rounding_passes(const GemmWork& work, int64_t layouts = 2);

}  // namespace ballast
