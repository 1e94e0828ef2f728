#include "sim/graph/report/waits.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

bool conflicts(const Access& one, const Access& other) {
  return one.tensor == other.tensor && (writes(one) || writes(other));
}

bool overlaps(const Graph& graph, TensorId one, TensorId other) {
  const Tensor& a = graph.tensor(one);
  const Tensor& b = graph.tensor(other);
  if (one == other || a.device != b.device || a.place != b.place) return false;
  const int64_t at = graph.arenas.offset[static_cast<size_t>(one)];
  const int64_t other_at = graph.arenas.offset[static_cast<size_t>(other)];
  return at < other_at + b.all_bytes().count && other_at < at + a.all_bytes().count;
}

}  // namespace

std::string_view to_string(WaitCause cause) {
  constexpr std::string_view kNames[] = {"lane", "tensor", "memory", "fence"};
  return kNames[static_cast<size_t>(cause)];
}

EdgeCause cause_of(const Graph& graph, OpId op, const Edge& edge) {
  const Op& waiting = graph.op(op);
  const Op& first = graph.op(edge.op);
  for (const Access& access : waiting.accesses) {
    for (const Access& before : first.accesses) {
      if (conflicts(access, before)) return {WaitCause::kTensor, access.tensor, -1};
    }
  }
  for (const Access& access : waiting.accesses) {
    for (const Access& before : first.accesses) {
      if (overlaps(graph, access.tensor, before.tensor)) {
        return {WaitCause::kMemory, access.tensor, before.tensor};
      }
    }
  }
  CHECK(first.fence);
  return {WaitCause::kFence, -1, -1};
}

Waits::Waits(const Graph& graph, const Timeline& timeline)
    : graph_(graph), first_step_(timeline.first_step) {
  std::map<LaneId, const Span*> last;
  for (const Span& span : timeline.spans) {
    const std::pair<OpId, int32_t> key{span.op, span.step};
    spans_[key] = &span;
    const Span*& before = last[graph.op(span.op).lane];
    if (before != nullptr) {
      before_[key] = before;
      after_[{before->op, before->step}] = &span;
    }
    before = &span;
  }
}

const Span* Waits::span_of(OpId op, int32_t step) const {
  const auto found = spans_.find({op, step});
  return found == spans_.end() ? nullptr : found->second;
}

const Span* Waits::before_on_lane(const Span& span) const {
  const auto found = before_.find({span.op, span.step});
  return found == before_.end() ? nullptr : found->second;
}

template <class Visit>
bool Waits::for_earlier(const Span& span, const Visit& visit) const {
  const Span* before = before_on_lane(span);
  if (before != nullptr) visit(before, nullptr);
  // Nothing comes before step 0.
  bool all = before != nullptr || first_step_ == 0;
  const Program& step = graph_.step;
  const auto op = static_cast<size_t>(span.op);
  for (int32_t e = step.edge_begin[op]; e < step.edge_begin[op + 1]; ++e) {
    const Edge& edge = step.edges[static_cast<size_t>(e)];
    const int32_t its_step = span.step - edge.steps_ahead;
    const Span* first = span_of(edge.op, its_step);
    if (first != nullptr) visit(first, &edge);
    all = all && (its_step < 0 || its_step >= first_step_);
  }
  return all;
}

Release Waits::release(const Span& span, const Span* first, const Edge* edge) const {
  return {first, edge == nullptr ? EdgeCause{} : cause_of(graph_, span.op, *edge)};
}

std::vector<Release> Waits::releases_of(const Span& span) const {
  std::vector<Release> releases;
  for_earlier(span, [&](const Span* first, const Edge* edge) {
    releases.push_back(release(span, first, edge));
  });
  std::stable_sort(releases.begin(), releases.end(),
                   [](const Release& a, const Release& b) { return b.span->end < a.span->end; });
  return releases;
}

// A trace asks this of every span: the cause of one edge is looked for, not of all.
std::optional<Release> Waits::last_release_of(const Span& span) const {
  const Span* last = nullptr;
  const Edge* its_edge = nullptr;
  const bool all = for_earlier(span, [&](const Span* first, const Edge* edge) {
    if (last != nullptr && first->end <= last->end) return;
    last = first;
    its_edge = edge;
  });
  // None can have ended later than as this began, recorded or not.
  if (last == nullptr || (!all && last->end < span.begin)) return std::nullopt;
  return release(span, last, its_edge);
}

std::optional<std::pair<Duration, const Span*>> Waits::slack_of(const Span& span) const {
  const Span* next = nullptr;
  const auto offer = [&](const Span* one) {
    if (one != nullptr && (next == nullptr || one->begin < next->begin)) next = one;
  };
  const auto after = after_.find({span.op, span.step});
  if (after != after_.end()) offer(after->second);
  const Program& step = graph_.step;
  for (size_t i = 0; i < step.ops.size(); ++i) {
    for (int32_t e = step.edge_begin[i]; e < step.edge_begin[i + 1]; ++e) {
      const Edge& edge = step.edges[static_cast<size_t>(e)];
      if (edge.op == span.op) offer(span_of(static_cast<OpId>(i), span.step + edge.steps_ahead));
    }
  }
  if (next == nullptr) return std::nullopt;
  return std::pair(next->begin - span.end, next);
}

}  // namespace ballast
