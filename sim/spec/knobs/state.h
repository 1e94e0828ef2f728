// Rows of the table of knobs: weights, optimizer and memory.
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

inline constexpr Knob kStateRows[] = {
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
    knob<&WeightsPlan::keep_codes>(
        {.id = KnobId::kKeepCodes,
         .path = "weights.keep_codes",
         .group = kWeights,
         .may_be_absent = true,
         .help =
             "8-bit codes of weights, but those of experts, are made once a step and kept on the "
             "GPU, 2 bytes a value, instead of before each product",
         .matters = "with products fp8",
         .matters_in = [](const Plan& plan) { return plan.products == ProductFormat::kFp8; }}),
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
         .help = "Size of a bucket, counted in 32-bit values. Unnamed it doubles until the CPU has "
                 "at most 8192"}),
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
                 "speculate, and undo what was wrong"}),
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
    knob<&OptimizerPlan::transfers>(
        {.id = KnobId::kTransfers,
         .path = "optimizer.transfers",
         .group = kOptimizer,
         .choices = kChoices<StateTransfers::kCopies, StateTransfers::kDirect>,
         .may_be_absent = true,
         .help = "What moves gradients to CPU memory and weights back: the copy engines, or "
                 "kernels that write and read it themselves (direct)",
         .matters = "with optimizer.placement cpu or nvme",
         .matters_in = steps_on_cpu}),
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
    knob<&Plan::loss_chunks>(
        {.id = KnobId::kLossChunks,
         .path = "loss_chunks",
         .group = kMemory,
         .unit = "pieces",
         .least = 1,
         .most = kMostLossChunks,
         .may_be_absent = true,
         .help =
             "Pieces of a micro-batch's tokens that pass head, loss and the head's backward one "
             "after another, so that the logits of one exist at a time (arXiv 2410.10989)"}),
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
};

}  // namespace ballast::knob_rows
