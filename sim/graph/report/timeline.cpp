#include "sim/graph/report/timeline.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>

namespace ballast {
namespace {

size_t op_count(const Graph& graph) { return graph.step.ops.size(); }

const Op& op_of(const Graph& graph, const Span& span) { return graph.op(span.op); }

Duration length(const Span& span) { return span.end - span.begin; }

// Spans by step and operation: where each of them is in Timeline::spans.
class SpanIndex {
 public:
  SpanIndex(const Graph& graph, const Timeline& timeline)
      : timeline_(timeline),
        ops_(op_count(graph)),
        position_(ops_ * static_cast<size_t>(timeline.steps), -1) {
    for (size_t i = 0; i < timeline.spans.size(); ++i) {
      const Span& span = timeline.spans[i];
      CHECK(span.op >= 0 && static_cast<size_t>(span.op) < ops_);
      position_[slot(span.step, span.op)] = static_cast<int64_t>(i);
    }
  }

  // Null where the step was not recorded.
  const Span* find(int32_t step, OpId op) const {
    if (step < timeline_.first_step || step >= timeline_.first_step + timeline_.steps) {
      return nullptr;
    }
    const int64_t position = position_[slot(step, op)];
    return position < 0 ? nullptr : &timeline_.spans[static_cast<size_t>(position)];
  }

 private:
  size_t slot(int32_t step, OpId op) const {
    CHECK(step >= timeline_.first_step && step < timeline_.first_step + timeline_.steps);
    return static_cast<size_t>(step - timeline_.first_step) * ops_ + static_cast<size_t>(op);
  }

  const Timeline& timeline_;
  size_t ops_;
  std::vector<int64_t> position_;
};

// The operation before each on its lane, in program order; -1 for the first one, whose
// predecessor is the lane's last operation of the step before.
struct LaneOrder {
  std::vector<OpId> before;
  std::vector<OpId> last;  // by lane

  explicit LaneOrder(const Graph& graph)
      : before(op_count(graph), -1), last(static_cast<size_t>(graph.lanes), -1) {
    for (size_t i = 0; i < op_count(graph); ++i) {
      OpId& latest = last[static_cast<size_t>(graph.step.ops[i].lane)];
      before[i] = latest;
      latest = static_cast<OpId>(i);
    }
  }
};

// The last recorded step: from the end of the step before, where that was recorded, else from its
// own first beginning.
struct Window {
  Instant begin;
  Instant end;
  const Span* last = nullptr;
};

Window last_step(const Timeline& timeline) {
  CHECK(timeline.steps > 0);
  const int32_t step = timeline.first_step + timeline.steps - 1;
  std::optional<Instant> before;
  std::optional<Instant> first;
  Window window;
  for (const Span& span : timeline.spans) {
    if (span.step == step) {
      if (!first || span.begin < *first) first = span.begin;
      if (window.last == nullptr || span.end > window.last->end) window.last = &span;
    } else if (span.step == step - 1 && (!before || span.end > *before)) {
      before = span.end;
    }
  }
  if (window.last == nullptr) return window;
  window.end = window.last->end;
  window.begin = before ? *before : *first;
  return window;
}

// Sums time by (kind, phase); the result is sorted by time, longest first.
class KindSums {
 public:
  void add(const Op& op, Duration time, int64_t operations) {
    for (KindTime& sum : sums_) {
      if (sum.kind != op.kind || sum.phase != op.phase) continue;
      sum.time += time;
      sum.operations += operations;
      return;
    }
    sums_.push_back({op.kind, op.phase, time, operations});
  }

  std::vector<KindTime> sorted(int32_t steps) {
    for (KindTime& sum : sums_) {
      sum.time.ps /= steps;
      sum.operations /= steps;
    }
    std::sort(sums_.begin(), sums_.end(), [](const KindTime& a, const KindTime& b) {
      return std::tuple(b.time, a.kind, a.phase) < std::tuple(a.time, b.kind, b.phase);
    });
    return std::move(sums_);
  }

