#include "backend/execute/operation_arguments.h"

#include "sim/graph/core/edit.h"

namespace ballast {

Argument OperationArguments::at(const Access& access, int32_t step) const {
  const Tensor& tensor = graph_.tensors[static_cast<size_t>(access.tensor)];
  const int copy = (step + access.step_offset) % tensor.copies;
  return {bytes(access.tensor, copy).data(), &tensor, access.mode == AccessMode::kReadWrite};
}

Argument OperationArguments::find(const Op& op, Role role, int32_t step) const {
  for (const Access& access : op.accesses) {
    if (access.role == role && !is_token(graph_.tensor(access.tensor))) return at(access, step);
  }
  return {};
}

std::vector<Argument> OperationArguments::all(const Op& op, Role role, int32_t step) const {
  std::vector<Argument> arguments;
  for (const Access& access : op.accesses) {
    if (access.role != role || is_token(graph_.tensor(access.tensor))) continue;
    arguments.push_back(at(access, step));
  }
  return arguments;
}

std::span<std::byte> OperationArguments::bytes(TensorId tensor, int copy) const {
  const Tensor& t = graph_.tensors[static_cast<size_t>(tensor)];
  const int64_t offset = graph_.arenas.offset[static_cast<size_t>(tensor)];
  CHECK(offset >= 0 && copy < t.copies);
  const ArenaBases& bases = bases_[static_cast<size_t>(t.device)];
  return {bases[static_cast<size_t>(t.place)] + offset + copy * t.bytes().count,
          static_cast<size_t>(t.bytes().count)};
}

}  // namespace ballast
