#include "sim/spec/knobs.h"

#include <iterator>

#include "sim/spec/knob_access.h"
#include "sim/spec/knob_domains.h"

namespace ballast {
namespace {

using namespace knob_domains;
using knob_access::knob;

// A row of a degree of parallelism that layouts choose, with what all of them share.
constexpr Knob degree(Knob row) {
  row.group = KnobGroup::kParallelism;
  row.least = 1;
  if (row.most == 0) row.most = kMost;
  row.may_be_absent = true;
  row.search = KnobSearch::kLayout;
  if (row.tried_text.empty()) row.tried_text = "divisors of what the degrees before it leave";
  row.tuned_under_strategy = true;
  row.studied_with = "layout";
  return row;
}

using enum KnobGroup;
using Fate = ActivationFate;

constexpr Knob kTable[] = {
    knob<&Plan::model>(
        {.id = KnobId::kModel,
         .path = "model",
         .group = kNames,
         .help = "What is trained: a shipped name, a config.json or its folder",
         .flag = {"--model", "Shipped name, config.json or its folder", "NAME", true}}),
    knob<&Plan::machine>(
        {.id = KnobId::kMachine,
         .path = "machine",
         .group = kNames,
         .help = "What it is trained on: a shipped name, a file, or here",
         .flag = {"--machine", "Shipped name, file, or 'here' (the last profile of this machine)",
                  "NAME", true}}),
    knob<&Plan::strategy>(
        {.id = KnobId::kStrategy,
         .path = "strategy",
         .group = kNames,
         .help = "The strategy that the plan began with",
         .flag = {"--strategy",
                  "Shipped name or file [superoffload; on several devices the fastest of several]",
                  "NAME", true}}),
    knob<&Plan::devices>({.id = KnobId::kDevices,
                          .path = "devices",
                          .group = kParallelism,
                          .unit = "devices",
                          .least = 1,
                          .most = kMost,
                          .is_degree = true,
                          .help = "GPUs that train together: data x tensor x pipeline x sequence x "
                                  "context",
                          .flag = {"--devices", "GPUs that train together [1]", "COUNT", true}}),
    knob<&Plan::data>(
        {.id = KnobId::kData,
         .path = "data",
         .group = kParallelism,
         .unit = "ranks",
         .least = 1,
         .most = kMost,
         .studied_with = "layout",
         .help = "Ranks that see other sequences",
         // --data is the text that train and verify read.
         .flag = {"--data-parallel",
                  "Devices that see other sequences [devices / the other degrees]", "COUNT"}}),
    knob<&Plan::tensor>(degree(
        {.id = KnobId::kTensor,
         .path = "tensor",
         .unit = "ranks",
         .is_degree = true,
         .help = "Ranks that share every matrix (arXiv 1909.08053)",
         .flag =
             {"--tensor",
              "Devices that share every matrix [1, or chosen where the strategy leaves it open]",
              "COUNT"}})),
    knob<&Plan::pipeline>(degree(
        {.id = KnobId::kPipeline,
         .path = "pipeline",
         .unit = "stages",
         .most = kMostStages,
         .is_degree = true,
         .help = "Stages of consecutive layers (arXiv 2104.04473)",
         .flag = {"--pipeline",
                  "Stages of consecutive layers [1, or chosen where the strategy leaves it open]",
                  "COUNT"}})),
    knob<&Plan::virtual_pipeline>(degree({.id = KnobId::kVirtualPipeline,
                                          .path = "virtual_pipeline",
                                          .unit = "chunks",
                                          .tried = kChunksTried,
                                          .tried_text = "where layers divide",
                                          .help = "Chunks of layers a stage",
                                          .matters = "with pipeline above 1",
                                          .flag = {"--virtual-pipeline",
                                                   "Chunks of layers a stage, interleaved [1, or "
                                                   "chosen where the strategy leaves it open]",
                                                   "COUNT"}})),
    knob<&Plan::pipeline_schedule>(
        {.id = KnobId::kPipelineSchedule,
         .path = "pipeline_schedule",
         .group = kParallelism,
         .choices = kSchedulesTried,
         .may_be_absent = true,
         .search = KnobSearch::kLayout,
         .tried = kSchedulesTried,
         .tuned_under_strategy = true,
         .studied_with = "layout",
         .help =
             "Order of a stage's micro-batches: 1f1b (interleaved where it has several chunks); "
             "what runs further ahead waits less for messages and holds more",
         .matters = "with pipeline above 1",
         .matters_in = [](const Plan& plan) { return plan.pipeline > 1; }}),
    knob<&Plan::sequence>(
        degree({.id = KnobId::kSequence,
                .path = "sequence",
                .unit = "ranks",
                .is_degree = true,
                .help = "Ranks that share every sequence (Ulysses, arXiv 2309.14509)",
                .flag = {"--sequence",
                         "Devices that share every sequence (Ulysses) [1, or chosen where the "
                         "strategy leaves it open]",
                         "COUNT"}})),
    knob<&Plan::context>(degree(
        {.id = KnobId::kContext,
         .path = "context",
         .unit = "ranks",
         .is_degree = true,
         .help = "Ranks that share every sequence by ring attention (arXiv "
                 "2310.01889)",
         .flag = {"--context",
                  "The same by ring attention [1, or chosen where the strategy leaves it open]",
                  "COUNT"}})),
    knob<&Plan::expert>(degree({.id = KnobId::kExpert,
                                .path = "expert",
                                .unit = "ranks",
                                .help = "Of the data-parallel ranks, those that share the experts",
                                .matters = "where the model has experts",
                                .flag = {"--expert",
                                         "Data-parallel devices that share the experts [1, or "
                                         "chosen where the strategy leaves it open]",
                                         "COUNT"}})),
    knob<&Plan::tensor_sequence>(
        {.id = KnobId::kTensorSequence,
         .path = "tensor_sequence",
         .group = kParallelism,
         .may_be_absent = true,
         .search = KnobSearch::kLayout,
         .tried_text = "both, with tensor above 1",
         .studied_with = "layout",
         .help = "Norms and residuals split over the tensor-parallel ranks by token (arXiv "
                 "2205.05198)",
         .matters = "with tensor above 1",
         .matters_in = [](const Plan& plan) { return plan.tensor > 1; }}),
    knob<&Plan::numa>({.id = KnobId::kNuma,
                       .path = "numa",
                       .group = kParallelism,
                       .choices = kChoices<NumaBinding::kLocal, NumaBinding::kRemote>,
                       .may_be_absent = true,
                       .studied_with = "layout",
                       .help = "Which CPU memory a device's threads use: its own chip's, or "
                               "another's"}),
    knob<&Plan::cuda_graphs>(
        {.id = KnobId::kCudaGraphs,
         .path = "cuda_graphs",
         .group = kParallelism,
         .may_be_absent = true,
         .only_predicted = "a whole step recorded as CUDA graphs",
         .help =
             "Kernels are recorded once and launched as graphs, at next to no cost to the host"}),
    knob<&Plan::zero_stage>(
        {.id = KnobId::kZeroStage,
         .path = "zero_stage",
         .group = kParallelism,
         .least = 0,
         .most = 3,
         .search = KnobSearch::kLayout,
         .tried_text = "all that the degrees and optimizer.placement allow",
         .studied_with = "layout",
         .help = "Split over ranks with the same weights: 0 nothing, 1 optimizer state, 2 also "
                 "gradients, 3 also weights (arXiv 1910.02054)",
         .matters = "where ranks hold the same weights",
         .matters_in = [](const Plan& plan) { return plan.replicas() > 1; },
         .flag = {"--zero-stage",
                  "What is split over devices with the same weights: 0 nothing, 1 optimizer, 2 "
                  "gradients too, 3 weights too [the strategy's, or chosen]",
                  "STAGE"}}),
    knob<&Plan::zero_group>(
        {.id = KnobId::kZeroGroup,
         .path = "zero_group",
         .group = kParallelism,
         .unit = "ranks",
         .least = 0,
         .most = kMost,
         .may_be_absent = true,
         .studied_with = "layout",
         .help = "Ranks that split what zero_stage says; beyond them it is replicated (arXiv "
                 "2205.00119); 0: all that hold the same weights",
         .matters = "with zero_stage above 0, where ranks hold the same weights",
         .matters_in =
             [](const Plan& plan) { return plan.zero_stage > 0 && plan.replicas() > 1; }}),
    knob<&Plan::global_batch>(
        {.id = KnobId::kGlobalBatch,
         .path = "global_batch",
         .group = kBatch,
         .unit = "sequences",
         .least = 0,
         .most = kMost,
         .help = "Sequences of a step over all devices; 0 in a file: 8 a "
                 "device",
         .flag = {"--global-batch", "Sequences of a step, all devices [8 a device]", "COUNT"}}),
    knob<&Plan::micro_batch>(
        {.id = KnobId::kMicroBatch,
         .path = "micro_batch",
         .group = kBatch,
         .unit = "sequences",
         .least = 1,
         .most = kMost,
         .search = KnobSearch::kRank,
         .tried_text = "divisors of the sequences of a rank",
         .tuned_under_strategy = true,
         .help = "Sequences of one forward pass on one device",
         .flag = {"--micro-batch", "Sequences at once on a device [chosen]", "COUNT"}}),
    knob<&Plan::sequence_length>(
        {.id = KnobId::kSequenceLength,
         .path = "sequence_length",
         .group = kBatch,
         .unit = "tokens",
         .least = 0,
         .most = kMost,
         .help = "Tokens of a sequence; 0 in a file: 2048, or what the model allows",
         .flag = {"--sequence-length", "Tokens of a sequence [2048, or what the model allows]",
                  "COUNT"}}),
    knob<&Plan::subsequences>(
        {.id = KnobId::kSubsequences,
         .path = "subsequences",
         .group = kBatch,
         .unit = "parts",
         .least = 1,
         .most = kMostSubsequences,
         .may_be_absent = true,
         .search = KnobSearch::kLayout,
         .tried_text = "where a strategy lists it: 1, and powers of two that leave a device 2,048 "
                       "to 16,384 tokens of a part",
         .studied_with = "layout",
         .help =
             "Parts in which a sequence passes each layer, one after another (arXiv 2408.16978)",
         .flag = {"--subsequences", "Parts in which a sequence passes each layer [1]", "COUNT"}}),
    knob<&Plan::subsequence_split>(
        {.id = KnobId::kSubsequenceSplit,
         .path = "subsequence_split",
         .group = kBatch,
         .choices = kChoices<SubsequenceSplit::kTokens, SubsequenceSplit::kFlops>,
         .may_be_absent = true,
         .help = "What all parts of a sequence have the same of: tokens, or the FLOPs of a layer, "
                 "so that later parts are shorter (arXiv 2406.03488)",
         .matters = "with subsequences above 1",
         .matters_in = [](const Plan& plan) { return plan.subsequences > 1; }}),
    knob<&Plan::routing_percent>(
        {.id = KnobId::kRoutingPercent,
         .path = "routing_percent",
         .group = kBatch,
         .unit = "percent",
         .least = 100,
         .most = kMost,
         .may_be_absent = true,
         .only_predicted = "rows of experts other than those that tokens choose",
         .help = "Rows that the experts of the busiest rank take, of an even share; what none "
                 "could exceed is counted where it is more",
         .matters = "with expert above 1",
         .matters_in = [](const Plan& plan) { return plan.expert > 1; }}),
    knob<&Plan::dtype>(
        {.id = KnobId::kDtype,
         .path = "dtype",
         .group = kFormats,
         .choices = kChoices<DType::kF32, DType::kBf16, DType::kF16>,
         .help = "Format of weights and activations",
         .flag = {"--dtype", "Of weights and activations: bf16, fp16, fp32 [bf16]", "NAME"}}),
    knob<&Plan::products>({.id = KnobId::kProducts,
                           .path = "products",
                           .group = kFormats,
                           .choices = kChoices<ProductFormat::kAsStored, ProductFormat::kFp8>,
                           .may_be_absent = true,
                           .help =
                               "What the matrix products of layers multiply: values as they are "
                               "stored, or rounded to 8 bits"}),
    knob<&WeightsPlan::flow_share>(
        {.id = KnobId::kFlowShare,
         .path = "weights.flow_share",
         .group = kWeights,
         .search = KnobSearch::kRank,
         .tried_shares = kQuarters,
         .help = "Share of the layers whose weights live in CPU memory and are fetched before use",
         .matters = "where some optimizer steps off the GPU"}),
    knob<&WeightsPlan::look_ahead>(
        {.id = KnobId::kWeightsLookAhead,
         .path = "weights.look_ahead",
         .group = kWeights,
         .unit = "operations",
         .least = 0,
         .most = kMost,
         .studied_with = "weights.flow_share",
         .help = "Operations of the GPU between the fetch of a weight and its use",
         .matters = "with weights.flow_share above 0",
         .matters_in = [](const Plan& plan) { return plan.weights.flow_share.value_or(0) > 0; }}),
    knob<&OptimizerPlan::placement>(
        {.id = KnobId::kPlacement,
         .path = "optimizer.placement",
         .group = kOptimizer,
         .choices = kChoices<OptimizerPlacement::kGpu, OptimizerPlacement::kCpu,
                             OptimizerPlacement::kNvme>,
         .search = KnobSearch::kLayout,
         .tried = kChoices<OptimizerPlacement::kGpu, OptimizerPlacement::kCpu>,
         .help = "Where optimizer state and master weights live"}),
    knob<&OptimizerPlan::bucket_bytes>(
        {.id = KnobId::kBucketBytes,
         .path = "optimizer.bucket_bytes",
         .group = kOptimizer,
         .unit = "bytes",
         .least = 1,
         .most = kMostBytes,
         .search = KnobSearch::kRank,
         .tried = kBucketsTried,
         .tried_text = "powers of two that cut the model into other numbers of buckets",
         .tuned_under_strategy = true,
         .help = "Size of a bucket, counted in 32-bit values"}),
    knob<&OptimizerPlan::gpu_buckets>(
        {.id = KnobId::kGpuBuckets,
         .path = "optimizer.gpu_buckets",
         .group = kOptimizer,
         .unit = "buckets",
         .least = 0,
         .most = kMost,
         .search = KnobSearch::kRank,
         .tried_text = "0, 1, 2, 3, 4, 6, 8, 12, ... and all",
         .help = "The last so many buckets keep optimizer and master weights on the GPU",
         .matters = "with optimizer.placement cpu or nvme",
         .matters_in = steps_on_cpu}),
    knob<&OptimizerPlan::cast>(
        {.id = KnobId::kCast,
         .path = "optimizer.cast",
         .group = kOptimizer,
         .choices = kChoices<CastPlacement::kGpu, CastPlacement::kCpu>,
         .search = KnobSearch::kRank,
         .tried = kChoices<CastPlacement::kGpu, CastPlacement::kCpu>,
         .help = "Where 16-bit and 32-bit values are converted: gpu moves 32 "
                 "bits over the link, cpu 16",
         .matters = "with optimizer.placement cpu or nvme, and dtype not fp32",
         .matters_in = steps_on_cpu}),
    knob<&OptimizerPlan::sync>(
        {.id = KnobId::kSync,
         .path = "optimizer.sync",
         .group = kOptimizer,
         .choices = kChoices<SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate>,
         .search = KnobSearch::kRank,
         .tried = kChoices<SyncMode::kWait, SyncMode::kSpeculate>,
         .tried_text = "delay too with --allow-delay",
         .help = "wait for all gradients; delay the step by one, which changes results; or "
                 "speculate, and undo what was wrong",
         .matters = "with optimizer.placement cpu or nvme",
         .matters_in = steps_on_cpu}),
    knob<&OptimizerPlan::undo>(
        {.id = KnobId::kUndo,
         .path = "optimizer.undo",
         .group = kOptimizer,
         .choices = kChoices<UndoKind::kSnapshot, UndoKind::kExact>,
         .search = KnobSearch::kRank,
         .tried = kChoices<UndoKind::kSnapshot, UndoKind::kExact>,
         .help = "How a step that was wrong is undone: from a copy, or by a record of codes",
         .matters = "with optimizer.sync speculate",
         .matters_in =
             [](const Plan& plan) { return plan.optimizer.sync == SyncMode::kSpeculate; }}),
    knob<&OptimizerPlan::adam>({.id = KnobId::kAdam,
                                .path = "optimizer.adam",
                                .group = kOptimizer,
                                .help = "The CPU's Adam: a kernel table or a curve of the machine; "
                                        "best is the fastest",
                                .matters = "with optimizer.placement cpu or nvme",
                                .matters_in = steps_on_cpu}),
    knob<&OptimizerPlan::stream_share>(
        {.id = KnobId::kStreamShare,
         .path = "optimizer.stream_share",
         .group = kOptimizer,
         .may_be_absent = true,
         .studied_with = "optimizer.placement",
         .help = "Share of the CPU's buckets whose state comes to the GPU to be stepped (arXiv "
                 "2410.21316)",
         .matters = "with optimizer.placement cpu",
         .matters_in = steps_on_cpu}),
    knob<&OptimizerPlan::moments>({.id = KnobId::kMoments,
                                   .path = "optimizer.moments",
                                   .group = kOptimizer,
                                   .choices = kChoices<DType::kF32, DType::kBf16>,
                                   .may_be_absent = true,
                                   .studied_with = "optimizer.placement",
                                   .help = "How both moments are stored"}),
    knob<&Plan::ffn_tiles>(
        {.id = KnobId::kFfnTiles,
         .path = "ffn_tiles",
         .group = kMemory,
         .unit = "pieces",
         .least = 1,
         .most = 1 << 20,
         .may_be_absent = true,
         .only_predicted = "feed-forwards over a piece of the tokens after another",
         .help = "Pieces of a micro-batch's tokens that pass a feed-forward one after another "
                 "(arXiv 2506.13996)",
         .matters = "where fc1 and activation are recomputed"}),
    knob<&Plan::memory_reuse>({
        .id = KnobId::kMemoryReuse,
        .path = "memory_reuse",
        .group = kMemory,
        .choices = kChoices<MemoryReuse::kApart, MemoryReuse::kAtOnce>,
        .may_be_absent = true,
        .search = KnobSearch::kRank,
        .tried = kChoices<MemoryReuse::kApart, MemoryReuse::kAtOnce>,
        .tried_text = "the first with which a plan fits",
        .tuned_under_strategy = true,
        .help = "When memory that tensors have left is used again: apart lanes never wait for it, "
                "at-once takes least",
    }),
    knob<&Plan::activations>(
        {.id = KnobId::kActivations,
         .path = "activations",
         .group = kActivations,
         .search = KnobSearch::kRank,
         .tried_text =
             "from keeping all to recomputing or offloading all, offload_share in quarters",
         .tuned_under_strategy = true,
         .help = "What becomes of modules' outputs between forward and backward: "
                 "those below, or auto"}),
    knob<&ActivationPlan::fate>({.id = KnobId::kFates,
                                 .path = "activations.fate",
                                 .group = kActivations,
                                 .choices = kChoices<Fate::kKeep, Fate::kRecompute, Fate::kOffload>,
                                 .studied_with = "activations",
                                 .help =
                                     "One key for each kind of module that saves its output: keep "
                                     "it, recompute it, or offload it"}),
    knob<&ActivationPlan::offload_share>(
        {.id = KnobId::kOffloadShare,
         .path = "activations.offload_share",
         .group = kActivations,
         .tried_shares = kQuarters,
         .studied_with = "activations",
         .help = "Share of the layers, first ones first, whose offload is obeyed; the last layer "
                 "always keeps",
         .matters = "where a module's output is offloaded",
         .matters_in = offloads}),
    knob<&ActivationPlan::offload_share_fall>(
        {.id = KnobId::kOffloadShareFall,
         .path = "activations.offload_share_fall",
         .group = kActivations,
         .may_be_absent = true,
         .studied_with = "activations",
         .help = "By how much offload_share is less on each stage of a pipeline than on the one "
                 "before it, since early stages hold more",
         .matters = "with pipeline above 1, where a module's output is offloaded",
         .matters_in = [](const Plan& plan) { return plan.pipeline > 1 && offloads(plan); }}),
    knob<&ActivationPlan::offload_least>(
        {.id = KnobId::kOffloadLeast,
         .path = "activations.offload_least_bytes",
         .group = kActivations,
         .unit = "bytes",
         .least = 0,
         .most = kMostBytes,
         .may_be_absent = true,
         .studied_with = "activations",
         .help = "Of what is offloaded, tensors of fewer bytes stay",
         .matters = "where a module's output is offloaded",
         .matters_in = offloads}),
    knob<&ActivationPlan::offload_in_flight>(
        {.id = KnobId::kOffloadInFlight,
         .path = "activations.offload_in_flight",
         .group = kActivations,
         .unit = "copies",
         .least = 0,
         .most = kMost,
         .may_be_absent = true,
         .studied_with = "activations",
         .help = "Outputs that may be on their way out at once, before the computation waits for "
                 "the first of them; 0: it does not wait",
         .matters = "where a module's output is offloaded",
         .matters_in = offloads}),
    knob<&ActivationPlan::offload_part>(
        {.id = KnobId::kOffloadPart,
         .path = "activations.offload_part",
         .group = kActivations,
         .may_be_absent = true,
         .studied_with = "activations",
         .only_predicted = "outputs of which a part leaves and a part stays",
         .help = "Of every output that is offloaded, the part that leaves (arXiv 2406.08756)",
         .matters = "where a module's output is offloaded",
         .matters_in = offloads}),
    knob<&ActivationPlan::offload_per_mflop>(
        {.id = KnobId::kOffloadPerMflop,
         .path = "activations.offload_per_mflop",
         .group = kActivations,
         .unit = "bytes",
         .least = 0,
         .most = kMost,
         .may_be_absent = true,
         .studied_with = "activations",
         .only_predicted = "outputs of which a share by part leaves",
         .help = "Bytes of a part's offloaded outputs that leave for every million FLOPs of the "
                 "part after it, keys and values none (arXiv 2503.10377); 0: offload_part says it",
         .matters = "with subsequences above 1, where a module's output is offloaded",
         .matters_in = [](const Plan& plan) { return plan.subsequences > 1 && offloads(plan); }}),
    knob<&ActivationPlan::recompute_share>(
        {.id = KnobId::kRecomputeShare,
         .path = "activations.recompute_share",
         .group = kActivations,
         .may_be_absent = true,
         .studied_with = "activations",
         .help = "Share of the layers, spread evenly over them, whose recompute is obeyed",
         .matters = "where something is recomputed",
         .matters_in = recomputes}),
    knob<&ActivationPlan::recompute_fc1_part>(
        {.id = KnobId::kRecomputeFc1Part,
         .path = "activations.recompute_fc1_part",
         .group = kActivations,
         .may_be_absent = true,
         .studied_with = "activations",
         .only_predicted = "an output of which a part is recomputed and a part stays",
         .help = "Of fc1's output, where it is recomputed, the part that is",
         .matters = "where fc1 is recomputed",
         .matters_in = recomputes_fc1}),
    knob<&ActivationPlan::look_ahead>(
        {.id = KnobId::kActivationsLookAhead,
         .path = "activations.look_ahead",
         .group = kActivations,
         .unit = "operations",
         .least = 0,
         .most = kMost,
         .studied_with = "activations",
         .help = "Operations of the GPU between a reload and its use",
         .matters = "where a module's output is offloaded, with "
                    "activations.reload look-ahead",
         .matters_in =
             [](const Plan& plan) { return offloads(plan) && !reloads_by_module(plan); }}),
    knob<&ActivationPlan::reload>(
        {.id = KnobId::kReload,
         .path = "activations.reload",
         .group = kActivations,
         .choices = kChoices<ReloadOrder::kLookAhead, ReloadOrder::kByModule>,
         .may_be_absent = true,
         .studied_with = "activations",
         .help = "What is offloaded returns look-ahead operations before its use, or by module: "
                 "once the same module of the layer before it has gone back (Megatron-Core)",
         .matters = "where a module's output is offloaded",
         .matters_in = offloads}),
    knob<&ActivationPlan::dispatched>(
        {.id = KnobId::kDispatched,
         .path = "activations.dispatched",
         .group = kActivations,
         .choices = kChoices<Fate::kKeep, Fate::kRecompute, Fate::kOffload>,
         .may_be_absent = true,
         .studied_with = "activations",
         .help = "Rows of tokens as experts take them: keep, recompute (send again) or offload",
         .matters = "where the model has experts"}),
    knob<&ActivationPlan::scores>({.id = KnobId::kScores,
                                   .path = "activations.scores",
                                   .group = kActivations,
                                   .choices = kChoices<Fate::kKeep, Fate::kRecompute>,
                                   .may_be_absent = true,
                                   .studied_with = "activations",
                                   .help = "The scores of eager attention: keep, or recompute "
                                           "(Megatron's selective)",
                                   .matters = "with eager attention"}),
    knob<&Plan::checkpoint_period_steps>(
        {.id = KnobId::kCheckpointPeriodSteps,
         .path = "checkpoint_period_steps",
         .group = kCheckpoint,
         .unit = "steps",
         .least = 0,
         .most = kMost,
         .help = "Steps from one checkpoint to the next; 0: none"}),
};
static_assert(std::size(kTable) == kKnobs);
constexpr bool is_in_order() {
  for (size_t i = 0; i < kKnobs; ++i) {
    if (static_cast<size_t>(kTable[i].id) != i) return false;
  }
  return true;
}
static_assert(is_in_order(), "rows stand in the order of KnobId");

}  // namespace

std::span<const Knob> knobs() { return kTable; }

const Knob& knob_of(KnobId id) { return kTable[static_cast<size_t>(id)]; }

}  // namespace ballast
