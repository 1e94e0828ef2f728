// Stack: how a training framework falls short of the machine it runs on.
//
// Two kinds of statement. Facts say what the framework does (which attention, what it keeps, what
// it overlaps); they come from its source and papers, are never fitted, and shape the graph. The
// six constants say how well it does it; `ballast calibrate` fits them, and only the cost model and
// the memory sums read them. Ballast itself is a stack: the defaults here.
// Will not do: know a machine, a model, or a single published case.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/units.h"

namespace ballast {

// kEager stores the scores of every query and key, kFlash never does (arXiv 2205.14135).
enum class AttentionKind : uint8_t { kEager, kFlash };
std::string_view to_string(AttentionKind value);

// 32-bit numbers that a framework keeps although its plan trains in 16 bits.
enum class GradientPrecision : uint8_t { kAsWeights, kF32 };
std::string_view to_string(GradientPrecision value);

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
// both take, or 32-bit copies of the logits and of their gradient beside them.
enum class LossPrecision : uint8_t { kInPlace, kF32, kF32Copies };
inline constexpr int kLossPrecisions = 3;
std::string_view to_string(LossPrecision value);

// A machine's name for the rate of torch.optim's Adam on the CPU, tensor by tensor and unfused.
inline constexpr std::string_view kTorchAdam = "pt-cpu";

struct StackFacts {
  // In order of preference: the first one whose memory fits is used. A model may name its own.
  std::vector<AttentionKind> attention = {AttentionKind::kFlash};
  bool dropout = false;  // of GPT-2 models (others have none): masks of a byte a value are kept
  Fusion fusion = Fusion::kIntoProducts;
  bool recomputes_whole_layer = false;  // also what no backward reads (the last product)
  LossPrecision loss = LossPrecision::kInPlace;
  int64_t loss_chunks = 1;  // pieces of a micro-batch whose logits exist at the same time: one
  bool separate_unscale = false;  // a pass over the gradients of its own before the step
  // The optimizer on the GPU steps from a 32-bit copy of this rank's share of the gradients.
  bool widens_gradients = false;
  // Stepped weights return from the CPU once this rank's whole share has been stepped, through one
  // 32-bit copy of it. (A plan that does not wait returns them by bucket.)
  bool returns_weights_whole = false;
  bool recomputes_by_module = false;  // can recompute some modules of a layer and keep others
  bool casts_on_arrival = false;      // gradients to 32 bits on the CPU as they land, and kept so
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
  // 16-bit state where one device holds everything: no fp32 master, moments in 16 bits.
  bool pure_16_bit_on_one_device = false;
  GradientPrecision gradients = GradientPrecision::kAsWeights;  // accumulated and stored
  GradientPrecision reduction = GradientPrecision::kAsWeights;  // on the wire
  Overlap gradient_overlap = Overlap::kFull;                    // reduction beside the backward
  // kPartial: what stage 3 gathers, but not what a step leaves to be gathered.
  Overlap weight_overlap = Overlap::kFull;    // gathering beside the forward and backward
  Overlap tensor_overlap = Overlap::kNone;    // tensor parallel traffic beside products
  Overlap pipeline_overlap = Overlap::kFull;  // sends beside computation
  int64_t least_zero_stage = 0;               // what a plan that names no stage may choose between
  int64_t most_zero_stage = 3;
  bool operator==(const StackFacts&) const = default;
};

// 1 is perfect for every share; what is not fitted keeps its default.
struct StackConstants {
  double gemm = 1;          // share of the machine's matrix product time model
  double attention = 1;     // share of the machine's attention rate
  double elementwise = 1;   // share of GPU memory bandwidth in passes that it binds
  double collective = 1;    // share of the machine's collective bandwidth
  Duration launch;          // of the host: no operation of the GPU is shorter
  double memory_slack = 0;  // what the allocator takes beyond the tensors, as a share of them
  bool operator==(const StackConstants&) const = default;
};
inline constexpr int kStackConstants = 6;
// "gemm_share", ..., in the order of the members: the keys of a stack file.
std::string_view constant_name(int index);
// The value of one constant: a share, or microseconds for `launch_us`.
double constant(const StackConstants& constants, int index);
void set_constant(StackConstants& constants, int index, double value);

struct Stack {
  std::string name = "ballast";
  std::string description;
  std::string source;
  StackFacts facts;
  StackConstants constants;
  std::vector<std::string> fitted;     // names of the constants that were fitted
  std::vector<std::string> fitted_on;  // ids of the published cases

  // Whether Ballast itself runs the plan: its memory is planned, and every knob means what it says.
  bool is_ballast() const { return name == "ballast"; }
};

// Throws Error naming the stack and the key where a share is out of range.
void check(const Stack& stack);

}  // namespace ballast
