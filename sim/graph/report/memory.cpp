#include "sim/graph/report/memory.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "sim/graph/core/edit.h"
#include "sim/graph/core/stages.h"

namespace ballast {
namespace {

bool lies_in(const Tensor& tensor, Place place, int device) {
  return tensor.place == place && tensor.device == device;
}

// The device whose peak is highest, the first of equals.
struct DevicePeak {
  int device = 0;
  LivePeak peak;
};

// When bytes come and go in every place of every device, by operation.
class Changes {
 public:
  struct Change {
    int32_t where = 0;  // device times places, and the place
    Bytes by;
  };

  Changes(const Graph& graph, const std::vector<Life>& lives)
      : begin_(graph.step.ops.size() + 2), changes_(2 * graph.tensors.size()) {
    const size_t ops = graph.step.ops.size();
    const auto first = [](const Life& life) {
      return life.carried ? 0 : static_cast<size_t>(life.first);
    };
    const auto after = [&](const Life& life) {
      return life.carried ? ops : static_cast<size_t>(life.last) + 1;
    };
    for (const Life& life : lives) {
      if (life.first < 0) continue;
      ++begin_[first(life) + 1];
      ++begin_[after(life) + 1];
    }
    for (size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
    std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
    for (size_t t = 0; t < lives.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (lives[t].first < 0) continue;
      const auto where = tensor.device * kPlaces + static_cast<int32_t>(tensor.place);
      changes_[next[first(lives[t])]++] = {where, tensor.all_bytes()};
      changes_[next[after(lives[t])]++] = {where, Bytes{} - tensor.all_bytes()};
    }
  }

  std::span<const Change> at(size_t op) const {
    return std::span(changes_).subspan(begin_[op], begin_[op + 1] - begin_[op]);
  }

 private:
  std::vector<size_t> begin_;  // by operation, and one behind the last
  std::vector<Change> changes_;
};

// By place. All in one pass over the step: a graph of many stages has many devices.
std::array<DevicePeak, kPlaces> highest(const Graph& graph, const std::vector<Life>& lives) {
  const auto devices = static_cast<size_t>(devices_of(graph));
  std::vector<Bytes> live(devices * kPlaces);
  std::vector<LivePeak> peaks(live.size());
  const Changes changes(graph, lives);
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    for (const Changes::Change& change : changes.at(i)) {
      live[static_cast<size_t>(change.where)] += change.by;
    }
    for (const Changes::Change& change : changes.at(i)) {
      const auto where = static_cast<size_t>(change.where);
      if (live[where] > peaks[where].live) peaks[where] = {live[where], static_cast<OpId>(i)};
    }
  }
  std::array<DevicePeak, kPlaces> result;
  for (size_t where = 0; where < peaks.size(); ++where) {
    DevicePeak& highest = result[where % kPlaces];
    if (peaks[where].live > highest.peak.live) {
      highest = {static_cast<int>(where / kPlaces), peaks[where]};
    }
  }
  return result;
}

std::vector<Holder> holders_at(const Graph& graph, const std::vector<Life>& lives, Place place,
                               const DevicePeak& peak) {
  const auto held = held_at(peak.peak.at, graph, lives, [&](size_t t) {
    return lies_in(graph.tensors[t], place, peak.device);
  });
  std::vector<Holder> holders;
  for (size_t c = 0; c < held.size(); ++c) {
    if (held[c].count > 0) holders.push_back({static_cast<Category>(c), held[c]});
  }
  std::stable_sort(holders.begin(), holders.end(),
                   [](const Holder& a, const Holder& b) { return a.bytes > b.bytes; });
  return holders;
}

// Extends lives by what one operation touches; `at` is its place in the step.
void touch(const Op& op, OpId at, std::vector<Life>& lives) {
  for (const Access& access : op.accesses) {
    Life& life = lives[static_cast<size_t>(access.tensor)];
    if (life.first < 0) {
      life.first = at;
      life.carried = reads(access);
    }
    // A copy of another step is read or written: this one's value waits for that step.
    if (access.step_offset != 0) life.carried = true;
    life.last = std::max(life.last, at);
  }
}

// When each tensor is in use in the last recorded step, from the spans of what touches it.
struct Use {
  std::optional<Instant> begin;
  Instant end;
};

struct StepUses {
  std::vector<Use> uses;  // by tensor
  Instant begin;          // end of the step before, or the step's own beginning
  Instant end;
};

StepUses uses_of_last_step(const Graph& graph, const Timeline& timeline) {
  CHECK(timeline.steps > 0);
  const int32_t step = timeline.first_step + timeline.steps - 1;
  StepUses result;
  result.uses.resize(graph.tensors.size());
  std::optional<Instant> before;
  std::optional<Instant> first;
  for (const Span& span : timeline.spans) {
    if (span.step == step - 1) before = std::max(before.value_or(span.end), span.end);
    if (span.step != step) continue;
    first = std::min(first.value_or(span.begin), span.begin);
    result.end = std::max(result.end, span.end);
    for (const Access& access : graph.op(span.op).accesses) {
      Use& use = result.uses[static_cast<size_t>(access.tensor)];
      use.begin = std::min(use.begin.value_or(span.begin), span.begin);
      use.end = std::max(use.end, span.end);
    }
  }
  if (first) result.begin = before.value_or(*first);
  return result;
}

struct Change {
  Duration at;
  Bytes by;
};

// Adds a tensor's time in memory, clipped to the step. What the step used before its beginning,
// while the step before was still ending, the next step uses again before this one ends.
void add_use(const StepUses& step, const Use& use, Bytes bytes, std::vector<Change>& changes) {
  const Duration length = step.end - step.begin;
  const auto add = [&](Duration begin, Duration end) {
    begin = std::max(begin, Duration{});
    end = std::min(end, length);
    if (begin >= end) return;
    changes.push_back({begin, bytes});
    changes.push_back({end, Bytes{} - bytes});
  };
  const Duration begin = *use.begin - step.begin;
  const Duration end = use.end - step.begin;
  if (length.ps <= 0) return;
  for (Duration shift{}; begin + shift < length; shift += length) add(begin + shift, end + shift);
}

}  // namespace

std::vector<Life> lives_of(const Graph& graph) {
  std::vector<Life> lives(graph.tensors.size());
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const auto at = static_cast<OpId>(i);
    // A rollback runs in the middle of the commit, and must find what it needs.
    if (at == graph.commit) {
      for (const Op& op : graph.repair.ops) touch(op, at, lives);
    }
    touch(graph.step.ops[i], at, lives);
  }
  return lives;
}

