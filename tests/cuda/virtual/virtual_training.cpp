#include "tests/cuda/virtual/virtual_training.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <optional>

#include "backend/cuda/transformer_cuda.h"
#include "sim/engine/sharing/fair_rates.h"
#include "tests/backend/emulated/immediate_cuda.h"
#include "tests/backend/thread_cuda.h"

namespace ballast::tests {

namespace {

// Products in the streams' turn, by three loops.
class QueuedProducts : public CudaProducts {
 public:
  explicit QueuedProducts(KernelQueue& queue) : queue_(queue) {}
  void multiply(const CudaGemm& gemm, CudaStream stream) override {
    queue_.enqueue(stream, "product", [this, gemm, stream] { plain_.multiply(gemm, stream); });
  }

 private:
  KernelQueue& queue_;
  PlainProducts plain_;
};

std::unique_ptr<CudaMath> math_of(Arithmetic arithmetic, const Training& training,
                                  VirtualCuda& runtime) {
  if (arithmetic == Arithmetic::kHost) return std::make_unique<ThreadCudaMath>(training, runtime);
  return std::make_unique<CudaTransformer>(
      training, RankPlace{}, runtime, std::make_unique<QueuedProducts>(runtime),
      std::make_unique<CudaAttention>(runtime, OpenedAttention{}, AttentionMemory{}));
}

}  // namespace

PlayedMachine played(const Machine& machine, const Plan& plan, const Graph& graph) {
  const auto costs = std::make_shared<CostModel>(machine, plan, Stack{}, nullptr);
  PlayedMachine playing;
  playing.step = costs->table(graph.step, graph);
  playing.repair = costs->table(graph.repair, graph);
  playing.rates = fair_rates(playing.step.capacities);
  playing.copy = [costs, &graph](const Op& op, Bytes bytes) {
    Program one;
    one.ops.push_back(op);
    std::get<CopyWork>(one.ops.back().work).bytes = bytes;
    return costs->table(one, graph).ops[0];
  };
  playing.launch = machine.gpu.launch.value;
  playing.handover = machine.handover.value;
  playing.memory = machine.gpu.memory.value - machine.gpu.reserved.value;
  return playing;
}

std::unique_ptr<TrainingDevice> VirtualRun::make_device(const Training& training,
                                                        const DeviceOptions& with,
                                                        const ControlState& state) {
  CHECK(device_ == nullptr);
  playing_ = played(machine_, training.plan, training.graph);
  const bool computes = arithmetic_ != Arithmetic::kNone;
  auto clock = std::make_shared<VirtualClock>(playing_.rates);
  auto runtime = std::make_unique<VirtualCuda>(clock, playing_, computes);
  runtime_ = runtime.get();
  CudaParts parts;
  parts.free_before = runtime->free_memory();
  parts.math = math_of(arithmetic_, training, *runtime);
  parts.runtime = std::move(runtime);
  if (!computes) parts.backing_of_dram = ArenaBacking::kWhereTouched;
  auto cuda = std::make_unique<CudaDevice>(training, with, state, std::move(parts));
  auto device = std::make_unique<VirtualDevice>(
      VirtualDevice::Setting{training.graph, playing_, clock, *runtime_, computes, steps_ - 1,
                             follows_},
      std::move(cuda));
  device_ = device.get();
  return device;
}

Timeline VirtualRun::timeline() const {
  std::map<std::pair<int32_t, OpId>, Span> spans;
  std::vector<Instant> ends(static_cast<size_t>(steps_));
  for (const Ran& ran : runtime_->ran()) {
    Instant& end = ends[static_cast<size_t>(ran.step)];
    end = std::max(end, ran.end);
    const auto [at, is_new] =
        spans.try_emplace({ran.step, ran.op}, Span{ran.op, ran.step, ran.begin, ran.end});
    if (is_new) continue;
    at->second.begin = std::min(at->second.begin, ran.begin);
    at->second.end = std::max(at->second.end, ran.end);
  }
  Timeline timeline;
  timeline.first_step = first_measured();
  timeline.steps = steps_ - timeline.first_step;
  for (const auto& [name, span] : spans) {
    if (span.step >= timeline.first_step) timeline.spans.push_back(span);
  }
  const auto before = static_cast<size_t>(std::max(0, timeline.first_step - 1));
  const Instant begin = steps_ > 1 ? ends[before] : Instant{};
  timeline.step_time = {(ends.back() - begin).ps / timeline.steps};
  return timeline;
}

double VirtualRun::idle_share(const Graph& graph) const {
  const Timeline all = timeline();
  Duration busy;
  for (const Ran& ran : runtime_->ran()) {
    const LaneId lane = graph.step.ops[static_cast<size_t>(ran.op)].lane;
    if (ran.step < all.first_step || kind_of(lane) != LaneKind::kCompute) continue;
    busy += ran.end - ran.begin;
  }
  return 1 - busy.seconds() / (all.step_time.seconds() * all.steps);
}

HostTime VirtualRun::host_time(const Graph& graph) const {
  HostTime sum;
  int64_t count = 0;
  for (const auto& [name, host] : runtime_->host_times()) {
    const LaneId lane = graph.step.ops[static_cast<size_t>(name.first)].lane;
    if (name.second < first_measured() || !CudaLanes::queues(lane)) continue;
    sum.calls += host.calls;
    sum.waits += host.waits;
    ++count;
  }
  CHECK(count > 0);
  return {{sum.calls.ps / count}, {sum.waits.ps / count}};
}

Duration VirtualRun::compute_calls_of_a_step(const Graph& graph) const {
  Duration sum;
  for (const auto& [name, host] : runtime_->host_times()) {
    if (name.second < first_measured()) continue;
    if (kind_of(graph.op(name.first).lane) == LaneKind::kCompute) sum += host.calls;
  }
  return {sum.ps / (steps_ - first_measured())};
}

std::vector<std::string> VirtualRun::out_of_order(const Graph& graph) const {
  std::map<std::pair<int32_t, OpId>, std::pair<Instant, Instant>> when;
  for (const Ran& ran : runtime_->ran()) {
    const auto [at, is_new] = when.try_emplace({ran.step, ran.op}, ran.begin, ran.end);
    if (is_new) continue;
    at->second.first = std::min(at->second.first, ran.begin);
    at->second.second = std::max(at->second.second, ran.end);
  }
  std::vector<std::string> found;
  const Program& program = graph.step;
  for (const auto& [name, times] : when) {
    const auto id = static_cast<size_t>(name.second);
    for (auto e = program.edge_begin[id]; e < program.edge_begin[id + 1]; ++e) {
      const Edge edge = program.edges[static_cast<size_t>(e)];
      const auto before = when.find({name.first - edge.steps_ahead, edge.op});
      if (before == when.end() || before->second.second <= times.first) continue;
      found.push_back(fmt::format("step {}: {} began before {} had ended", name.first,
                                  describe(program.ops[id]),
                                  describe(program.ops[static_cast<size_t>(edge.op)])));
    }
  }
  return found;
}

}  // namespace ballast::tests
