// The executor alone: hand-made programs on a device that only notes what it is asked to do.
#include "backend/execute/executor.h"

#include <chrono>
#include <condition_variable>
#include <future>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>

#include "tests/engine/tiny_graph.h"

namespace ballast {
namespace {

using tests::TinyGraph;

enum class What { kStep, kRepair, kVerdict };

// One call: `began` and `ended` are its places in the order of all beginnings and ends.
struct Call {
  What what{};
  OpId op = -1;
  int32_t step = 0;
  int64_t began = 0;
  int64_t ended = 0;
};

class RecordingDevice : public Device {
 public:
  explicit RecordingDevice(const Graph& graph) : graph_(graph) {}

  void execute(const Program& program, OpId id, int32_t step) override {
    const What what = &program == &graph_.repair ? What::kRepair : What::kStep;
    const int64_t began = tick();
    if (during) during(what, id, step);
    note({what, id, step, began, 0});
  }

  bool commit(int32_t step) override {
    const int64_t began = tick();
    if (during) during(What::kVerdict, graph_.commit, step);
    note({What::kVerdict, graph_.commit, step, began, 0});
    return step != refused_step;
  }

  // The one call of an operation; fails the test if there is none or more than one.
  Call only(What what, OpId op, int32_t step) const {
    Call found;
    int count = 0;
    for (const Call& call : calls) {
      if (call.what != what || call.op != op || call.step != step) continue;
      found = call;
      ++count;
    }
    EXPECT_EQ(count, 1) << "operation " << op << " step " << step;
    return found;
  }

  void abandon(const std::string& why) override {
    if (abandoned) abandoned(why);
  }

  std::function<void(What, OpId, int32_t)> during;  // on the operation's lane
  std::function<void(const std::string&)> abandoned;
  int32_t refused_step = -1;  // the commit that finds its step wanting
  std::vector<Call> calls;    // in the order of their ends

 private:
  int64_t tick() {
    const std::scoped_lock lock(mutex_);
    return ++clock_;
  }
  void note(Call call) {
    const std::scoped_lock lock(mutex_);
    call.ended = ++clock_;
    calls.push_back(call);
  }