 private:
  std::vector<KindTime> sums_;  // a few dozen pairs: searching them beats a map
};

// The span whose end released this one: the latest end among the lane's operation before and the
// operations of its edges. Null at the start of the record.
const Span* released_by(const Graph& graph, const SpanIndex& index, const LaneOrder& order,
                        const Span& span) {
  const auto op = static_cast<size_t>(span.op);
  const OpId before = order.before[op];
  const OpId last = order.last[static_cast<size_t>(graph.step.ops[op].lane)];
  const Span* latest =
      before >= 0 ? index.find(span.step, before) : index.find(span.step - 1, last);
  if (graph.step.edge_begin.empty()) return latest;
  for (int32_t e = graph.step.edge_begin[op]; e < graph.step.edge_begin[op + 1]; ++e) {
    const Edge& edge = graph.step.edges[static_cast<size_t>(e)];
    const Span* candidate = index.find(span.step - edge.steps_ahead, edge.op);
    if (candidate == nullptr) continue;
    if (latest == nullptr || candidate->end > latest->end) latest = candidate;
  }
  return latest;
}

struct Letter {
  char letter;
  std::string_view meaning;
};

Letter letter_of(const Op& op) {
  switch (op.kind) {
    case OpKind::kCopy:
      return {'c', "copy"};
    case OpKind::kAdam:
      return {'A', "Adam"};
    case OpKind::kCast:
      return {'t', "cast"};
    case OpKind::kPack:
    case OpKind::kUnpack:
      return {'p', "pack or unpack"};
    case OpKind::kSumOfSquares:
      return {'n', "gradient norm"};
    case OpKind::kDecide:
    case OpKind::kCommit:
      return {'v', "verdict"};
    case OpKind::kSnapshot:
      return {'s', "snapshot"};
    case OpKind::kUndo:
      return {'u', "undo"};
    case OpKind::kCollective:
      return {'x', "collective"};
    case OpKind::kLoadBatch:
      return {'l', "load batch"};
    default:
      break;
  }
  switch (op.phase) {
    case Phase::kForward:
      return {'F', "forward"};
    case Phase::kRecompute:
      return {'R', "recompute"};
    default:
      return {'B', "backward"};
  }
}

constexpr char kIdle = '.';
constexpr char kMostlyIdle = ':';

// One lane's line: in every column the letter that fills most of it, ':' where more than half of
// the column is idle, '.' where all but a twentieth is.
class LaneLine {
 public:
  explicit LaneLine(int width) : columns_(static_cast<size_t>(width)) {}

  // Adds a part of the window, both ends in columns.
  void add(char letter, double begin, double end) {
    const auto last = static_cast<double>(columns_.size());
    begin = std::clamp(begin, 0.0, last);
    end = std::clamp(end, 0.0, last);
    for (auto c = static_cast<size_t>(begin); c < columns_.size(); ++c) {
      const auto left = static_cast<double>(c);
      if (left >= end) break;
      columns_[c].add(letter, std::min(end, left + 1) - std::max(begin, left));
    }
  }

  std::string text() const {
    std::string line;
    for (const Column& column : columns_) line += column.letter();
    return line;
  }

 private:
  struct Column {
    std::vector<std::pair<char, double>> parts;
    void add(char letter, double share) {
      for (auto& [known, sum] : parts) {
        if (known != letter) continue;
        sum += share;
        return;
      }
      parts.emplace_back(letter, share);
    }
    char letter() const {
      double busy = 0;
      std::pair<char, double> most{kIdle, 0};
      for (const auto& part : parts) {
        busy += part.second;
        if (part.second > most.second) most = part;
      }
      if (busy >= 0.5) return most.first;
      return busy >= 0.05 ? kMostlyIdle : kIdle;
    }
  };

