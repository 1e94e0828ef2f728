#include "backend/host/disk_state.h"

#include <fmt/format.h>

namespace ballast {

std::vector<Bytes> DiskState::sizes_of(const Graph& graph) {
  std::vector<Bytes> sizes;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.place == Place::kNvme) sizes.push_back(tensor.bytes());
  }
  return sizes;
}

DiskState::DiskState(const Graph& graph, const DiskOptions& options)
    : graph_(graph), file_(sizes_of(graph), options) {
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].place != Place::kNvme) continue;
    regions_.emplace(static_cast<TensorId>(t), regions_.size());
  }
}

const Access* DiskState::resting(const Op& op) const {
  for (const Access& access : op.accesses) {
    if (has(access.tensor)) return &access;
  }
  return nullptr;
}

void DiskState::move(const Op& op, const std::vector<CopyRange>& ranges) {
  const Access& rest = *resting(op);
  const bool in = rest.role == Role::kSource;
  const size_t region = regions_.at(rest.tensor);
  if (in) {
    StateFile::Pieces to;
    for (const CopyRange& range : ranges) {
      to.emplace_back(range.to, static_cast<size_t>(range.bytes));
    }
    return file_.read(region, to);
  }
  StateFile::ConstPieces from;
  for (const CopyRange& range : ranges) {
    from.emplace_back(range.from, static_cast<size_t>(range.bytes));
  }
  file_.write(region, from);
}

void DiskState::read(TensorId tensor, int64_t begin, std::span<std::byte> to) {
  file_.read_part(regions_.at(tensor), begin, to);
}

void DiskState::write(TensorId tensor, int64_t begin, std::span<const std::byte> from) {
  file_.write_part(regions_.at(tensor), begin, from);
}

std::string DiskState::described() const {
  return fmt::format("state of {:.3f} GB on NVMe by {}", file_.size().gb(), file_.described());
}

}  // namespace ballast
