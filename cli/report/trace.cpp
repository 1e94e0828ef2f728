#include "cli/report/trace.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "cli/text/prediction.h"
#include "sim/graph/report/waits.h"

namespace ballast {
namespace {

double microseconds(Duration time) { return time.us(); }

class TraceWriter {
 public:
  void add(const OrderedJson& event) {
    text_ += events_++ == 0 ? "\n" : ",\n";
    text_ += event.dump();
  }

  // {"name": `kind`, "args": {`key`: value}} about a process or one of its threads.
  void add_metadata(const char* kind, int process, int thread, const OrderedJson& arguments) {
    add({{"ph", "M"}, {"name", kind}, {"pid", process}, {"tid", thread}, {"args", arguments}});
  }

  std::string finish() && {
    return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[" + std::move(text_) + "\n]}\n";
  }

 private:
  std::string text_;
  int64_t events_ = 0;
};

void add_process(TraceWriter& writer, int id, const TraceProcess& process) {
  const std::vector<Op>& ops = process.graph->step.ops;
  writer.add_metadata("process_name", id, 0, {{"name", process.name}});
  writer.add_metadata("process_sort_index", id, 0, {{"sort_index", id}});
  std::set<LaneId> lanes;
  Instant start{INT64_MAX};
  for (const Span& span : process.timeline->spans) {
    lanes.insert(ops[static_cast<size_t>(span.op)].lane);
    start = std::min(start, span.begin);
  }
  for (const LaneId lane : lanes) {
    writer.add_metadata("thread_name", id, lane + 1, {{"name", lane_name(*process.graph, lane)}});
    writer.add_metadata("thread_sort_index", id, lane + 1, {{"sort_index", lane}});
  }
  const Waits waits(*process.graph, *process.timeline);
  for (const Span& span : process.timeline->spans) {
    const Op& op = ops[static_cast<size_t>(span.op)];
    OrderedJson arguments = {{"operation", span.op}, {"step", span.step}};
    if (const std::optional<Release> last = waits.last_release_of(span)) {
      arguments["waited_for"] = describe(ops[static_cast<size_t>(last->span->op)]);
      arguments["waited_for_operation"] = last->span->op;
      arguments["waited_for_step"] = last->span->step;
      arguments["because_of"] = std::string(to_string(last->cause.cause));
    }
    writer.add({{"ph", "X"},
                {"name", describe(op)},
                {"cat", std::string(to_string(op.kind))},
                {"pid", id},
                {"tid", op.lane + 1},
                {"ts", microseconds(span.begin - start)},
                {"dur", microseconds(span.end - span.begin)},
                {"args", std::move(arguments)}});
  }
}

}  // namespace

std::string chrome_trace(const std::vector<TraceProcess>& processes) {
  TraceWriter writer;
  int id = 0;
  for (const TraceProcess& process : processes) add_process(writer, ++id, process);
  return std::move(writer).finish();
}

}  // namespace ballast