  std::vector<Column> columns_;
};

}  // namespace

std::string lane_name(const Graph& graph, LaneId lane) {
  std::string name(to_string(kind_of(lane)));
  if (graph.lanes > kLaneKinds) name = fmt::format("{} {}", device_of(lane), name);
  return name;
}

std::vector<LaneUse> lane_use(const Graph& graph, const Timeline& timeline) {
  std::vector<LaneUse> uses(static_cast<size_t>(graph.lanes));
  std::vector<bool> used(uses.size(), false);
  for (const Op& op : graph.step.ops) used[static_cast<size_t>(op.lane)] = true;
  for (const Span& span : timeline.spans) {
    uses[static_cast<size_t>(op_of(graph, span).lane)].busy += length(span);
  }
  std::vector<LaneUse> result;
  for (size_t l = 0; l < uses.size(); ++l) {
    if (!used[l]) continue;
    LaneUse& use = uses[l];
    use.lane = static_cast<LaneId>(l);
    use.busy.ps /= std::max(timeline.steps, 1);
    if (timeline.step_time.ps > 0) use.share = use.busy.seconds() / timeline.step_time.seconds();
    result.push_back(use);
  }
  return result;
}

std::string name_of(const KindTime& kind) {
  std::string name(to_string(kind.kind));
  const bool says_more = kind.phase != Phase::kOptimizer || kind.kind == OpKind::kCopy;
  if (says_more) name += " " + std::string(to_string(kind.phase));
  return name;
}

std::vector<KindTime> time_by_kind(const Graph& graph, const Timeline& timeline) {
  KindSums sums;
  for (const Span& span : timeline.spans) sums.add(op_of(graph, span), length(span), 1);
  return sums.sorted(std::max(timeline.steps, 1));
}

LongestPath longest_path(const Graph& graph, const Timeline& timeline) {
  LongestPath path;
  if (timeline.spans.empty()) return path;
  const SpanIndex index(graph, timeline);
  const LaneOrder order(graph);
  const Window window = last_step(timeline);
  KindSums sums;
  path.waiting = window.end - window.begin;
  // `covered` is the instant from which on the chain has been booked: clocks of a measured run may
  // let an operation end a little after the one that it released began.
  Instant covered = window.end;
  for (const Span* span = window.last; span != nullptr && covered > window.begin;
       span = released_by(graph, index, order, *span)) {
    const Instant begin = std::max(span->begin, window.begin);
    const Instant end = std::min(span->end, covered);
    if (span->end < window.begin || (span->end == window.begin && length(*span).ps > 0)) break;
    const Duration booked = end > begin ? end - begin : Duration{};
    sums.add(op_of(graph, *span), booked, 1);
    path.waiting = path.waiting - booked;
    covered = std::min(covered, begin);
    path.chain.push_back(*span);
  }
  std::reverse(path.chain.begin(), path.chain.end());
  path.by_kind = sums.sorted(1);
  return path;
}

std::string text_timeline(const Graph& graph, const Timeline& timeline, int width) {
  CHECK(width > 0);
  if (timeline.spans.empty()) return "";
  const Window window = last_step(timeline);
  if (window.end == window.begin) return "";
  const double columns_per_second =
      static_cast<double>(width) / (window.end - window.begin).seconds();
  const auto column_of = [&](Instant at) {
    return (at - window.begin).seconds() * columns_per_second;
  };
  std::vector<LaneLine> lines(static_cast<size_t>(graph.lanes), LaneLine(width));
  std::vector<bool> used(lines.size(), false);
  std::vector<Letter> legend;
  for (const Span& span : timeline.spans) {
    if (span.step != window.last->step) continue;
    const Op& op = op_of(graph, span);
    const auto lane = static_cast<size_t>(op.lane);
    used[lane] = true;
    if (length(span).ps == 0) continue;
    const Letter letter = letter_of(op);
    // What ran before the window, while the step before was still ending, runs again for the next
    // step before this one ends.
    const double begin = column_of(span.begin);
    const double end = column_of(span.end);
    for (double shift = 0; begin + shift < width; shift += width) {
      lines[lane].add(letter.letter, begin + shift, end + shift);
    }
    const auto same = [&](const Letter& known) { return known.letter == letter.letter; };
    if (std::none_of(legend.begin(), legend.end(), same)) legend.push_back(letter);
  }
  size_t name_width = 12;
  for (size_t l = 0; l < lines.size(); ++l) {
    if (!used[l]) continue;
    name_width = std::max(name_width, lane_name(graph, static_cast<LaneId>(l)).size() + 1);
  }
  std::string text;
  bool any_mostly_idle = false;
  for (size_t l = 0; l < lines.size(); ++l) {
    if (!used[l]) continue;
    const std::string line = lines[l].text();
    any_mostly_idle = any_mostly_idle || line.find(kMostlyIdle) != std::string::npos;
    text += fmt::format("{:<{}}{}\n", lane_name(graph, static_cast<LaneId>(l)), name_width, line);
  }
  text += fmt::format("{:.3f} ms a step;", timeline.step_time.ms());
  for (const Letter& letter : legend) text += fmt::format(" {} {},", letter.letter, letter.meaning);
  if (any_mostly_idle) text += fmt::format(" {} mostly idle,", kMostlyIdle);
  text += fmt::format(" {} idle\n", kIdle);
  return text;
}

}  // namespace ballast
