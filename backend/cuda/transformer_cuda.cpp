#include "backend/cuda/transformer_cuda.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_launch.h"
#include "backend/execute/module_dispatch.h"
#include "backend/host/host_modules.h"
#include "sim/base/error.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

namespace cuda = kernels::cuda;
using transformer::LinearLayout;
using transformer::LinearPart;

// Products take a bias in their epilogue, or leave its gradient, where it is aligned so.
constexpr uintptr_t kBiasAlignment = 16;

bool is_aligned(const void* bias) {
  return reinterpret_cast<uintptr_t>(bias) % kBiasAlignment == 0;
}

bool is_forward(const Op& op) { return !is_backward(op.phase); }

cuda::ConstArray input(const Argument& argument) {
  if (argument.tensor == nullptr) return {};
  return {argument.data, format_of(argument.tensor->dtype)};
}
cuda::Array output(const Argument& argument) {
  return {argument.data, format_of(argument.tensor->dtype)};
}
float* floats(const Argument& argument) { return reinterpret_cast<float*>(argument.data); }

cuda::Write write_of(const Argument& gradient) {
  return gradient.adds ? cuda::Write::kAdd : cuda::Write::kOverwrite;
}

cuda::RopeTable rope_table(const Model& model, const Plan& plan) {
  cuda::RopeTable table;
  table.theta = model.rope_theta;
  table.head_size = model.head_size;
  table.positions = model.position == PositionKind::kRope ? plan.sequence_length : 0;
  return table;
}

// Columns of a linear module's output that one of its matrices makes.
cuda::Columns columns_of(const LinearLayout& layout, const LinearPart& part, int64_t rows) {
  cuda::Columns columns;
  columns.rows = rows;
  columns.stride = layout.out;
  columns.first = part.column;
  columns.columns = part.out;
  return columns;
}

// Of a linear module's output.
int64_t output_stride(const Op& op, const LinearLayout& layout, const Argument& y, int64_t rows) {
  return op.label.module == ModuleKind::kHead ? stride_of_rows(y, rows) : layout.out;
}

// A weight [in, out] as the right factor of x W, or transposed as that of dy W^T.
enum class Factor : uint8_t { kOfInput, kOfGradient };
GemmOperand weight_of(const LinearLayout& layout, const LinearPart& part, const Argument& weight,
                      Factor factor) {
  const bool in_out = layout.order == WeightLayout::kInOut;
  const bool backward = factor == Factor::kOfGradient;
  GemmOperand operand;
  operand.data = element(weight, part.weight);
  operand.dtype = weight.tensor->dtype;
  operand.stride = in_out ? part.out : layout.in;
  operand.orientation = in_out == backward ? Orientation::kTransposed : Orientation::kAsStored;
  return operand;
}

GemmOperand operand(const Argument& argument, int64_t column, int64_t stride,
                    Orientation orientation) {
  return {element(argument, column), argument.tensor->dtype, orientation, stride};
}

cuda::Cast cast_of(const CastRange& range) {
  return {{range.from, range.from_format}, {range.to, range.to_format}, range.count};
}

}  // namespace

CudaTransformer::CudaTransformer(const Training& training, const RankPlace& place,
                                 CudaRuntime& runtime, std::unique_ptr<CudaProducts> products,
                                 std::unique_ptr<CudaAttention> attention)
    : model_(rank_model(training.model, training.plan)),
      plan_(training.plan),
      place_(place),
      vocabulary_(vocabulary_part(model_, training.model.vocab, plan_, place_)),
      graph_(training.graph),
      runtime_(runtime),
      products_(std::move(products)),
      attention_(std::move(attention)),
      rope_(runtime, CudaMemoryKind::kDevice,
            bytes_of(rope_table(model_, plan_).values(), DType::kF32), "rotary positions"),
      scratch_(runtime, CudaMemoryKind::kDevice, largest_scratch(), "scratch of kernels"),
      losses_(runtime, CudaMemoryKind::kDevice,
              bytes_of(plan_.loss_chunks > 1 ? plan_.tokens_per_micro_batch() : 0, DType::kF64),
              "losses of tokens") {
  fill_rope();
}

