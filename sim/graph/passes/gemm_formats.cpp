// Products of 8-bit factors: which they are, and the memory for their codes.
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

// The head stays as it is stored, as in Transformer Engine's recipes: its rounding errors would go
// into the loss itself. So does a router, whose few columns are no product worth its passes.
bool multiplies_in_fp8(const Op& op) {
  switch (op.label.module) {
    case ModuleKind::kQkv:
    case ModuleKind::kAttentionOut:
    case ModuleKind::kFc1:
    case ModuleKind::kFc2:
      return op.kind == OpKind::kGemm;
    default:
      return false;
  }
}

// Addresses of codes are as aligned as those of tensors.
constexpr int64_t kAlignment = 256;

}  // namespace

void choose_product_formats(Graph& graph, const Plan& plan) {
  if (plan.products == ProductFormat::kAsStored) return;
  for (Op& op : graph.step.ops) {
    if (multiplies_in_fp8(op)) std::get<GemmWork>(op.work).format = plan.products;
  }
}

CodesLayout codes_layout(const GemmWork& work) {
  const int64_t second = round_up(work.m * work.k, kAlignment);
  return {{second}, {second + round_up(work.k * work.n, kAlignment)}};
}

Graph products_pass(Graph graph) {
  for (Op& op : graph.step.ops) {
    const auto* work = std::get_if<GemmWork>(&op.work);
    if (work == nullptr || work->format != ProductFormat::kFp8) continue;
    Tensor codes;
    codes.kind = TensorKind::kCodes;
    codes.category = Category::kWorkspace;
    codes.place = Place::kHbm;
    codes.dtype = DType::kU8;
    codes.label = op.label;
    codes.elements = codes_layout(*work).whole.count;
    op.accesses.push_back(write(add_tensor(graph, codes), Role::kCodes));
  }
  return graph;
}

}  // namespace ballast
