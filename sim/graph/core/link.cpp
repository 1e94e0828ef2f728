// Lives, addresses and edges of a finished program.
//
// Edges are found by running the program symbolically, in order, for a few steps, with the last
// accesses of every tensor at hand: a read waits for the last writer, a write for the last writer
// and every reader since. What reuses memory waits for all accesses of whatever lay there before.
// It need not wait for its own accesses of the step before: what took its memory over waited for
// them, and it waits for that, directly or through others.
// Of the operations to wait for on one lane only the latest is kept, since lanes run in order.
#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/core/arena.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/occupied_memory.h"
#include "sim/graph/report/memory.h"

namespace ballast {

namespace {

// An operation of a step; later ones compare greater.
struct Mark {
  int32_t step = -1;
  OpId op = -1;
  auto operator<=>(const Mark&) const = default;
};

// Sets of marks, the latest of each lane that has any. Few lanes touch one tensor, so each is a
// short list; they share one pool, since a graph has several for every tensor.
class MarkPool {
 public:
  struct Set {
    int32_t head = -1;
  };

  void keep_latest(Set& set, LaneId lane, Mark mark) {
    for (int32_t i = set.head; i >= 0; i = at(i).next) {
      if (at(i).lane != lane) continue;
      at(i).mark = std::max(at(i).mark, mark);
      return;
    }
    const Node node{lane, mark, set.head};
    if (free_ >= 0) {
      set.head = free_;
      free_ = at(free_).next;
      at(set.head) = node;
    } else {
      set.head = static_cast<int32_t>(nodes_.size());
      nodes_.push_back(node);
    }
  }
  void clear(Set& set) {
    while (set.head >= 0) {
      const int32_t next = at(set.head).next;
      at(set.head).next = free_;
      free_ = set.head;
      set.head = next;
    }
  }
  template <class Visit>
  void for_each(const Set& set, const Visit& visit) const {
    for (int32_t i = set.head; i >= 0; i = nodes_[static_cast<size_t>(i)].next) {
      visit(nodes_[static_cast<size_t>(i)].lane, nodes_[static_cast<size_t>(i)].mark);
    }
  }

 private:
  struct Node {
    LaneId lane = 0;
    Mark mark;
    int32_t next = -1;
  };
  Node& at(int32_t index) { return nodes_[static_cast<size_t>(index)]; }

  std::vector<Node> nodes_;
  int32_t free_ = -1;
};

// Of one copy of a tensor.
struct CopyState {
  Mark writer;  // of the current value; none where the mark's operation is -1
  LaneId writer_lane = 0;
  MarkPool::Set readers;  // since then
};

// One access of a program, with all that linking asks of the tensor: a graph has tens of thousands,
// and each is met in every step that is unrolled.
struct TensorUse {
  TensorId tensor = -1;
  bool writes = false;
  bool begins_life = false;  // takes the tensor's memory over
  bool is_carried = false;   // nothing takes over the tensor's own
  int8_t step_offset = 0;
  int8_t copies = 1;
};

// The number of the memory that a tensor lies in.
size_t arena_of(const Tensor& tensor) {
  return static_cast<size_t>(tensor.device) * kPlaces + static_cast<size_t>(tensor.place);
}

// Where a tensor lies.
struct Extent {
  size_t arena = 0;
  int64_t begin = 0, end = 0;
};

// Memory that is covered already, in ranges of which none touches another: few once most of the
// arena is.
class Covered {
 public:
  // Covers [begin, end); `fresh` hears of each part that was not, in the order of addresses.
  template <class Fresh>
  void add(int64_t begin, int64_t end, const Fresh& fresh) {
    auto at = end_of_.upper_bound(begin);
    if (at != end_of_.begin() && std::prev(at)->second >= begin) --at;
    if (at != end_of_.end() && at->first <= begin && at->second >= end) return;
    int64_t from = begin;
    while (at != end_of_.end() && at->first <= end) {
      if (from < at->first) fresh(from, at->first);
      begin = std::min(begin, at->first);
      from = std::max(from, at->second);
      at = end_of_.erase(at);
    }
    if (from < end) fresh(from, end);
    end_of_.emplace_hint(at, begin, std::max(from, end));
  }

 private:
  std::map<int64_t, int64_t> end_of_;  // by begin
};

class Linker {
 public:
  // Only lives of the step's own program begin here; a repair touches what is alive already.
  enum class Lives : uint8_t { kBeginHere, kBeganBefore };

  Linker(const Graph& graph, const std::vector<Life>& lives)
      : graph_(graph),
        lives_(lives),
        states_(graph.tensors.size()),
        used_(graph.tensors.size()),
        waits_(static_cast<size_t>(graph.lanes)) {
    for (const Tensor& tensor : graph.tensors) {
      if (tensor.copies > 1) before_ = 2;  // until both copies have been through a whole step
      if (arena_of(tensor) >= occupied_.size()) occupied_.resize(arena_of(tensor) + 1);
    }
  }

