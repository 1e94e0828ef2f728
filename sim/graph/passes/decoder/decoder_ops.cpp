#include "sim/graph/passes/decoder/decoder_ops.h"

#include <algorithm>

#include "sim/spec/model_family.h"

namespace ballast {
namespace {

// Of a run without layers what lies outside of them, as in a model of one.
std::vector<Module> modules_of_run(const Model& model, const Plan& plan) {
  if (model.layers > 0) return modules_held(model, plan);
  Model one = model;
  one.first_layer = 0;
  one.layers = 1;
  std::vector<Module> modules = modules_held(one, plan);
  std::erase_if(modules, [](const Module& module) { return module.layer >= 0; });
  int64_t offset = 0;
  for (Module& module : modules) {
    module.flat_offset = offset;
    offset += module.count;
  }
  return modules;
}

Graph empty_graph(const Model& model, const Plan& plan) {
  Graph graph;
  graph.modules = modules_of_run(model, plan);
  graph.lanes = kLaneKinds;
  return graph;
}

}  // namespace

DecoderOps::DecoderOps(const Model& model, const Plan& plan, const StackFacts& facts,
                       ChunkEnds ends)
    : model_(model),
      plan_(plan),
      facts_(facts),
      ends_(ends),
      parts_(subsequences_of(plan, model)),
      graph_(empty_graph(model, plan)),
      index_(graph_.modules) {
  facts_.dropout = facts.dropout && model_family(model.architecture).has_dropout;
  weight_.resize(graph_.modules.size(), -1);
  gradient_.resize(graph_.modules.size(), -1);
  for (size_t i = 0; i < graph_.modules.size(); ++i) {
    const Module& module = graph_.modules[i];
    if (module.count == 0 || !holds(module)) continue;
    const Label label{static_cast<int16_t>(module.layer), module.kind, -1, -1};
    weight_[i] = tensor(TensorKind::kWeight, Category::kWeights, label, module.count);
    gradient_[i] =
        typed(TensorKind::kGradient, Category::kGradients, label, module.count, gradient_type());
  }
}

bool DecoderOps::holds(const Module& module) const {
  if (module.layer >= 0) return true;
  if (module.kind != ModuleKind::kEmbedding) return ends_.last;
  return ends_.first || (ends_.last && model_.tied_embeddings);
}

int64_t DecoderOps::split_tokens() const {
  return plan_.tensor_sequence ? div_ceil(tokens(), plan_.tensor) : tokens();
}

int64_t DecoderOps::residual_passes() const {
  switch (facts_.fusion) {
    case Fusion::kIntoProducts:
      return 0;
    case Fusion::kOnePass:
      return 3;  // reads the product and the residual, writes the sum
    case Fusion::kNone:
      return facts_.dropout ? 7 : 5;  // bias in and out, dropout in and out, residual
  }
  return 0;
}

TensorId DecoderOps::tensor(TensorKind kind, Category category, Label label, int64_t elements) {
  return typed(kind, category, label, elements, plan_.dtype);
}

TensorId DecoderOps::typed(TensorKind kind, Category category, Label label, int64_t elements,
                           DType dtype) {
  Tensor t;
  t.kind = kind;
  t.category = category;
  t.place = Place::kHbm;
  t.dtype = dtype;
  t.label = of_part(label);
  t.elements = elements;
  return add_tensor(graph_, t);
}

bool DecoderOps::is_split(ModuleKind kind) {
  return kind == ModuleKind::kEmbedding || kind == ModuleKind::kNorm1 ||
         kind == ModuleKind::kAttentionOut || kind == ModuleKind::kNorm2 ||
         kind == ModuleKind::kFc2 || kind == ModuleKind::kFinalNorm;
}

TensorId DecoderOps::output(Label label, int64_t width) {
  return tensor(TensorKind::kOutput, Category::kActivations, label,
                tokens_of(label.module) * width);
}

TensorId DecoderOps::output_gradient(Label label, int64_t width) {
  return tensor(TensorKind::kOutputGradient, Category::kActivations, label,
                tokens_of(label.module) * width);
}

TensorId DecoderOps::statistics(Label label) {
  return typed(TensorKind::kNormStatistics, Category::kActivations, label, split_tokens() * 2,
               DType::kF32);
}

// The input in 32 bits, and 16 bits more.
TensorId DecoderOps::norm_statistics(Label label) {
  const TensorId kept = statistics(label);
  if (!keeps_wide_norms()) return kept;
  const int64_t values = split_tokens() * model_.hidden;
  graph_.tensor(kept).elements += values + div_ceil(values, 2);
  return kept;
}

TensorId DecoderOps::mask(Label label, int64_t elements) {
  if (!facts_.dropout) return -1;
  return typed(TensorKind::kMask, Category::kActivations, label, elements, DType::kU8);
}

Op& DecoderOps::emit(OpKind kind, Phase phase, Label label, Work work,
                     std::vector<Access> accesses) {
  Op op;
  op.kind = kind;
  op.phase = phase;
  op.lane = lane_of(0, LaneKind::kCompute);
  op.label = of_part(label);
  op.work = std::move(work);
  op.accesses = std::move(accesses);
  graph_.step.ops.push_back(std::move(op));
  return graph_.step.ops.back();
}

Label DecoderOps::of_part(Label label) const {
  const bool has_part = is_divided() && label.micro_batch >= 0;
  if (has_part) label.subsequence = static_cast<int16_t>(part_);
  return label;
}

size_t DecoderOps::module_index(Label label) const {
  if (label.module == ModuleKind::kHead && model_.tied_embeddings) return 0;
  return static_cast<size_t>(std::max(0, index_.of(label)));
}

bool DecoderOps::adds_apart() const {
  return facts_.adds_gradients_apart && plan_.zero_stage < 3 && gradient_type() != plan_.dtype;
}

void DecoderOps::add_apart(int16_t micro, std::optional<int64_t> layer) {
  for (size_t i = 0; i < apart_.size(); ++i) {
    const Module& module = graph_.modules[i];
    if (apart_[i] < 0 || (layer && module.layer != *layer)) continue;
    const Label label{static_cast<int16_t>(module.layer), module.kind, micro, -1};
    RowWork work = rows_of(1, module.count, 0, 1);
    // The sums begin as zeros, to which the step sets them, and where they are: they are read by
    // the first micro-batch too, and are there all the time.
    work.moved = facts_.accumulate_bytes > 0 ? Bytes{module.count * facts_.accumulate_bytes}
                                             : bytes_of(module.count, plan_.dtype) +
                                                   bytes_of(module.count, gradient_type()) * 2;
    emit(OpKind::kActivation, Phase::kBackward, label, work,
         {read(apart_[i], Role::kSource), update(gradient_[i], Role::kParameterGradient)});
    apart_[i] = -1;
  }
}

Access DecoderOps::gradient(Label label) {
  const size_t index = module_index(label);
  if (adds_apart()) {
    apart_.resize(gradient_.size(), -1);
    TensorId& own = apart_[index];
    const bool adds = own >= 0;
    if (!adds) {
      own = typed(TensorKind::kPartial, Category::kGradients, label,
                  graph_.tensor(gradient_[index]).elements, plan_.dtype);
    }
    return {own, Role::kDestination, adds ? AccessMode::kReadWrite : AccessMode::kWrite, 0};
  }
  // The head has written before, where it shares the matrix and is of the same stage.
  const bool after_head =
      label.module == ModuleKind::kEmbedding && model_.tied_embeddings && ends_.last;
  // Backward, the last part comes first.
  const bool after_part = part_ + 1 < parts_.size();
  const bool after_chunk = label.loss_chunk > 0;
  const bool adds = label.micro_batch > 0 || after_head || after_part || after_chunk;
  return {gradient_[index], Role::kParameterGradient,
          adds ? AccessMode::kReadWrite : AccessMode::kWrite, 0};
}

RowWork DecoderOps::rows(int64_t columns, int64_t values_moved, double flops_per_value) const {
  return rows_of(tokens(), columns, values_moved, flops_per_value);
}

RowWork DecoderOps::rows_of(int64_t count, int64_t columns, int64_t values_moved,
                            double flops_per_value) const {
  RowWork work;
  work.rows = count;
  work.columns = columns;
  work.dtype = plan_.dtype;
  work.moved = bytes_of(count * values_moved, plan_.dtype);
  work.flops = {flops_per_value * static_cast<double>(count * columns)};
  return work;
}

int64_t DecoderOps::norm_values(Phase phase, int64_t width) const {
  const bool backward = is_backward(phase);
  const int64_t bytes = backward ? facts_.norm_backward_bytes : facts_.norm_bytes;
  if (bytes > 0) return bytes * width / size_of(plan_.dtype);
  const bool in_pieces = facts_.fusion == Fusion::kNone && model_.norm == NormKind::kRmsNorm;
  return (backward ? 2 : 1) * (in_pieces ? 18 : 2) * width;
}

int64_t DecoderOps::repeated_norm_values(Label label) const {
  const bool repeats =
      facts_.repeats_norms && label.layer >= 0 &&
      plan_.activations->fate[static_cast<size_t>(label.module)] != ActivationFate::kRecompute;
  if (!repeats) return 0;
  const int64_t sums = label.module == ModuleKind::kNorm2 ? residual_passes() : 0;
  return norm_values(Phase::kForward, model_.hidden) + sums * model_.hidden;
}

bool DecoderOps::follows_residual(Label label) {
  return label.module != ModuleKind::kNorm1 || label.layer > 0;
}

void DecoderOps::norm(Label label, TensorId x, TensorId out, TensorId stats) {
  const int64_t sums = follows_residual(label) ? residual_passes() : 0;
  emit(OpKind::kNorm, Phase::kForward, label,
       rows_of(split_tokens(), model_.hidden,
               norm_values(Phase::kForward, model_.hidden) + sums * model_.hidden, 8),
       {read(x, Role::kInput), read(weight(label), Role::kWeight), write(out, Role::kOutput),
        write(stats, Role::kStatistics)});
}

TensorId DecoderOps::norm_backward(Label label, Label input, TensorId x, TensorId stats,
                                   TensorId dout, TensorId residual_gradient) {
  const TensorId dx = output_gradient(input, model_.hidden);
  std::vector<Access> accesses = {
      read(stats, Role::kStatistics), read(weight(label), Role::kWeight),
      read(dout, Role::kOutputGradient), write(dx, Role::kInputGradient), gradient(label)};
  if (!keeps_wide_norms()) accesses.insert(accesses.begin(), read(x, Role::kInput));
  if (residual_gradient >= 0) {
    accesses.push_back(read(residual_gradient, Role::kResidualGradient));
  }
  // The backward of the residual before: dropout and bias gradients read and write again.
  const int64_t drops = follows_residual(label) && facts_.dropout ? 3 : 0;
  const int64_t values = norm_values(Phase::kBackward, model_.hidden) + drops * model_.hidden +
                         repeated_norm_values(label);
  emit(OpKind::kNorm, Phase::kBackward, label, rows_of(split_tokens(), model_.hidden, values, 14),
       std::move(accesses));
  return dx;
}

bool DecoderOps::has_experts(Label label) const {
  return label.layer >= 0 && model_.has_experts(label.layer);
}

void DecoderOps::gemm(Label label, TensorId x, int64_t in, TensorId y, int64_t out,
                      TensorId residual, TensorId kept) {
  std::vector<Access> accesses = {read(x, Role::kInput), read(weight(label), Role::kWeight),
                                  write(y, Role::kOutput)};
  if (residual >= 0) accesses.push_back(read(residual, Role::kResidual));
  if (kept >= 0) accesses.push_back(write(kept, Role::kStatistics));
  emit(OpKind::kGemm, Phase::kForward, label, GemmWork{tokens(), out, in, plan_.dtype, false},
       std::move(accesses));
}

TensorId DecoderOps::gemm_backward(Label label, Label input, TensorId x, int64_t in, TensorId dy,
                                   int64_t out, TensorId kept) {
  const BackwardOf backward{label, x, dy, output_gradient(input, in), kept};
  product_backward(backward, {in, out});
  return backward.dx;
}

namespace {

// Whether the framework gives the bias to the product. Megatron-Core does so of queries, keys and
// values and of the experts' first product; the others hand theirs on to what follows
// (skip_bias_add at d98e8a64: attention.py lines 420 and 1699, mlp.py lines 226 and 249,
// moe/experts.py lines 224 and 247).
bool product_has_bias(const Model& model, ModuleKind module, bool is_of_experts) {
  if (module == ModuleKind::kQkv) return model.qkv_bias;
  return module == ModuleKind::kFc1 && is_of_experts && model.mlp_bias;
}

}  // namespace

void DecoderOps::product_backward(const BackwardOf& backward, const Product& product) {
  Access dw = gradient(backward.label);
  const bool adds = dw.mode == AccessMode::kReadWrite;
  if (backward.follows) dw.mode = AccessMode::kReadWrite;
  const int64_t rows = backward.rows > 0 ? backward.rows : tokens() * product.active;
  std::vector<Access> weight_accesses = {read(backward.dy, Role::kOutputGradient),
                                         read(backward.x, Role::kInput), dw};
  std::vector<Access> input_accesses = {
      read(backward.dy, Role::kOutputGradient),
      read(weight(backward.label), Role::kWeight),
      {backward.dx, Role::kInputGradient, first_write(backward.dx), 0}};
  if (backward.kept >= 0) weight_accesses.push_back(read(backward.kept, Role::kStatistics));
  if (backward.choice >= 0) {
    weight_accesses.push_back(read(backward.choice, Role::kRouting));
    input_accesses.push_back(read(backward.choice, Role::kRouting));
  }
  if (backward.scores >= 0) {
    weight_accesses.push_back(read(backward.scores, Role::kStatistics));
    input_accesses.push_back(read(backward.scores, Role::kStatistics));
    input_accesses.push_back(write(backward.dscores, Role::kScratch));
  }
  const auto weight_gradient = [&] {
    GemmWork work{product.out, product.in, rows, plan_.dtype, adds};
    work.experts = backward.experts;
    work.by_expert = work.experts > 0 && facts_.multiplies_by_expert;
    work.sums_bias = facts_.bias_epilogue_percent > 0 &&
                     product_has_bias(model_, backward.label.module, work.experts > 0) &&
                     plan_.products == ProductFormat::kAsStored;
    // Where a framework's source says so, its fitted constants hold what these bytes take.
    work.wide_output =
        plan_.gradients == GradientFormat::kF32 && gradient_type() != plan_.dtype && !adds_apart();
    if (!adds_behind_product(backward.label)) {
      emit(OpKind::kGemm, Phase::kBackwardWeight, backward.label, work, weight_accesses);
    } else {
      add_behind_product(backward.label, work, std::move(weight_accesses));
    }
  };
  const bool exchanges = plan_.tensor > 1 && facts_.tensor_overlap != Overlap::kNone;
  if (!exchanges) weight_gradient();
  GemmWork work{rows, product.in, product.out, plan_.dtype, false};
  work.experts = backward.experts;
  work.by_expert = work.experts > 0 && facts_.multiplies_by_expert;
  emit(OpKind::kGemm, Phase::kBackwardInput, backward.label, work, input_accesses);
  if (exchanges) weight_gradient();
}

bool DecoderOps::adds_behind_product(Label label) const {
  return facts_.accumulate_bytes > 0 && !adds_apart() && plan_.zero_stage < 3 &&
         label.micro_batch > 0;
}

void DecoderOps::add_behind_product(Label label, GemmWork work, std::vector<Access> accesses) {
  const int64_t count = work.m * work.n * std::max<int64_t>(1, work.experts);
  const TensorId alone =
      typed(TensorKind::kPartial, Category::kWorkspace, label, count, gradient_type());
  std::vector<Access> sum = {read(alone, Role::kSource)};
  for (Access& access : accesses) {
    if (access.role != Role::kParameterGradient) continue;
    sum.push_back({access.tensor, Role::kParameterGradient, AccessMode::kReadWrite, 0});
    access = {alone, Role::kParameterGradient, AccessMode::kWrite, 0};
  }
  work.accumulate = false;
  emit(OpKind::kGemm, Phase::kBackwardWeight, label, work, std::move(accesses));
  RowWork add = rows_of(1, count, 0, 1);
  add.moved = {count * facts_.accumulate_bytes};
  emit(OpKind::kActivation, Phase::kBackwardWeight, label, add, std::move(sum));
}

AccessMode DecoderOps::first_write(TensorId id) {
  return written_.insert(id).second ? AccessMode::kWrite : AccessMode::kReadWrite;
}

}  // namespace ballast
