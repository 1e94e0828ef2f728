#include "backend/train/parameter_state.h"

#include <algorithm>
#include <array>

#include "backend/execute/operation_arguments.h"
#include "kernels/kernels.h"
#include "sim/graph/core/stages.h"

namespace ballast {

namespace {

// Calls `visit(bucket, offset, begin, count)` for every bucket that holds a part of a parameter:
// `offset` elements from the bucket's start, `begin` from the parameter's.
void for_parts(
    const Graph& graph, size_t module, const Parameter& parameter,
    const std::function<void(size_t bucket, int64_t offset, int64_t begin, int64_t count)>& visit) {
  for (size_t b = 0; b < graph.buckets.size(); ++b) {
    for (const Bucket::Piece& piece : graph.buckets[b].pieces) {
      if (static_cast<size_t>(piece.module) != module) continue;
      const int64_t begin = std::max(parameter.offset, piece.begin);
      const int64_t end = std::min(parameter.offset + parameter.count(), piece.begin + piece.count);
      if (begin < end) {
        visit(b, piece.offset + begin - piece.begin, begin - parameter.offset, end - begin);
      }
    }
  }
}

std::vector<size_t> with_copies(const Graph& graph, size_t module) {
  std::vector<size_t> all = {module};
  for (const int32_t copy : copies_of_module(graph, static_cast<int32_t>(module))) {
    all.push_back(static_cast<size_t>(copy));
  }
  return all;
}

template <class T>
std::span<T> part_of(std::span<T> values, int64_t begin, int64_t count) {
  return values.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

}  // namespace

void for_parameters(const Graph& graph,
                    const std::function<void(size_t module, const Parameter&)>& visit) {
  for (const int32_t i : modules_in_order(graph)) {
    for (const Parameter& parameter : graph.module(i).parameters) {
      visit(static_cast<size_t>(i), parameter);
    }
  }
}

std::vector<float> read_parameter(const Graph& graph, TrainingDevice& device, size_t module,
                                  const Parameter& parameter, StateArray array) {
  std::vector<float> values(static_cast<size_t>(parameter.count()));
  for_parts(graph, module, parameter, [&](size_t b, int64_t offset, int64_t begin, int64_t count) {
    const std::vector<float> part =
        read_state(device, graph, graph.buckets[b], array, offset, count);
    std::copy(part.begin(), part.end(), values.begin() + begin);
  });
  return values;
}

void write_parameter(const Graph& graph, TrainingDevice& device, size_t module,
                     const Parameter& parameter, StateArray array, std::span<const float> values) {
  for (const size_t copy : with_copies(graph, module)) {
    for_parts(graph, copy, parameter, [&](size_t b, int64_t offset, int64_t begin, int64_t count) {
      write_state(device, graph, graph.buckets[b], array, offset, part_of(values, begin, count));
    });
  }
}

PendingGradients::PendingGradients(const Graph& graph, TrainingDevice& device)
    : graph_(graph), device_(device) {
  landed_.assign(graph.buckets.size(), -1);
  by_module_.assign(graph.modules.size(), -1);
  const StageModules modules(graph);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const auto id = static_cast<TensorId>(t);
    const bool reduced = tensor.kind == TensorKind::kReduced && tensor.label.bucket >= 0;
    if (tensor.kind == TensorKind::kBucketGradient || reduced) {
      landed_[static_cast<size_t>(tensor.label.bucket)] = id;
    }
    if (tensor.kind != TensorKind::kGradient) continue;
    if (const int32_t i = modules.of(tensor); i >= 0) by_module_[static_cast<size_t>(i)] = id;
  }
}

// Of shares in the modules' gradients, which are whole, each rank has the sums of its own: those
// lie where they would, did the bucket begin in the module's tensor.
PendingGradients::Part PendingGradients::part(size_t bucket, int64_t offset, size_t module,
                                              int64_t module_offset) const {
  const bool landed = landed_[bucket] >= 0;
  const TensorId id = landed ? landed_[bucket] : by_module_[module];
  const DType dtype = graph_.tensor(id).dtype;
  if (landed) return {{id, 0, dtype}, offset};
  const RankShares* const shares = device_.shares();
  const int64_t share = shares == nullptr ? 0 : shares->own(static_cast<int32_t>(bucket)).begin;
  return {{id, (module_offset - offset + share) * size_of(dtype), dtype}, offset};
}

std::vector<float> PendingGradients::read(size_t module, const Parameter& parameter) const {
  std::vector<float> values(static_cast<size_t>(parameter.count()));
  for_parts(graph_, module, parameter, [&](size_t b, int64_t offset, int64_t begin, int64_t count) {
    const Part from = part(b, offset, module, parameter.offset + begin);
    read_share(device_, static_cast<int32_t>(b), from.begin,
               part_of(std::span(values), begin, count), from.home);
  });
  return values;
}

void PendingGradients::write(size_t module, const Parameter& parameter,
                             std::span<const float> values) {
  for (const size_t copy : with_copies(graph_, module)) {
    for_parts(graph_, copy, parameter, [&](size_t b, int64_t offset, int64_t begin, int64_t count) {
      const Part to = part(b, offset, copy, parameter.offset + begin);
      write_share(device_, static_cast<int32_t>(b), to.begin, part_of(values, begin, count),
                  to.home);
    });
  }
}

void apply_pending_gradients(const Graph& graph, TrainingDevice& device,
                             const kernels::AdamConstants& constants) {
  const PendingGradients gradients(graph, device);
  for_parameters(graph, [&](size_t module, const Parameter& parameter) {
    std::array<std::vector<float>, kStateArrays.size()> state;
    for (size_t i = 0; i < state.size(); ++i) {
      state[i] = read_parameter(graph, device, module, parameter, kStateArrays[i]);
    }
    const std::vector<float> gradient = gradients.read(module, parameter);
    kernels::AdamConstants of_this = constants;
    if (!parameter.is_matrix) of_this.weight_decay = 0;
    kernels::AdamArrays arrays;
    arrays.master = state[0].data();
    arrays.moment1 = state[1].data();
    arrays.moment2 = state[2].data();
    arrays.gradient = gradient.data();
    arrays.count = parameter.count();
    kernels::best().adam_step(arrays, of_this);
    for (size_t i = 0; i < state.size(); ++i) {
      write_parameter(graph, device, module, parameter, kStateArrays[i], state[i]);
    }
  });
}

}  // namespace ballast
