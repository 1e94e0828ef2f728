// The CUDA device with threads for streams: whole trainings give the bits of the host device, so
// nothing runs before what it needs; and what a device allocates, pins, waits for and says.
#include "backend/cuda/device_cuda.h"

#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <thread>

#include "backend/cuda/cuda_segments.h"
#include "backend/train/make_device.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "tests/backend/cuda_training.h"
#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

using tests::CudaCall;
using tests::CudaLog;
using tests::NotedCall;
using tests::ThreadCudaOptions;

constexpr int kCudaSteps = 10;

// Streams that stand still at random, so that a missing wait is seen.
ThreadCudaOptions dawdling() {
  ThreadCudaOptions options;
  options.dawdle_one_in = 60;
  return options;
}

struct NamedPlan {
  const char* name;
  Plan plan;
};

Plan changed(Plan plan, const std::function<void(Plan&)>& change) {
  change(plan);
  return plan;
}

// Every way of stepping, with CPU and GPU buckets, weights that flow and activations that leave.
std::vector<NamedPlan> plans(DType dtype) {
  const Plan wait = changed(tiny::wait_plan(dtype),
                            [](Plan& p) { p.optimizer.bucket_bytes = {2 * kSegment * 4}; });
  const Plan speculate = changed(wait, [](Plan& p) { p.optimizer.sync = SyncMode::kSpeculate; });
  const auto on_gpu = [](int64_t buckets) {
    return [=](Plan& p) { p.optimizer.gpu_buckets = buckets; };
  };
  return {
      {"wait, CPU buckets", wait},
      {"wait, two GPU buckets", changed(wait, on_gpu(2))},
      {"wait, the CPU casts",
       changed(wait, [](Plan& p) { p.optimizer.cast = CastPlacement::kCpu; })},
      {"wait, activations leave",
       changed(wait,
               [](Plan& p) { p.activations = tiny::all_activations(ActivationFate::kOffload); })},
      {"speculate, CPU buckets", speculate},
      {"speculate, three GPU buckets", changed(speculate, on_gpu(3))},
      {"speculate, exact undo",
       changed(speculate, [](Plan& p) { p.optimizer.undo = UndoKind::kExact; })},
      {"speculate, exact undo, three GPU buckets", changed(speculate,
                                                           [](Plan& p) {
                                                             p.optimizer.undo = UndoKind::kExact;
                                                             p.optimizer.gpu_buckets = 3;
                                                           })},
      {"speculate, weights flow, activations come again",
       changed(speculate,
               [](Plan& p) {
                 p.weights.flow_share = 0.5;
                 p.optimizer.cast = CastPlacement::kCpu;
                 p.activations = tiny::all_activations(ActivationFate::kRecompute);
               })},
      {"speculate, all at once", changed(speculate,
                                         [](Plan& p) {
                                           p.weights.flow_share = 1;
                                           p.optimizer.gpu_buckets = 1;
                                           p.activations =
                                               tiny::all_activations(ActivationFate::kOffload);
                                         })},
  };
}

TEST(CudaDevice, every_plan_gives_the_bits_of_the_host_device) {
  TrainerOptions options = tiny::options_for(kCudaSteps);
  options.optimizer_threads = 2;
  const TrainerOptions cuda = tests::on_thread_cuda(options, dawdling());
  const tiny::Outcome reference =
      tiny::train(tiny::gpt2_model(), tiny::wait_plan(), options, kCudaSteps, true);
  for (const auto& [name, plan] : plans(DType::kBf16)) {
    const tiny::Outcome outcome = tiny::train(tiny::gpt2_model(), plan, cuda, kCudaSteps, false);
    EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters)) << name;
    const bool speculates = plan.optimizer.sync == SyncMode::kSpeculate;
    EXPECT_EQ(outcome.rollbacks > 0, speculates) << name;  // its first gradients are clipped
    ASSERT_EQ(outcome.records.size(), reference.records.size()) << name;
    for (size_t i = 0; i < outcome.records.size(); ++i) {
      EXPECT_EQ(outcome.records[i].loss, reference.records[i].loss) << name << ", step " << i;
      EXPECT_EQ(outcome.records[i].gradient_norm, reference.records[i].gradient_norm) << name;
    }
  }
}

