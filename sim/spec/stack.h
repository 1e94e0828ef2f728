// Stack: how a training framework falls short of the machine it runs on.
//
// Two kinds of statement. Facts say what the framework does (which attention, what it keeps, what
// it overlaps); they come from its source and papers, are never fitted, and shape the graph. The
// constants say how well it does it; `ballast calibrate` fits them, and only the cost model and
// the memory sums read them. Ballast itself is a stack: the defaults here.
// Will not do: know a machine, a model, or a single published case.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/attention_kernel.h"
#include "sim/spec/model.h"

namespace ballast {

// kEager stores the scores of every query and key, kFlash never does (arXiv 2205.14135).
enum class AttentionKind : uint8_t { kEager, kFlash };
std::string_view to_string(AttentionKind value);

// 32-bit numbers that a framework keeps although its plan trains in 16 bits.
enum class GradientPrecision : uint8_t { kAsWeights, kF32 };
std::string_view to_string(GradientPrecision value);

// By which scale values are rounded to 8 bits: the largest of them, which takes a pass to find,
// before each product that reads them or once for all of them, or one that earlier steps left.
enum class Scaling8 : uint8_t { kJustInTime, kDelayed, kCurrent };
inline constexpr int kScalings8 = 3;
std::string_view to_string(Scaling8 value);

// Weights of 8-bit products: rounded before each use, rounded once a step and kept beside the
// 16-bit ones, or stored and gathered in 8 bits alone.
enum class Weights8 : uint8_t { kEachUse, kKept, kStored };
inline constexpr int kWeights8 = 3;
std::string_view to_string(Weights8 value);

// When collectives run: between the computation they serve, beside what happens not to need them
// (tensor parallel: the weight gradient), or beside the computation itself, piece by piece.
enum class Overlap : uint8_t { kNone, kPartial, kFull };
inline constexpr int kOverlaps = 3;
std::string_view to_string(Overlap value);

// Where bias, activation, dropout, residual and rotary embedding happen: inside the products and
// the attention, in one pass over memory for each group of them, or in a pass for each.
enum class Fusion : uint8_t { kIntoProducts, kOnePass, kNone };
inline constexpr int kFusions = 3;
std::string_view to_string(Fusion value);

// Memory of the loss: the logits' gradient in their place, a 32-bit copy of the logits whose place
// both take, or 32-bit copies of the logits and of their gradient beside them. As PyTorch's
// cross_entropy, of 32-bit copies or of the logits as they are, beside the logits: their
// log-softmax, its gradient (zeros but for one a row) and their own. As torch.compile makes of that
// one: their gradient beside them, as narrow as they are.
enum class LossPrecision : uint8_t { kInPlace, kF32, kF32Copies, kTorchF32, kTorch, kCompiled };
inline constexpr int kLossPrecisions = 6;
std::string_view to_string(LossPrecision value);

// How stage 3 sends gradients that the CPU steps, where a plan waits for its steps: as other stages
// do, while the host goes on; while the host launches nothing until a tensor's is there; or so, and
// in 16 bits through pageable temporaries, which the host casts as they land.
enum class Stage3Sending : uint8_t { kAhead, kWaited, kCastByHost };
inline constexpr int kStage3Sendings = 3;
std::string_view to_string(Stage3Sending value);

// How gradients leave that are stepped while a plan speculates: as those that wait do, by
// StackFacts::stage3_returns_gradients out and back before; so, and the host launches nothing until
// all of a bucket's are there; or not back, but twice, to where they are kept and to the process
// that steps them. (A plan of several micro-batches sends as those that wait do.)
enum class SpeculativeSending : uint8_t { kAsWaiting, kWaited, kTwice };
inline constexpr int kSpeculativeSendings = 3;
std::string_view to_string(SpeculativeSending value);

// A machine's name for the rate of torch.optim's Adam on the CPU, tensor by tensor and unfused.
inline constexpr std::string_view kTorchAdam = "pt-cpu";

// The stack of what nobody has measured (profiles/stacks/typical.json).
inline constexpr std::string_view kTypicalStack = "typical";
// Ballast's own backend, and the roofline: what its plans would take if every kernel and wire did
// what the machine is said to do (profiles/stacks/ideal.json).
inline constexpr std::string_view kBallastStack = "ballast";
inline constexpr std::string_view kIdealStack = "ideal";

struct StackFacts;
// Facts within facts, equal where what they hold is.
struct OffloadFacts {
  std::shared_ptr<const StackFacts> facts;
  bool operator==(const OffloadFacts& other) const;
};

struct StackFacts {
  // In order of preference: the first one whose memory fits is used. A model may name its own.
  std::vector<AttentionKind> attention = {AttentionKind::kFlash};
  // Which kernel computes kFlash: no graph depends on it, its time does. The default is our own
  // backend's (docs/cuda.md); a stack file that names none has kFlash2.
  AttentionKernel attention_kernel = AttentionKernel::kCudnn;
  // On generations of GPUs where it is another ("hopper": FlashAttention 3 runs there alone).
  std::map<std::string, AttentionKernel> attention_kernel_on = {};
  // Bytes that eager attention moves for each score forward beside its products and passes. Of
  // learned positions, for which a framework has a bias of the scores (ALiBi) that products add.
  int64_t score_bytes = 0;
  bool dropout = false;  // of GPT-2 models (others have none): masks of a byte a value are kept
  Fusion fusion = Fusion::kIntoProducts;
  // Bytes that rotary positions move, where several kernels make them, for each element of queries
  // and keys, forward and backward; 0: what `fusion` says, an element read and written.
  int64_t rotary_bytes = 0;
  int64_t rotary_backward_bytes = 0;
  // The same where the model's positions are YaRN's, for which a kernel that fuses others may have
  // no factor; 0: as others.
  int64_t yarn_bytes = 0;
  int64_t yarn_backward_bytes = 0;
  // The same of GELU, for each element that the product before it leaves, its bias included; 0:
  // what `fusion` says, as it does of gated networks.
  int64_t activation_bytes = 0;
  int64_t activation_backward_bytes = 0;
  bool keeps_gate = false;  // what activates a gated network is a pass, and kept, of its own
  // What an RMSNorm of separate operations keeps: its input in 32 bits, and in 16 what it is before
  // the weight.
  bool keeps_wide_norms = false;
  // Keys and values are kept for every head of queries, repeated before the attention where they
  // have fewer. (Of ranks that share sequences `repeats_keys_values` says so.)
  bool keeps_repeated_heads = false;
  // What a gated network's product made leaves in two halves, whose gradients are joined in a pass
  // of their own.
  bool joins_gate = false;
  // Bytes that a norm reads and writes for each value, with the casts around it; backward with the
  // sum of its gradient and the residual's. 0: what `fusion` says.
  int64_t norm_bytes = 0;
  int64_t norm_backward_bytes = 0;
  // A layer's norms are made once more before their backward, the second with the residual's sum,
  // although what they left is kept.
  bool repeats_norms = false;
  // The experts of a rank are multiplied one after another: a product, and what rounds its factors
  // to 8 bits, is so many kernels for each of them. (Else one kernel goes over all of them.)
  bool multiplies_by_expert = false;
  // A token goes once to each rank that has any of its experts, and between nodes once to each
  // node, where it is spread, and its sums return alike (DeepEP, HybridEP). (Else once to each
  // expert.)
  bool sends_tokens_once = false;
  // Multiprocessors that such an exchange holds; 0: as many as other collectives.
  int64_t once_multiprocessors = 0;
  // Tensor-parallel ranks have different experts, each of them whole, in place of some columns of
  // each, where experts are shared by data-parallel ranks too and Plan::tensor_sequence splits the
  // tokens (Megatron-Core, --expert-tensor-parallel-size 1).
  bool keeps_experts_whole = false;
  // In the forward the host reads how many rows each expert gets before it enqueues what they pass
  // through: no row is dropped, so nothing else says it.
  bool reads_routing = false;
  // Bytes that passes of their own move for each value of rows on their way to a rank's experts and
  // back, beside the gathering before and the sum behind: sorted by expert where a rank has several
  // of them, and made a multiple of sixteen rows for products in 8 bits. Forward; backward as many.
  int64_t sort_bytes = 0;
  int64_t padding_bytes = 0;
  // Bytes that passes of their own move for each value: of what a product leaves to an activation
  // that is clamped first, and of what experts with biases leave, which are added by expert and
  // weight. Forward and backward.
  int64_t clamp_bytes = 0;
  int64_t clamp_backward_bytes = 0;
  int64_t expert_bias_bytes = 0;
  int64_t expert_bias_backward_bytes = 0;
  // By how many percent a product of 16 bits for the gradient of a weight takes longer where its
  // epilogue makes the gradient of a bias as well (cuBLASLt's BGRADB); 0: nothing, or no such
  // epilogue.
  int64_t bias_epilogue_percent = 0;
  // Bytes that passes of their own move around attention for each value of queries, and of keys and
  // values: taken apart, joined, laid out by sequence, keys and values repeated for every head.
  // Forward and backward; rotary positions are not among them.
  int64_t query_bytes = 0;
  int64_t key_bytes = 0;
  int64_t query_backward_bytes = 0;
  int64_t key_backward_bytes = 0;
  bool recomputes_whole_layer = false;  // also what no backward reads (the last product)
  LossPrecision loss = LossPrecision::kInPlace;
  int64_t loss_chunks = 1;  // pieces of a micro-batch whose logits exist at the same time: one
  // The rows of logits begin a multiple of so many values apart, whatever the vocabulary: products
  // of Hopper want rows that begin at multiples of 16 bytes. The default is our own backend's; a
  // stack file that names none has 1.
  int64_t logits_multiple = 64;
  // Bytes that the loss reads and writes for each logit, from the end of the head's product to the
  // gradient that its backward reads; 0: what `loss` says, a copy written and read once.
  int64_t loss_bytes = 0;
  // Tensor-parallel ranks gather the logits, and each computes the whole loss.
  bool gathers_logits = false;
  bool separate_unscale = false;  // a pass over the gradients of its own before the step
  // The optimizer on the GPU steps from a 32-bit copy of this rank's share of the gradients.
  bool widens_gradients = false;
  // Stepped weights return from the CPU once this rank's whole share has been stepped, through one
  // 32-bit copy of it. (A plan that does not wait returns them by bucket.)
  bool returns_weights_whole = false;
  bool recomputes_by_module = false;  // can recompute some modules of a layer and keep others
  // Gradients that the CPU steps are cast to 32 bits on the GPU and cross the link so, from one
  // pinned buffer to another, whoever casts the weights.
  bool sends_wide_gradients = false;
  // Where state is offloaded stage 3, and what speculates on one rank, adds gradients up in a
  // buffer in CPU memory, in the type of the weights, which is there all the time: every
  // micro-batch's go there and come back before anything else is done to them, also those of one,
  // and those that the GPU steps.
  bool stage3_returns_gradients = false;
  Stage3Sending stage3_sending = Stage3Sending::kAhead;
  SpeculativeSending speculative_sending = SpeculativeSending::kAsWaiting;
  // Bytes that passes of their own move on the GPU for each element of a gradient that the CPU
  // steps to sum it for the norm; 0: one pass that reads it.
  int64_t sent_norm_bytes = 0;
  // The same at stages below 3, to look it through for infinities: the host reads the answer, and
  // launches nothing until what was sent before has left. 0: it does not look.
  int64_t sent_overflow_bytes = 0;
  // Where the CPU casts, 16-bit values cross the link through pageable temporaries.
  bool casts_through_pageable = false;
  // Stage 3 concatenates what it gathers and what it scatters, in passes of their own. What the CPU
  // casts crosses the link tensor by tensor, and the host launches nothing until it is there.
  bool stage3_copies_by_tensor = false;
  // Gradients of every micro-batch go to the CPU and add up there, instead of on the GPU.
  bool accumulates_on_cpu = false;
  // Threads of PyTorch's own Adam on the CPU (kTorchAdam); 0: as many as the machine lends.
  int64_t torch_adam_threads = 0;
  bool splits_norms_by_token = true;         // can do Plan::tensor_sequence
  bool pinned_power_of_two = false;          // host buffers round up to a power of two (PyTorch)
  bool copies_gradients_to_buckets = false;  // all-reduced from a second copy (PyTorch DDP)
  // What reduces beside the backward, from buckets, is there at stage 0 of several ranks alone: at
  // stage 1 gradients are reduced behind it, from where they are.
  bool buckets_at_stage_0_alone = false;
  // 16-bit state: the optimizer on the GPU steps the weights themselves, with moments in 16 bits.
  bool pure_16_bit = false;
  // Gradients of a micro-batch are written in the type of the weights, all of them, and a pass
  // behind its backward adds them to the 32-bit ones.
  bool adds_gradients_apart = false;
  // Bytes that a pass of its own moves for each element of a weight's gradient to add it to that of
  // the micro-batches before, of the same type; or that passes behind the backward move where
  // gradients are added apart. 0: the product that makes it adds, or one pass, which reads it and
  // updates the sum.
  int64_t accumulate_bytes = 0;
  // Stage 3 scatters gradients once a step: those of earlier micro-batches add up whole, in the
  // type that is reduced.
  bool sums_whole_gradients = false;
  // Stages 1 and 2 all-reduce gradients that every rank but steps a share of, wherever it does.
  bool reduces_whole = false;
  // What stage 1 or 2 gathers of stepped weights lands in a buffer for each rank, and each tensor's
  // part of each of them is copied from there by a kernel of its own.
  bool copies_gathered_by_tensor = false;
  // Stage 1's shares are whole tensors, which each rank that has some sends to the others by
  // itself, one rank after another.
  bool broadcasts_shares = false;
  // Elements of a buffer that gradients of sharded state are collected in to be reduced, which is
  // there all the time.
  int64_t reduce_buffer_elements = 0;
  // Bytes that passes of their own move on the GPU for each element of gradients that a rank
  // contributes to a reduction: into a bucket, widened, divided, and laid out for the collective.
  // They run beside the backward. Of gradients that cross the wire in 16 bits, and in 32; 0:
  // collectives read gradients where they are.
  int64_t reduce_bytes = 0;
  int64_t wide_reduce_bytes = 0;
  // The same for each element that stage 3 has gathered, before it is used: out of what arrived
  // from each rank, into tensors.
  int64_t gather_bytes = 0;
  // The same for each element of a rank's share of the reduced gradients, beside the one pass of a
  // fused optimizer: summed for their norm, widened, unscaled and clipped, and what an optimizer in
  // several kernels moves more. Under stage 3 the second. 0: one pass that reads them for their
  // norm.
  int64_t step_bytes = 0;
  int64_t stage3_step_bytes = 0;
  // What of them is moved in fp16 alone, beside: looked through for infinities.
  int64_t overflow_bytes = 0;
  int64_t stage3_overflow_bytes = 0;
  // Elements of weights that stage 3 has gathered at any time of the forward and backward, ahead of
  // their use; 0: those of the module or layer under way, and of the next where that overlaps.
  int64_t live_elements = 0;
  // Stage 3 has a buffer for a rank's share of all gradients, which is there all the time where the
  // GPU steps them: of a plan that offloads, one in 32 bits for what the GPU still steps.
  bool keeps_gradient_buffer = false;
  // A gradient that was sent to the CPU while a plan speculates stays on the GPU until the next
  // bucket's has been sent: who steps it holds on to it.
  bool holds_sent_gradients = false;
  // Ulysses exchanges keys and values for every head of queries, repeated before where they have
  // fewer.
  bool repeats_keys_values = false;
  // Bytes that a pass of its own moves on the GPU for each element that Ulysses exchanges: laid out
  // by rank before heads are given away, or by token when they are back. 0: none.
  int64_t exchange_bytes = 0;
  // Where the CPU steps while it speculates: bytes that passes of their own move in its memory for
  // each element that it has stepped, behind the backward and the last step. Nothing computes
  // before they are done. They have so many percent of its cores; 0: all.
  int64_t return_bytes = 0;
  int64_t return_core_percent = 0;
  // The same before each bucket's step, by who steps: its gradient is copied.
  int64_t step_copy_bytes = 0;
  // What a step that speculated did is computed back from its gradient: it leaves no record.
  bool undoes_by_arithmetic = false;
  // Where it speculates stage 3 scatters what one bucket of optimizer state holds at a time: until
  // then gradients are whole.
  bool scatters_by_bucket = false;
  GradientPrecision gradients = GradientPrecision::kAsWeights;  // accumulated and stored
  GradientPrecision reduction = GradientPrecision::kAsWeights;  // on the wire
  Overlap gradient_overlap = Overlap::kFull;                    // reduction beside the backward
  // kPartial: what stage 3 gathers, but not what a step leaves to be gathered.
  Overlap weight_overlap = Overlap::kFull;    // gathering beside the forward and backward
  Overlap tensor_overlap = Overlap::kNone;    // tensor parallel traffic beside products
  Overlap pipeline_overlap = Overlap::kFull;  // sends beside computation
  bool interleaves = true;                    // can do Plan::virtual_pipeline
  // Stages have layers by their weights, the head's counted as well (else as many each).
  bool balances_stages = false;
  int64_t least_zero_stage = 0;  // what a plan that names no stage may choose between
  int64_t most_zero_stage = 3;
  // Of those it is stage 3 alone that speculates.
  bool speculates_in_stage3 = false;
  // Products in 8 bits (Plan::products).
  Scaling8 fp8_scaling = Scaling8::kJustInTime;
  // Of current scales: a norm finds the largest of its values as it writes them.
  bool norms_find_largest = false;
  Weights8 fp8_weights = Weights8::kEachUse;
  // Norms and activations write codes, and what is kept of a product's input for its weight's
  // gradient are codes.
  bool fp8_saves_codes = false;
  Overlap expert_overlap = Overlap::kNone;  // all-to-alls of experts beside computation
  // Optimizer state that a source says is in CPU memory: the CPU steps it. (Else it comes to the
  // GPU and goes back.)
  bool steps_offloaded_state_on_cpu = false;
  // May keep optimizer state in CPU memory and step it on the GPU, where a source does not say.
  bool may_stream_state = false;
  // All that a layer saves may leave for CPU memory under computation, without a pipeline.
  bool offloads_activations = true;
  // The peaks that its logs print hold the whole model, which stage 3 shared out afterwards. (A
  // model that no GPU holds is loaded otherwise: no plan fails for this.)
  bool loads_whole_model = false;
  // What its logs call a peak of GPU memory leaves out what the allocator holds beyond tensors.
  bool prints_allocated = false;
  bool prints_gib = false;  // and what they call a GB has 2^30 bytes
  // In place of all these where optimizer state is in CPU memory or beyond; absent: these. They
  // have none of their own.
  OffloadFacts where_offloaded;

