// Where the arrays of a bucket's optimizer state lie between steps: in tensors of their own, or one
// after another in the tensor in which the state rests (Bucket::rest), from which they are moved
// for the step only. Whoever begins, saves or restores a training goes by this.
//
// Will not do: touch the memory.
#pragma once

#include <array>
#include <cstdint>

#include "sim/graph/core/graph.h"

namespace ballast {

enum class StateArray : uint8_t { kMaster, kMoment1, kMoment2 };
inline constexpr std::array kStateArrays = {StateArray::kMaster, StateArray::kMoment1,
                                            StateArray::kMoment2};

struct StateHome {
  TensorId tensor = -1;
  int64_t begin = 0;  // bytes from the tensor's start
  DType dtype{};
};

// The tensor that an array is stepped in, which is also where it lies if the state rests nowhere.
TensorId stepped_in(const Bucket& bucket, StateArray array);

StateHome home_of(const Graph& graph, const Bucket& bucket, StateArray array);

}  // namespace ballast
