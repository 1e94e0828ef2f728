#include "backend/measure/profile_operations.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <set>
#include <tuple>

#include "sim/graph/build.h"

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

// Whose operations a device has, as far as shapes go: other angles of rotation cost the same.
bool is_plain(const Model& model) {
  return model.experts == 0 && !model.is_latent() && !model.attention_sinks &&
         model.sliding_window == 0;
}

bool has_bias(const Model& model) {
  return model.qkv_bias || model.attention_out_bias || model.mlp_bias;
}

Model one_layer(Model model) {
  model.layers = 1;
  model.scaled_rope = model.yarn = false;
  return model;
}

int64_t layer_parameters(const Model& model) {
  int64_t count = 0;
  for (const Module& module : modules_of(model)) {
    if (module.layer == 0) count += module.count;
  }
  return count;
}

// What tells layers of models apart, but for what costs nothing.
auto shape_of(const Model& model) {
  return std::tuple(model.hidden, model.ffn, model.heads, model.kv_heads, model.head_size,
                    model.norm, model.activation, has_bias(model));
}

// About as many tokens as a GPU needs to be full, in sequences of a usual length.
Size tokens_of(const Model& model, int64_t tokens) {
  constexpr int64_t kUsualLength = 2048;
  Size size;
  size.width = model.hidden;
  size.vocab = model.vocab;
  size.length = std::min({kUsualLength, model.max_positions, tokens});
  size.sequences = std::max<int64_t>(tokens / size.length, 1);
  return size;
}

}  // namespace

std::vector<OperationCase> layer_grid(const std::vector<Model>& models, int64_t largest_layer) {
  // Small layers leave the GPU as they do in offloaded training, large ones are stepped there.
  constexpr int64_t kSmallLayer = 100'000'000;
  constexpr Variant kMove{CastPlacement::kCpu, SyncMode::kSpeculate, UndoKind::kSnapshot, 0, 64};
  constexpr Variant kStay{CastPlacement::kGpu, SyncMode::kWait, UndoKind::kSnapshot, 1000, 64};
  constexpr int64_t kTokens[] = {8192, 4096, 2048};  // in turn, so that sizes differ
  std::set<decltype(shape_of(Model{}))> seen;
  std::vector<std::pair<int64_t, Model>> chosen;
  for (const Model& model : models) {
    if (!is_plain(model) || model.qk_norm || !seen.insert(shape_of(model)).second) continue;
    Model layer = one_layer(model);
    const int64_t parameters = layer_parameters(layer);
    if (parameters > largest_layer) continue;
    layer.vocab = std::min(layer.vocab, std::max<int64_t>(largest_layer / layer.hidden, 256));
    chosen.emplace_back(parameters, std::move(layer));
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<OperationCase> grid;
  for (auto& [parameters, model] : chosen) {
    const Size size = tokens_of(model, kTokens[grid.size() % std::size(kTokens)]);
    const std::string name =
        fmt::format("layer of {}, {} x {} tokens, bf16", model.name, size.sequences, size.length);
    grid.push_back(
        make_case(std::move(model), size, DType::kBf16, parameters <= kSmallLayer ? kMove : kStay));
    grid.back().name = name;
  }
  return grid;
}

std::vector<Op> product_grid(const std::vector<Model>& models, const std::vector<int64_t>& tokens) {
  std::map<std::string, Op> by_key;
  for (const Model& model : models) {
    if (!is_plain(model) || has_bias(model)) continue;
    for (const int64_t count : tokens) {
      const OperationCase operation =
          make_case(one_layer(model), tokens_of(model, count), DType::kBf16, Variant{});
      for (Op& op : build(operation.model, operation.plan).step.ops) {
        if (op.kind == OpKind::kGemm) by_key.try_emplace(cost_key(op), std::move(op));
      }
    }
  }
  std::vector<Op> products;
  for (auto& [key, op] : by_key) products.push_back(std::move(op));
  std::stable_sort(products.begin(), products.end(),
                   [](const Op& a, const Op& b) { return flops_of(a.work) < flops_of(b.work); });
  return products;
}

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

std::vector<OperationTime> time_case(const OperationCase& operation, double seconds,
                                     const TrainerOptions& options) {
  return measure_operations(operation.model, operation.plan, seconds, options);
}

}  // namespace ballast
