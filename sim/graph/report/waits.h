// Why an operation begins when it does: what it waited for, how long, for which reason, and how
// much later it could have ended.
//
// Will not do: time anything (sim/engine), or print (cli).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/graph/core/graph.h"
#include "sim/graph/report/timeline.h"

namespace ballast {

// kLane: the operation before it on its own lane. kTensor: one of the two writes a tensor that the
// other reads or writes. kMemory: it takes over memory of a tensor that the other used. kFence: the
// other is a fence of all lanes.
enum class WaitCause : uint8_t { kLane, kTensor, kMemory, kFence };
std::string_view to_string(WaitCause cause);

struct EdgeCause {
  WaitCause cause{};
  TensorId tensor = -1;  // of the operation that waits; -1 where none is the cause
  TensorId other = -1;   // kMemory: whose memory it takes over
};

// Of an edge of the step's program. Requires place() and link() of the graph.
EdgeCause cause_of(const Graph& graph, OpId op, const Edge& edge);

struct Release {
  const Span* span = nullptr;  // of the operation that had to end before; in the timeline
  EdgeCause cause;
};

// What released the spans of a timeline, and what they released. Keeps references to both.
class Waits {
 public:
  Waits(const Graph& graph, const Timeline& timeline);

  // Null where it was not recorded.
  const Span* span_of(OpId op, int32_t step) const;
  // All of a span's releases that were recorded, the one that ended last first.
  std::vector<Release> releases_of(const Span& span) const;
  // The one that ended last of all. Nothing where it may have been one of the steps before those
  // that were recorded.
  std::optional<Release> last_release_of(const Span& span) const;
  // From the span's end to the first begin of an operation that waits for it, and that one. Nothing
  // where none was recorded.
  std::optional<std::pair<Duration, const Span*>> slack_of(const Span& span) const;

 private:
  const Span* before_on_lane(const Span& span) const;
  // Calls visit(span, edge) for each that had to end before; null for the one on its lane. Returns
  // whether all of them were recorded.
  template <class Visit>
  bool for_earlier(const Span& span, const Visit& visit) const;
  Release release(const Span& span, const Span* first, const Edge* edge) const;

  const Graph& graph_;
  int32_t first_step_;
  std::map<std::pair<OpId, int32_t>, const Span*> spans_;
  std::map<std::pair<OpId, int32_t>, const Span*> before_, after_;  // on the same lane
};

}  // namespace ballast
