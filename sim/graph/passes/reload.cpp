// Pass `reload`: when what was offloaded comes back, and how many copies out are under way.
//
// By module (Plan::activations, ReloadOrder::kByModule) a stage's layers go back one after another,
// of one micro-batch and part after another: its visits. A tensor of a visit comes back when what
// reads it in this visit was done in the one before, which is when the like tensor there is free
// again. So of every module the tensors of one layer are there at a time, across the chunks of a
// pipeline as within one. Where the visit before is over before this one's forward, the backward
// follows at once: what could not return in time does not leave.
//
// The four waits of Megatron-Core's document (core 0.16, pipeline_parallel/
// fine_grained_activation_offload.py: on_group_commit_forward, on_group_start_backward,
// bulk_reload, on_group_commit_backward) are edges like any others: a copy out reads what the
// forward wrote, a copy in reads what the copy out wrote, the backward reads what the copy in
// wrote, and (a token) a copy in waits for the backward of its module in the visit before.
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"

namespace ballast {

namespace {

bool goes_back(const Op& op) {
  return kind_of(op.lane) == LaneKind::kCompute && op.label.layer >= 0 &&
         (is_backward(op.phase) || op.phase == Phase::kRecompute);
}

// A layer's backward for a micro-batch or a part of its sequences.
using ModuleVisit = std::tuple<int16_t, int16_t, int16_t>;
ModuleVisit visit_of(const Op& op) {
  return {op.label.micro_batch, op.label.subsequence, op.label.layer};
}

// What an operation does to its layer.
using Deed = std::tuple<OpKind, Phase, ModuleKind, ChainPart>;
Deed deed_of(const Op& op) { return {op.kind, op.phase, op.label.module, op.label.part}; }

class ReloadByModule {
 public:
  explicit ReloadByModule(Graph& graph) : graph_(graph), ops_(graph.step.ops) {
    for (size_t i = 0; i < ops_.size(); ++i) note(i);
  }

