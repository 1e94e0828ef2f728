// The order of streams and events against the graph: for every edge between lanes one event, no
// more, recorded after what produces and waited for before what consumes, by the operation itself
// or by an earlier one of its lane, never by both; and nobody waits on the host but those who work
// there.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "tests/backend/cuda_training.h"

namespace ballast {
namespace {

using tests::CudaCall;
using tests::CudaLog;
using tests::NotedCall;

constexpr int kOrderedSteps = 6;

// What the executor asked for at one time: the marks' numbers, and the calls that one thread made
// in between.
struct Section {
  std::string kind;
  std::vector<int> numbers;
  size_t begin = 0;  // places in the log
  size_t end = 0;
  std::vector<size_t> calls;
};

std::vector<Section> sections_of(const std::vector<NotedCall>& log) {
  std::vector<Section> done;
  std::map<std::thread::id, Section> open;
  for (size_t i = 0; i < log.size(); ++i) {
    if (log[i].call != CudaCall::kMark) {
      if (const auto at = open.find(log[i].thread); at != open.end()) at->second.calls.push_back(i);
      continue;
    }
    std::istringstream words(log[i].what);
    std::string which;
    words >> which;
    if (which == "begin") {
      Section section;
      words >> section.kind;
      for (int number = 0; words >> number;) section.numbers.push_back(number);
      section.begin = i;
      open[log[i].thread] = section;
      continue;
    }
    Section section = open.extract(log[i].thread).mapped();
    section.end = i;
    done.push_back(std::move(section));
  }
  return done;
}

class CudaOrder : public ::testing::Test {
 protected:
  // Trains kOrderedSteps steps with every call noted.
  void train(const Plan& plan, const TrainerOptions& options) {
    TrainerOptions marked = options;
    marked.make_device = [this](const Training& training, const DeviceOptions& with,
                                const ControlState& state) {
      return std::make_unique<tests::MarkedDevice>(
          training.graph, log_, tests::thread_cuda_device(log_, cuda_, training, with, state));
    };
    Trainer trainer(tiny::gpt2_model(), plan, marked);
    result_ = trainer.train(kOrderedSteps, nullptr);
    graph_ = trainer.graph();
    sections_ = sections_of(log_->calls);
  }

  const Op& op(int id) const { return graph_.step.ops[static_cast<size_t>(id)]; }
  static bool queued(const Op& op) { return CudaLanes::queues(op.lane); }
  static bool works_on_host(const Op& op) {
    return op.kind == OpKind::kCommit || !CudaLanes::queues(op.lane);
  }

  // Of a kind and with these first numbers, in the order of their ends.
  std::vector<const Section*> all(const std::string& kind, std::vector<int> numbers) const {
    std::vector<const Section*> found;
    for (const Section& section : sections_) {
      if (section.kind == kind && section.numbers.size() >= numbers.size() &&
          std::equal(numbers.begin(), numbers.end(), section.numbers.begin())) {
        found.push_back(&section);
      }
    }
    return found;
  }

  // The only call of a kind in a section.
  std::optional<size_t> only(const Section& section, CudaCall call) const {
    std::optional<size_t> found;
    for (const size_t i : section.calls) {
      if (log_->calls[i].call != call) continue;
      EXPECT_FALSE(found.has_value());
      found = i;
    }
    return found;
  }
  // What notes the time once a second belongs to no operation.
  static bool is_of_the_clock(const NotedCall& call) {
    return call.call == CudaCall::kRecord && call.range.empty();
  }
  // The last record of an operation: its end.
  size_t end_record(const Section& section) const {
    size_t found = 0;
    for (const size_t i : section.calls) {
      if (log_->calls[i].call == CudaCall::kRecord && !is_of_the_clock(log_->calls[i])) found = i;
    }
    EXPECT_GT(found, 0U);
    return found;
  }

  void note_waits();
  bool is_seen_done(const Section& follow) const;
  bool expect_followed(const Edge& edge, int id, int step);

