// Products of 8-bit factors: which they are, and the memory for their codes.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

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

// In the forward, but for rows of experts, which were sorted and exchanged behind their norm.
bool reads_norm(const Op& op) {
  const bool first = op.label.module == ModuleKind::kQkv || op.label.module == ModuleKind::kFc1;
  const bool forward = op.phase == Phase::kForward || op.phase == Phase::kRecompute;
  return first && forward && std::get<GemmWork>(op.work).experts == 0;
}

// Of scales that are known before (Transformer Engine's delayed scaling; pytorch/module/linear.py,
// layernorm_linear.py): a gradient is rounded once, for both products that read it, and so is an
// input, unless the kernel before wrote codes; these are in one layout, and the product that makes
// the weight's gradient needs the other. Weights kept in 8 bits are rounded with the step.
// Of scales that are those of the values themselves (its current scaling) an input and a gradient
// are rounded once, too, but no kernel before can write codes: the largest value comes first
// (pytorch/csrc/extensions/cast.cpp, quantize; activation.cpp says why). Since 2.7 norms find it
// (normalization.cpp, FUSED_NORM_AMAX_FP8); activations, too, where they are its own.
Rounding rounding_of(const Op& op, const StackFacts& facts) {
  if (facts.fp8_scaling == Scaling8::kJustInTime) return Rounding::kJustInTime;
  if (facts.fp8_scaling == Scaling8::kCurrent) {
    if (op.phase == Phase::kBackwardWeight) return Rounding::kNone;
    if (facts.norms_find_largest && reads_norm(op)) {
      return facts.fp8_weights == Weights8::kEachUse ? Rounding::kBoth : Rounding::kFirst;
    }
    const bool rounds_weights =
        op.phase != Phase::kBackwardInput && facts.fp8_weights == Weights8::kEachUse;
    return rounds_weights ? Rounding::kJustInTime : Rounding::kCurrent;
  }
  const bool comes_in_codes = facts.fp8_saves_codes && op.label.module != ModuleKind::kAttentionOut;
  if (op.phase == Phase::kBackwardInput) return Rounding::kFirst;
  if (op.phase == Phase::kBackwardWeight) {
    return comes_in_codes ? Rounding::kTransposed : Rounding::kNone;
  }
  if (facts.fp8_weights == Weights8::kEachUse) return Rounding::kBoth;
  return comes_in_codes ? Rounding::kNone : Rounding::kFirst;
}

// The rows that experts take, which are exchanged in 16 bits and rounded as they arrive
// (Transformer Engine, pytorch/module/grouped_linear.py, saves the rounded input).
std::vector<bool> rows_of_experts(const Graph& graph) {
  std::vector<bool> found(graph.tensors.size(), false);
  for (const Op& op : graph.step.ops) {
    const auto* work = std::get_if<GemmWork>(&op.work);
    const bool takes = work != nullptr && work->experts > 0 && op.phase == Phase::kForward &&
                       op.label.module == ModuleKind::kFc1;
    for (const Access& access : op.accesses) {
      if (takes && access.role == Role::kInput) found[static_cast<size_t>(access.tensor)] = true;
    }
  }
  return found;
}

// What norms and activations make is kept as codes, a byte a value, which they write themselves
// where the scale is known before.
void write_codes(Graph& graph, Scaling8 scaling) {
  const std::vector<bool> dispatched = rows_of_experts(graph);
  const auto is_code = [&](TensorId id) {
    const Tensor& tensor = graph.tensor(id);
    const ModuleKind module = tensor.label.module;
    return dispatched[static_cast<size_t>(id)] ||
           (tensor.kind == TensorKind::kOutput && tensor.label.layer >= 0 &&
            (module == ModuleKind::kNorm1 || module == ModuleKind::kNorm2 ||
             module == ModuleKind::kActivation));
  };
  const bool known_before = scaling != Scaling8::kCurrent;
  for (Op& op : graph.step.ops) {
    auto* rows = std::get_if<RowWork>(&op.work);
    if (!known_before || rows == nullptr || op.phase != Phase::kForward) continue;
    for (const Access& access : op.accesses) {
      const Tensor& tensor = graph.tensor(access.tensor);
      if (!writes(access) || !is_code(access.tensor)) continue;
      rows->moved = rows->moved - (tensor.bytes() - bytes_of(tensor.elements, DType::kU8));
    }
  }
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (is_code(static_cast<TensorId>(t))) graph.tensors[t].dtype = DType::kU8;
  }
}