  void run() {
    std::vector<std::pair<size_t, size_t>> moved;  // after which operation, a copy in
    std::vector<bool> gone(ops_.size(), false);
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].phase != Phase::kReload) continue;
      const TensorId away = ops_[i].accesses[0].tensor;
      const TensorId back = ops_[i].accesses[1].tensor;
      const size_t out = leaves_.at(away);
      const auto freed = freed_before(back);
      if (!freed || *freed < out) {
        stay(back, ops_[out].accesses[0].tensor);
        gone[i] = gone[out] = true;
      } else if (*freed < readers_.at(back).front()) {
        hand_token(graph_, ops_[*freed].accesses, ops_[i].accesses);
        moved.emplace_back(*freed, i);
        gone[i] = true;
      }
    }
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].phase == Phase::kOffload && !gone[i]) leave_after_use(i);
    }
    put(std::move(moved), gone);
    hasten_batches();
  }

 private:
  void note(size_t i) {
    const Op& op = ops_[i];
    if (op.phase == Phase::kOffload) leaves_[op.accesses[1].tensor] = i;
    if (op.phase == Phase::kReload) readers_[op.accesses[1].tensor];
    for (const Access& access : op.accesses) {
      if (op.phase == Phase::kReload || !reads(access)) continue;
      if (const auto found = readers_.find(access.tensor); found != readers_.end()) {
        found->second.push_back(i);
      }
    }
    if (!goes_back(op)) return;
    const auto [place, is_new] = visits_.try_emplace(visit_of(op), last_.size());
    if (is_new) last_.emplace_back();
    last_[place->second][deed_of(op)] = i;
  }

  // The last operation of the visit before that does what the last reader of this tensor does; of a
  // layer that has no such, its first.
  std::optional<size_t> freed_before(TensorId back) const {
    const std::vector<size_t>& readers = readers_.at(back);
    const auto reader = std::find_if(readers.rbegin(), readers.rend(),
                                     [&](size_t i) { return goes_back(ops_[i]); });
    if (reader == readers.rend()) return std::nullopt;
    const size_t visit = visits_.at(visit_of(ops_[*reader]));
    if (visit == 0) return std::nullopt;
    const std::map<Deed, size_t>& deeds = last_[visit - 1];
    if (const auto same = deeds.find(deed_of(ops_[*reader])); same != deeds.end()) {
      return same->second;
    }
    const auto first = std::min_element(deeds.begin(), deeds.end(),
                                        [](auto& a, auto& b) { return a.second < b.second; });
    return first->second;
  }

  // A copy out begins when the module that reads its tensor has gone forward.
  void leave_after_use(size_t out) {
    const TensorId leaving = ops_[out].accesses[0].tensor;
    for (size_t i = out; i-- > 0;) {
      Op& op = ops_[i];
      if (kind_of(op.lane) != LaneKind::kCompute) continue;
      const bool uses = std::any_of(op.accesses.begin(), op.accesses.end(),
                                    [&](const Access& access) { return access.tensor == leaving; });
      if (!uses) continue;
      const bool writer =
          std::any_of(op.accesses.begin(), op.accesses.end(),
                      [&](const Access& one) { return one.tensor == leaving && writes(one); });
      if (!writer) hand_token(graph_, op.accesses, ops_[out].accesses);
      return;
    }
  }

  // Batches share the lane of what returns: they go before it, so that no forward waits for an
  // activation that only a backward after it needs.
  void hasten_batches() {
    size_t from = 0;  // after the batch before
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].kind != OpKind::kLoadBatch) continue;
      const auto at = [&](size_t place) {
        return ops_.begin() + static_cast<std::ptrdiff_t>(place);
      };
      const auto first =
          std::find_if(at(from), at(i), [](const Op& op) { return op.phase == Phase::kReload; });
      std::rotate(first, at(i), at(i + 1));
      from = i + 1;
    }
  }

  // Whoever would read what comes back reads what never left.
  void stay(TensorId back, TensorId here) {
    for (const size_t i : readers_.at(back)) {
      for (Access& access : ops_[i].accesses) {
        if (access.tensor == back) access.tensor = here;
      }
    }
  }

  void put(std::vector<std::pair<size_t, size_t>> moved, const std::vector<bool>& gone) {
    std::stable_sort(moved.begin(), moved.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Op> ops;
    ops.reserve(ops_.size());
    size_t next = 0;
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (!gone[i]) ops.push_back(std::move(ops_[i]));
      for (; next < moved.size() && moved[next].first == i; ++next) {
        ops.push_back(std::move(ops_[moved[next].second]));
      }
    }
    ops_ = std::move(ops);
  }

  Graph& graph_;
  std::vector<Op>& ops_;
  std::unordered_map<TensorId, size_t> leaves_;                // by what is written in CPU memory
  std::unordered_map<TensorId, std::vector<size_t>> readers_;  // of what comes back
  std::map<ModuleVisit, size_t> visits_;
  std::vector<std::map<Deed, size_t>> last_;  // by visit, in their order
};

// The computation that comes after a copy out waits for the one so many before it.
void limit_in_flight(Graph& graph, int64_t most) {
  std::vector<Op>& ops = graph.step.ops;
  std::vector<size_t> out;
  bool waits = false;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].phase == Phase::kOffload) {
      out.push_back(i);
      waits = std::ssize(out) > most;
    } else if (waits && kind_of(ops[i].lane) == LaneKind::kCompute) {
      const size_t before = out.size() - 1 - static_cast<size_t>(most);
      hand_token(graph, ops[out[before]].accesses, ops[i].accesses);
      waits = false;
    }
  }
}

}  // namespace

Graph reload_pass(Graph graph, const Plan& plan) {
  const ActivationPlan& activations = *plan.activations;
  // A folded pipeline moves what a whole turn leaves, beside the turns next to it.
  const bool folded = std::any_of(graph.step.ops.begin(), graph.step.ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::kBlock; });
  if (activations.reload == ReloadOrder::kByModule && !folded) ReloadByModule(graph).run();
  if (activations.offload_in_flight > 0) limit_in_flight(graph, activations.offload_in_flight);
  return graph;
}

}  // namespace ballast
