#include "sim/graph/schedules/merge_stages.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "sim/graph/core/edit.h"

namespace ballast {
namespace {

// What waits until every stage has come to it.
bool decides(const Op& op) { return op.kind == OpKind::kDecide || op.kind == OpKind::kCommit; }

// Messages leave as soon as they are made: what the passes put between the two, such as the
// exchange of a gradient that is complete, follows.
void hasten_sends(Program& program, size_t tensors) {
  std::vector<size_t> written(tensors, 0);  // the last operation that did
  std::vector<Op>& ops = program.ops;
  const auto at = [&](size_t i) { return ops.begin() + static_cast<std::ptrdiff_t>(i); };
  for (size_t i = 0; i < ops.size(); ++i) {
    size_t moved = i;  // from where on operations have another place
    if (is_send(ops[i])) {
      moved = written[static_cast<size_t>(ops[i].accesses.front().tensor)] + 1;
      std::rotate(at(moved), at(i), at(i + 1));
    }
    for (; moved <= i; ++moved) {
      for (const Access& access : ops[moved].accesses) {
        if (writes(access)) written[static_cast<size_t>(access.tensor)] = moved;
      }
    }
  }
}

class Merge {
 public:
  Merge(std::vector<Graph> stages, const PipelineContext& context)
      : stages_(std::move(stages)),
        context_(context),
        next_(stages_.size(), 0),
        computed_(stages_.size(), -1) {}