  tests::ThreadCudaOptions cuda_{.dawdle_one_in = 40};
  std::shared_ptr<CudaLog> log_ = std::make_shared<CudaLog>();
  TrainResult result_;
  Graph graph_;
  std::vector<Section> sections_;
  // Waits that were made, by the lanes of who waits and of what is waited for.
  struct Waited {
    size_t place = 0;          // in the log
    std::pair<int, int> mark;  // step and operation of what was waited for
    bool by_host = false;
  };
  std::map<std::pair<LaneId, LaneId>, std::vector<Waited>> waited_;
};

void CudaOrder::note_waits() {
  waited_.clear();
  for (const Section& section : sections_) {
    if (section.kind != "follow") continue;
    const Op& consumer = op(section.numbers[0]);
    for (const size_t i : section.calls) {
      const CudaCall call = log_->calls[i].call;
      if (call != CudaCall::kWait && call != CudaCall::kSynchronizeEvent) continue;
      waited_[{consumer.lane, op(section.numbers[1]).lane}].push_back(
          {i, {section.numbers[2], section.numbers[1]}, works_on_host(consumer)});
    }
  }
}

// Whether the lane has waited before for what it is to follow, or for a later operation of the same
// stream: its own stream has, or the host, which alone counts for the host's work.
bool CudaOrder::is_seen_done(const Section& follow) const {
  const Op& consumer = op(follow.numbers[0]);
  const auto found = waited_.find({consumer.lane, op(follow.numbers[1]).lane});
  if (found == waited_.end()) return false;
  const std::pair<int, int> mark{follow.numbers[2], follow.numbers[1]};
  return std::any_of(found->second.begin(), found->second.end(), [&](const Waited& waited) {
    return waited.place < follow.begin && waited.mark >= mark &&
           (waited.by_host || !works_on_host(consumer));
  });
}

// One edge of one step, after a run without rollbacks: whether it has a wait of its own.
bool CudaOrder::expect_followed(const Edge& edge, int id, int step) {
  const int step_before = step - edge.steps_ahead;
  const Section& consumer = *all("step", {id, step}).at(0);
  const Section& producer = *all("step", {edge.op, step_before}).at(0);
  EXPECT_LT(producer.end, consumer.begin);
  if (!queued(op(edge.op))) return false;  // done when its section ended
  const auto follows = all("follow", {id, edge.op, step_before});
  EXPECT_EQ(follows.size(), 1U) << describe(op(id)) << " after " << describe(op(edge.op));
  if (follows.empty()) return false;
  const Section& follow = *follows.front();
  const bool host = works_on_host(op(id));
  const auto wait = only(follow, host ? CudaCall::kSynchronizeEvent : CudaCall::kWait);
  EXPECT_NE(wait.has_value(), is_seen_done(follow))
      << describe(op(id)) << " after " << describe(op(edge.op)) << ", step " << step;
  if (!wait.has_value()) return false;
  const size_t record = end_record(producer);
  EXPECT_EQ(log_->calls[*wait].event, log_->calls[record].event);
  EXPECT_LT(record, *wait);
  EXPECT_LT(*wait, consumer.begin);
  EXPECT_EQ(log_->calls[record].stream, to_string(kind_of(op(edge.op).lane)));
  if (!host) {
    EXPECT_EQ(log_->calls[*wait].stream, to_string(kind_of(op(id).lane)));
  }
  return true;
}

Plan small_plan(SyncMode sync) {
  Plan plan = tiny::wait_plan();
  plan.optimizer.sync = sync;
  plan.optimizer.bucket_bytes = {2 * kSegment * 4};
  plan.optimizer.gpu_buckets = 1;
  plan.weights.flow_share = 0.5;
  plan.activations = tiny::all_activations(ActivationFate::kOffload);
  return plan;
}

TrainerOptions never_clipping() {
  TrainerOptions options = tiny::options_for(kOrderedSteps);
  options.optimizer.clip_norm = 0;
  return options;
}

TEST_F(CudaOrder, every_edge_between_lanes_is_one_event_and_nothing_else_is_waited_for) {
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    log_ = std::make_shared<CudaLog>();
    train(small_plan(sync), never_clipping());
    ASSERT_EQ(result_.rollbacks, 0);
    note_waits();
    size_t from_streams = 0;
    size_t waits = 0;
    for (int id = 0; id < static_cast<int>(graph_.step.ops.size()); ++id) {
      const auto index = static_cast<size_t>(id);
      for (auto e = graph_.step.edge_begin[index]; e < graph_.step.edge_begin[index + 1]; ++e) {
        const Edge edge = graph_.step.edges[static_cast<size_t>(e)];
        const auto all_edges = graph_.step.edges.begin();
        const auto first = all_edges + graph_.step.edge_begin[index];
        if (std::find(first, all_edges + e, edge) != all_edges + e) continue;  // a fence's again
        for (int step = edge.steps_ahead; step < kOrderedSteps; ++step) {
          waits += expect_followed(edge, id, step);
          from_streams += queued(op(edge.op));
        }
      }
    }
    EXPECT_GT(from_streams, 200U);
    size_t follows = 0;
    for (const Section& section : sections_) follows += section.kind == "follow";
    EXPECT_EQ(follows, from_streams);
    EXPECT_GT(waits, 100U);
    EXPECT_LT(waits, from_streams);
    // Streams wait for what their operations follow, and for nothing else.
    for (const Section& section : sections_) {
      if (section.kind == "follow") continue;
      for (const size_t i : section.calls) EXPECT_NE(log_->calls[i].call, CudaCall::kWait);
    }
  }
}

TEST_F(CudaOrder, an_operation_lies_between_its_two_events_on_the_stream_of_its_lane) {
  train(small_plan(SyncMode::kSpeculate), never_clipping());
  int enqueued = 0;
  for (const Section& section : sections_) {
    if (section.kind != "step") continue;
    const Op& of = op(section.numbers[0]);
    if (!queued(of)) {
      EXPECT_TRUE(section.calls.empty()) << describe(of);  // the CPU's work asks nothing of the GPU
      continue;
    }
    ++enqueued;
    std::vector<size_t> calls;
    for (const size_t i : section.calls) {
      const NotedCall& call = log_->calls[i];
      if (call.call != CudaCall::kCreateEvent && !is_of_the_clock(call)) calls.push_back(i);
    }
    ASSERT_GE(calls.size(), of.kind == OpKind::kCommit ? 2U : 3U) << describe(of);
    EXPECT_EQ(log_->calls[calls.front()].call, CudaCall::kRecord);
    EXPECT_EQ(log_->calls[calls.back()].call, CudaCall::kRecord);
    EXPECT_NE(log_->calls[calls.front()].event, log_->calls[calls.back()].event);
    for (const size_t i : calls) {
      EXPECT_EQ(log_->calls[i].stream, to_string(kind_of(of.lane))) << describe(of);
      EXPECT_EQ(log_->calls[i].range, describe(of));
    }
  }
  EXPECT_GT(enqueued, kOrderedSteps * 50);
}

// In steps that are not timed: one event for each operation that others wait for, two for what ends
// the step on a stream, none for the rest.
TEST_F(CudaOrder, steps_that_are_not_timed_have_events_only_where_something_follows) {
  constexpr int kApart = 4;
  TrainerOptions options = never_clipping();
  options.timed_steps_apart = kApart;
  train(small_plan(SyncMode::kSpeculate), options);
  std::set<int> followed, queued_ops;
  note_waits();
  for (const auto& [lanes, all_waits] : waited_) {
    for (const Waited& waited : all_waits) followed.insert(waited.mark.second);
  }
  std::map<LaneId, int> last;
  for (int id = 0; id < static_cast<int>(graph_.step.ops.size()); ++id) {
    if (!queued(op(id))) continue;
    queued_ops.insert(id);
    last[op(id).lane] = id;
  }
  for (const Section& section : sections_) {
    if (section.kind != "step" || !queued(op(section.numbers[0]))) continue;
    const int id = section.numbers[0];
    const auto records = std::count_if(section.calls.begin(), section.calls.end(), [&](size_t i) {
      return log_->calls[i].call == CudaCall::kRecord && !is_of_the_clock(log_->calls[i]);
    });
    const bool timed = section.numbers[1] % kApart == 0 || last[op(id).lane] == id;
    const int of_the_ring = op(id).kind == OpKind::kLoadBatch ? 1 : 0;  // of its pinned buffers
    const int expected = timed ? 2 : followed.contains(id) ? 1 : 0;
    EXPECT_EQ(records, expected + of_the_ring) << describe(op(id));
  }
  EXPECT_EQ(result_.step_times.size(), static_cast<size_t>(kOrderedSteps));
  std::map<int32_t, size_t> spans;
  for (const Span& span : result_.timeline.spans) ++spans[span.step];
  const size_t all_of_a_step = graph_.step.ops.size();
  EXPECT_EQ(spans[0], all_of_a_step);
  EXPECT_EQ(spans[kApart], all_of_a_step);
  EXPECT_EQ(spans[1], all_of_a_step - queued_ops.size() + last.size());
}

TEST_F(CudaOrder, no_thread_of_a_stream_waits_on_the_host_inside_a_step_but_for_a_commit) {
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kSpeculate}) {
    log_ = std::make_shared<CudaLog>();
    train(small_plan(sync), never_clipping());
    int waits = 0;
    for (const Section& section : sections_) {
      if (section.kind == "drain") continue;  // at the end of the run
      const bool of_host = section.kind == "follow" && works_on_host(op(section.numbers[0]));
      for (const size_t i : section.calls) {
        const CudaCall call = log_->calls[i].call;
        EXPECT_NE(call, CudaCall::kSynchronizeStream);
        if (call != CudaCall::kSynchronizeEvent) continue;
        ++waits;
        EXPECT_TRUE(of_host) << section.kind << " " << describe(op(section.numbers[0]));
      }
    }
    EXPECT_GT(waits, 0);
  }
}