// Clipping and poison at chosen steps.
double disturbed(int32_t step) {
  if (step == 2 || step == 3) return 1e4;
  if (step == 5) return std::numeric_limits<double>::quiet_NaN();
  return 1;
}

TEST(CudaDevice, rollbacks_leave_no_trace_whatever_the_format) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    TrainerOptions options = tiny::options_for(kCudaSteps);
    options.optimizer.clip_norm = 50;
    options.gradient_factor = disturbed;
    const TrainerOptions cuda = tests::on_thread_cuda(options, dawdling());
    const tiny::Outcome reference =
        tiny::train(tiny::llama_model(), tiny::wait_plan(dtype), options, kCudaSteps, true);
    for (const auto& [name, plan] : plans(dtype)) {
      const tiny::Outcome outcome = tiny::train(tiny::llama_model(), plan, cuda, kCudaSteps, false);
      EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters))
          << to_string(dtype) << " " << name;
      EXPECT_EQ(outcome.rollbacks, plan.optimizer.sync == SyncMode::kSpeculate ? 3 : 0) << name;
    }
  }
}

TEST(CudaDevice, delayed_updates_and_their_checkpoints_are_those_of_the_host) {
  const TemporaryFolder folder;
  Plan plan = tiny::wait_plan();
  plan.optimizer.sync = SyncMode::kDelay;
  plan.optimizer.bucket_bytes = {2 * kSegment * 4};
  plan.optimizer.gpu_buckets = 1;
  const TrainerOptions options = tiny::options_for(kCudaSteps);
  const tiny::Outcome reference = tiny::train(tiny::gpt2_model(), plan, options, kCudaSteps, true);
  TrainerOptions cuda = tests::on_thread_cuda(options, dawdling());
  cuda.checkpoint_folder = folder.path();
  tiny::train(tiny::gpt2_model(), plan, cuda, 4, false);
  cuda.resume = true;
  const tiny::Outcome resumed = tiny::train(tiny::gpt2_model(), plan, cuda, kCudaSteps, false);
  EXPECT_TRUE(tiny::same_bits(reference.parameters, resumed.parameters));
  ASSERT_EQ(resumed.records.size(), static_cast<size_t>(kCudaSteps - 4));
  for (size_t i = 0; i < resumed.records.size(); ++i) {
    EXPECT_EQ(resumed.records[i].loss, reference.records[i + 4].loss) << "step " << i + 4;
  }
}

// Exact undo on the GPU: a kernel a run in each of eight steps. The runtime's kernels leave tiles
// in six of them, whose marks are 1, 2, 4, 5, 7 and 8; a kernel a run finishes them within the
// commit of the step after, or, those of the last, when the run is over.
TEST(CudaDevice, what_records_did_not_hold_is_finished_in_the_span_of_the_commit_and_only_then) {
  constexpr int kEight = 8;
  const Plan plan = changed(tiny::wait_plan(), [](Plan& p) {
    p.optimizer.bucket_bytes = {2 * kSegment * 4};
    p.optimizer.sync = SyncMode::kSpeculate;
    p.optimizer.undo = UndoKind::kExact;
    p.optimizer.gpu_buckets = 3;
  });
  TrainerOptions options = tiny::options_for(kEight);
  options.optimizer.clip_norm = 0;  // nothing is rolled back
  const auto log = std::make_shared<CudaLog>();
  Trainer trainer(tiny::gpt2_model(), plan, tests::on_thread_cuda(options, dawdling(), log));
  EXPECT_EQ(trainer.train(kEight, nullptr).rollbacks, 0);
  const Graph& graph = trainer.graph();
  const std::string commit = describe(graph.step.ops[static_cast<size_t>(graph.commit)]);
  int64_t runs = 0;
  for (const Bucket& bucket : graph.buckets) {
    if (bucket.site == Site::kGpu) runs += std::ssize(runs_of(graph.modules, bucket));
  }
  int64_t steps = 0, within = 0, after = 0;
  for (const NotedCall& call : log->calls) {
    if (call.call != CudaCall::kKernel || call.what != "recorded adam") continue;
    ++(call.range.empty() ? after : call.range == commit ? within : steps);
  }
  ASSERT_GT(runs, 1);
  EXPECT_EQ(steps, kEight * runs);
  EXPECT_EQ(within, 5 * runs);
  EXPECT_EQ(after, runs);
}

