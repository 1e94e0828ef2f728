// Rows of the table of knobs: what a step is given, and the formats of values.
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

inline constexpr Knob kBatchRows[] = {
    knob<&Plan::global_batch>(
        {.id = KnobId::kGlobalBatch,
         .path = "global_batch",
         .group = kBatch,
         .unit = "sequences",
         .least = 0,
         .most = kMost,
         .help = "Sequences of a step over all devices; 0 in a file: 8 a "
                 "device",
         .flag = {"--global-batch",
                  "Sequences of a step, all devices [8 a device; 8 a replica where degrees are "
                  "named]",
                  "COUNT"}}),
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
    knob<&Plan::multiplex>(
        {.id = KnobId::kMultiplex,
         .path = "multiplex",
         .group = kBatch,
         .may_be_absent = true,
         .search = KnobSearch::kLayout,
         .tried_text = "where a strategy lists it: both, with as many parts as stages or more, "
                       "one micro-batch, and activations that are said",
         .studied_with = "layout",
         .only_predicted = "parts of sequences that pass a stage on the devices of all stages",
         .help = "Parts that a pipeline fills and empties with pass each stage's layers on the "
                 "devices of all stages at once, which share their tokens and are sent the weights "
                 "(arXiv 2503.10377)",
         .matters = "with pipeline and subsequences above 1",
         .matters_in =
             [](const Plan& plan) { return plan.pipeline > 1 && plan.subsequences > 1; }}),
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
         .flag = {"--dtype",
                  "Of weights and activations: bf16, fp16, fp32 [bf16]; fp8 is of products alone: "
                  "--set plan.products=fp8",
                  "NAME"}}),
    knob<&Plan::products>({.id = KnobId::kProducts,
                           .path = "products",
                           .group = kFormats,
                           .choices = kChoices<ProductFormat::kAsStored, ProductFormat::kFp8>,
                           .may_be_absent = true,
                           .help =
                               "What the matrix products of layers multiply: values as they are "
                               "stored, or rounded to 8 bits"}),
    knob<&Plan::gradients>(
        {.id = KnobId::kGradients,
         .path = "gradients",
         .group = kFormats,
         .choices = kChoices<GradientFormat::kAsWeights, GradientFormat::kF32>,
         .may_be_absent = true,
         .help = "What gradients of parameters are stored, and add up over micro-batches, in: the "
                 "format of weights, or 32 bits",
         .matters = "with dtype not fp32",
         .matters_in = [](const Plan& plan) { return plan.dtype != DType::kF32; }}),
};

}  // namespace ballast::knob_rows