void CudaTransformer::fill_rope() {
  if (rope_.data() == nullptr) return;
  const cuda::RopeTable table = rope_table(model_, plan_);
  std::vector<float> values(static_cast<size_t>(table.values()));
  cuda::fill_rope_table(table, values.data());
  const CudaStream stream = runtime_.create_stream("set-up", StreamPriority::kLow);
  runtime_.copy({rope_.data(), values.data(), rope_.bytes(), CopyKind::kHostToDevice}, stream);
  runtime_.synchronize(stream);
  runtime_.destroy(stream);
}

// One block that computes and leaves memory and caches alone.
void CudaTransformer::hold(CudaStream stream) {
  constexpr Bytes kValues{8192};
  if (!held_) held_.emplace(runtime_, CudaMemoryKind::kDevice, kValues, "what holds a stream");
  cuda::ArithmeticProbe probe;
  probe.values = reinterpret_cast<float*>(held_->data());
  probe.count = kValues.count / size_of(DType::kF32);
  probe.rounds = 25'000;  // of 16 cycles: 0.2 ms on Hopper
  check_launch(cuda::arithmetic_probe(probe, native_stream(stream)), stream);
}

Bytes CudaTransformer::largest_scratch() const {
  Bytes largest;
  for (const Op& op : graph_.step.ops) largest = std::max(largest, scratch_of(op));
  return largest;
}

Bytes CudaTransformer::scratch_of(const Op& op) const {
  const bool forward = is_forward(op);
  switch (op.kind) {
    case OpKind::kEmbedding:
      return {forward ? 0 : cuda::embedding_backward_scratch_bytes(embedding_shape())};
    case OpKind::kNorm:
      return {forward ? 0 : cuda::norm_backward_scratch_bytes(norm_shape(op))};
    case OpKind::kAttention: {
      cuda::AttentionForward there;
      cuda::AttentionBackward back;
      there.shape = back.shape = attention_shape(op);
      there.rope = back.rope = rope();
      there.rope_positions = back.rope_positions = plan_.sequence_length;
      there.qkv.format = back.qkv.format = format_of(plan_.dtype);
      return forward ? attention_->scratch_of(there) : attention_->scratch_of(back);
    }
    case OpKind::kGemm: {
      const bool as_stored = std::get<GemmWork>(op.work).format == ProductFormat::kAsStored;
      Bytes largest = as_stored ? Bytes{} : fp8_scratch_bytes();
      const LinearLayout layout = layout_of(op.label.module);
      const bool sums = op.phase == Phase::kBackwardWeight && layout.has_bias;
      const int64_t tokens = plan_.tokens_per_micro_batch();
      for (size_t i = 0; sums && i < layout.count; ++i) {
        const cuda::Columns place = columns_of(layout, layout.parts[i], tokens);
        largest = std::max(largest, Bytes{cuda::bias_gradient_scratch_bytes(place)});
      }
      return largest;
    }
    case OpKind::kLoss:
      return bytes_of(plan_.tokens_per_micro_batch(), DType::kF64);
    default:
      return {};
  }
}

void CudaTransformer::module(const Op& op, const OperationArguments& arguments, int32_t step,
                             CudaStream stream) {
  const Call call{op, arguments, step, stream};
  dispatch_module(
      op.kind, [&] { embedding(call); }, [&] { norm(call); }, [&] { gemm(call); },
      [&] { attention(call); }, [&] { activation(call); },
      [] { CHECK(false && "no experts on this device"); });
}

cuda::EmbeddingShape CudaTransformer::embedding_shape() const {
  cuda::EmbeddingShape shape;
  shape.sequences = *plan_.micro_batch;
  shape.length = plan_.sequence_length;
  shape.width = model_.hidden;
  shape.vocab = model_.vocab;
  shape.positions = model_.position == PositionKind::kLearned ? model_.max_positions : 0;
  shape.first_id = vocabulary_.first;
  shape.all_ids = vocabulary_.all;
  return shape;
}

