// Plan: what to do with a model on a machine; every knob of design.md that a graph is built from.
//
// A knob without a value ("auto") is chosen by autotune before a graph is built.
// Will not do: hold hyperparameters of training (those are the trainer's), or read files.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/dtype.h"
#include "sim/spec/model.h"

namespace ballast {

enum class OptimizerPlacement : uint8_t { kGpu, kCpu, kNvme };
// Where 16-bit and 32-bit values are converted. kGpu moves 32-bit over the link, kCpu 16-bit.
enum class CastPlacement : uint8_t { kGpu, kCpu };
// kWait: all gradients first, then the step. kDelay: the step is applied one step late (not exact).
// kSpeculate: step at once, validate during the next forward, roll back if it was wrong (exact).
enum class SyncMode : uint8_t { kWait, kDelay, kSpeculate };
// Which CPU memory a device's threads use: that of its own chip, or another's.
enum class NumaBinding : uint8_t { kLocal, kRemote };
// The order in which a stage of a pipeline takes its micro-batches
// (sim/graph/schedules/schedule.h). k1F1B: 1F1B, interleaved where a stage has several chunks.
// kGpipe: all forwards, then all backwards (arXiv 1811.06965); chunk by chunk where there are
// several (breadth-first, arXiv 2211.05953). kEager1F1B: 1F1B with one more forward ahead for every
// stage that follows, so that messages travel beside computation (arXiv 2211.05322); with several
// chunks the same as k1F1B, which has them.
enum class PipelineSchedule : uint8_t { k1F1B, kGpipe, kEager1F1B };
inline constexpr std::string_view kPipelineSchedules[] = {"1f1b", "gpipe", "eager-1f1b"};
constexpr std::string_view to_string(PipelineSchedule value) {
  return kPipelineSchedules[static_cast<size_t>(value)];
}
enum class UndoKind : uint8_t { kSnapshot, kExact };
// When what was offloaded comes back. kLookAhead: a number of operations before its use. kByModule:
// when the backward of the same module is done in the layer that goes back before, on its stage, so
// that of a module's tensors one layer's are there at a time (Megatron-Core,
// pipeline_parallel/fine_grained_activation_offload.py).
enum class ReloadOrder : uint8_t { kLookAhead, kByModule };
// What becomes of a module's output between forward and backward.
enum class ActivationFate : uint8_t { kKeep, kRecompute, kOffload };
constexpr std::string_view to_string(ActivationFate value) {
  switch (value) {
    case ActivationFate::kKeep:
      return "keep";
    case ActivationFate::kRecompute:
      return "recompute";
    case ActivationFate::kOffload:
      return "offload";
  }
  return "";
}

std::string_view to_string(OptimizerPlacement value);
std::string_view to_string(CastPlacement value);
std::string_view to_string(SyncMode value);
std::string_view to_string(NumaBinding value);
std::string_view to_string(UndoKind value);
std::string_view to_string(ReloadOrder value);  // "look-ahead", "by-module"

// What gradients of parameters are stored in, and so what micro-batches add up in. kF32: a sum of
// many micro-batches in 16 bits loses those that are small beside it; 32 bits are twice the memory.
enum class GradientFormat : uint8_t { kAsWeights, kF32 };
std::string_view to_string(GradientFormat value);  // "as-weights", "fp32"

// What moves gradients to CPU memory and weights back from it: the GPU's copy engines, from and
// into staging that kernels fill and empty; or these kernels themselves, which read and write CPU
// memory where they would the staging.
enum class StateTransfers : uint8_t { kCopies, kDirect };
std::string_view to_string(StateTransfers value);  // "copies", "direct"

struct OptimizerPlan {
  OptimizerPlacement placement = OptimizerPlacement::kCpu;
  Bytes bucket_bytes{64 << 20};        // of 32-bit values
  std::optional<int64_t> gpu_buckets;  // the last k buckets keep optimizer and master on the GPU
  CastPlacement cast = CastPlacement::kGpu;
  SyncMode sync = SyncMode::kSpeculate;
  UndoKind undo = UndoKind::kSnapshot;
  std::string adam = "best";  // a name of kernels::Table, or of a machine's Adam curves
  // Share of the buckets in CPU memory whose state comes to the GPU, is stepped there, and goes
  // back (Deep-OptimizerStates, arXiv 2410.21316); spread evenly over the others.
  double stream_share = 0;
  DType moments = DType::kF32;  // how both moments are stored: fp32 or bf16
  StateTransfers transfers = StateTransfers::kCopies;
  bool operator==(const OptimizerPlan&) const = default;
};

// Whether kernels move state, of which there is none to move where the GPU steps all.
inline bool moves_state_by_kernels(const OptimizerPlan& plan) {
  return plan.placement != OptimizerPlacement::kGpu && plan.transfers == StateTransfers::kDirect;
}

struct WeightsPlan {
  std::optional<double> flow_share;  // share of the layers whose weights live in DRAM and flow
  int64_t look_ahead = 4;  // operations of the GPU between the fetch of a weight and its use
  // Of 8-bit products: codes of weights are made once a step, in both orders, and kept till its
  // end; else before each product. Not of experts.
  bool keep_codes = false;
  bool operator==(const WeightsPlan&) const = default;
};

// Indexed by ModuleKind; only the kinds that have a saved output are read (saves_output()).
struct ActivationPlan {
  std::array<ActivationFate, kModuleKinds> fate{};
  // Of the layers (first ones first) whose kOffload is obeyed. The last layer always keeps: its
  // backward comes before a copy could return.
  double offload_share = 1.0;
  // By how much offload_share is less on each stage of a pipeline than on the one before it: early
  // stages hold more micro-batches.
  double offload_share_fall = 0;
  // Tensors of fewer bytes stay.
  Bytes offload_least;
  // So many may be on their way out at once: the computation waits for the one before so many. 0:
  // it never waits.
  int64_t offload_in_flight = 0;
  // Of every output that leaves, the part that does; the rest stays on the GPU.
  double offload_part = 1.0;
  // Where sequences pass in parts and this is above 0 (SPPO, arXiv 2503.10377): keys and values
  // stay, and of what else is offloaded of a part so many bytes leave for every million FLOPs of
  // the layer's forward of the part after it, so that the copy fits under it; no part a greater
  // share than the one before it, the last nothing. Instead of offload_part.
  int64_t offload_per_mflop = 0;
  // Of the layers, spread evenly over them, whose kRecompute is obeyed; the others keep.
  double recompute_share = 1.0;
  // Of fc1's output, where it is recomputed, the part that is; the rest is kept. Half of a gated
  // network's is the one of its two products that PyTorch's selective checkpointing of every other
  // product makes again (torchtitan, torchtitan/distributed/activation_checkpoint.py).
  double recompute_fc1_part = 1.0;
  int64_t look_ahead = 4;  // operations of the GPU between a reload and its use
  ReloadOrder reload = ReloadOrder::kLookAhead;
  // The rows of tokens as experts take them, one for each choice of a token, which are no module's
  // output.
  ActivationFate dispatched = ActivationFate::kKeep;
  // The scores of eager attention, which are no module's output: keep or recompute. Megatron's
  // "selective" recompute is this one alone.
  ActivationFate scores = ActivationFate::kKeep;
  bool operator==(const ActivationPlan&) const = default;
};

// Kinds whose output a backward pass reads and whose fate a plan may choose: norm1, qkv,
// core_attention, attention_out, norm2, fc1, activation, fc2.
bool saves_output(ModuleKind kind);

// When memory that tensors have left may be used again. At once it takes least, and lanes may wait
// for one another; apart they do not: tensors share memory only with those that the same lanes
// touch, and what two lanes touched is left alone for a while (sim/graph/core/arena.h).
enum class MemoryReuse : uint8_t { kApart, kAtOnce };
std::string_view to_string(MemoryReuse value);  // "apart", "at-once"

// What the parts of a sequence have the same of: tokens, or FLOPs of a layer's forward, of which a
// token has the more the later it stands (Seq1F1B, arXiv 2406.03488, section 3.3).
enum class SubsequenceSplit : uint8_t { kTokens, kFlops };
std::string_view to_string(SubsequenceSplit value);  // "tokens", "flops"

// Which tokens of a sequence (or of a part of one) a rank of a ring has. kZigzag: of twice as many
// pieces as ranks an early and a late one, rank r the pieces r and 2 P - 1 - r, so that every rank
// has the same causal pairs (Megatron-LM, get_batch_on_this_cp_rank; zig-zag ring attention).
// kNone: consecutive tokens, so that the last rank has 2 - 1/P times the mean of the pairs, and all
// wait for it. kHelpers: consecutive tokens too, but ranks that would idle attend for queries of
// later ones (DistFlashAttn, arXiv 2310.03294): the mean where P is odd, else 1 + 1/P of it, which
// of two ranks is what kNone has. It is predicted only.
enum class ContextBalance : uint8_t { kZigzag, kNone, kHelpers };
std::string_view to_string(ContextBalance value);  // "zigzag", "none", "helpers"

struct Plan {
  std::string model;    // a name of profiles/models or a path of a config.json
  std::string machine;  // a name of profiles/machines, a path, or "here"
  std::string strategy;
  // devices = data * tensor * pipeline * sequence * context
  int64_t devices = 1;
  int64_t data = 1;              // ranks that see other sequences
  int64_t tensor = 1;            // ranks that share every matrix (arXiv 1909.08053)
  int64_t pipeline = 1;          // stages of consecutive layers (arXiv 2104.04473)
  int64_t virtual_pipeline = 1;  // chunks of layers a stage
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  int64_t sequence = 1;  // ranks that share every sequence (Ulysses, arXiv 2309.14509)
  int64_t context = 1;   // the same by ring attention (arXiv 2310.01889)
  ContextBalance context_balance = ContextBalance::kZigzag;
  int64_t expert = 1;  // of the data-parallel ranks, those that share the experts
  // Norms and residuals split over the tensor-parallel ranks by token (arXiv 2205.05198).
  bool tensor_sequence = false;
  // Split over the ranks that see the same weights: 0 nothing, 1 optimizer state, 2 also
  // gradients, 3 also weights (arXiv 1910.02054).
  int64_t zero_stage = 2;
  // Ranks, next to one another, that split what zero_stage says between them; beyond them it is
  // replicated, and gradients are summed over the replicas (MiCS, arXiv 2205.00119; FSDP's hybrid
  // sharding, arXiv 2304.11277). 0: all that see the same weights.
  int64_t zero_group = 0;
  NumaBinding numa = NumaBinding::kLocal;
  // A step's kernels are recorded once and launched as few graphs, which costs the host next to
  // nothing (CUDA programming guide, section CUDA Graphs).
  bool cuda_graphs = false;
  int64_t global_batch = 0;            // sequences per step over all devices
  std::optional<int64_t> micro_batch;  // sequences per forward on one device
  int64_t sequence_length = 0;
  // Parts in which every sequence passes each layer, one after another: attention of a part sees
  // the keys and values of those before it (FPDT, arXiv 2408.16978). 1: whole.
  int64_t subsequences = 1;
  SubsequenceSplit subsequence_split = SubsequenceSplit::kTokens;
  // Parts next to a pipeline's bubbles pass a stage's layers on the devices of all stages at once,
  // each with a share of their tokens (SPPO, arXiv 2503.10377, multiplexed sequence partitioning).
  bool multiplex = false;
  // Rows that experts of the busiest rank take, of a hundred that each rank would take were all
  // tokens spread evenly.
  int64_t routing_percent = 100;
  DType dtype = DType::kBf16;
  // Of the matrices of layers (qkv, attention_out, fc1, fc2), forward and backward; the head and
  // the scores of attention multiply as stored. What is stored is of `dtype` either way.
  ProductFormat products = ProductFormat::kAsStored;
  // Of parameters; those of activations are of `dtype`.
  GradientFormat gradients = GradientFormat::kAsWeights;
  // Pieces of a micro-batch's tokens that pass a feed-forward one after another, so that of its
  // hidden columns only a piece exists at a time (arXiv 2506.13996, section 3.1).
  int64_t ffn_tiles = 1;
  // Pieces of a micro-batch's tokens that pass head and loss, and the head's backward, one after
  // another, so that the logits of one piece exist at a time (FusedLinearCrossEntropy of arXiv
  // 2410.10989).
  int64_t loss_chunks = 1;
  WeightsPlan weights;
  OptimizerPlan optimizer;
  std::optional<ActivationPlan> activations;
  // "auto" is apart; a search, or a prediction of what else does not fit, makes it at once.
  std::optional<MemoryReuse> memory_reuse;
  int64_t checkpoint_period_steps = 0;  // 0: none