  const Graph& graph_;
  std::mutex mutex_;
  int64_t clock_ = 0;
};

RunOptions steps(int32_t last) {
  RunOptions options;
  options.last_step = last;
  options.recorded_steps = 100;
  return options;
}

// `operations` on random lanes, each with up to three edges to earlier ones, of this step or of one
// or two steps before.
TinyGraph random_graph(uint32_t seed, int operations) {
  std::mt19937 random(seed);
  const auto below = [&](int end) {
    return static_cast<int>(random() % static_cast<uint32_t>(end));
  };
  TinyGraph tiny;
  for (int i = 0; i < operations; ++i) {
    std::vector<Edge> edges;
    for (int e = below(4); e > 0; --e) {
      const int ahead = below(3);
      if (ahead == 0 && i == 0) continue;
      edges.push_back({below(ahead == 0 ? i : operations), ahead});
    }
    tiny.op(static_cast<LaneKind>(below(kLaneKinds)), 0);
    Program& step = tiny.graph.step;
    step.edges.insert(step.edges.end(), edges.begin(), edges.end());
    step.edge_begin.back() = static_cast<int32_t>(step.edges.size());
  }
  return tiny;
}

// One of eight calls gives the other lanes a chance to run ahead.
void dawdle(OpId op, int32_t step) {
  if ((op * 7 + step * 3) % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

class RandomPrograms : public ::testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Executor, RandomPrograms, ::testing::Range(0U, 6U));

TEST_P(RandomPrograms, every_lane_runs_in_program_order_and_no_edge_is_violated) {
  const TinyGraph tiny = random_graph(GetParam(), 40);
  const Program& program = tiny.graph.step;
  RecordingDevice device(tiny.graph);
  device.during = [](What, OpId op, int32_t step) { dawdle(op, step); };
  const RunResult result = Executor(tiny.graph, device).run(steps(9));

  ASSERT_EQ(device.calls.size(), 400U);
  EXPECT_EQ(result.last_step, 9);
  EXPECT_EQ(result.step_times.size(), 10U);
  EXPECT_EQ(result.timeline.spans.size(), 400U);
  std::map<LaneId, Call> latest;
  std::map<std::pair<OpId, int32_t>, Call> by_name;
  for (const Call& call : device.calls) {
    const LaneId lane = program.ops[static_cast<size_t>(call.op)].lane;
    if (latest.contains(lane)) {
      const Call& before = latest[lane];
      EXPECT_LT(std::tuple(before.step, before.op), std::tuple(call.step, call.op));
      EXPECT_LT(before.ended, call.began);
    }
    latest[lane] = call;
    by_name[{call.op, call.step}] = call;
  }
  for (const auto& [name, call] : by_name) {
    const auto op = static_cast<size_t>(name.first);
    for (auto e = program.edge_begin[op]; e < program.edge_begin[op + 1]; ++e) {
      const Edge edge = program.edges[static_cast<size_t>(e)];
      const int32_t step = name.second - edge.steps_ahead;
      if (step < 0) continue;
      EXPECT_LT((by_name[{edge.op, step}].ended), call.began);
    }
  }
}

TEST_P(RandomPrograms, run_sequentially_takes_the_program_as_it_stands) {
  const TinyGraph tiny = random_graph(GetParam(), 40);
  RecordingDevice device(tiny.graph);
  Executor(tiny.graph, device).run_sequentially(steps(2));
  ASSERT_EQ(device.calls.size(), 120U);
  for (size_t i = 0; i < 120; ++i) {
    EXPECT_EQ(device.calls[i].op, static_cast<OpId>(i % 40));
    EXPECT_EQ(device.calls[i].step, static_cast<int32_t>(i / 40));
  }
}

TEST(Executor, lanes_overlap_where_no_edge_forbids_it) {
  // Each of the two operations returns only when the other has begun.
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 0);
  tiny.op(LaneKind::kCopyIn, 0);
  RecordingDevice device(tiny.graph);
  std::mutex mutex;
  std::condition_variable met;
  std::array<int, 2> begun{};
  bool all_met = true;
  device.during = [&](What, OpId op, int32_t) {
    std::unique_lock lock(mutex);
    const int mine = ++begun[static_cast<size_t>(op)];
    met.notify_all();
    const auto other = static_cast<size_t>(1 - op);
    all_met &= met.wait_for(lock, std::chrono::seconds(20), [&] { return begun[other] >= mine; });
  };
  Executor(tiny.graph, device).run(steps(2));
  EXPECT_TRUE(all_met);
}

TEST(Executor, request_stop_ends_every_lane_after_the_same_step) {
  TinyGraph tiny;
  const OpId first = tiny.op(LaneKind::kCompute, 0);
  tiny.op(LaneKind::kCopyOut, 0, {{first, 0}});
  tiny.op(LaneKind::kCheck, 0);  // free to run ahead of the others
  RecordingDevice device(tiny.graph);
  Executor executor(tiny.graph, device);
  device.during = [&](What, OpId op, int32_t step) {
    dawdle(op, step);
    if (op == 1 && step == 3) executor.request_stop();
  };
  const RunResult result = executor.run(steps(100'000));
  EXPECT_GE(result.last_step, 3);
  EXPECT_LT(result.last_step, 100'000);
  EXPECT_EQ(result.step_times.size(), static_cast<size_t>(result.last_step) + 1);
  EXPECT_EQ(device.calls.size(), 3U * result.step_times.size());
  for (OpId op = 0; op < 3; ++op) device.only(What::kStep, op, result.last_step);
}

TEST(Executor, request_stop_before_a_run_lets_it_do_one_step_and_is_then_forgotten) {
  TinyGraph tiny;
  tiny.op(LaneKind::kCompute, 0);
  RecordingDevice device(tiny.graph);
  Executor executor(tiny.graph, device);
  executor.request_stop();
  EXPECT_EQ(executor.run(steps(5)).last_step, 0);
  EXPECT_EQ(executor.run(steps(5)).last_step, 5);
}

TEST(Executor, failing_operation_stops_all_lanes_and_is_rethrown) {
  // The second lane waits for the first, the third for nobody; step 2 fails on the first.
  TinyGraph tiny;
  const OpId failing = tiny.op(LaneKind::kCompute, 0);
  const OpId waiting = tiny.op(LaneKind::kCopyOut, 0, {{failing, 0}});
  tiny.op(LaneKind::kCheck, 0, {{waiting, 2}});
  RecordingDevice device(tiny.graph);
  device.during = [&](What, OpId op, int32_t step) {
    if (op == failing && step == 2) throw Error("copy", "has failed", "try again");
  };
  Executor executor(tiny.graph, device);
  try {
    executor.run(steps(1'000'000));
    FAIL() << "the failure was swallowed";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "copy: has failed; try again");
  }
  for (const Call& call : device.calls) {
    EXPECT_TRUE(call.op != waiting || call.step < 2);
  }
  device.during = nullptr;  // and nothing of the failure is left in the executor
  device.calls.clear();
  EXPECT_EQ(executor.run(steps(4)).last_step, 4);
  EXPECT_EQ(device.calls.size(), 15U);
}

// A lane that waits for another rank fails as soon as it is told of the failure, and before the
// lane that told it comes to anything else.
TEST(Executor, the_first_failure_is_rethrown_and_not_what_it_brought_about) {
  TinyGraph tiny;
  const OpId failing = tiny.op(LaneKind::kCompute, 0);
  const OpId exchange = tiny.op(LaneKind::kDataNetwork, 0);
  RecordingDevice device(tiny.graph);
  std::promise<void> told;
  std::promise<void> over;
  device.during = [&](What, OpId op, int32_t) {
    if (op == failing) throw Error("the disk", "it is full", "make room");
    if (op != exchange) return;
    told.get_future().wait();
    throw Error("rank 2: the disk", "it is full", "make room");
  };
  device.abandoned = [&](const std::string& why) {
    if (why.starts_with("rank 2")) {
      over.set_value();
      return;
    }
    told.set_value();
    over.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the other lane's thread ends
  };
  try {
    Executor(tiny.graph, device).run(steps(3));
    FAIL() << "the failure was swallowed";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the disk: it is full; make room");
  }
}

// forward (compute) -> upload of its own lane -> commit (compute, a fence) -> backward (compute) ->
// step (CPU), and a repair of three operations: undo (CPU) -> redo (CPU) -> upload.
struct Speculating {
  TinyGraph tiny;
  OpId forward, upload, commit, backward, step;

  Speculating() {
    Graph& graph = tiny.graph;
    forward = tiny.op(LaneKind::kCompute, 0);
    upload = tiny.op(LaneKind::kUpload, 0, {{3, 1}});
    commit = tiny.op(LaneKind::kCompute, 0, {{upload, 0}, {4, 1}});
    backward = tiny.op(LaneKind::kCompute, 0);
    step = tiny.op(LaneKind::kCpu, 0, {{backward, 0}, {commit, 0}});
    graph.step.ops[static_cast<size_t>(commit)].kind = OpKind::kCommit;
    graph.step.ops[static_cast<size_t>(commit)].fence = true;
    graph.commit = commit;
    TinyGraph repair;
    repair.op(LaneKind::kCpu, 0);
    repair.op(LaneKind::kCpu, 0, {{0, 0}});
    repair.op(LaneKind::kUpload, 0, {{1, 0}});
    graph.repair = repair.graph.step;
  }
};

TEST(Executor, accepted_commit_lets_the_step_go_on_and_is_asked_once_a_step) {
  Speculating program;
  RecordingDevice device(program.tiny.graph);
  device.during = [&](What what, OpId, int32_t) {
    if (what == What::kVerdict) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  const RunResult result = Executor(program.tiny.graph, device).run(steps(5));
  EXPECT_EQ(result.rollbacks, 0);
  for (int32_t step = 0; step <= 5; ++step) {
    const Call verdict = device.only(What::kVerdict, program.commit, step);
    EXPECT_GT(device.only(What::kStep, program.backward, step).began, verdict.ended);
    EXPECT_GT(device.only(What::kStep, program.step, step).began, verdict.ended);
    EXPECT_GT(verdict.began, device.only(What::kStep, program.upload, step).ended);
  }
  device.only(What::kVerdict, program.commit, 6);  // of the last step, when the lanes were done
  EXPECT_EQ(device.calls.size(), 6U * 5U + 1U);
}

TEST(Executor, refused_commit_repairs_the_step_before_and_runs_the_steps_beginning_again) {
  Speculating program;
  RecordingDevice device(program.tiny.graph);
  device.during = [](What, OpId op, int32_t step) { dawdle(op, step); };
  device.refused_step = 3;
  const RunResult result = Executor(program.tiny.graph, device).run(steps(5));
  EXPECT_EQ(result.rollbacks, 1);

  const Call verdict = device.only(What::kVerdict, program.commit, 3);
  const Call undo = device.only(What::kRepair, 0, 2);
  const Call redo = device.only(What::kRepair, 1, 2);
  const Call upload = device.only(What::kRepair, 2, 2);
  EXPECT_GT(undo.began, verdict.ended);
  EXPECT_GT(redo.began, undo.ended);
  EXPECT_GT(upload.began, redo.ended);
  // Forward and upload of step 3 ran before the verdict, and once more between the repair and the
  // backward; nothing else of the program ran meanwhile.
  const int64_t backward = device.only(What::kStep, program.backward, 3).began;
  std::vector<std::pair<OpId, int32_t>> before, again;
  for (const Call& call : device.calls) {
    if (call.what != What::kStep) continue;
    if (call.step == 3 && call.ended < verdict.began) before.emplace_back(call.op, call.step);
    if (call.began > verdict.ended && call.began < backward) {
      EXPECT_GT(call.began, upload.ended);
      again.emplace_back(call.op, call.step);
    }
  }
  std::sort(before.begin(), before.end());
  std::sort(again.begin(), again.end());
  const std::vector<std::pair<OpId, int32_t>> prefix = {{program.forward, 3}, {program.upload, 3}};
  EXPECT_EQ(before, prefix);
  EXPECT_EQ(again, prefix);
  EXPECT_EQ(device.calls.size(), 6U * 5U + 1U + 3U + 2U);
}

TEST(Executor, last_step_is_judged_and_repaired_before_the_run_returns) {
  for (const bool sequential : {false, true}) {
    Speculating program;
    RecordingDevice device(program.tiny.graph);
    device.refused_step = 4;  // asked at the end of a run whose last step is 3
    Executor executor(program.tiny.graph, device);
    const RunResult result =
        sequential ? executor.run_sequentially(steps(3)) : executor.run(steps(3));
    EXPECT_EQ(result.rollbacks, 1);
    ASSERT_EQ(device.calls.size(), 4U * 5U + 1U + 3U);
    for (size_t i = 0; i < 3; ++i) {
      const Call& call = device.calls[4 * 5 + 1 + i];
      EXPECT_EQ(call.what, What::kRepair);
      EXPECT_EQ(call.op, static_cast<OpId>(i));
      EXPECT_EQ(call.step, 3);
    }
  }
}

TEST(Executor, failing_repair_stops_all_lanes_and_is_rethrown) {
  Speculating program;
  RecordingDevice device(program.tiny.graph);
  device.refused_step = 2;
  device.during = [](What what, OpId op, int32_t) {
    if (what == What::kRepair && op == 1) throw Error("redo", "has failed", "try again");
  };
  Executor executor(program.tiny.graph, device);
  EXPECT_THROW(executor.run(steps(1'000'000)), Error);
  for (const Call& call : device.calls) {
    EXPECT_FALSE(call.what == What::kRepair && call.op == 2);
    EXPECT_FALSE(call.what == What::kStep && call.op == program.backward && call.step >= 2);
  }
}

TEST(Executor, steps_may_begin_anywhere_and_only_the_recorded_ones_leave_spans) {
  TinyGraph tiny;
  const OpId first = tiny.op(LaneKind::kCompute, 0, {{1, 2}});
  tiny.op(LaneKind::kCpu, 0, {{first, 0}});
  RecordingDevice device(tiny.graph);
  RunOptions options;
  options.first_step = 1000;
  options.last_step = 1049;
  options.recorded_steps = 3;
  int ticks = 0;
  options.tick = [&] { ++ticks; };
  const RunResult result = Executor(tiny.graph, device).run(options);
  EXPECT_EQ(device.calls.size(), 100U);
  EXPECT_EQ(result.step_times.size(), 50U);
  EXPECT_EQ(result.timeline.first_step, 1047);
  EXPECT_EQ(result.timeline.steps, 3);
  ASSERT_EQ(result.timeline.spans.size(), 6U);
  for (const Span& span : result.timeline.spans) {
    EXPECT_GE(span.step, 1047);
    EXPECT_LE(span.begin, span.end);
  }
  EXPECT_GE(ticks, 1);
}

}  // namespace
}  // namespace ballast
