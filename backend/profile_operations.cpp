#include "backend/profile_operations.h"

#include <algorithm>
#include <fmt/format.h>

namespace ballast {

namespace {

// What of the optimizer's path a case runs; over the grid every kind of operation occurs at
// several sizes.
struct Variant {
  CastPlacement cast = CastPlacement::kGpu;
  SyncMode sync = SyncMode::kWait;
  UndoKind undo = UndoKind::kSnapshot;
  int64_t gpu_buckets = 0;
  int64_t bucket_mib = 4;
};

struct Size {
  int64_t width = 0;
  int64_t sequences = 0;
  int64_t length = 0;
  int64_t vocab = 256;
};

Model base_model(const Size& size, int64_t head_size) {
  Model model;
  model.layers = 1;
  model.hidden = size.width;
  model.head_size = head_size;
  model.heads = model.kv_heads = size.width / head_size;
  model.vocab = size.vocab;
  model.max_positions = size.length;
  return model;
}

Model gpt2_like(const Size& size) {
  Model model = base_model(size, 64);
  model.architecture = "gpt2";
  model.ffn = 4 * size.width;
  model.layout = WeightLayout::kInOut;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = true;
  return model;
}

Model llama_like(const Size& size) {
  Model model = base_model(size, 128);
  model.architecture = "llama";
  model.ffn = 3 * size.width;
  model.norm = NormKind::kRmsNorm;
  model.position = PositionKind::kRope;
  model.activation = ActivationKind::kSwiGlu;
  return model;
}

OperationCase make_case(Model model, const Size& size, DType dtype, const Variant& variant) {
  OperationCase result;
  result.name = fmt::format("{} width {}, {} x {} tokens, {}", model.architecture, size.width,
                            size.sequences, size.length, to_string(dtype));
  model.name = result.name;
  Plan& plan = result.plan;
  plan.global_batch = size.sequences;
  plan.micro_batch = size.sequences;
  plan.sequence_length = size.length;
  plan.dtype = dtype;
  plan.weights.flow_share = 0;
  plan.activations = ActivationPlan{};
  plan.optimizer.bucket_bytes = {variant.bucket_mib << 20};
  plan.optimizer.gpu_buckets = variant.gpu_buckets;
  plan.optimizer.cast = variant.cast;
  plan.optimizer.sync = variant.sync;
  plan.optimizer.undo = variant.undo;
  result.model = std::move(model);
  return result;
}

}  // namespace

std::vector<OperationCase> operation_grid(int64_t largest_width) {
  using enum CastPlacement;
  using enum SyncMode;
  constexpr Variant kMove16{kCpu, kSpeculate, UndoKind::kSnapshot, 0, 1};
  constexpr Variant kMove32{kGpu, kSpeculate, UndoKind::kExact, 1, 2};
  constexpr Variant kOnGpu{kGpu, kWait, UndoKind::kSnapshot, 1000, 4};
  std::vector<OperationCase> grid;
  const auto add = [&](Model model, const Size& size, DType dtype, const Variant& variant) {
    if (size.width <= largest_width) grid.push_back(make_case(model, size, dtype, variant));
  };
  const auto gpt2 = [&](const Size& size, DType dtype, const Variant& variant) {
    add(gpt2_like(size), size, dtype, variant);
  };
  const auto llama = [&](const Size& size, DType dtype, const Variant& variant) {
    add(llama_like(size), size, dtype, variant);
  };
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    gpt2({64, 2, 32}, dtype, kMove16);
    gpt2({128, 4, 128}, dtype, kMove32);
    gpt2({256, 8, 64}, dtype, kOnGpu);
    gpt2({256, 4, 256}, dtype, kMove16);
    llama({256, 2, 512}, dtype, kMove32);
    gpt2({128, 1, 1024}, dtype, kOnGpu);
    gpt2({512, 4, 128}, dtype, {kGpu, kSpeculate, UndoKind::kSnapshot, 1, 4});
    llama({1024, 1, 256, 4096}, dtype, {kCpu, kSpeculate, UndoKind::kExact, 2, 16});
  }
  gpt2({64, 2, 32}, DType::kF16, kMove16);
  gpt2({256, 4, 128}, DType::kF16, kMove32);
  std::stable_sort(grid.begin(), grid.end(), [](const OperationCase& a, const OperationCase& b) {
    return a.model.hidden < b.model.hidden;
  });
  return grid;
}

std::vector<OperationTime> time_case(const OperationCase& of, double seconds,
                                     int optimizer_threads) {
  TrainerOptions options;
  options.optimizer_threads = optimizer_threads;
  return measure_operations(of.model, of.plan, seconds, options);
}

}  // namespace ballast
