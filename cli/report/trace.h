// Timelines as one Chrome trace (JSON), which opens in Perfetto: a process a timeline, a thread a
// lane, times in microseconds from each timeline's own beginning.
#pragma once

#include <string>
#include <vector>

#include "sim/graph/core/graph.h"
#include "sim/graph/report/timeline.h"

namespace ballast {

struct TraceProcess {
  std::string name;
  // Neither is null; both must outlive the call.
  const Graph* graph;
  const Timeline* timeline;
};

std::string chrome_trace(const std::vector<TraceProcess>& processes);

}  // namespace ballast
