// Rows of the table of knobs: what is trained where, and how ranks share it.
//
// Only sim/spec/knobs.cpp includes this header.
#pragma once

#include "sim/spec/knob_access.h"
#include "sim/spec/knob_domains.h"
#include "sim/spec/knobs.h"

namespace ballast::knob_rows {

using namespace knob_domains;
using knob_access::knob;
using enum KnobGroup;

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

inline constexpr Knob kNameAndRankRows[] = {
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
    knob<&Plan::context_balance>(
        {.id = KnobId::kContextBalance,
         .path = "context_balance",
         .group = kParallelism,
         .choices =
             kChoices<ContextBalance::kZigzag, ContextBalance::kNone, ContextBalance::kHelpers>,
         .may_be_absent = true,
         .studied_with = "layout",
         .help = "Tokens of a rank of a ring: zigzag: an early and a late piece, so that all ranks "
                 "have as many causal pairs; none: consecutive ones, and all wait for the last "
                 "rank; helpers: consecutive ones, and ranks that would idle attend for later ones "
                 "(arXiv 2310.03294; predicted only)",
         .matters = "with context above 1",
         .matters_in = [](const Plan& plan) { return plan.context > 1; }}),
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
};

}  // namespace ballast::knob_rows