TEST(CudaDevice, one_operation_after_another_gives_the_same_bits_and_losses_are_evaluated) {
  const TrainerOptions options = tiny::options_for(kCudaSteps);
  const TrainerOptions cuda = tests::on_thread_cuda(options, dawdling());
  Plan plan = tiny::wait_plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.weights.flow_share = 0.5;
  Trainer host(tiny::llama_model(), plan, options);
  Trainer gpu(tiny::llama_model(), plan, cuda);
  host.train(4, nullptr);
  gpu.train(4, nullptr, true);
  EXPECT_TRUE(tiny::same_bits(host.parameters(), gpu.parameters()));
  EXPECT_EQ(host.validation_loss(3), gpu.validation_loss(3));
}

TEST(CudaDevice, timeline_holds_every_operation_once) {
  for (const auto& [name, plan] : plans(DType::kBf16)) {
    const TrainerOptions cuda = tests::on_thread_cuda(tiny::options_for(kCudaSteps), dawdling());
    Trainer trainer(tiny::gpt2_model(), plan, cuda);
    const TrainResult result = trainer.train(3, nullptr);
    const Graph& graph = trainer.graph();
    ASSERT_EQ(result.timeline.spans.size(), 3 * graph.step.ops.size()) << name;
    std::set<std::pair<int32_t, OpId>> seen;
    for (const Span& span : result.timeline.spans) {
      EXPECT_TRUE(seen.emplace(span.step, span.op).second) << name;
      EXPECT_LE(span.begin, span.end);
    }
    EXPECT_EQ(result.step_times.size(), 3U);
  }
}

TEST(CudaDevice, recorded_runs_of_kernels_give_the_same_bits_with_fewer_launches) {
  const TrainerOptions options = tiny::options_for(kCudaSteps);
  const tiny::Outcome reference =
      tiny::train(tiny::gpt2_model(), tiny::wait_plan(), options, kCudaSteps, true);
  Trainer half(tiny::gpt2_model(), tiny::wait_plan(), options);
  half.train(kCudaSteps / 2, nullptr, true);
  const double validated = half.validation_loss(1);
  for (const auto& [name, plan] : plans(DType::kBf16)) {
    const auto log = std::make_shared<CudaLog>();
    TrainerOptions cuda = tests::on_thread_cuda(options, dawdling(), log);
    cuda.captures = true;
    Trainer untimed(tiny::gpt2_model(), plan, [&] {
      TrainerOptions seldom = tests::on_thread_cuda(options, dawdling());
      seldom.captures = true;
      seldom.timed_steps_apart = 3;
      return seldom;
    }());
    // In three runs, of which one takes its operations one by one, and a validation in between.
    untimed.train(kCudaSteps / 2, nullptr);
    EXPECT_EQ(untimed.validation_loss(1), validated) << name;
    untimed.train(kCudaSteps / 2 + 1, nullptr, true);
    untimed.train(kCudaSteps, nullptr);
    EXPECT_TRUE(tiny::same_bits(reference.parameters, untimed.parameters())) << name;
    Trainer trainer(tiny::gpt2_model(), plan, cuda);
    const TrainResult result = trainer.train(kCudaSteps, nullptr);
    EXPECT_TRUE(tiny::same_bits(reference.parameters, trainer.parameters())) << name;
    // Every step but the first two, which ran plain; a rollback launches its forward once more.
    const auto segments =
        static_cast<int64_t>(cuda_segments(trainer.graph(), CudaLanes::kEventSteps).size());
    EXPECT_GE(segments, 4) << name;
    EXPECT_GE(log->count(CudaCall::kLaunchGraph), segments * (kCudaSteps - 2)) << name;
    const auto spans = static_cast<size_t>(result.timeline.steps) * trainer.graph().step.ops.size();
    EXPECT_EQ(result.timeline.spans.size(), spans) << name;
  }
}

