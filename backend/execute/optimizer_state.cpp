#include "backend/execute/optimizer_state.h"

namespace ballast {

TensorId stepped_in(const Bucket& bucket, StateArray array) {
  switch (array) {
    case StateArray::kMaster:
      return bucket.master;
    case StateArray::kMoment1:
      return bucket.moment1;
    case StateArray::kMoment2:
      return bucket.moment2;
  }
  return -1;
}

StateHome home_of(const Graph& graph, const Bucket& bucket, StateArray array) {
  const auto tensor = [&](StateArray one) -> const Tensor& {
    return graph.tensors[static_cast<size_t>(stepped_in(bucket, one))];
  };
  StateHome home{stepped_in(bucket, array), 0, tensor(array).dtype};
  if (bucket.rest < 0) return home;
  home.tensor = bucket.rest;
  for (const StateArray before : kStateArrays) {
    if (before == array) break;
    home.begin += tensor(before).bytes().count;
  }
  return home;
}

}  // namespace ballast