// What attention made is kept for attention itself, and its codes for the product after it.
void save_codes_of_attention(Graph& graph, const Plan& plan) {
  const auto attention = static_cast<size_t>(ModuleKind::kCoreAttention);
  if (plan.activations->fate[attention] == ActivationFate::kRecompute) return;
  // By layer, micro-batch and part of the sequences.
  std::map<std::tuple<int16_t, int16_t, int16_t>, TensorId> codes;
  for (Op& op : graph.step.ops) {
    if (!multiplies_in_fp8(op) || op.label.module != ModuleKind::kAttentionOut) continue;
    const auto key = std::tuple(op.label.layer, op.label.micro_batch, op.label.subsequence);
    if (op.phase == Phase::kForward) {
      const auto& work = std::get<GemmWork>(op.work);
      Tensor made;
      made.kind = TensorKind::kCodes;
      made.category = Category::kActivations;
      made.dtype = DType::kU8;
      made.label = op.label;
      made.elements = work.m * work.k;
      codes[key] = add_tensor(graph, made);
      op.accesses.push_back(write(codes[key], Role::kCodes));
    } else if (op.phase == Phase::kBackwardWeight && codes.contains(key)) {
      op.accesses.push_back(read(codes[key], Role::kCodes));
    }
  }
}

// The gradient of an output that a product takes, or -1.
TensorId gradient_of(const Op& op) {
  for (const Access& access : op.accesses) {
    if (access.role == Role::kOutputGradient) return access.tensor;
  }
  return -1;
}

// The next product that takes the same gradient before anything writes it, or null.
Op* next_with_gradient(std::vector<Op>& ops, size_t first) {
  const TensorId gradient = gradient_of(ops[first]);
  for (size_t i = first + 1; i < ops.size(); ++i) {
    for (const Access& access : ops[i].accesses) {
      if (access.tensor != gradient) continue;
      if (access.mode != AccessMode::kRead) return nullptr;
      if (multiplies_in_fp8(ops[i]) && access.role == Role::kOutputGradient) return &ops[i];
    }
  }
  return nullptr;
}

// Both products of a backward take the gradient of their output: the first rounds it for the other
// too, which gives the same codes. (Rows of experts are rounded expert by expert.)
void round_gradients_once(std::vector<Op>& ops) {
  for (size_t i = 0; i < ops.size(); ++i) {
    if (!multiplies_in_fp8(ops[i]) || gradient_of(ops[i]) < 0) continue;
    auto& work = std::get<GemmWork>(ops[i].work);
    if (work.rounding != Rounding::kJustInTime || work.experts > 0) continue;
    Op* const next = next_with_gradient(ops, i);
    if (next == nullptr) continue;
    work.rounding = Rounding::kForNext;
    std::get<GemmWork>(next->work).rounding = Rounding::kSecond;
  }
}

struct NewCodes {
  int64_t bytes = 0;
  Category category{};
  Role role{};
};
Access new_codes(Graph& graph, const Label& label, const NewCodes& made) {
  Tensor codes;
  codes.kind = TensorKind::kCodes;
  codes.category = made.category;
  codes.place = Place::kHbm;
  codes.dtype = DType::kU8;
  codes.label = label;
  codes.elements = made.bytes;
  return write(add_tensor(graph, codes), made.role);
}

// Each module of a layer multiplies with one weight, or each of its parts does.
using WeightName = std::tuple<int16_t, ModuleKind, ChainPart>;
WeightName weight_of(const Op& op) { return {op.label.layer, op.label.module, op.label.part}; }

SharedCodesLayout shared_layout(int64_t elements) {
  const int64_t codes = round_up(elements, kCodesAlignment);
  return {{codes}, {2 * codes}, {2 * codes + kSharedScales * kCodesAlignment}};
}

}  // namespace