// Gradients of recorded steps are clipped or not finite; tensors of delayed steps take turns.
TEST(CudaDevice, recorded_runs_are_taken_back_and_late_as_plain_ones) {
  TrainerOptions options = tiny::options_for(kCudaSteps);
  options.optimizer.clip_norm = 50;
  options.gradient_factor = disturbed;
  std::vector<NamedPlan> all;
  for (const NamedPlan& one : plans(DType::kBf16)) {
    if (one.plan.optimizer.sync == SyncMode::kSpeculate) all.push_back(one);
  }
  for (const char* const name : {"late", "late, by kernels"}) {
    all.push_back({name, changed(all.front().plan, [](Plan& p) {
                     p.optimizer.sync = SyncMode::kDelay;
                     p.optimizer.undo = UndoKind{};
                   })});
  }
  all.back().plan.optimizer.transfers = StateTransfers::kDirect;
  for (const auto& [name, plan] : all) {
    const bool waits = plan.optimizer.sync == SyncMode::kSpeculate;
    const tiny::Outcome reference = tiny::train(
        tiny::gpt2_model(), waits ? tiny::wait_plan() : plan, options, kCudaSteps, true);
    TrainerOptions cuda = tests::on_thread_cuda(options, dawdling());
    cuda.captures = true;
    const tiny::Outcome outcome = tiny::train(tiny::gpt2_model(), plan, cuda, kCudaSteps, false);
    EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters)) << name;
    EXPECT_EQ(outcome.rollbacks, waits ? 3 : 0) << name;
  }
}

// What a training of a waiting plan runs on the compute stream, in order, and what it enqueued.
struct Modules {
  std::vector<std::string> ran;
  int64_t enqueued = 0;
  int64_t of_a_step = 0;
  int64_t in_segments = 0;
};
Modules modules_of(const Plan& plan, const TrainerOptions& options) {
  Modules modules;
  ThreadCudaOptions runtime;
  runtime.before_module = [&](const Op& op, int32_t) { modules.ran.push_back(describe(op)); };
  const auto log = std::make_shared<CudaLog>();
  Trainer trainer(tiny::gpt2_model(), plan, tests::on_thread_cuda(options, runtime, log));
  static_cast<void>(trainer.train(kCudaSteps, nullptr));
  for (const NotedCall& call : log->calls) modules.enqueued += call.what == "module" ? 1 : 0;
  modules.of_a_step = static_cast<int64_t>(modules.ran.size()) / kCudaSteps;
  for (const CudaSegment& segment : cuda_segments(trainer.graph(), CudaLanes::kEventSteps)) {
    modules.in_segments += std::count_if(segment.ops.begin(), segment.ops.end(), [&](OpId id) {
      return trainer.graph().op(id).kind != OpKind::kSumOfSquares;
    });
  }
  return modules;
}

TEST(CudaDevice,
     recorded_runs_are_the_same_modules_in_the_same_order_and_recorded_anew_for_a_plan) {
  TrainerOptions plain = tiny::options_for(kCudaSteps);
  TrainerOptions recorded = plain;
  recorded.captures = true;
  const Plan wait = changed(tiny::wait_plan(), [](Plan& p) { p.optimizer.gpu_buckets = 0; });
  const Plan again = changed(
      wait, [](Plan& p) { p.activations = tiny::all_activations(ActivationFate::kRecompute); });
  for (const Plan& plan : {wait, again, wait}) {
    const Modules expected = modules_of(plan, plain);
    const Modules actual = modules_of(plan, recorded);
    EXPECT_EQ(actual.ran, expected.ran);
    // Steps 0 and 1 (plain) and 2 to 5 (recorded, for each of the events that take turns) enqueue
    // every module, later ones only those outside runs.
    constexpr int kEnqueued = 2 + CudaLanes::kEventSteps;
    EXPECT_EQ(expected.enqueued, kCudaSteps * expected.of_a_step);
    EXPECT_EQ(actual.enqueued,
              kEnqueued * actual.of_a_step +
                  (kCudaSteps - kEnqueued) * (actual.of_a_step - actual.in_segments));
    EXPECT_GE(actual.in_segments, 20);
  }
}

// By step and operation.
using Times = std::set<std::pair<int32_t, OpId>>;