LivePeak peak_of(const std::vector<Bytes>& live) {
  LivePeak peak;
  for (size_t i = 0; i < live.size(); ++i) {
    if (live[i] > peak.live) peak = {live[i], static_cast<OpId>(i)};
  }
  return peak;
}

std::vector<PlacePeak> memory_peaks(const Graph& graph) {
  const std::vector<Life> lives = lives_of(graph);
  const std::array<DevicePeak, kPlaces> of_places = highest(graph, lives);
  std::vector<PlacePeak> peaks;
  for (int p = 0; p < kPlaces; ++p) {
    PlacePeak result;
    result.place = static_cast<Place>(p);
    result.arena = graph.arenas.size[static_cast<size_t>(p)];
    const DevicePeak& peak = of_places[static_cast<size_t>(p)];
    result.live = peak.peak.live;
    result.at = peak.peak.at;
    if (result.at >= 0) {
      result.at_text = describe(graph.op(result.at));
      result.holders = holders_at(graph, lives, result.place, peak);
    }
    peaks.push_back(std::move(result));
  }
  return peaks;
}

std::vector<MemoryPoint> memory_over_time(const Graph& graph, const Timeline& timeline,
                                          Place place) {
  if (timeline.spans.empty()) return {};
  const std::vector<Life> lives = lives_of(graph);
  const int device = highest(graph, lives)[static_cast<size_t>(place)].device;
  const StepUses step = uses_of_last_step(graph, timeline);
  Bytes always;
  std::vector<Change> changes;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (!lies_in(tensor, place, device) || lives[t].first < 0) continue;
    if (lives[t].carried) {
      always += tensor.all_bytes();
    } else if (step.uses[t].begin) {
      add_use(step, step.uses[t], tensor.all_bytes(), changes);
    }
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Change& a, const Change& b) { return a.at < b.at; });
  std::vector<MemoryPoint> points = {{Duration{}, always}};
  Bytes live = always;
  for (const Change& change : changes) {
    live += change.by;
    if (points.back().at == change.at) {
      points.back().live = live;
    } else {
      points.push_back({change.at, live});
    }
  }
  const auto same = [](const MemoryPoint& a, const MemoryPoint& b) { return a.live == b.live; };
  points.erase(std::unique(points.begin(), points.end(), same), points.end());
  return points;
}

}  // namespace ballast