void CudaTransformer::embedding(const Call& call) {
  const auto* tokens = reinterpret_cast<const int32_t*>(call.find(Role::kTokens).data);
  if (is_forward(call.op)) {
    cuda::EmbeddingForward forward;
    forward.shape = embedding_shape();
    forward.tokens = tokens;
    forward.params = input(call.find(Role::kWeight));
    forward.out = output(call.find(Role::kOutput));
    forward.adds_positions = vocabulary_.adds_positions;
    return check_launch(cuda::embedding_forward(forward, call.native()), call.stream);
  }
  const Argument gradient = call.find(Role::kParameterGradient);
  cuda::EmbeddingBackward backward;
  backward.shape = embedding_shape();
  backward.tokens = tokens;
  backward.dout = input(call.find(Role::kOutputGradient));
  backward.dparams = output(gradient);
  backward.write = write_of(gradient);
  backward.scratch = scratch_.data();
  check_launch(cuda::embedding_backward(backward, call.native()), call.stream);
}

cuda::NormShape CudaTransformer::norm_shape(const Op& op) const {
  const RowWork& work = std::get<RowWork>(op.work);
  cuda::NormShape shape;
  shape.kind =
      model_.norm == NormKind::kLayerNorm ? cuda::NormKind::kLayerNorm : cuda::NormKind::kRmsNorm;
  shape.rows = work.rows;
  shape.columns = work.columns;
  return shape;
}

void CudaTransformer::norm(const Call& call) {
  if (is_forward(call.op)) {
    cuda::NormForward forward;
    forward.shape = norm_shape(call.op);
    forward.epsilon = static_cast<float>(model_.norm_epsilon);
    forward.x = input(call.find(Role::kInput));
    forward.params = input(call.find(Role::kWeight));
    forward.out = output(call.find(Role::kOutput));
    forward.statistics = floats(call.find(Role::kStatistics));
    return check_launch(cuda::norm_forward(forward, call.native()), call.stream);
  }
  const Argument gradient = call.find(Role::kParameterGradient);
  norm_backward(call, output(gradient), write_of(gradient));
}

void CudaTransformer::norm_apart(const Op& op, const OperationArguments& arguments, int32_t step,
                                 float* gradient, CudaStream stream) {
  norm_backward({op, arguments, step, stream}, {gradient, kernels::Format::kF32},
                cuda::Write::kOverwrite);
}

void CudaTransformer::norm_backward(const Call& call, const cuda::Array& gradient,
                                    cuda::Write write) {
  cuda::NormBackward backward;
  backward.shape = norm_shape(call.op);
  backward.x = input(call.find(Role::kInput));
  backward.statistics = floats(call.find(Role::kStatistics));
  backward.params = input(call.find(Role::kWeight));
  backward.dout = input(call.find(Role::kOutputGradient));
  backward.residual_gradient = input(call.find(Role::kResidualGradient));
  backward.dx = output(call.find(Role::kInputGradient));
  backward.dparams = gradient;
  backward.write = write;
  backward.scratch = scratch_.data();
  check_launch(cuda::norm_backward(backward, call.native()), call.stream);
}

cuda::AttentionShape CudaTransformer::attention_shape(const Op& op) const {
  const AttentionWork& work = std::get<AttentionWork>(op.work);
  cuda::AttentionShape shape;
  shape.sequences = work.sequences;
  shape.length = work.length;
  shape.heads = work.heads;
  shape.kv_heads = work.kv_heads;
  shape.head_size = work.head_size;
  return shape;
}