  // Edges of the step, which wraps around.
  void link_step(Program& program) {
    index(program, Lives::kBeginHere);
    const std::vector<bool> leaves_trace = occupy_at_end();
    // Of a tensor with one copy only the last of the steps before leaves a trace.
    for (int32_t step = 0; step < before_; ++step) {
      for (size_t i = 0; i < program.ops.size(); ++i) {
        for (const TensorUse& use : uses_of(i)) {
          const bool notes =
              step == before_ - 1 ? leaves_trace[static_cast<size_t>(use.tensor)] : use.copies > 1;
          if (notes) note(use, program.ops[i].lane, {step, static_cast<OpId>(i)});
        }
      }
    }
    record(program, before_);
    add_fences(program);
  }

  // Edges of a program that runs once, with every other lane at rest: the step itself, or what runs
  // beside it.
  void link_once(Program& program, Lives lives) {
    index(program, lives);
    record(program, 0);
  }

 private:
  void index(const Program& program, Lives lives) {
    uses_.clear();
    begin_of_op_.assign(1, 0);
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const std::vector<Access>& accesses = program.ops[i].accesses;
      for (size_t a = 0; a < accesses.size(); ++a) {
        const Access& access = accesses[a];
        const Life& life = lives_[static_cast<size_t>(access.tensor)];
        const bool begins = lives == Lives::kBeginHere && !life.carried &&
                            life.first == static_cast<OpId>(i) && is_first_of_tensor(accesses, a);
        uses_.push_back({access.tensor, writes(access), begins, life.carried, access.step_offset,
                         graph_.tensor(access.tensor).copies});
      }
      begin_of_op_.push_back(uses_.size());
    }
  }

  static bool is_first_of_tensor(const std::vector<Access>& accesses, size_t index) {
    for (size_t i = 0; i < index; ++i) {
      if (accesses[i].tensor == accesses[index].tensor) return false;
    }
    return true;
  }

  std::span<const TensorUse> uses_of(size_t op) const {
    return std::span(uses_).subspan(begin_of_op_[op], begin_of_op_[op + 1] - begin_of_op_[op]);
  }

  // Edges of the step at hand, which depend on what was accessed in those before it.
  void record(Program& program, int32_t step) {
    program.edge_begin.assign(1, 0);
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const LaneId lane = program.ops[i].lane;
      const Mark now{step, static_cast<OpId>(i)};
      for (const TensorUse& use : uses_of(i)) wait_for(use, step);
      append_edges(program, lane, now);
      program.edge_begin.push_back(static_cast<int32_t>(program.edges.size()));
      forget_waits();
      note_uses(i, lane, now);
    }
  }

  CopyState& state_of(const TensorUse& use, int32_t step) {
    const int copy = use.copies == 1 ? 0 : (step + use.step_offset) % use.copies;
    return states_[static_cast<size_t>(use.tensor)][static_cast<size_t>(copy)];
  }

  // Fills in who holds which memory at a step's end, and tells whose accesses the next step may
  // have to wait for: not those of tensors that hold none of their memory at the end of this one.
  std::vector<bool> occupy_at_end() {
    std::vector<bool> leaves_trace(graph_.tensors.size(), true);
    std::vector<Covered> covered(occupied_.size());
    // The last that takes some memory over holds it.
    for (auto use = uses_.rbegin(); use != uses_.rend(); ++use) {
      if (!use->begins_life) continue;
      const Extent extent = extent_of(use->tensor);
      OccupiedMemory& occupied = occupied_[extent.arena];
      bool holds_some = false;
      covered[extent.arena].add(extent.begin, extent.end, [&](int64_t begin, int64_t end) {
        occupied.take(begin, end, use->tensor, replaced_);
        holds_some = true;
      });
      leaves_trace[static_cast<size_t>(use->tensor)] = holds_some || use->copies > 1;
    }
    return leaves_trace;
  }

  void wait_for(const TensorUse& use, int32_t step) {
    if (use.begins_life) {
      claim(use.tensor);
      if (use.copies == 1) forget(state_of(use, step));
    }
    const CopyState& state = state_of(use, step);
    if (state.writer.op >= 0) wait_for(state.writer_lane, state.writer);
    if (use.writes) wait_for(state.readers);
  }
  void wait_for(const MarkPool::Set& set) {
    marks_.for_each(set, [&](LaneId lane, Mark mark) { wait_for(lane, mark); });
  }
  void wait_for(LaneId lane, Mark mark) {
    Mark& latest = waits_[static_cast<size_t>(lane)];
    if (latest.op < 0) waited_.push_back(lane);
    latest = std::max(latest, mark);
  }
  void forget_waits() {
    for (const LaneId lane : waited_) waits_[static_cast<size_t>(lane)] = {};
    waited_.clear();
  }