TEST_F(CudaOrder, threads_hand_a_whole_forward_over_before_its_first_operation_has_run) {
  // The GPU stands still before the first operation of step 3 until the commit of step 3, which
  // comes after the forward, has been asked for: what the host knows of step 2 is all it needs.
  bool came = false;
  cuda_.dawdle_one_in = 0;
  cuda_.before_module = [&](const Op& op, int32_t step) {
    if (op.kind != OpKind::kEmbedding || op.phase != Phase::kForward || step != 3) return;
    if (op.label.micro_batch != 0) return;
    for (int tries = 0; tries < 5000 && !came; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      const std::scoped_lock lock(log_->mutex);
      came = std::any_of(log_->calls.begin(), log_->calls.end(),
                         [](const NotedCall& call) { return call.what == "begin commit 3"; });
    }
  };
  Plan plan = small_plan(SyncMode::kSpeculate);
  plan.weights.flow_share = 0;  // those come from the CPU, step by step
  train(plan, never_clipping());
  EXPECT_TRUE(came);
  // An accepted commit does not empty the streams.
  for (const Section& section : sections_) {
    if (section.kind != "commit" || section.numbers[0] == kOrderedSteps) continue;
    const Section& marker = *all("step", {graph_.commit, section.numbers[0]}).at(0);
    for (const Section& other : sections_) {
      EXPECT_FALSE(other.kind == "drain" && other.begin > section.begin && other.end < marker.end);
    }
  }
}