void choose_product_formats(Graph& graph, const Plan& plan, const StackFacts& facts) {
  if (plan.products == ProductFormat::kAsStored) return;
  for (Op& op : graph.step.ops) {
    if (!multiplies_in_fp8(op)) continue;
    auto& work = std::get<GemmWork>(op.work);
    work.format = plan.products;
    work.rounding = rounding_of(op, facts);
  }
  if (facts.fp8_scaling == Scaling8::kJustInTime) round_gradients_once(graph.step.ops);
  if (facts.fp8_saves_codes) {
    write_codes(graph, facts.fp8_scaling);
    save_codes_of_attention(graph, plan);
  }
}

Graph weight_codes_pass(Graph graph) {
  std::set<WeightName> made;
  for (Op& op : graph.step.ops) {
    auto* work = std::get_if<GemmWork>(&op.work);
    const bool takes = work != nullptr && work->format == ProductFormat::kFp8 &&
                       work->experts == 0 && op.phase != Phase::kBackwardWeight;
    if (!takes) continue;
    const bool is_first = made.insert(weight_of(op)).second;
    work->weight_codes = is_first ? WeightCodes::kMakes : WeightCodes::kTakes;
  }
  return graph;
}

CodesLayout codes_layout(const GemmWork& work) {
  const bool has_first = work.rounding != Rounding::kForNext && work.rounding != Rounding::kSecond;
  const int64_t second = has_first ? round_up(work.m * work.k, kCodesAlignment) : 0;
  const bool has_second = work.weight_codes == WeightCodes::kOwn;
  return {{second}, {second + (has_second ? round_up(work.k * work.n, kCodesAlignment) : 0)}};
}

SharedCodesLayout gradient_codes_layout(const GemmWork& work) {
  return shared_layout(work.m * work.k);
}
SharedCodesLayout weight_codes_layout(const GemmWork& work) {
  return shared_layout(work.n * work.k);
}

Graph products_pass(Graph graph) {
  std::vector<std::pair<Label, TensorId>> of_gradients;  // codes that the next product reads
  std::map<WeightName, TensorId> of_weights;             // that all later ones do
  for (Op& op : graph.step.ops) {
    const auto* work = std::get_if<GemmWork>(&op.work);
    if (work == nullptr || work->format != ProductFormat::kFp8) continue;
    const int64_t own = codes_layout(*work).whole.count;
    if (own > 0) {
      op.accesses.push_back(new_codes(graph, op.label, {own, Category::kWorkspace, Role::kCodes}));
    }
    if (work->weight_codes == WeightCodes::kMakes) {
      const int64_t bytes = weight_codes_layout(*work).whole.count;
      op.accesses.push_back(
          new_codes(graph, op.label, {bytes, Category::kWeights, Role::kWeightCodes}));
      of_weights[weight_of(op)] = op.accesses.back().tensor;
    } else if (work->weight_codes == WeightCodes::kTakes) {
      const TensorId made = of_weights.at(weight_of(op));
      // What is computed again may be a part of the product.
      CHECK(op.phase == Phase::kRecompute ||
            graph.tensor(made).bytes() == weight_codes_layout(*work).whole);
      op.accesses.push_back(read(made, Role::kWeightCodes));
    }
    if (work->rounding == Rounding::kForNext) {
      const int64_t bytes = gradient_codes_layout(*work).whole.count;
      op.accesses.push_back(
          new_codes(graph, op.label, {bytes, Category::kWorkspace, Role::kGradientCodes}));
      of_gradients.emplace_back(op.label, op.accesses.back().tensor);
    } else if (work->rounding == Rounding::kSecond) {
      const auto made = std::find_if(of_gradients.begin(), of_gradients.end(),
                                     [&](const auto& one) { return one.first == op.label; });
      CHECK(made != of_gradients.end());
      op.accesses.push_back(read(made->second, Role::kGradientCodes));
      of_gradients.erase(made);
    }
  }
  return graph;
}

}  // namespace ballast