void CudaTransformer::attention(const Call& call) {
  if (is_forward(call.op)) {
    cuda::AttentionForward forward;
    forward.shape = attention_shape(call.op);
    forward.qkv = input(call.find(Role::kInput));
    forward.rope = rope();
    forward.rope_positions = plan_.sequence_length;
    forward.out = output(call.find(Role::kOutput));
    forward.log_sum_exp = floats(call.find(Role::kStatistics));
    forward.scratch = scratch_.data();
    return attention_->run(forward, call.stream);
  }
  cuda::AttentionBackward backward;
  backward.shape = attention_shape(call.op);
  backward.qkv = input(call.find(Role::kInput));
  backward.rope = rope();
  backward.rope_positions = plan_.sequence_length;
  backward.out = input(call.find(Role::kOutput));
  backward.log_sum_exp = floats(call.find(Role::kStatistics));
  backward.dout = input(call.find(Role::kOutputGradient));
  backward.dqkv = output(call.find(Role::kInputGradient));
  backward.scratch = scratch_.data();
  attention_->run(backward, call.stream);
}

cuda::ActivationShape CudaTransformer::activation_shape(const Op& op) const {
  cuda::ActivationShape shape;
  shape.kind = model_.activation == ActivationKind::kSwiGlu     ? cuda::ActivationKind::kSwiGlu
               : model_.activation == ActivationKind::kGeluTanh ? cuda::ActivationKind::kGeluTanh
                                                                : cuda::ActivationKind::kGelu;
  shape.rows = std::get<RowWork>(op.work).rows;
  shape.columns = model_.ffn;
  return shape;
}

void CudaTransformer::activation(const Call& call) {
  if (is_forward(call.op)) {
    cuda::ActivationForward forward;
    forward.shape = activation_shape(call.op);
    forward.h = output(call.find(Role::kInput));
    forward.a = output(call.find(Role::kOutput));
    return check_launch(cuda::activation_forward(forward, call.native()), call.stream);
  }
  cuda::ActivationBackward backward;
  backward.shape = activation_shape(call.op);
  backward.h = input(call.find(Role::kInput));
  backward.da = input(call.find(Role::kOutputGradient));
  backward.dh = output(call.find(Role::kInputGradient));
  check_launch(cuda::activation_backward(backward, call.native()), call.stream);
}

// Matrices of [out, in] without biases between them lie one below the other: one matrix. Of a
// vocabulary that is no multiple of 8 the last few ids are a matrix of their own: the library's
// kernels for rows of another length reach an eighth of the others (measured: 105 TFLOP/s).
LinearLayout CudaTransformer::layout_of(ModuleKind kind) const {
  const LinearLayout layout = transformer::linear_layout(model_, kind);
  if (layout.has_bias || layout.order != WeightLayout::kOutIn) return layout;
  const int64_t first = kind == ModuleKind::kHead ? layout.out / 8 * 8 : layout.out;
  LinearLayout result;
  result.order = layout.order;
  result.in = layout.in;
  if (first > 0) result.add(first);
  if (first < layout.out) result.add(layout.out - first);
  return result;
}

void CudaTransformer::gemm(const Call& call) {
  switch (call.op.phase) {
    case Phase::kBackwardWeight:
      return linear_backward_weight(call);
    case Phase::kBackwardInput:
      return linear_backward_input(call);
    default:
      return linear_forward(call);
  }
}

void CudaTransformer::multiply(const Call& call, const CudaGemm& gemm, Fp8Matrix matrix) {
  const GemmWork& work = std::get<GemmWork>(call.op.work);
  if (work.format == ProductFormat::kAsStored) return products_->multiply(gemm, call.stream);
  const Fp8Product product{gemm, matrix, call.codes(), scratch_.data()};
  multiply_in_fp8(product, work, *products_, call.stream);
}

LossChunk CudaTransformer::chunk_of(const Op& op) const {
  return loss_chunk_of(plan_, plan_.tokens_per_micro_batch(), op.label.loss_chunk);
}