  // Values from the logits of one token to those of the next.
  int64_t logits_stride(int64_t vocabulary) const { return round_up(vocabulary, logits_multiple); }
  // On a generation of GPUs, or "" where a machine names none.
  AttentionKernel attention_kernel_of(const std::string& generation) const {
    const auto other = attention_kernel_on.find(generation);
    return other == attention_kernel_on.end() ? attention_kernel : other->second;
  }
  bool operator==(const StackFacts&) const = default;
};

// 1 is perfect for every share; what is not fitted keeps its default.
struct StackConstants {
  double gemm = 1;         // share of the machine's matrix product time model
  double attention = 1;    // share of the machine's attention rate
  double elementwise = 1;  // share of GPU memory bandwidth in passes that it binds
  // Shares of the bandwidth of collectives and messages, on the wires inside a node and on those
  // between nodes. What crosses both has each share on its own wires.
  double node_collective = 1;
  double network_collective = 1;
  Duration launch;  // of a host of kReferenceDispatch, for each kernel that it enqueues
  // Of any host, for each expert of a product that StackFacts::multiplies_by_expert: it cuts the
  // expert's rows off, wraps them and asks the library for a product of its own; in 8 bits twice.
  Duration expert_launch;
  double memory_slack = 0;  // what the allocator takes beyond the tensors, as a share of them
  double cpu = 1;           // share of the machine's rates in passes of the CPU's optimizer
  // By generation of GPUs, beside `gemm`: what products of 16-bit factors reach under the load of a
  // step, of what the tables of that generation say, and those of 8-bit factors where they were
  // timed alike (GemmTable::under_load). Tables were measured in bursts or for minutes, cool or at
  // the clocks that the power limit leaves; no one published both for one GPU. It is of the tables
  // and not of the framework, and the same in all that were fitted together.
  std::map<std::string, double> sustained_gemm = {};

