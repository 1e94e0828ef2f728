// Rows of the table of knobs: what becomes of activations, and checkpoints.
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

using Fate = ActivationFate;

// Rows that say more of one knob, which is studied with it.
template <auto kField>
constexpr Knob activation(Knob row) {
  row.group = kActivations;
  row.studied_with = "activations";
  return knob<kField>(row);
}
// Those that matter where anything leaves.
template <auto kField>
constexpr Knob offload(Knob row) {
  row.matters = "where a module's output is offloaded";
  row.matters_in = offloads;
  return activation<kField>(row);
}

inline constexpr Knob kActivationRows[] = {
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
    activation<&ActivationPlan::fate>(
        {.id = KnobId::kFates,
         .path = "activations.fate",
         .choices = kChoices<Fate::kKeep, Fate::kRecompute, Fate::kOffload>,
         .help = "One key for each kind of module that saves its output: keep "
                 "it, recompute it, or offload it"}),
    offload<&ActivationPlan::offload_share>(
        {.id = KnobId::kOffloadShare,
         .path = "activations.offload_share",
         .tried_shares = kQuarters,
         .help = "Share of the layers, first ones first, whose offload is obeyed; the last layer "
                 "always keeps"}),
    activation<&ActivationPlan::offload_share_fall>(
        {.id = KnobId::kOffloadShareFall,
         .path = "activations.offload_share_fall",
         .may_be_absent = true,
         .help = "By how much offload_share is less on each stage of a pipeline than on the one "
                 "before it, since early stages hold more",
         .matters = "with pipeline above 1, where a module's output is offloaded",
         .matters_in = [](const Plan& plan) { return plan.pipeline > 1 && offloads(plan); }}),
    offload<&ActivationPlan::offload_least>(
        {.id = KnobId::kOffloadLeast,
         .path = "activations.offload_least_bytes",
         .unit = "bytes",
         .least = 0,
         .most = kMostBytes,
         .may_be_absent = true,
         .help = "Of what is offloaded, tensors of fewer bytes stay"}),
    offload<&ActivationPlan::offload_in_flight>(
        {.id = KnobId::kOffloadInFlight,
         .path = "activations.offload_in_flight",
         .unit = "copies",
         .least = 0,
         .most = kMost,
         .may_be_absent = true,
         .help = "Outputs that may be on their way out at once, before the computation waits for "
                 "the first of them; 0: it does not wait"}),
    offload<&ActivationPlan::offload_part>(
        {.id = KnobId::kOffloadPart,
         .path = "activations.offload_part",
         .may_be_absent = true,
         .only_predicted = "outputs of which a part leaves and a part stays",
         .help = "Of every output that is offloaded, the part that leaves (arXiv 2406.08756)"}),
    activation<&ActivationPlan::offload_per_mflop>(
        {.id = KnobId::kOffloadPerMflop,
         .path = "activations.offload_per_mflop",
         .unit = "bytes",
         .least = 0,
         .most = kMost,
         .may_be_absent = true,
         .only_predicted = "outputs of which a share by part leaves",
         .help = "Bytes of a part's offloaded outputs that leave for every million FLOPs of the "
                 "part after it, keys and values none (arXiv 2503.10377); 0: offload_part says it",
         .matters = "with subsequences above 1, where a module's output is offloaded",
         .matters_in = [](const Plan& plan) { return plan.subsequences > 1 && offloads(plan); }}),
    activation<&ActivationPlan::recompute_share>(
        {.id = KnobId::kRecomputeShare,
         .path = "activations.recompute_share",
         .may_be_absent = true,
         .help = "Share of the layers, spread evenly over them, whose recompute is obeyed",
         .matters = "where something is recomputed",
         .matters_in = recomputes}),
    activation<&ActivationPlan::recompute_fc1_part>(
        {.id = KnobId::kRecomputeFc1Part,
         .path = "activations.recompute_fc1_part",
         .may_be_absent = true,
         .only_predicted = "an output of which a part is recomputed and a part stays",
         .help = "Of fc1's output, where it is recomputed, the part that is",
         .matters = "where fc1 is recomputed",
         .matters_in = recomputes_fc1}),
    activation<&ActivationPlan::look_ahead>(
        {.id = KnobId::kActivationsLookAhead,
         .path = "activations.look_ahead",
         .unit = "operations",
         .least = 0,
         .most = kMost,
         .help = "Operations of the GPU between a reload and its use",
         .matters = "where a module's output is offloaded, with "
                    "activations.reload look-ahead",
         .matters_in =
             [](const Plan& plan) { return offloads(plan) && !reloads_by_module(plan); }}),
    offload<&ActivationPlan::reload>(
        {.id = KnobId::kReload,
         .path = "activations.reload",
         .choices = kChoices<ReloadOrder::kLookAhead, ReloadOrder::kByModule>,
         .may_be_absent = true,
         .help = "What is offloaded returns look-ahead operations before its use, or by module: "
                 "once the same module of the layer before it has gone back (Megatron-Core)"}),
    activation<&ActivationPlan::dispatched>(
        {.id = KnobId::kDispatched,
         .path = "activations.dispatched",
         .choices = kChoices<Fate::kKeep, Fate::kRecompute, Fate::kOffload>,
         .may_be_absent = true,
         .help = "Rows of tokens as experts take them: keep, recompute (send again) or offload",
         .matters = "where the model has experts"}),
    activation<&ActivationPlan::scores>({.id = KnobId::kScores,
                                         .path = "activations.scores",
                                         .choices = kChoices<Fate::kKeep, Fate::kRecompute>,
                                         .may_be_absent = true,
                                         .help =
                                             "The scores of eager attention: keep, or recompute "
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

}  // namespace ballast::knob_rows
