// An operation's arguments as the views of transformer.h.
#pragma once

#include <cstdint>

#include "backend/execute/operation_arguments.h"
#include "backend/host/transformer.h"
#include "sim/base/error.h"
#include "sim/graph/core/graph.h"

namespace ballast {

inline bool forward(const Op& op) { return !is_backward(op.phase); }

// A tensor as [rows, columns]; without data where the role is absent.
inline transformer::View view(const Argument& argument, int64_t rows, int64_t columns) {
  return {argument.data, argument.tensor ? argument.tensor->dtype : DType::kF32, rows, columns};
}

// All of a module's parameters, or of their gradients; none where the role is absent.
inline transformer::View flat(const Argument& argument) {
  return view(argument, 1, argument.tensor ? argument.tensor->elements : 0);
}

// [rows, columns] that begin `first` elements into a tensor.
inline transformer::View part(const Argument& argument, int64_t first, int64_t rows,
                              int64_t columns) {
  CHECK(first + rows * columns <= argument.tensor->elements);
  return {element(argument, first), argument.tensor->dtype, rows, columns};
}

}  // namespace ballast