std::vector<CudaTransformer::Rows> CudaTransformer::rows_of(const Call& call) const {
  const int64_t all = std::get<GemmWork>(call.op.work).m;
  const ModuleKind kind = call.op.label.module;
  const bool is_partial = kind == ModuleKind::kAttentionOut || kind == ModuleKind::kFc2;
  if (plan_.tensor == 1 || !is_partial) return {{0, all}};
  if (!plan_.tensor_sequence) return {{0, all, place_.tensor == 0}};
  // Of tokens that ranks share between products each has the residual of its own.
  const int64_t own = div_exact(all, plan_.tensor);
  const int64_t first = place_.tensor * own;
  std::vector<Rows> rows = {
      {0, first, false}, {first, own}, {first + own, all - first - own, false}};
  std::erase_if(rows, [](const Rows& some) { return some.count == 0; });
  return rows;
}

void CudaTransformer::linear_forward(const Call& call) {
  for (const Rows& rows : rows_of(call)) linear_rows(call, rows);
}

void CudaTransformer::linear_rows(const Call& call, const Rows& rows) {
  const LinearLayout layout = layout_of(call.op.label.module);
  const Argument x = call.find(Role::kInput);
  const Argument weight = call.find(Role::kWeight);
  const Argument residual = call.find(Role::kResidual);
  const Argument y = call.find(Role::kOutput);
  const int64_t stride = output_stride(call.op, layout, y, std::get<GemmWork>(call.op.work).m);
  for (size_t i = 0; i < layout.count; ++i) {
    const LinearPart& part = layout.parts[i];
    CudaGemm product;
    product.m = rows.count;
    product.n = part.out;
    product.k = layout.in;
    product.a = operand(x, (chunk_of(call.op).begin + rows.first) * layout.in, layout.in,
                        Orientation::kAsStored);
    product.b = weight_of(layout, part, weight, Factor::kOfInput);
    product.out = element(y, rows.first * stride + part.column);
    product.out_dtype = y.tensor->dtype;
    product.out_stride = stride;
    if (residual.tensor != nullptr && rows.adds) product.added = element(residual, part.column);
    const std::byte* bias = layout.has_bias && rows.adds ? element(weight, part.bias) : nullptr;
    const bool in_epilogue = is_aligned(bias);
    if (in_epilogue) product.bias = bias;
    multiply(call, product, {GradientFactor::kNone, i, part.column});
    if (in_epilogue) continue;
    cuda::AddBias added;
    added.place = columns_of(layout, part, product.m);
    added.y = {element(y, rows.first * layout.out), format_of(y.tensor->dtype)};
    added.bias = {bias, format_of(weight.tensor->dtype)};
    check_launch(cuda::add_bias(added, call.native()), call.stream);
  }
}

void CudaTransformer::linear_backward_input(const Call& call) {
  const LinearLayout layout = layout_of(call.op.label.module);
  const Argument dy = call.find(Role::kOutputGradient);
  const Argument weight = call.find(Role::kWeight);
  const Argument dx = call.find(Role::kInputGradient);
  const int64_t rows = std::get<GemmWork>(call.op.work).m;
  const int64_t stride = output_stride(call.op, layout, dy, rows);
  for (size_t i = 0; i < layout.count; ++i) {
    const LinearPart& part = layout.parts[i];
    CudaGemm product;
    product.m = rows;
    product.n = layout.in;
    product.k = part.out;
    product.a = operand(dy, part.column, stride, Orientation::kAsStored);
    product.b = weight_of(layout, part, weight, Factor::kOfGradient);
    product.out = element(dx, chunk_of(call.op).begin * layout.in);
    product.out_dtype = dx.tensor->dtype;
    product.out_stride = layout.in;
    if (i > 0) product.added = product.out;
    multiply(call, product, {GradientFactor::kA, i, part.column});
  }
}