  // Ranks that see the same weights.
  int64_t replicas() const { return data * sequence * context; }
  // Of them, those over which state is sharded.
  int64_t sharing() const { return zero_group > 0 && zero_stage > 0 ? zero_group : replicas(); }
  // Tokens of a micro-batch on one device, tensor-parallel ranks apart. Requires micro_batch.
  int64_t tokens_per_micro_batch() const {
    return micro_batch.value() * div_ceil(sequence_length, sequence * context);
  }
  // Micro-batches per step on one device. Requires micro_batch.
  int64_t accumulation() const {
    return div_exact(div_exact(global_batch, data), micro_batch.value());
  }
  int64_t tokens_per_step() const { return global_batch * sequence_length; }
  bool operator==(const Plan&) const = default;
};

// Micro-batches of a step on one device: more are not worth the memory of their graph.
inline constexpr int64_t kMostAccumulation = 1 << 14;

// Tokens [begin, end) of every sequence, which pass a layer together.
struct Subsequence {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t end() const { return begin + length; }
  bool operator==(const Subsequence&) const = default;
};

// Of a part of a micro-batch's sequences the tokens of one device: its ranks have as many each.
// Requires micro_batch.
inline int64_t part_tokens(const Plan& plan, const Subsequence& part) {
  return plan.micro_batch.value() * div_ceil(part.length, plan.sequence * plan.context);
}

// Tokens [begin, end) of a micro-batch on one device, of which there are `tokens`, that pass the
// head together: piece `chunk` of Plan::loss_chunks, whose numbers of tokens differ by one at most.
// All of them where there is one piece, or for chunk -1.
struct LossChunk {
  int64_t begin = 0;
  int64_t count = 0;
};
LossChunk loss_chunk_of(const Plan& plan, int64_t tokens, int64_t chunk);

// Queries that attention takes at a time: no part is shorter (FlashAttention-2, arXiv 2307.08691,
// section 3.3, has tiles of 64 or 128).
inline constexpr int64_t kAttentionTile = 128;

// The parts of a sequence in their order: Plan::subsequences of them. Split by FLOPs they begin at
// multiples of the tile, as near to equal as that allows.
std::vector<Subsequence> subsequences_of(const Plan& plan, const Model& model);

// Of the parts of a sequence those that pass a stage on the devices of all stages
// (Plan::multiplex): the first `left`, for which later stages would wait, and those from `right`
// on, during which earlier stages would idle.
struct SharedParts {
  int64_t left = 0;
  int64_t right = 0;
  bool has(int64_t part) const { return part < left || part >= right; }
};
SharedParts shared_parts(const Plan& plan, int64_t stage);
// The plan by which they do: one stage of all devices, which exchange as its sequence ranks.
Plan spread_over_stages(Plan plan);
// What keeps a plan from it, apart from what it says of activations, weights and the step: the knob
// in the way, what is wrong with it, and the remedy.
struct KnobRefusal {
  std::string knob, what, remedy;
};
std::optional<KnobRefusal> refusal_of_multiplex(const Plan& plan, const Model& model);

// Pairs of a query and a key that it sees among the first `end` tokens, twice; `window` as that of
// a model's layer.
double causal_area(int64_t end, int64_t window);

// Throws Error naming the knob if the plan cannot be run for this model: zero or negative sizes,
// degrees that do not divide, sequence longer than learned positions, 8-bit products of a dtype
// or of widths that they do not have. "auto" knobs pass.
void check(const Plan& plan, const Model& model);

// Parameters that buckets of a rank cut, experts of other ranks among them; of a pipeline those of
// all stages, whose buckets are in one graph.
int64_t parameters_in_buckets(const Plan& plan, const Model& model);
// Small buckets of which there may be so many, and usual ones of which there are no more.
inline constexpr int64_t kMostBucketsOfRank = 1 << 13;

// Whether so many chunks of a pipeline are cut as if embedding and head were a layer each: where
// the layers do not divide into them, but would if these counted (Megatron-LM,
// --account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split: 126 layers in
// 64 chunks). Of 126 layers in 128 the first and the last chunk have none.
inline bool ends_count_as_layers(int64_t chunks, int64_t layers) {
  return layers % chunks != 0 && (layers + 2) % chunks == 0;
}

}  // namespace ballast