  double sustained_gemm_of(const std::string& generation) const {
    const auto found = sustained_gemm.find(generation);
    return found == sustained_gemm.end() ? 1 : found->second;
  }
  bool operator==(const StackConstants&) const = default;
};
inline constexpr int kStackConstants = 9;
// By index, in the order of the members.
enum class ConstantKind : uint8_t { kShare, kMicroseconds, kSlack };
ConstantKind constant_kind(int index);
// The largest value that a constant may have.
double most_of_constant(int index);
// "gemm_share", ...: the keys of a stack file.
std::string_view constant_name(int index);
// The value of one constant: a share, or microseconds.
double constant(const StackConstants& constants, int index);
void set_constant(StackConstants& constants, int index, double value);
// Constants are fitted, and their uncertainty is told, in these coordinates: the logarithm of a
// share or a time, the slack as it is (it may be zero).
double coordinate(const StackConstants& constants, int index);
void set_coordinate(StackConstants& constants, int index, double coordinate);

// What the constants leave open, so that predictions can say how sure they are.
struct StackUncertainty {
  // Of the coordinates of the constants, row by row: kStackConstants squared numbers.
  std::vector<double> covariance;
  // Standard deviations of log(predicted / measured) that no constant explains, in a source that
  // is new.
  double time = 0;
  double memory = 0;
  double expert_time = 0;  // of networks with experts; `time` is that of all others

  double time_of(const Model& model) const;
};

struct Stack {
  std::string name{kBallastStack};
  std::string description;
  std::string source;
  // Published cases give frameworks wider names: those that name `family` and whose source holds
  // one of these words ran this one. Empty: only cases that name it did.
  std::string family;
  std::vector<std::string> known_as;
  StackFacts facts;
  StackConstants constants;
  std::vector<std::string> fitted;              // names of the constants that were fitted
  std::vector<std::string> fitted_on;           // ids of the published cases
  std::optional<StackUncertainty> uncertainty;  // absent: nothing was ever held against it

  // Whether places in memory are planned, as Ballast does, instead of left to an allocator, and
  // every knob means what it says. The roofline is that of Ballast's graphs.
  bool memory_is_planned() const { return name == kBallastStack || name == kIdealStack; }
};

// Throws Error naming the stack and the key where a share is out of range.
void check(const Stack& stack);

}  // namespace ballast