// What an operation follows, directly and through others, and itself.
Times followed_by(const Graph& graph, OpId id, int32_t step) {
  Times seen;
  std::vector<std::pair<int32_t, OpId>> open{{step, id}};
  while (!open.empty()) {
    const auto [at, op] = open.back();
    open.pop_back();
    if (at < 0 || !seen.emplace(at, op).second) continue;
    for (auto e = graph.step.edge_begin[static_cast<size_t>(op)];
         e < graph.step.edge_begin[static_cast<size_t>(op) + 1]; ++e) {
      const Edge edge = graph.step.edges[static_cast<size_t>(e)];
      open.emplace_back(at - edge.steps_ahead, edge.op);
    }
    // A lane takes its operations in order.
    OpId before = op - 1;
    while (before >= 0 && graph.op(before).lane != graph.op(op).lane) --before;
    if (before >= 0) open.emplace_back(at, before);
  }
  return seen;
}

// By lane of the host, the last operation that is needed.
std::map<LaneId, std::pair<int32_t, OpId>> needs_of_host(const Graph& graph, OpId id,
                                                         int32_t step) {
  std::map<LaneId, std::pair<int32_t, OpId>> last;
  for (const auto& each : followed_by(graph, id, step)) {
    const LaneId lane = graph.op(each.second).lane;
    if (CudaLanes::queues(lane)) continue;
    const auto [at, is_new] = last.try_emplace(lane, each);
    if (!is_new) at->second = std::max(at->second, each);
  }
  return last;
}

// By another way than theirs: everything that is reached.
TEST(CudaSegments, are_of_one_lane_and_need_nothing_that_comes_later_than_their_first) {
  constexpr int32_t kStep = 4;
  int waiting_inside = 0;
  for (const auto& [name, plan] : plans(DType::kBf16)) {
    const Graph graph = build(tiny::gpt2_model(), plan);
    for (const CudaSegment& segment : cuda_segments(graph, CudaLanes::kEventSteps)) {
      ASSERT_GE(segment.ops.size(), 2U);
      const OpId first = segment.ops.front();
      const auto needed = needs_of_host(graph, first, kStep);
      for (size_t i = 1; i < segment.ops.size(); ++i) {
        const OpId id = segment.ops[i];
        EXPECT_NE(graph.op(id).kind, OpKind::kLoss);  // its factor changes
        EXPECT_NE(graph.op(id).kind, OpKind::kAdam);  // so do its constants
        for (OpId between = segment.ops[i - 1] + 1; between < id; ++between) {
          EXPECT_NE(graph.op(between).lane, graph.op(id).lane) << "something lies between";
        }
        for (const auto& [lane, last] : needs_of_host(graph, id, kStep)) {
          const auto found = needed.find(lane);
          EXPECT_TRUE(found != needed.end() && last <= found->second)
              << name << ": " << describe(graph.op(id)) << " needs more of the host";
        }
        for (auto e = graph.step.edge_begin[static_cast<size_t>(id)];
             e < graph.step.edge_begin[static_cast<size_t>(id) + 1]; ++e) {
          const Edge edge = graph.step.edges[static_cast<size_t>(e)];
          ++waiting_inside;
          if (edge.steps_ahead > 0) continue;
          // It was handed over, and so was all that it needs of the compute lane.
          for (const auto& each : followed_by(graph, edge.op, kStep)) {
            const bool of_the_run = each.first == kStep && each.second >= first;
            EXPECT_FALSE(of_the_run && kind_of(graph.op(each.second).lane) == LaneKind::kCompute)
                << name << ": " << describe(graph.op(id));
          }
        }
      }
    }
  }
  EXPECT_GT(waiting_inside, 20);
}

TEST(CudaDevice, memory_is_taken_once_and_events_are_made_in_the_first_steps_only) {
  const auto log = std::make_shared<CudaLog>();
  const TrainerOptions cuda = tests::on_thread_cuda(tiny::options_for(kCudaSteps), {}, log);
  Plan plan = plans(DType::kBf16).back().plan;
  Trainer trainer(tiny::gpt2_model(), plan, cuda);
  const Bytes hbm = trainer.graph().arenas.size[static_cast<size_t>(Place::kHbm)];
  int arenas = 0;
  for (const NotedCall& call : log->calls)
    arenas += call.bytes == hbm.count && call.call == CudaCall::kAllocate;
  EXPECT_EQ(arenas, 1);
  EXPECT_EQ(log->count(CudaCall::kAllocate), 1);
  EXPECT_EQ(log->count(CudaCall::kAllocatePinned), 2);
  EXPECT_EQ(log->count(CudaCall::kPin), 1);
  trainer.train(4, nullptr);
  const int64_t events = log->count(CudaCall::kCreateEvent);
  trainer.train(9, nullptr);
  EXPECT_EQ(log->count(CudaCall::kCreateEvent), events);
  EXPECT_EQ(log->count(CudaCall::kAllocate), 1);
  EXPECT_EQ(log->count(CudaCall::kAllocatePinned), 2);
  const std::vector<MemoryUse> memory = trainer.train(9, nullptr).memory;
  EXPECT_EQ(memory[0].planned, hbm);
  EXPECT_EQ(memory[0].resident, hbm);
}