// An epilogue overwrites what is there: sums of later micro-batches are a pass of their own.
// Factors in 8 bits are rounded, and a bias has the gradient of what was not.
bool CudaTransformer::leaves_sums(const Call& call, CudaGemm& product, void* sums) {
  const bool as_stored = std::get<GemmWork>(call.op.work).format == ProductFormat::kAsStored;
  if (product.added != nullptr || !as_stored || !is_aligned(sums)) return false;
  CudaGemm with_sums = product;
  const bool in_out = layout_of(call.op.label.module).order == WeightLayout::kInOut;
  (in_out ? with_sums.sums_of_b : with_sums.sums_of_a) = sums;
  if (!products_->offers_sums(with_sums)) return false;
  product = with_sums;
  return true;
}

void CudaTransformer::linear_backward_weight(const Call& call) {
  const LinearLayout layout = layout_of(call.op.label.module);
  const int64_t tokens = std::get<GemmWork>(call.op.work).k;
  const Argument dy = call.find(Role::kOutputGradient);
  const Argument x = call.find(Role::kInput);
  const Argument gradient = call.find(Role::kParameterGradient);
  const int64_t stride = output_stride(call.op, layout, dy, tokens);
  for (size_t i = 0; i < layout.count; ++i) {
    const LinearPart& part = layout.parts[i];
    const bool in_out = layout.order == WeightLayout::kInOut;
    CudaGemm product;  // [out, in]: dy^T x; [in, out]: x^T dy
    product.m = in_out ? layout.in : part.out;
    product.n = in_out ? part.out : layout.in;
    product.k = tokens;
    const GemmOperand dy_part = operand(dy, part.column, stride, Orientation::kTransposed);
    const GemmOperand x_whole =
        operand(x, chunk_of(call.op).begin * layout.in, layout.in, Orientation::kTransposed);
    product.a = in_out ? x_whole : dy_part;
    product.b = in_out ? dy_part : x_whole;
    product.b.orientation = Orientation::kAsStored;
    product.out = element(gradient, part.weight);
    product.out_dtype = gradient.tensor->dtype;
    product.out_stride = product.n;
    if (gradient.adds) product.added = product.out;
    std::byte* const of_bias = layout.has_bias ? element(gradient, part.bias) : nullptr;
    const bool in_epilogue = layout.has_bias && leaves_sums(call, product, of_bias);
    multiply(call, product, {in_out ? GradientFactor::kB : GradientFactor::kA, i, part.column});
    if (!layout.has_bias || in_epilogue) continue;
    cuda::BiasGradient bias;
    bias.place = columns_of(layout, part, tokens);
    bias.dy = input(dy);
    bias.dbias = {of_bias, format_of(gradient.tensor->dtype)};
    bias.write = write_of(gradient);
    bias.scratch = scratch_.data();
    check_launch(cuda::bias_gradient(bias, call.native()), call.stream);
  }
  // A tied head writes into the embedding module, whose positions must start from zero too.
  const int64_t rest = gradient.tensor->elements - layout.parameters;
  if (gradient.adds || rest <= 0) return;
  runtime_.clear(element(gradient, layout.parameters), bytes_of(rest, gradient.tensor->dtype),
                 call.stream);
}

void CudaTransformer::loss(const Op& op, const OperationArguments& arguments, int32_t step,
                           const Loss& loss, CudaStream stream) {
  const Call call{op, arguments, step, stream};
  // Other kernels run between the pieces.
  const bool in_pieces = plan_.loss_chunks > 1;
  auto* const losses = reinterpret_cast<double*>((in_pieces ? losses_ : scratch_).data());
  if (vocabulary_.is_shared()) {
    cuda::ClassifierShare share = classifier_share(call, Role::kOutput);
    share.gradient_factor = static_cast<float>(loss.gradient_factor);
    const float* const sums = floats(call.find(Role::kStatistics));
    check_launch(cuda::classifier_share(share, sums, losses, call.native()), stream);
  } else {
    cuda::Classifier classifier;
    classifier.rows = classifier_rows(op);
    classifier.vocab = model_.vocab;
    classifier.tokens = reinterpret_cast<const int32_t*>(call.find(Role::kTokens).data);
    const Argument logits = call.find(Role::kOutput);
    classifier.logits = output(logits);
    classifier.stride = stride_of_rows(logits, classifier.rows.rows);
    classifier.gradient_factor = static_cast<float>(loss.gradient_factor);
    classifier.losses = losses;
    check_launch(cuda::classifier(classifier, call.native()), stream);
  }
  const LossChunk chunk = chunk_of(op);
  const int64_t tokens = plan_.tokens_per_micro_batch();
  if (chunk.begin + chunk.count < tokens) return;
  const cuda::MeanLoss mean{losses, tokens, loss.mean};
  check_launch(cuda::mean_loss(mean, call.native()), stream);
}