  // Takes over the memory of a tensor whose life begins, and waits for all that used it before.
  void claim(TensorId tensor) {
    const Extent extent = extent_of(tensor);
    replaced_.clear();
    occupied_[extent.arena].take(extent.begin, extent.end, tensor, replaced_);
    for (const TensorId before : replaced_) wait_for(used_[static_cast<size_t>(before)]);
    marks_.clear(used_[static_cast<size_t>(tensor)]);
  }

  Extent extent_of(TensorId tensor) const {
    const Tensor& t = graph_.tensor(tensor);
    const int64_t begin = graph_.arenas.offset[static_cast<size_t>(tensor)];
    return {arena_of(t), begin, begin + t.all_bytes().count};
  }

  void forget(CopyState& state) {
    state.writer = {};
    marks_.clear(state.readers);
  }

  void note_uses(size_t op, LaneId lane, Mark now) {
    for (const TensorUse& use : uses_of(op)) note(use, lane, now);
  }
  void note(const TensorUse& use, LaneId lane, Mark now) {
    CopyState& state = state_of(use, now.step);
    if (use.writes) {
      state.writer = now;
      state.writer_lane = lane;
      marks_.clear(state.readers);
    } else {
      marks_.keep_latest(state.readers, lane, now);
    }
    if (!use.is_carried) marks_.keep_latest(used_[static_cast<size_t>(use.tensor)], lane, now);
  }

  void append_edges(Program& program, LaneId own, Mark now) const {
    for (const LaneId lane : waited_) {
      if (lane == own) continue;  // the lane's order sees to it
      const Mark mark = waits_[static_cast<size_t>(lane)];
      program.edges.push_back({mark.op, now.step - mark.step});
    }
  }

  // After a fence the first operation of every other lane waits for it; the lane's later ones
  // follow. A lane with none left in this step waits in the next one.
  static void add_fences(Program& program) {
    for (size_t fence = 0; fence < program.ops.size(); ++fence) {
      if (!program.ops[fence].fence) continue;
      std::map<size_t, Edge> added;
      std::vector<LaneId> done = {program.ops[fence].lane};
      const size_t count = program.ops.size();
      for (size_t k = 1; k < count; ++k) {
        const size_t i = (fence + k) % count;
        const LaneId lane = program.ops[i].lane;
        if (std::find(done.begin(), done.end(), lane) != done.end()) continue;
        done.push_back(lane);
        added[i] = Edge{static_cast<OpId>(fence), i > fence ? 0 : 1};
      }
      insert_edges(program, added);
    }
  }

  static void insert_edges(Program& program, const std::map<size_t, Edge>& added) {
    std::vector<Edge> edges;
    std::vector<int32_t> begin = {0};
    for (size_t i = 0; i < program.ops.size(); ++i) {
      for (auto e = program.edge_begin[i]; e < program.edge_begin[i + 1]; ++e) {
        edges.push_back(program.edges[static_cast<size_t>(e)]);
      }
      if (const auto found = added.find(i); found != added.end()) edges.push_back(found->second);
      begin.push_back(static_cast<int32_t>(edges.size()));
    }
    program.edges = std::move(edges);
    program.edge_begin = std::move(begin);
  }

  const Graph& graph_;
  const std::vector<Life>& lives_;
  std::vector<std::array<CopyState, 2>> states_;  // by tensor and copy
  std::vector<MarkPool::Set> used_;               // by tensor: accesses of its present life
  std::vector<OccupiedMemory> occupied_;          // by arena
  std::vector<TensorId> replaced_;                // by the tensor whose life begins
  MarkPool marks_;
  std::vector<Mark> waits_;      // by lane: the latest that the operation at hand waits for
  std::vector<LaneId> waited_;   // lanes with such a mark, in the order in which they were met
  std::vector<TensorUse> uses_;  // of the program at hand
  std::vector<size_t> begin_of_op_;
  int32_t before_ = 1;  // steps that are run before the one whose edges are kept
};

}  // namespace

void place(Graph& graph) { graph.arenas = plan_arenas(graph, lives_of(graph)); }

void link(Graph& graph) {
  const std::vector<Life> lives = lives_of(graph);
  if (graph.arenas.offset.empty()) graph.arenas = plan_arenas(graph, lives);
  Linker(graph, lives).link_step(graph.step);
  Linker(graph, lives).link_once(graph.repair, Linker::Lives::kBeganBefore);
}

void link_once(Graph& graph) {
  const std::vector<Life> lives = lives_of(graph);
  graph.arenas = plan_arenas(graph, lives);
  Linker(graph, lives).link_once(graph.step, Linker::Lives::kBeginHere);
}

}  // namespace ballast
