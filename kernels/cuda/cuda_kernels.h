// The GPU kernels: everything of the decoder but its matrix products, and the optimizer's path.
//
// Plain C++: whoever includes this needs no CUDA header, only a stream. Every function starts its
// kernels on the stream and returns at once; it owns and allocates nothing (the caller brings
// scratch of the size that the function beside it tells), copies nothing to or from the host, and
// throws nothing: it returns a Status. Kernels are the same modules as backend/host/transformer.h
// and the same optimizer as kernels.h, of which each has the meaning, layouts and formats (rows are
// tokens, T = sequences * length; statistics and log-sum-exp are fp32; storage of any Format,
// arithmetic in fp32). What holds for all:
//   * results depend on the arguments alone: there are no atomics on floats, and the order of a
//     sum depends on the shape only, so a repeated launch gives the same bits;
//   * pointers are device pointers aligned to their value; those aligned to 16 bytes, with rows of
//     a multiple of 16 bytes, go faster;
//   * arrays do not overlap unless said;
//   * a length of 0 is allowed and starts nothing;
//   * what differs from the host in more than the order of a sum is said beside the function.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/fp8.h"
#include "kernels/kernels.h"

struct CUstream_st;

namespace ballast::kernels::cuda {

using Stream = CUstream_st*;

// What became of a launch. error is a cudaError_t, 0 where all is well; the rest says what was
// launched, for the caller's message. `kernel` and the text live for ever.
struct Status {
  int error = 0;
  const char* kernel = "";
  int64_t blocks = 0;
  int64_t threads = 0;       // of a block
  int64_t shared_bytes = 0;  // dynamic, of a block
  constexpr bool ok() const { return error == 0; }
  const char* text() const;  // of the error, "no error" where there is none
};

// Devices that this process can use; 0 without a driver. For tests and messages.
int device_count();

struct Array {
  void* data = nullptr;
  Format format = Format::kF32;
};
struct ConstArray {
  const void* data = nullptr;
  Format format = Format::kF32;
  ConstArray() = default;
  constexpr ConstArray(const void* d, Format f) : data(d), format(f) {}
  constexpr ConstArray(const Array& a) : data(a.data), format(a.format) {}
};

// kAdd adds in fp32 to what is stored and rounds once.
enum class Write : uint8_t { kOverwrite, kAdd };

// --- Norms -------------------------------------------------------------------------------------

enum class NormKind : uint8_t { kLayerNorm, kRmsNorm };

struct NormShape {
  NormKind kind = NormKind::kLayerNorm;
  int64_t rows = 0;
  int64_t columns = 0;
  // Of the parameters: weight, and for LayerNorm bias after it.
  constexpr int64_t parameters() const {
    return kind == NormKind::kLayerNorm ? 2 * columns : columns;
  }
};

// out = norm(x); statistics [rows, 2]: mean (0 for RMSNorm), 1/deviation. out may be x.
struct NormForward {
  NormShape shape;
  float epsilon = 1e-5f;
  ConstArray x;
  ConstArray params;
  Array out;  // of x's format
  float* statistics = nullptr;
};
Status norm_forward(const NormForward&, Stream);

// dx = gradient through the norm + residual_gradient (data null: none; may be dx, as dout may).
// Parameters' gradients are summed in fp32 over runs of rows, then over the runs, in order; a block
// holds its sums in shared memory, so parameters are at most kNormParametersMax.
inline constexpr int64_t kNormParametersMax = 57344;
struct NormBackward {
  NormShape shape;
  ConstArray x;
  const float* statistics = nullptr;
  ConstArray params;
  ConstArray dout;               // of x's format
  ConstArray residual_gradient;  // of x's format
  Array dx;                      // of x's format
  Array dparams;
  Write write = Write::kOverwrite;  // of dparams
  void* scratch = nullptr;
};
int64_t norm_backward_scratch_bytes(const NormShape&);
Status norm_backward(const NormBackward&, Stream);

// --- Embedding ---------------------------------------------------------------------------------

// tokens: int32 [sequences, length + 1], as batches are stored; inputs are columns 0..length-1,
// targets 1..length. params: [vocab, width], then learned positions [positions, width] if any.
struct EmbeddingShape {
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t width = 0;
  int64_t vocab = 0;
  int64_t positions = 0;  // learned; 0: none. At least length otherwise.
  // Of a vocabulary that ranks share: the rows of params are those of the ids from first_id on, the
  // last of which may be of no id.
  int64_t first_id = 0;
  int64_t all_ids = 0;  // of all ranks; 0: it is not shared
  constexpr int64_t tokens() const { return sequences * length; }
};

// The caller has checked the ids (it read them on the host). An id outside the vocabulary reads
// nothing and gives rows of NaN, one that another rank has gives zeros.
struct EmbeddingForward {
  EmbeddingShape shape;
  const int32_t* tokens = nullptr;
  ConstArray params;
  Array out;                   // [T, width]
  bool adds_positions = true;  // of ranks whose rows are summed one does
};
Status embedding_forward(const EmbeddingForward&, Stream);

// kOverwrite writes all of dparams, zeros where no token points. The rows of an id are added in the
// order of the tokens in fp32 and rounded once: the same bits as the host's.
struct EmbeddingBackward {
  EmbeddingShape shape;
  const int32_t* tokens = nullptr;
  ConstArray dout;  // [T, width]
  Array dparams;
  Write write = Write::kOverwrite;
  void* scratch = nullptr;
};
int64_t embedding_backward_scratch_bytes(const EmbeddingShape&);
Status embedding_backward(const EmbeddingBackward&, Stream);

// --- Attention ---------------------------------------------------------------------------------

// qkv: [T, (heads + 2 kv_heads) * head_size], q heads, then k, then v; out: [T, heads * head_size];
// log_sum_exp: fp32 [sequences * heads, length] of the scaled scores, in nats.
struct AttentionShape {
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;   // divides heads
  int64_t head_size = 0;  // at most kHeadSizeMax; even where positions are rotary
  constexpr int64_t tokens() const { return sequences * length; }
  constexpr int64_t width() const { return (heads + 2 * kv_heads) * head_size; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};
inline constexpr int64_t kHeadSizeMax = 256;

// kTensorCores: flash attention on mma.sync, for 16-bit storage and heads of 64, 80, 96 or 128
// aligned to 16 bytes. kPlain: the same in fp32 without tensor cores, for all else and as the
// reference. kFastest picks.
enum class AttentionPath : uint8_t { kFastest, kTensorCores, kPlain };
// What kFastest picks for arrays aligned to 16 bytes.
AttentionPath fastest_path(const AttentionShape&, Format);

// cos and sin of position * theta^(-2i / head_size) (Su et al., arXiv 2104.09864, eq. 15), worked
// out in double: [2][positions][head_size / 2], cosines first. In host memory: the caller copies
// the table to the device once. The same values as the host's.
struct RopeTable {
  double theta = 10000;
  int64_t head_size = 0;
  int64_t positions = 0;
  constexpr int64_t values() const { return positions * head_size; }
};
void fill_rope_table(const RopeTable&, float* table);

// For attention by a library, which knows no positions. q and k of packed rows, turned by their
// positions, to rows of their own: [T, (heads + kv_heads) * head_size], in qkv's format.
struct Rotation {
  AttentionShape shape;
  ConstArray qkv;
  const float* rope = nullptr;
  int64_t rope_positions = 0;
  void* to = nullptr;
};
Status rotate(const Rotation&, Stream);
// dq and dk of packed rows turned back where they lie: one rounding more than our backward, which
// turns them before it rounds.
struct RotationBack {
  AttentionShape shape;
  Array dqkv;
  const float* rope = nullptr;
  int64_t rope_positions = 0;
};
Status rotate_back(const RotationBack&, Stream);

// rope: the table on the device, `rope_positions` (at least length) rows of it, or null where q and
// k are not rotated. Rotated q and k go through scratch in the storage format: one rounding more
// than the host's.
struct AttentionForward {
  AttentionShape shape;
  ConstArray qkv;
  const float* rope = nullptr;
  int64_t rope_positions = 0;
  Array out;  // of qkv's format
  float* log_sum_exp = nullptr;
  void* scratch = nullptr;
  AttentionPath path = AttentionPath::kFastest;
};
int64_t attention_forward_scratch_bytes(const AttentionForward&);  // 0 without rope
Status attention_forward(const AttentionForward&, Stream);

// dqkv is written whole. Probabilities come again from log_sum_exp (Dao, arXiv 2307.08691, Alg. 2);
// one kernel sums dq over keys, another dk and dv over queries, each in one fixed order, so scores
// are worked out twice instead of being added by atomics.
struct AttentionBackward {
  AttentionShape shape;
  ConstArray qkv;
  const float* rope = nullptr;
  int64_t rope_positions = 0;
  ConstArray out;  // these four of qkv's format
  const float* log_sum_exp = nullptr;
  ConstArray dout;
  Array dqkv;
  void* scratch = nullptr;
  AttentionPath path = AttentionPath::kFastest;
};
int64_t attention_backward_scratch_bytes(const AttentionBackward&);
Status attention_backward(const AttentionBackward&, Stream);

// --- Element by element ------------------------------------------------------------------------

enum class ActivationKind : uint8_t { kGelu, kGeluTanh, kSwiGlu };  // kGelu is the exact one

struct ActivationShape {
  ActivationKind kind = ActivationKind::kGelu;
  int64_t rows = 0;
  int64_t columns = 0;  // of a
  // Of h: [gate, up] for SwiGLU.
  constexpr int64_t inputs() const {
    return kind == ActivationKind::kSwiGlu ? 2 * columns : columns;
  }
};

// h: [rows, inputs], a: [rows, columns]. With a bias [inputs] (data null: none) h becomes h + bias,
// rounded, in the same pass.
struct ActivationForward {
  ActivationShape shape;
  Array h;  // written only with a bias
  ConstArray bias;
  Array a;  // of h's format
};
Status activation_forward(const ActivationForward&, Stream);

struct ActivationBackward {
  ActivationShape shape;
  ConstArray h;  // all of one format
  ConstArray da;
  Array dh;  // may be h
};
Status activation_backward(const ActivationBackward&, Stream);

// Columns [first, first + columns) of rows that are `stride` values apart: a part of a linear
// module's output, whose products lie side by side.
struct Columns {
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t first = 0;
  int64_t columns = 0;
};

// y[row, first + j] += bias[j] (+ residual[row, first + j], of y's format and stride, may be y's
// own array only where it is y). bias or residual may be absent (data null).
struct AddBias {
  Columns place;
  Array y;
  ConstArray bias;
  ConstArray residual;
};
Status add_bias(const AddBias&, Stream);

// dbias[j] = (or +=) the sum over rows of dy[row, first + j], over runs of rows, then over the
// runs, in order, in fp32.
struct BiasGradient {
  Columns place;
  ConstArray dy;
  Array dbias;
  Write write = Write::kOverwrite;
  void* scratch = nullptr;
};
int64_t bias_gradient_scratch_bytes(const Columns&);
Status bias_gradient(const BiasGradient&, Stream);

// out = x + y; all of one format; out may be x or y.
struct Add {
  ConstArray x;
  ConstArray y;
  Array out;
  int64_t count = 0;
};
Status add(const Add&, Stream);

// Same bits as Table::cast: round to nearest even, NaN made quiet with its upper payload.
struct Cast {
  ConstArray from;
  Array to;
  int64_t count = 0;
};
Status cast(const Cast&, Stream);
// The same of arrays that lie in CPU memory on one side, all of them on the same: by few blocks
// (geometry.h), so that other kernels run beside, and kMostCasts at a time by one kernel.
inline constexpr int kMostCasts = 32;
Status casts_across_link(std::span<const Cast>, Stream);

// values[i] = format(factor * values[i]); same bits as Table::scale.
struct Scale {
  Array values;
  float factor = 1.0f;
  int64_t count = 0;
};
Status scale(const Scale&, Stream);

// A matrix [rows, columns], `stride` values between rows, rounded to 8 bits: its values times 2^p
// (fp8_exponent of its largest magnitude), to nearest even, in rows one after another; or turned
// over, [columns, rows]. Both sides and the address of codes are multiples of kCodesMultiple.
// *scale becomes 2^-p, what a code is worth. The bits of fp8_of_float, but that infinity becomes
// NaN: a product must not hide it.
inline constexpr int64_t kCodesMultiple = 16;
enum class CodeOrder : uint8_t { kAsStored, kTurned };
struct RoundMatrix {
  ConstArray from;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  Fp8 format = Fp8::kE4m3;
  CodeOrder order = CodeOrder::kAsStored;
  uint8_t* codes = nullptr;
  uint8_t* codes_as_stored = nullptr;  // where they are turned over: likewise, or null
  float* scale = nullptr;
  void* scratch = nullptr;
};
int64_t round_matrix_scratch_bytes();
Status round_matrix(const RoundMatrix&, Stream);

// --- Classifier --------------------------------------------------------------------------------

// Softmax, cross-entropy and its gradient for rows [first_row, first_row + rows) of the T tokens,
// so that the logits of a few rows at a time suffice: logits [rows, vocab] of those rows are
// replaced by gradient_factor * (softmax - one at the target), and losses[first_row + i] becomes
// the row's loss in nats. gradient_factor as in loss_forward_backward. A target outside the
// vocabulary gives a loss of NaN.
struct ClassifierRows {
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};
struct Classifier {
  ClassifierRows rows;
  int64_t vocab = 0;
  const int32_t* tokens = nullptr;  // [sequences, length + 1]
  Array logits;
  float gradient_factor = 1.0f;
  double* losses = nullptr;  // [T]
  int64_t stride = 0;        // values from one row of logits to the next; 0: vocab
};
Status classifier(const Classifier&, Stream);

// The same with the vocabulary in chunks too, so that never more than [rows, columns] logits are
// needed. First classifier_observe over all chunks, in order, from start == kFirst on; then the
// logits of each chunk are worked out once more and classifier_gradient replaces them.
enum class Chunk : uint8_t { kFirst, kLater };
struct ClassifierChunk {
  ClassifierRows rows;
  int64_t vocab = 0;
  int64_t first_column = 0;  // of the chunk in the vocabulary
  int64_t columns = 0;
  const int32_t* tokens = nullptr;
  Array logits;  // [rows, columns]
  float gradient_factor = 1.0f;
  double* running = nullptr;  // [T, 3]: maximum, sum of exp(logit - maximum), the target's logit
};
Status classifier_observe(const ClassifierChunk&, Chunk, Stream);
// Also writes the rows' losses, the same for every chunk; losses null: not.
Status classifier_gradient(const ClassifierChunk&, double* losses, Stream);

// The same where ranks share the vocabulary. This one has the logits of ids [first_id, first_id +
// ids), in rows of `columns`; beyond its ids there is nothing, whose gradient is zero. What a rank
// tells of a row is three floats: its largest logit, the sum of exp(logit - that), and the target's
// logit, 0 where another rank has it (transformer::loss_sums).
struct ClassifierShare {
  ClassifierRows rows;
  int64_t first_id = 0;
  int64_t ids = 0;
  int64_t columns = 0;
  const int32_t* tokens = nullptr;
  Array logits;  // [rows, columns]
  float gradient_factor = 1.0f;
  int64_t stride = 0;  // values from one row of logits to the next; 0: columns
};
Status classifier_tell(const ClassifierShare&, float* told, Stream);  // told: [rows, 3]
// What all ranks told, merged in their order. told: [ranks, rows, 3]; sums: [rows, 3].
struct ToldSums {
  const float* told = nullptr;
  int64_t ranks = 0;
  int64_t rows = 0;
  float* sums = nullptr;
};
Status classifier_merge(const ToldSums&, Stream);
// Logits become their gradient, and losses[first_row + i] the row's; `sums` of all ranks.
Status classifier_share(const ClassifierShare&, const float* sums, double* losses, Stream);

// mean[0] = sum of losses / count, in double; losses one fixed tree.
struct MeanLoss {
  const double* losses = nullptr;
  int64_t count = 0;
  double* mean = nullptr;
};
Status mean_loss(const MeanLoss&, Stream);

// --- Optimizer ---------------------------------------------------------------------------------

// One AdamW step with the bits of Table::adam_step. snapshot: null, or what is needed to take the
// step back: master, moment1 and moment2 as they were before it, three arrays of count values.
struct Snapshot {
  float* master = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
};
Status adam_step(const AdamArrays&, const AdamConstants&, const Snapshot&, Stream);

// A step that can be taken back exactly, from its results, its gradient and a record of as many
// bytes as UndoRecord::fixed_bytes(count, kRecord) of kernels/undo.h, aligned to 64. Only an undo
// may be without weights.
//   kStep    as adam_step, and fills the record. A tile whose escapes do not fit is left: its
//            weights are those of after the step, its master and moments those of before; *left
//            becomes `mark`, and is not written where there is none.
//   kUndo    master, moments and weights as they were before the step
//   kFinish  steps what was left, once nothing will be taken back; nothing where nothing was left
// All with the same arrays, of which the gradient is not written in between, and constants.
struct RecordedStep {
  AdamArrays arrays;
  AdamConstants constants;
  uint8_t* record = nullptr;
  uint32_t* left = nullptr;  // null: nobody asks; may be pinned memory of the host
  uint32_t mark = 0;
};
enum class RecordedPart : uint8_t { kStep, kUndo, kFinish };
Status recorded_step(const RecordedStep&, RecordedPart, Stream);

// Sums of squares of segments of kNormBlock values from the start of the run, the last one shorter,
// one double each, with the bits of Table::sum_of_squares. Not finite if and only if some value of
// the segment is not.
constexpr int64_t segments_of(int64_t count) { return (count + kNormBlock - 1) / kNormBlock; }
struct SumOfSquares {
  ConstArray values;
  int64_t count = 0;
  double* partials = nullptr;  // [segments_of(count)]
};
Status sum_of_squares(const SumOfSquares&, Stream);

// --- Probes of the machine ---------------------------------------------------------------------

// to[i] = from[i], multiples of 16 bytes, aligned to 16: moves 2 * bytes of device memory.
struct CopyProbe {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t bytes = 0;
};
Status copy_probe(const CopyProbe&, Stream);

// a[i] = b[i] + factor * c[i] in fp32, a multiple of 4 values: moves 12 bytes a value.
struct TriadProbe {
  float* a = nullptr;
  const float* b = nullptr;
  const float* c = nullptr;
  float factor = 3.0f;
  int64_t count = 0;
};
Status triad_probe(const TriadProbe&, Stream);

// values[i] = factor * values[i] + addend in fp32, `rounds` times, a multiple of 8 values: two
// floating-point operations a value and round, and next to no traffic.
struct ArithmeticProbe {
  float* values = nullptr;
  int64_t count = 0;
  int32_t rounds = 0;
  float factor = 0.5f;
  float addend = 1.0f;
};
Status arithmetic_probe(const ArithmeticProbe&, Stream);

// Does nothing, with one thread: its time is the latency of a launch.
Status empty_probe(Stream);

}  // namespace ballast::kernels::cuda
