#include "backend/cuda/cuda_edges.h"

#include <algorithm>

#include "backend/cuda/cuda_lanes.h"

namespace ballast {

namespace {

// An operation of a step; later ones compare greater.
struct Mark {
  int64_t step = -1;
  OpId op = -1;
  auto operator<=>(const Mark&) const = default;
};

// Steps until what is implied in one is implied in all that follow: edges reach two steps back.
constexpr int64_t kSteps = 4;

}  // namespace

bool is_work_of_the_host(const Op& op) {
  return op.kind == OpKind::kCommit || !CudaLanes::queues(op.lane);
}

NeededEdges::NeededEdges(const Program& program, LaneId lanes, bool wraps)
    : program_(program), needed_(program.edges.size()), followed_(program.ops.size()) {
  // By lane that waits and lane that is waited for: by its stream or by the host, and by the host.
  const auto places = static_cast<size_t>(lanes) * static_cast<size_t>(lanes);
  std::vector<Mark> by_either(places), by_host(places);
  for (int64_t step = 0; step < (wraps ? kSteps : 1); ++step) {
    const bool last = step == (wraps ? kSteps : 1) - 1;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      const bool by_the_host = is_work_of_the_host(op);
      for (auto e = program.edge_begin[i]; e < program.edge_begin[i + 1]; ++e) {
        const Edge edge = program.edges[static_cast<size_t>(e)];
        const LaneId other = program.ops[static_cast<size_t>(edge.op)].lane;
        if (!CudaLanes::queues(other)) continue;
        const size_t place =
            static_cast<size_t>(op.lane) * static_cast<size_t>(lanes) + static_cast<size_t>(other);
        const Mark mark{step - edge.steps_ahead, edge.op};
        const Mark& seen = by_the_host ? by_host[place] : by_either[place];
        if (last && mark > seen) {
          needed_[static_cast<size_t>(e)] = true;
          followed_[static_cast<size_t>(edge.op)] = true;
        }
        by_either[place] = std::max(by_either[place], mark);
        if (by_the_host) by_host[place] = std::max(by_host[place], mark);
      }
    }
  }
}

// A fence may repeat an edge: then one of both is needed.
bool NeededEdges::must_wait(OpId id, OpId before) const {
  const auto index = static_cast<size_t>(id);
  bool is_edge = false;
  for (auto e = program_.edge_begin[index]; e < program_.edge_begin[index + 1]; ++e) {
    if (program_.edges[static_cast<size_t>(e)].op != before) continue;
    is_edge = true;
    if (needed_[static_cast<size_t>(e)]) return true;
  }
  return !is_edge;
}

}  // namespace ballast