TEST(CudaDevice, losses_take_no_copy_and_short_kernels_of_other_lanes_go_before_those_of_compute) {
  const auto log = std::make_shared<CudaLog>();
  const Plan plan = plans(DType::kBf16).front().plan;
  Trainer trainer(tiny::gpt2_model(), plan,
                  tests::on_thread_cuda(tiny::options_for(kCudaSteps), {}, log));
  trainer.train(3, nullptr);
  trainer.validation_loss(1);
  int64_t streams = 0;
  for (const NotedCall& call : log->calls) {
    EXPECT_FALSE(call.call == CudaCall::kCopy && call.stream == "compute") << call.bytes;
    if (call.call != CudaCall::kCreateStream) continue;
    ++streams;
    EXPECT_EQ(call.what, call.stream == "compute" ? "low" : "high") << call.stream;
  }
  EXPECT_GE(streams, 4);
}

TEST(CudaDevice, cpu_memory_is_pinned_or_backed_before_the_gpu_can_touch_it) {
  for (const bool superchip : {false, true}) {
    const auto log = std::make_shared<CudaLog>();
    ThreadCudaOptions options;
    options.properties.shares_page_tables = superchip;
    Trainer trainer(tiny::gpt2_model(), tiny::wait_plan(),
                    tests::on_thread_cuda(tiny::options_for(kCudaSteps), options, log));
    EXPECT_EQ(log->count(CudaCall::kPin), 1);
  }
}

TEST(CudaDevice, failing_copy_names_operation_bytes_and_stream_and_stops_the_run) {
  ThreadCudaOptions options;
  // Copies of the set-up come first: find one of the run.
  const auto log = std::make_shared<CudaLog>();
  {
    Trainer setup(tiny::gpt2_model(), tiny::wait_plan(),
                  tests::on_thread_cuda(tiny::options_for(kCudaSteps), options, log));
  }
  options.failing_copy = log->count(CudaCall::kCopy);
  Trainer failing(tiny::gpt2_model(), tiny::wait_plan(),
                  tests::on_thread_cuda(tiny::options_for(kCudaSteps), options));
  try {
    failing.train(3, nullptr);
    FAIL() << "the failure was swallowed";
  } catch (const Error& error) {
    const std::string what = error.what();
    // The first copy is that of a batch: 2 sequences of 12 + 1 tokens of 4 bytes.
    EXPECT_TRUE(what.starts_with("cuda copy of 104 bytes on stream copy-in, in '")) << what;
    EXPECT_NE(what.find("invalid argument (cudaErrorInvalidValue); run again"), std::string::npos)
        << what;
  }
}

// The third step records. Each of its kernels fails once, those inside captures among them.
TEST(CudaDevice, failure_while_kernels_are_recorded_ends_the_capture_and_is_what_is_told) {
  TrainerOptions options = tiny::options_for(kCudaSteps);
  options.captures = true;
  const auto log = std::make_shared<CudaLog>();
  {
    Trainer whole(tiny::gpt2_model(), tiny::wait_plan(), tests::on_thread_cuda(options, {}, log));
    whole.train(1, nullptr);
  }
  const int64_t of_a_step = log->count(CudaCall::kKernel);
  ASSERT_GT(of_a_step, 20);
  for (int64_t kernel = 2 * of_a_step; kernel < 3 * of_a_step; ++kernel) {
    ThreadCudaOptions cuda;
    cuda.failing_kernel = kernel;
    Trainer failing(tiny::gpt2_model(), tiny::wait_plan(), tests::on_thread_cuda(options, cuda));
    try {
      failing.train(4, nullptr);
      FAIL() << "the failure of kernel " << kernel << " was swallowed";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_TRUE(what.starts_with("cuda launch on stream ")) << what;
      EXPECT_NE(what.find(", in '"), std::string::npos) << what;
    }
  }
}

