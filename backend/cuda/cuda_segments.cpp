#include "backend/cuda/cuda_segments.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <utility>

#include "backend/cuda/cuda_edges.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

// They load what kernels need, and make the events that graphs wait for: edges reach as far back.
constexpr int32_t kPlainSteps = 2;

// No value of the host goes into it, and its addresses are the same every so many steps.
bool is_fixed(const Graph& graph, const Op& op, int32_t steps) {
  switch (op.kind) {
    case OpKind::kEmbedding:
    case OpKind::kNorm:
    case OpKind::kGemm:
    case OpKind::kAttention:
    case OpKind::kActivation:
    case OpKind::kSumOfSquares:
      break;
    default:
      return false;
  }
  return std::all_of(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
    return steps % graph.tensors[static_cast<size_t>(access.tensor)].copies == 0;
  });
}

// What an operation needs of the host before it can be handed over: by lane of the host, the last
// of its operations, counted over all steps.
class HostNeeds {
 public:
  explicit HostNeeds(const Graph& graph) : program_(graph.step), lanes_(graph.lanes) {
    std::vector<Needs> of_lanes(static_cast<size_t>(lanes_), none());
    for (int64_t step = 0; step < kSteps; ++step) {
      needs_.emplace_back(program_.ops.size());
      for (size_t i = 0; i < program_.ops.size(); ++i) {
        Needs& of_lane = of_lanes[static_cast<size_t>(program_.ops[i].lane)];
        add_edges(i, step, of_lane);
        needs_.back()[i] = of_lane;
        if (CudaLanes::queues(program_.ops[i].lane)) continue;
        // Whoever follows it needs it; the next of its lane has no use for it.
        needs_.back()[i][static_cast<size_t>(program_.ops[i].lane)] = number_of(i, step);
        of_lane = needs_.back()[i];
      }
    }
  }

  // Whether `before`, that many steps earlier, needs nothing that `op` does not.
  bool are_those_of(OpId op, const Edge& before) const {
    const Needs& its = needs_.back()[static_cast<size_t>(op)];
    const Needs& other = needs_[static_cast<size_t>(kSteps - 1 - before.steps_ahead)]
                               [static_cast<size_t>(before.op)];
    for (size_t lane = 0; lane < its.size(); ++lane) {
      if (other[lane] > its[lane]) return false;
    }
    return true;
  }

 private:
  using Needs = std::vector<int64_t>;
  // Edges reach two steps back, to what may reach back as far.
  static constexpr int64_t kSteps = 5;

  Needs none() const { return Needs(static_cast<size_t>(lanes_), -1); }
  int64_t number_of(size_t op, int64_t step) const {
    return step * std::ssize(program_.ops) + static_cast<int64_t>(op);
  }
  void add_edges(size_t op, int64_t step, Needs& needs) const {
    for (auto e = program_.edge_begin[op]; e < program_.edge_begin[op + 1]; ++e) {
      const Edge edge = program_.edges[static_cast<size_t>(e)];
      const int64_t of = step - edge.steps_ahead;
      if (of < 0) continue;
      const Needs& its = needs_[static_cast<size_t>(of)][static_cast<size_t>(edge.op)];
      for (size_t lane = 0; lane < needs.size(); ++lane) {
        needs[lane] = std::max(needs[lane], its[lane]);
      }
    }
  }

  const Program& program_;
  LaneId lanes_;
  std::vector<std::vector<Needs>> needs_;  // by step and operation
};

// Enqueued on the stream while it lives is noted instead of run. Where noting fails the capture is
// ended too: a stream that captures refuses everything else, and its failure would hide the first.
class Capture {
 public:
  Capture(CudaRuntime& runtime, CudaStream stream) : runtime_(runtime), stream_(stream) {
    runtime_.begin_capture(stream_);
  }
  ~Capture() {
    if (ended_) return;
    try {
      runtime_.destroy(runtime_.end_capture(stream_));
    } catch (const Error&) {
      // What could not be noted is no graph, either; who captured is told why.
    }
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  CudaGraph end() {
    ended_ = true;
    return runtime_.end_capture(stream_);
  }

 private:
  CudaRuntime& runtime_;
  CudaStream stream_;
  bool ended_ = false;
};

}  // namespace

