#include "backend/host/disk_state.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>

#include "sim/base/units.h"

namespace ballast {

namespace {

// Tensors that no operation touches have no place: passes leave some behind.
std::vector<TensorId> resting_tensors(const Graph& graph) {
  std::vector<TensorId> resting;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const bool is_placed = graph.arenas.offset[t] >= 0;
    if (is_placed && graph.tensors[t].place == Place::kNvme) {
      resting.push_back(static_cast<TensorId>(t));
    }
  }
  return resting;
}

std::vector<Bytes> sizes_of(const Graph& graph) {
  std::vector<Bytes> sizes;
  for (const TensorId tensor : resting_tensors(graph)) {
    sizes.push_back(graph.tensor(tensor).bytes());
  }
  return sizes;
}

}  // namespace

DiskState::DiskState(const Graph& graph, const DiskOptions& options)
    : graph_(graph), file_(sizes_of(graph), options) {
  for (const TensorId tensor : resting_tensors(graph)) regions_.emplace(tensor, regions_.size());
}

Bytes DiskState::taken_by_largest_stage() const {
  std::map<int8_t, double> stages;
  double all = 0;
  for (const auto& [tensor, region] : regions_) {
    const Tensor& resting = graph_.tensor(tensor);
    const auto bytes = static_cast<double>(resting.bytes().count);
    stages[resting.device] += bytes;
    all += bytes;
  }
  double most = 0;
  for (const auto& [stage, bytes] : stages) most = std::max(most, bytes);
  return {static_cast<int64_t>(static_cast<double>(file_.taken().count) * most / all)};
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
  return fmt::format("state of {} on NVMe by {}", bytes_text(file_.size()), file_.described());
}

}  // namespace ballast