cuda::ClassifierRows CudaTransformer::classifier_rows(const Op& op) const {
  const LossChunk chunk = chunk_of(op);
  return {*plan_.micro_batch, plan_.sequence_length, chunk.begin, chunk.count};
}

cuda::ClassifierShare CudaTransformer::classifier_share(const Call& call, Role role) const {
  const Argument logits = call.find(role);
  cuda::ClassifierShare share;
  share.rows = classifier_rows(call.op);
  share.stride = stride_of_rows(logits, share.rows.rows);
  share.first_id = vocabulary_.first;
  share.ids = vocabulary_.count;
  share.columns = model_.vocab;
  share.tokens = reinterpret_cast<const int32_t*>(call.find(Role::kTokens).data);
  share.logits = output(logits);
  return share;
}

void CudaTransformer::tell_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                                std::byte* told, CudaStream stream) {
  const Call call{op, arguments, step, stream};
  check_launch(cuda::classifier_tell(classifier_share(call, Role::kSource),
                                     reinterpret_cast<float*>(told), call.native()),
               stream);
}

void CudaTransformer::merge_loss(const Op& op, const OperationArguments& arguments, int32_t step,
                                 const std::byte* told, CudaStream stream) {
  const Call call{op, arguments, step, stream};
  cuda::ToldSums sums;
  sums.told = reinterpret_cast<const float*>(told);
  sums.ranks = plan_.tensor;
  sums.rows = chunk_of(op).count;
  sums.sums = floats(call.find(Role::kDestination));
  check_launch(cuda::classifier_merge(sums, call.native()), stream);
}

void CudaTransformer::cast(const CastRange& range, CudaStream stream) {
  check_launch(cuda::cast(cast_of(range), native_stream(stream)), stream);
}

void CudaTransformer::casts(const std::vector<CastRange>& ranges, CudaStream stream) {
  if (ranges.empty() || !ranges.front().crosses_link) return CudaMath::casts(ranges, stream);
  std::vector<cuda::Cast> all;
  for (const CastRange& range : ranges) all.push_back(cast_of(range));
  check_launch(cuda::casts_across_link(all, native_stream(stream)), stream);
}

void CudaTransformer::sums(const SumRange& range, CudaStream stream) {
  static_assert(kernels::kNormBlock == kSegment);
  const cuda::SumOfSquares sum{{range.values, range.format}, range.count, range.sums};
  check_launch(cuda::sum_of_squares(sum, native_stream(stream)), stream);
}

void CudaTransformer::add(const Addition& addition, CudaStream stream) {
  cuda::Add add;
  add.x = {addition.to, addition.format};
  add.y = {addition.from, addition.format};
  add.out = {addition.to, addition.format};
  add.count = addition.count;
  check_launch(cuda::add(add, native_stream(stream)), stream);
}

void CudaTransformer::adam(const kernels::AdamArrays& arrays,
                           const kernels::AdamConstants& constants, CudaStream stream) {
  check_launch(cuda::adam_step(arrays, constants, {}, native_stream(stream)), stream);
}

void CudaTransformer::recorded_adam(const cuda::RecordedStep& step, cuda::RecordedPart part,
                                    CudaStream stream) {
  check_launch(cuda::recorded_step(step, part, native_stream(stream)), stream);
}

}  // namespace ballast
