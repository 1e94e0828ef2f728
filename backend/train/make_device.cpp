#include "backend/train/make_device.h"

#include <charconv>
#include <string_view>

#include "backend/cuda/cuda_math.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/device_cuda.h"
#include "backend/cuda/gpu_node.h"
#include "backend/execute/rank_place.h"
#include "backend/host/device_host.h"
#include "sim/graph/build.h"
#include "sim/graph/schedules/pipeline.h"

namespace ballast {

namespace {

// The first GPU; of several ranks each takes that of its place on the machine.
constexpr std::string_view kGpuOfRank = "cuda";

}  // namespace

int cuda_index_of(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  if (device == "host") return -1;
  if (device == kGpuOfRank) return 0;
  int index = -1;
  if (device.starts_with(kPrefix)) {
    const char* const end = device.data() + device.size();
    const auto [at, code] = std::from_chars(device.data() + kPrefix.size(), end, index);
    if (code != std::errc() || at != end) index = -1;
  }
  if (index < 0) {
    throw Error("--device " + device, "no such device", "use host, or cuda:0 for the first GPU");
  }
  return index;
}

namespace {

bool has_open_knobs(const Plan& plan) {
  return !plan.micro_batch || !plan.activations || !plan.weights.flow_share ||
         !plan.optimizer.gpu_buckets;
}

// A turn that is one operation, with which every folded step begins.
Graph first_turn() {
  Graph graph;
  graph.lanes = kLaneKinds;
  Op turn;
  turn.kind = OpKind::kBlock;
  turn.lane = lane_of(0, LaneKind::kCompute);
  turn.work = BlockWork{0};
  graph.step.ops.push_back(std::move(turn));
  return graph;
}

}  // namespace

std::vector<DeviceVerdict> which_run(const Model& model, const Plan& plan) {
  std::vector<DeviceVerdict> verdicts;
  std::optional<Graph> graph;  // made for the first device that has what model and plan ask for
  for (const Capabilities* all : {&host_capabilities(), &cuda_capabilities()}) {
    std::optional<Missing> missing = first_missing(model, plan, *all);
    if (!missing && has_open_knobs(plan)) {
      missing = Missing{"its knobs are not chosen yet", "plan", "choose those that are auto"};
    }
    if (!missing && !all->declares(OpKind::kBlock) && is_surely_folded(model, plan)) {
      missing = first_missing(first_turn(), model, plan, *all);
    }
    if (!missing) {
      if (!graph) graph = build_to_ask(model, plan);
      missing = first_missing(*graph, model, plan, *all);
    }
    if (!missing && all == &cuda_capabilities() && !cuda_is_built()) {
      missing = Missing{"this program was built without the CUDA toolkit", "build",
                        "build it where CMake finds CUDA 13"};
    }
    verdicts.push_back({all->device(), std::move(missing)});
  }
  return verdicts;
}

std::unique_ptr<TrainingDevice> make_device(const std::string& device, const Training& training,
                                            const DeviceOptions& options,
                                            const ControlState& state) {
  int index = cuda_index_of(device);
  if (index < 0) return std::make_unique<HostDevice>(training, options, state);
  const RankOptions& of_rank = options.of_rank;
  const bool exchanges = of_rank.ranks != nullptr && !of_rank.without_others;
  if (exchanges && device == kGpuOfRank) index = of_rank.ranks->local_rank();
  CudaParts parts;
  parts.runtime = open_cuda_runtime(index);
  // Before the arena, and the threads that step it, are made.
  std::string bound = bind_to_node_of_gpu(parts.runtime->properties().bus, training.plan.numa);
  if (!bound.empty()) parts.notes.push_back(std::move(bound));
  parts.free_before = parts.runtime->free_memory();
  if (exchanges) parts.nccl = load_nccl(nccl_library_name());
  const int rank = of_rank.ranks == nullptr ? 0 : of_rank.ranks->rank();
  parts.math = make_cuda_math(training, place_of(training.plan, rank), *parts.runtime,
                              options.gemm_algorithms);
  return std::make_unique<CudaDevice>(training, options, state, std::move(parts));
}

}  // namespace ballast