  Graph run() {
    graph_.lanes = static_cast<int>(stages_.size()) * kLaneKinds;
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (context_.facts.pipeline_overlap != Overlap::kNone) {
        hasten_sends(stages_[s].step, stages_[s].tensors.size());
      }
      take_over(s);
    }
    share_decision();
    find_receivers();
    size_t ops = 0;
    for (const Graph& stage : stages_) ops += stage.step.ops.size();
    graph_.step.ops.reserve(ops);
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t s = 0; s < stages_.size(); ++s) progress = advance(s) || progress;
      if (!progress) progress = share() || together(decides) || together(sums_tied_gradient);
    }
    for (size_t s = 0; s < stages_.size(); ++s) {
      CHECK(next_[s] == stages_[s].step.ops.size());
      for (Op& op : stages_[s].repair.ops) graph_.repair.ops.push_back(std::move(op));
    }
    return std::move(graph_);
  }

 private:
  // Everything of a stage but its operations, and these as they read in the whole graph.
  void take_over(size_t s) {
    Graph& stage = stages_[s];
    const auto tensors = static_cast<TensorId>(graph_.tensors.size());
    const auto modules = static_cast<int32_t>(graph_.modules.size());
    const auto buckets = static_cast<int32_t>(graph_.buckets.size());
    for (Tensor& tensor : stage.tensors) {
      tensor.device = static_cast<int8_t>(s);
      if (tensor.label.bucket >= 0) tensor.label.bucket += buckets;
      graph_.tensors.push_back(tensor);
    }
    const int64_t flat = graph_.modules.empty()
                             ? 0
                             : graph_.modules.back().flat_offset + graph_.modules.back().count;
    for (Module& module : stage.modules) {
      module.flat_offset += flat;
      graph_.modules.push_back(std::move(module));
    }
    for (Bucket& bucket : stage.buckets) {
      bucket.begin += flat;
      for (Bucket::Piece& piece : bucket.pieces) piece.module += modules;
      for (TensorId* id :
           {&bucket.rest, &bucket.master, &bucket.moment1, &bucket.moment2, &bucket.weights}) {
        if (*id >= 0) *id += tensors;
      }
      graph_.buckets.push_back(std::move(bucket));
    }
    for (Program* program : {&stage.step, &stage.repair}) {
      for (Op& op : program->ops) {
        op.lane = lane_of(static_cast<int>(s), kind_of(op.lane));
        if (op.label.bucket >= 0) op.label.bucket += buckets;
        for (Access& access : op.accesses) access.tensor += tensors;
      }
    }
  }

  // All stages read the verdict that the first one writes.
  void share_decision() {
    std::map<TensorId, TensorId> shared;
    TensorId first = -1;
    for (const Graph& stage : stages_) {
      for (const Op& op : stage.step.ops) {
        if (!decides(op)) continue;
        for (const Access& access : op.accesses) {
          if (access.role != Role::kDecision || !writes(access)) continue;
          if (first < 0) first = access.tensor;
          shared[access.tensor] = first;
        }
      }
    }
    for (Graph& stage : stages_) {
      for (Program* program : {&stage.step, &stage.repair}) {
        for (Op& op : program->ops) {
          for (Access& access : op.accesses) {
            if (access.role != Role::kDecision) continue;
            if (const auto found = shared.find(access.tensor); found != shared.end()) {
              access.tensor = found->second;
            }
          }
        }
      }
    }
  }

  // Of a message, among all that there may be.
  size_t index_of(const Message& message) const {
    const int64_t micro_batches = context_.plan.accumulation();
    const int64_t parts = context_.plan.subsequences;
    const int64_t of_chunk = message.micro_batch * parts + message.part;
    const int64_t forward = message.from * micro_batches * parts + of_chunk;
    const bool back = message.direction == Direction::kBackward;
    return static_cast<size_t>(2 * forward + (back ? 1 : 0));
  }

  void find_receivers() {
    const Plan& plan = context_.plan;
    const int64_t messages = 2 * context_.chunks() * plan.accumulation() * plan.subsequences;
    receivers_.assign(static_cast<size_t>(messages), {});
    sent_.assign(graph_.tensors.size(), false);
    for (const Graph& stage : stages_) {
      for (const Op& op : stage.step.ops) {
        if (!is_receive(op)) continue;
        receivers_[index_of(message_of(op, context_))] = op.accesses;
      }
    }
  }

  // Runs a stage up to what it has to wait for; false where it waits already.
  bool advance(size_t s) {
    std::vector<Op>& ops = stages_[s].step.ops;
    const size_t before = next_[s];
    for (; next_[s] < ops.size(); ++next_[s]) {
      Op& op = ops[next_[s]];
      if (decides(op) || sums_tied_gradient(op) || is_shared(op)) break;
      if (is_receive(op)) {
        if (!sent_[static_cast<size_t>(op.accesses.front().tensor)]) break;
        continue;
      }
      if (is_send(op)) {
        const std::vector<Access>& arrived = receivers_[index_of(message_of(op, context_))];
        CHECK(!arrived.empty());
        op.accesses.insert(op.accesses.end(), arrived.begin(), arrived.end());
        sent_[static_cast<size_t>(arrived.front().tensor)] = true;
      }
      add(s, std::move(op));
    }
    return next_[s] > before;
  }

  void add(size_t s, Op op) {
    if (kind_of(op.lane) == LaneKind::kCompute) {
      for (const Access& access : op.accesses) {
        if (writes(access)) computed_[s] = access.tensor;
      }
    }
    graph_.step.ops.push_back(std::move(op));
  }

  // A turn that every stage has come to: none begins it before all have done what comes before, and
  // the weights that the others are sent are stepped.
  bool share() {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const std::vector<Op>& ops = stages_[s].step.ops;
      if (next_[s] == ops.size() || !is_shared(ops[next_[s]])) return false;
    }
    const std::vector<TensorId> before = computed_;
    for (size_t s = 0; s < stages_.size(); ++s) {
      Op& op = stages_[s].step.ops[next_[s]++];
      const auto owner = static_cast<size_t>(context_.chunk_of(op.label));
      for (size_t other = 0; other < stages_.size(); ++other) {
        if (other == s) continue;
        if (before[other] >= 0) op.accesses.push_back(read(before[other], Role::kSource));
        if (other == owner && op.phase == Phase::kForward) await_weights(owner, op);
      }
      add(s, std::move(op));
    }
    return true;
  }

  void await_weights(size_t owner, Op& op) const {
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      if (tensor.kind != TensorKind::kWeight || tensor.device != static_cast<int>(owner)) continue;
      op.accesses.push_back(read(static_cast<TensorId>(t), Role::kSource));
    }
  }

  // One operation for all of a kind that every stage has come to; false where none is waited for.
  bool together(bool (*is_one)(const Op&)) {
    std::vector<size_t> waiting;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const std::vector<Op>& ops = stages_[s].step.ops;
      if (next_[s] < ops.size() && is_one(ops[next_[s]])) waiting.push_back(s);
    }
    const size_t all = is_one == decides ? stages_.size() : 2;
    if (waiting.size() != all) return false;
    Op whole;
    for (const size_t s : waiting) {
      Op& op = stages_[s].step.ops[next_[s]++];
      if (s == waiting.front()) {
        whole = std::move(op);
        continue;
      }
      std::copy_if(op.accesses.begin(), op.accesses.end(), std::back_inserter(whole.accesses),
                   [](const Access& access) { return access.role != Role::kDecision; });
    }
    if (whole.kind == OpKind::kCommit) {
      for (const size_t s : waiting) await_forward(s, whole);
      graph_.commit = static_cast<OpId>(graph_.step.ops.size());
    }
    graph_.step.ops.push_back(std::move(whole));
    return true;
  }

  // The commit stands on the first stage's lane. It judges a step that every stage has taken, which
  // the others have when their forward has read what was stepped: it waits for what their last
  // computation before it wrote.
  void await_forward(size_t s, Op& commit) const {
    const LaneId compute = lane_of(static_cast<int>(s), LaneKind::kCompute);
    if (commit.lane == compute) return;
    for (size_t i = graph_.step.ops.size(); i-- > 0;) {
      const Op& op = graph_.step.ops[i];
      if (op.lane != compute) continue;
      const auto made = [&](const Access& access) {
        return writes(access) && graph_.tensor(access.tensor).device == static_cast<int>(s);
      };
      auto found = std::find_if(op.accesses.begin(), op.accesses.end(), [&](const Access& access) {
        return made(access) && access.role == Role::kOutput;
      });
      if (found == op.accesses.end()) {
        found = std::find_if(op.accesses.begin(), op.accesses.end(), made);
      }
      if (found == op.accesses.end()) continue;
      commit.accesses.push_back(read(found->tensor, Role::kSource));
      return;
    }
    CHECK(false && "a stage commits before its first forward");
  }

  std::vector<Graph> stages_;
  const PipelineContext& context_;
  std::vector<size_t> next_;        // by stage: the first operation that is not in the graph
  std::vector<TensorId> computed_;  // by stage: what its last computation wrote; -1: none yet
  std::vector<std::vector<Access>> receivers_;  // by message (index_of); empty: there is no such
  std::vector<bool> sent_;                      // by tensor that a message goes into
  Graph graph_;
};

}  // namespace

Graph merge_stages(std::vector<Graph> stages, const PipelineContext& context) {
  return Merge(std::move(stages), context).run();
}

}  // namespace ballast