std::vector<CudaSegment> cuda_segments(const Graph& graph, int32_t steps,
                                       const std::function<bool(const Op& op)>& is_apart) {
  const Program& step = graph.step;
  const HostNeeds needs(graph);
  const NeededEdges needed(step, graph.lanes, true);
  std::vector<CudaSegment> segments;
  CudaSegment open;
  const auto close = [&] {
    if (open.ops.size() > 1) segments.push_back(open);
    open.ops.clear();
  };
  // That the operation may be handed over together with the first of the open run.
  const auto joins = [&](OpId id) {
    const OpId first = open.ops.front();
    for (auto e = step.edge_begin[static_cast<size_t>(id)];
         e < step.edge_begin[static_cast<size_t>(id) + 1]; ++e) {
      const Edge edge = step.edges[static_cast<size_t>(e)];
      const bool queues = CudaLanes::queues(step.ops[static_cast<size_t>(edge.op)].lane);
      if (queues && !needed.must_wait(id, edge.op)) continue;
      const bool is_before = edge.steps_ahead > 0 || edge.op < first;
      if (!is_before || !needs.are_those_of(first, edge)) return false;
    }
    return true;
  };
  for (size_t i = 0; i < step.ops.size(); ++i) {
    if (kind_of(step.ops[i].lane) != LaneKind::kCompute) continue;
    const auto id = static_cast<OpId>(i);
    const bool fixed = is_fixed(graph, step.ops[i], steps) && !(is_apart && is_apart(step.ops[i]));
    if (!fixed || (!open.ops.empty() && !joins(id))) close();
    if (fixed) open.ops.push_back(id);
  }
  close();
  return segments;
}

CudaSegments::CudaSegments(const Graph& graph, CudaRuntime& runtime, CudaLanes& lanes,
                           std::vector<CudaSegment> segments, Enqueue enqueue)
    : runtime_(runtime),
      lanes_(lanes),
      enqueue_(std::move(enqueue)),
      recorded_of_(graph.step.ops.size(), -1) {
  for (CudaSegment& segment : segments) {
    for (const OpId id : segment.ops) {
      recorded_of_[static_cast<size_t>(id)] = static_cast<int32_t>(recorded_.size());
    }
    std::string name = fmt::format("{} operations from {} on", segment.ops.size(),
                                   describe(graph.op(segment.ops.front())));
    CudaLanes::Run run = lanes.run_of(segment.ops);
    recorded_.push_back({.segment = std::move(segment),
                         .run = std::move(run),
                         .name = std::move(name),
                         .graphs = {}});
  }
}

const CudaSegments::Recorded* CudaSegments::run_of(OpId id) const {
  const int32_t index = recorded_of_[static_cast<size_t>(id)];
  return index < 0 ? nullptr : &recorded_[static_cast<size_t>(index)];
}

std::span<const OpId> CudaSegments::behind(OpId id) const {
  const Recorded* const recorded = run_of(id);
  if (recorded == nullptr || recorded->segment.ops.front() != id) return {};
  return std::span(recorded->segment.ops).subspan(1);
}

bool CudaSegments::waits_by_itself(OpId id) const {
  const Recorded* const recorded = run_of(id);
  return recorded != nullptr && recorded->is_launched && recorded->segment.ops.front() != id;
}

bool CudaSegments::launch(OpId id, int32_t step) {
  const int32_t index = recorded_of_[static_cast<size_t>(id)];
  if (index < 0) return false;
  Recorded& recorded = recorded_[static_cast<size_t>(index)];
  const std::vector<OpId>& ops = recorded.segment.ops;
  if (id != ops.front()) return recorded.is_launched;
  if (recorded.first_step < 0) recorded.first_step = step;
  recorded.is_launched = step >= recorded.first_step + kPlainSteps;
  if (!recorded.is_launched) return false;
  const CudaStream stream = lanes_.begin_run(recorded.run, step);
  CudaGraph& graph = recorded.graphs[static_cast<size_t>(step % CudaLanes::kEventSteps)];
  if (graph.native == nullptr) graph = record(recorded.run, step, stream);
  runtime_.push_range(recorded.name.c_str());
  runtime_.launch(graph, stream);
  runtime_.pop_range();
  lanes_.end_run(recorded.run, step);
  return true;
}

CudaGraph CudaSegments::record(const CudaLanes::Run& run, int32_t step, CudaStream stream) {
  Capture capture(runtime_, stream);
  for (size_t i = 0; i < run.size(); ++i) {
    lanes_.begin_noting(run, i, step);
    enqueue_(run[i].op, step, stream);
    lanes_.end_noting(run, i, step);
  }
  return capture.end();
}

void CudaSegments::close() {
  for (Recorded& recorded : recorded_) {
    for (CudaGraph& graph : recorded.graphs) {
      if (graph.native != nullptr) runtime_.destroy(std::exchange(graph, {}));
    }
  }
}

}  // namespace ballast
