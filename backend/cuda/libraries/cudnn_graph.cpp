#include "backend/cuda/libraries/cudnn_graph.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sim/base/error.h"

namespace ballast {

namespace {

constexpr int64_t kTensorAlignment = 16;
constexpr int64_t kNotesMost = 32;

std::vector<void*> natives(std::span<const CudnnDescriptor> descriptors) {
  std::vector<void*> all;
  for (const CudnnDescriptor& each : descriptors) all.push_back(each.native());
  return all;
}

}  // namespace

CudnnPlan::CudnnPlan(const CudnnFunctions& functions, CudnnDescriptor plan)
    : functions_(functions), plan_(std::move(plan)) {
  plan_.get(cudnn::kPlanWorkspace, cudnn::kInt64Element, 1, &workspace_.count);
}

void CudnnPlan::run(const Run& run, std::span<const CudnnBinding> bindings) const {
  std::vector<int64_t> ids;
  std::vector<void*> addresses;
  for (const CudnnBinding& each : bindings) {
    ids.push_back(each.tensor);
    addresses.push_back(each.address);
  }
  CudnnDescriptor pack(functions_, cudnn::kVariantPack);
  pack.set(cudnn::kPackIds, cudnn::kInt64Element, std::span<const int64_t>(ids));
  pack.set(cudnn::kPackPointers, cudnn::kPointerElement, std::span<void* const>(addresses));
  pack.set(cudnn::kPackWorkspace, cudnn::kPointerElement, run.workspace);
  pack.finalize();
  check_cudnn(functions_, functions_.execute(run.handle, plan_.native(), pack.native()),
              run.attempt);
}

int64_t CudnnGraph::add(cudnn::Type type, const CudnnExtent& extent,
                        std::span<const cudnn::TensorAttribute> flags) {
  const auto id = static_cast<int64_t>(tensors_.size());
  CudnnDescriptor& tensor = tensors_.emplace_back(functions_, cudnn::kTensor);
  tensor.set(cudnn::kTensorType, cudnn::kTypeElement, static_cast<int>(type));
  tensor.set(cudnn::kTensorDimensions, cudnn::kInt64Element, std::span<const int64_t>(extent.size));
  tensor.set(cudnn::kTensorStrides, cudnn::kInt64Element, std::span<const int64_t>(extent.stride));
  tensor.set(cudnn::kTensorId, cudnn::kInt64Element, id);
  tensor.set(cudnn::kTensorAlignment, cudnn::kInt64Element, kTensorAlignment);
  for (const cudnn::TensorAttribute flag : flags) tensor.set(flag, cudnn::kBooleanElement, true);
  tensor.finalize();
  return id;
}

int64_t CudnnGraph::memory(cudnn::Type type, const CudnnExtent& extent) {
  return add(type, extent, {});
}

int64_t CudnnGraph::scalar() {
  constexpr std::array kByValue{cudnn::kTensorIsByValue};
  return add(cudnn::kFloat, {{1, 1, 1, 1}, {1, 1, 1, 1}}, kByValue);
}

int64_t CudnnGraph::between(cudnn::Type type, const CudnnExtent& extent) {
  constexpr std::array kVirtual{cudnn::kTensorIsVirtual};
  return add(type, extent, kVirtual);
}

void CudnnGraph::multiply(const Product& product) {
  CudnnDescriptor& matmul = parts_.emplace_back(functions_, cudnn::kMatmul);
  matmul.set(cudnn::kMatmulPrecision, cudnn::kTypeElement, static_cast<int>(cudnn::kFloat));
  matmul.finalize();
  CudnnDescriptor& operation = operations_.emplace_back(functions_, cudnn::kMatmulOperation);
  operation.set(cudnn::kMatmulA, at(product.a));
  operation.set(cudnn::kMatmulB, at(product.b));
  operation.set(cudnn::kMatmulC, at(product.out));
  operation.set(cudnn::kMatmulDescriptor, matmul);
  operation.finalize();
}

void CudnnGraph::point(const PointOperation& point) {
  CudnnDescriptor& mode = parts_.emplace_back(functions_, cudnn::kPointwise);
  mode.set(cudnn::kPointwiseMode, cudnn::kPointwiseElement, static_cast<int>(point.mode));
  mode.set(cudnn::kPointwisePrecision, cudnn::kTypeElement, static_cast<int>(point.precision));
  if (point.axis) mode.set(cudnn::kPointwiseAxis, cudnn::kInt64Element, *point.axis);
  mode.finalize();
  CudnnDescriptor& operation = operations_.emplace_back(functions_, cudnn::kPointwiseOperation);
  operation.set(cudnn::kPointwiseDescriptor, mode);
  operation.set(cudnn::kPointwiseX, at(point.x));
  if (point.b) operation.set(cudnn::kPointwiseB, at(*point.b));
  if (point.t) operation.set(cudnn::kPointwiseT, at(*point.t));
  operation.set(cudnn::kPointwiseY, at(point.out));
  operation.finalize();
}

void CudnnGraph::reduce(const Fold& fold) {
  CudnnDescriptor& reduction = parts_.emplace_back(functions_, cudnn::kReduction);
  reduction.set(cudnn::kReductionOperator, cudnn::kReductionElement, static_cast<int>(fold.by));
  reduction.set(cudnn::kReductionPrecision, cudnn::kTypeElement, static_cast<int>(cudnn::kFloat));
  reduction.finalize();
  CudnnDescriptor& operation = operations_.emplace_back(functions_, cudnn::kReductionOperation);
  operation.set(cudnn::kReductionX, at(fold.x));
  operation.set(cudnn::kReductionY, at(fold.out));
  operation.set(cudnn::kReductionDescriptor, reduction);
  operation.finalize();
}

void CudnnGraph::reshape(const View& view) {
  CudnnDescriptor& operation = operations_.emplace_back(functions_, cudnn::kReshapeOperation);
  operation.set(cudnn::kReshapeX, at(view.x));
  operation.set(cudnn::kReshapeY, at(view.out));
  operation.finalize();
}

CudnnDescriptor CudnnGraph::finished(const CudnnTarget& target) {
  CudnnDescriptor graph(functions_, cudnn::kGraph);
  const std::vector<void*> operations = natives(operations_);
  graph.set(cudnn::kGraphOperations, cudnn::kDescriptorElement, std::span<void* const>(operations));
  if (target.handle != nullptr) {
    graph.set(cudnn::kGraphHandle, cudnn::kHandleElement, target.handle);
  }
  graph.finalize();
  return graph;
}

std::vector<CudnnDescriptor> CudnnGraph::configurations(const CudnnDescriptor& graph,
                                                        const CudnnTarget& target) const {
  CudnnDescriptor heuristic(functions_, cudnn::kHeuristic);
  heuristic.set(cudnn::kHeuristicGraph, graph);
  heuristic.set(cudnn::kHeuristicMode, cudnn::kHeuristicElement, cudnn::kHeuristicA);
  if (target.device != nullptr) heuristic.set(cudnn::kHeuristicDevice, *target.device);
  heuristic.finalize();
  const int64_t count =
      heuristic.get(cudnn::kHeuristicResults, cudnn::kDescriptorElement, 0, nullptr);
  std::vector<CudnnDescriptor> found;
  for (int64_t i = 0; i < count; ++i) found.emplace_back(functions_, cudnn::kEngineConfig);
  std::vector<void*> places = natives(found);
  const int64_t filled = heuristic.get(cudnn::kHeuristicResults, cudnn::kDescriptorElement, count,
                                       static_cast<void*>(places.data()));
  while (static_cast<int64_t>(found.size()) > filled) found.pop_back();
  return found;
}

bool CudnnGraph::repeats(const CudnnDescriptor& configuration) const {
  CudnnDescriptor engine(functions_, cudnn::kEngine);
  void* place = engine.native();
  configuration.get(cudnn::kConfigEngine, cudnn::kDescriptorElement, 1, static_cast<void*>(&place));
  std::array<int, kNotesMost> notes{};
  const int64_t count =
      engine.get(cudnn::kEngineNotes, cudnn::kNoteElement, kNotesMost, notes.data());
  const auto known = std::span(notes).first(static_cast<size_t>(std::min(count, kNotesMost)));
  return std::ranges::find(known, cudnn::kNotDeterministic) == known.end();
}

CudnnPlan CudnnGraph::plan(const CudnnTarget& target) {
  const CudnnDescriptor graph = finished(target);
  std::string said = "it has no engine for the operation that always adds in the same order";
  for (const CudnnDescriptor& configuration : configurations(graph, target)) {
    if (!repeats(configuration)) continue;
    try {
      CudnnDescriptor plan(functions_, cudnn::kPlan);
      plan.set(cudnn::kPlanConfig, configuration);
      plan.finalize();
      return CudnnPlan(functions_, std::move(plan));
    } catch (const Error& error) {
      said = error.what();
    }
  }
  throw Error("cuDNN, choice of a plan", said, "leave the operation to our kernels");
}

}  // namespace ballast