TEST_F(CudaOrder, rollback_empties_the_streams_then_undoes_steps_again_and_brings_weights_home) {
  TrainerOptions options = never_clipping();
  options.optimizer.clip_norm = 50;
  options.gradient_factor = [](int32_t step) { return step == 2 ? 1e4 : 1.0; };
  train(small_plan(SyncMode::kSpeculate), options);
  ASSERT_EQ(result_.rollbacks, 1);
  const Section& verdict = *all("commit", {3}).at(0);
  const size_t backward = all("step", {graph_.commit, 3}).at(0)->begin;
  std::map<int, const Section*> repairs;
  for (const Section* section : all("repair", {})) {
    EXPECT_EQ(section->numbers[1], 2);
    EXPECT_TRUE(repairs.emplace(section->numbers[0], section).second);
    EXPECT_GT(section->begin, verdict.end);
    EXPECT_LT(section->end, backward);
  }
  ASSERT_EQ(repairs.size(), graph_.repair.ops.size());
  const size_t first = std::min_element(repairs.begin(), repairs.end(), [](auto& a, auto& b) {
                         return a.second->begin < b.second->begin;
                       })->second->begin;
  // Before it every stream was empty.
  const auto drained = std::find_if(sections_.begin(), sections_.end(), [&](const Section& s) {
    return s.kind == "drain" && s.begin > verdict.end && s.end < first;
  });
  EXPECT_NE(drained, sections_.end());
  for (int id = 0; id < static_cast<int>(graph_.repair.ops.size()); ++id) {
    const auto index = static_cast<size_t>(id);
    for (auto e = graph_.repair.edge_begin[index]; e < graph_.repair.edge_begin[index + 1]; ++e) {
      const Edge edge = graph_.repair.edges[static_cast<size_t>(e)];
      EXPECT_LT(repairs[edge.op]->end, repairs[id]->begin);
      const Op& before = graph_.repair.ops[static_cast<size_t>(edge.op)];
      if (!queued(before)) continue;
      EXPECT_EQ(all("repair-follow", {id, edge.op, 2}).size(), 1U) << describe(before);
    }
  }
  // The beginning of step 3 ran twice, the second time after the repair.
  const auto twice = all("step", {0, 3});
  ASSERT_EQ(twice.size(), 2U);
  EXPECT_LT(twice[0]->end, verdict.begin);
  for (const auto& [id, repair] : repairs) EXPECT_GT(twice[1]->begin, repair->end);
}

}  // namespace
}  // namespace ballast
