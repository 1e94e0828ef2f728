// Lives, addresses and edges of a finished program.
//
// Edges are found by running the program symbolically, in order, for a few steps, with the last
// accesses of every tensor at hand: a read waits for the last writer, a write for the last writer
// and every reader since. What reuses memory waits for all accesses of whatever lay there before.
// Of the operations to wait for on one lane only the latest is kept, since lanes run in order.
#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/core/arena.h"
#include "sim/graph/core/edit.h"
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
  void merge(Set& set, const Set& other) {
    for (int32_t i = other.head; i >= 0; i = at(i).next) keep_latest(set, at(i).lane, at(i).mark);
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

struct CopyState {
  MarkPool::Set writer;   // of the current value, at most one
  MarkPool::Set readers;  // since then
};

class Linker {
 public:
  Linker(const Graph& graph, const std::vector<Life>& lives)
      : graph_(graph), lives_(lives), states_(graph.tensors.size()), used_(graph.tensors.size()) {
    for (const Tensor& tensor : graph.tensors) {
      if (tensor.copies > 1) unrolled_ = 4;  // until both copies have been through a whole step
    }
  }

  // Edges of the step, which wraps around.
  void link_step(Program& program) {
    for (int32_t step = 0; step < unrolled_; ++step) {
      const bool record = step == unrolled_ - 1;
      run(program, step, record);
    }
    add_fences(program);
  }

  // Edges of a program that runs once, with every other lane at rest.
  void link_once(Program& program) { run(program, 0, true); }

 private:
  void run(Program& program, int32_t step, bool record) {
    if (record) program.edge_begin.assign(1, 0);
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      const Mark now{step, static_cast<OpId>(i)};
      marks_.clear(waits_);
      for (const Access& access : op.accesses) wait_for(access, now);
      if (record) {
        append_edges(program, op, now);
        program.edge_begin.push_back(static_cast<int32_t>(program.edges.size()));
      }
      for (const Access& access : op.accesses) note(access, op.lane, now);
    }
  }

  CopyState& state_of(const Access& access, int32_t step) {
    const int8_t copies = graph_.tensor(access.tensor).copies;
    const int copy = (step + access.step_offset) % copies;
    return states_[static_cast<size_t>(access.tensor)][static_cast<size_t>(copy)];
  }

  void wait_for(const Access& access, Mark now) {
    const auto tensor = static_cast<size_t>(access.tensor);
    const Life& life = lives_[tensor];
    if (!life.carried && life.first == now.op && &access == first_access(now.op, access.tensor)) {
      claim(access.tensor);
    }
    CopyState& state = state_of(access, now.step);
    marks_.merge(waits_, state.writer);
    if (writes(access)) marks_.merge(waits_, state.readers);
  }

  // Only lives of the step's own program begin here; a repair touches what is alive already.
  const Access* first_access(OpId op, TensorId tensor) const {
    const size_t index = static_cast<size_t>(op);
    if (index >= graph_.step.ops.size()) return nullptr;
    for (const Access& access : graph_.step.ops[index].accesses) {
      if (access.tensor == tensor) return &access;
    }
    return nullptr;
  }

  // Takes over the memory of a tensor whose life begins: waits for all who used it before.
  void claim(TensorId tensor) {
    const Tensor& t = graph_.tensor(tensor);
    const int64_t begin = graph_.arenas.offset[static_cast<size_t>(tensor)];
    const int64_t end = begin + t.all_bytes().count;
    auto& occupied = occupied_[{t.device, t.place}];
    auto at = occupied.upper_bound(begin);
    if (at != occupied.begin() && std::prev(at)->second.end > begin) --at;
    while (at != occupied.end() && at->first < end) {
      const Occupant old = at->second;
      const int64_t old_begin = at->first;
      marks_.merge(waits_, used_[static_cast<size_t>(old.tensor)]);
      at = occupied.erase(at);
      if (old_begin < begin) occupied.emplace(old_begin, Occupant{begin, old.tensor});
      if (old.end > end) {
        occupied.emplace(end, Occupant{old.end, old.tensor});
        break;
      }
    }
    occupied.emplace(begin, Occupant{end, tensor});
    marks_.clear(used_[static_cast<size_t>(tensor)]);
  }

  void note(const Access& access, LaneId lane, Mark now) {
    CopyState& state = state_of(access, now.step);
    if (writes(access)) {
      marks_.clear(state.writer);
      marks_.keep_latest(state.writer, lane, now);
      marks_.clear(state.readers);
    } else {
      marks_.keep_latest(state.readers, lane, now);
    }
    marks_.keep_latest(used_[static_cast<size_t>(access.tensor)], lane, now);
  }

  void append_edges(Program& program, const Op& op, Mark now) const {
    marks_.for_each(waits_, [&](LaneId lane, Mark mark) {
      if (lane == op.lane) return;  // the lane's order sees to it
      program.edges.push_back({mark.op, now.step - mark.step});
    });
    const auto begin = program.edges.begin() + program.edge_begin.back();
    std::reverse(begin, program.edges.end());  // the list has the newest first
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

  struct Occupant {
    int64_t end = 0;
    TensorId tensor = -1;
  };

  const Graph& graph_;
  const std::vector<Life>& lives_;
  std::vector<std::array<CopyState, 2>> states_;  // by tensor and copy
  std::vector<MarkPool::Set> used_;               // by tensor: accesses of its present life
  std::map<std::pair<int8_t, Place>, std::map<int64_t, Occupant>> occupied_;
  MarkPool marks_;
  MarkPool::Set waits_;
  int32_t unrolled_ = 2;
};

}  // namespace

void place(Graph& graph) { graph.arenas = plan_arenas(graph, lives_of(graph)); }

void link(Graph& graph) {
  const std::vector<Life> lives = lives_of(graph);
  if (graph.arenas.offset.empty()) graph.arenas = plan_arenas(graph, lives);
  Linker(graph, lives).link_step(graph.step);
  Linker(graph, lives).link_once(graph.repair);
}

}  // namespace ballast