TEST(CudaDevice, any_thread_may_train_drain_evaluate_and_free_what_another_made) {
  Plan plan = tiny::wait_plan();
  plan.optimizer.sync = SyncMode::kSpeculate;
  plan.optimizer.undo = UndoKind::kExact;
  plan.optimizer.gpu_buckets = 3;
  auto trainer = std::make_unique<Trainer>(
      tiny::gpt2_model(), plan, tests::on_thread_cuda(tiny::options_for(kCudaSteps), dawdling()));
  const auto on_a_new_thread = [](const std::function<void()>& work) { std::jthread thread(work); };
  on_a_new_thread([&] { trainer->train(4, nullptr); });
  on_a_new_thread([&] { trainer->train(6, nullptr, true); });
  on_a_new_thread([&] { trainer->validation_loss(1); });
  on_a_new_thread([&] { trainer->parameters(); });
  on_a_new_thread([&] { trainer.reset(); });
  EXPECT_EQ(trainer, nullptr);
}

// A device that has failed refuses everything from then on, events that nobody needs any more too.
class FailedEvents : public tests::ThreadCuda {
 public:
  using ThreadCuda::destroy;
  using ThreadCuda::ThreadCuda;
  void destroy(CudaEvent event) override {
    ThreadCuda::destroy(event);
    throw Error("cuda destruction of an event", "an illegal memory access", "none");
  }
};

TEST(CudaDevice, clock_of_a_device_that_has_failed_lets_the_failure_pass) {
  FailedEvents runtime(std::make_shared<CudaLog>(), {});
  const CudaStream stream = runtime.create_stream("compute", StreamPriority::kLow);
  EXPECT_NO_THROW(CudaClock(runtime, stream));
  runtime.destroy(stream);
}

std::string failure_of(const Model& model, const Plan& plan, const ThreadCudaOptions& options) {
  try {
    Trainer trainer(model, plan, tests::on_thread_cuda(tiny::options_for(kCudaSteps), options));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CudaDevice, what_cannot_run_is_refused_in_one_line) {
  ThreadCudaOptions small;
  small.free_memory = {1000};
  const std::string text = failure_of(tiny::gpt2_model(), tiny::wait_plan(), small);
  EXPECT_TRUE(text.starts_with("arena hbm: the plan needs ")) << text;
  ThreadCudaOptions ampere;
  ampere.properties.name = "NVIDIA A100";
  ampere.properties.major = 8;
  Plan fp8 = tiny::wait_plan();
  fp8.sequence_length = 16;
  fp8.products = ProductFormat::kFp8;
  EXPECT_EQ(
      failure_of(tiny::llama_model(), fp8, ampere),
      "plan.products: matrix products in fp8, which NVIDIA A100 (compute capability 8.0) does "
      "not carry out; train on a GPU of compute capability 8.9 or newer (--device cuda:0), or "
      "set plan.products=as-stored");
  ThreadCudaOptions ada = ampere;
  ada.properties.minor = 9;
  EXPECT_EQ(failure_of(tiny::llama_model(), fp8, ada), "");
  Model qk_norm = tiny::llama_model();
  qk_norm.qk_norm = true;
  EXPECT_NE(failure_of(qk_norm, tiny::wait_plan(), {}).find("does not carry out"),
            std::string::npos);
}

TEST(MakeDevice, names_are_host_and_cuda_with_an_index) {
  EXPECT_EQ(cuda_index_of("host"), -1);
  EXPECT_EQ(cuda_index_of("cuda"), 0);
  EXPECT_EQ(cuda_index_of("cuda:3"), 3);
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1"}) {
    EXPECT_THROW(cuda_index_of(name), Error) << name;
  }
}

TEST(MakeDevice, machine_without_a_gpu_says_so) {
  TrainerOptions options = tiny::options_for(kCudaSteps);
  options.device = "cuda:63";  // no machine has that many
  try {
    Trainer trainer(tiny::gpt2_model(), tiny::wait_plan(), options);
    FAIL() << "there is no such device";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("no CUDA device: ")) << error.what();
  }
}

}  // namespace
}  // namespace ballast
