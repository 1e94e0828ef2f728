// The arguments of operations: addresses of tensors in the arenas, found by role.
//
// Knows addresses, never what lies there: those of a GPU's arena are found the same way. Will not
// do: allocate, or read what it points at.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "sim/base/error.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// One tensor argument: where it is and what it holds. tensor null: the operation has none.
struct Argument {
  std::byte* data = nullptr;
  const Tensor* tensor = nullptr;
  bool adds = false;  // read and written
};

// Values from one of an argument's `rows` to the next: those of logits may begin further apart than
// they are long (StackFacts::logits_multiple).
inline int64_t stride_of_rows(const Argument& all, int64_t rows) {
  return div_exact(all.tensor->elements, rows);
}

// Where the arena of each place of one device begins; null where a place holds nothing.
using ArenaBases = std::array<std::byte*, kPlaces>;

class OperationArguments {
 public:
  // The graph must outlive this. Requires link(graph). `bases`: by device of the graph.
  OperationArguments(const Graph& graph, std::vector<ArenaBases> bases)
      : graph_(graph), bases_(std::move(bases)) {}

  Argument at(const Access& access, int32_t step) const;
  // The first access of a role, or an empty argument; all of them, in order.
  Argument find(const Op& op, Role role, int32_t step) const;
  std::vector<Argument> all(const Op& op, Role role, int32_t step) const;

  // The bytes of a tensor; of copy `copy` where it has two.
  std::span<std::byte> bytes(TensorId tensor, int copy = 0) const;

 private:
  const Graph& graph_;
  std::vector<ArenaBases> bases_;
};

// The storage format of the kernels for a dtype. Requires fp32, bf16 or fp16.
inline kernels::Format format_of(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16);
  if (dtype == DType::kF32) return kernels::Format::kF32;
  return dtype == DType::kBf16 ? kernels::Format::kBf16 : kernels::Format::kF16;
}

// Address of element `index` of a tensor.
inline std::byte* element(const Argument& argument, int64_t index) {
  return argument.data + index * size_of(argument.tensor->dtype);
}

}  // namespace ballast
