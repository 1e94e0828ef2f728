// How many buckets the GPU steps, between the counts of a list.
//
// A list has a few counts, each about twice the one before (ways_of()). Between two of them lie the
// most buckets that the GPU's memory takes, and often the shortest step: what the GPU steps neither
// leaves it nor waits for the CPU.
// Will not do: choose anything else of a plan (autotune/complete/complete.h), or tell whether any
// count fits (autotune/complete/feasibility.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "autotune/complete/estimates/completion_estimates.h"
#include "autotune/complete/setting.h"

namespace ballast {

// A plan faster than `limit` that differs from one of these completions in gpu_buckets alone;
// nothing where none was found, or where the setting says how many buckets the GPU steps.
// Completions that differ in nothing else are one kind. Kinds are asked from the one on of which
// the fastest step was timed, then by the bound of their steps, until several were no better in a
// row; of each, where its steps promise to be short
// (autotune/complete/estimates/completion_promises.h). `completions` are of one kind of attention.
// Ends with what was found where it is interrupted.
std::optional<TimedPlan> faster_gpu_buckets(const Setting& setting,
                                            const std::vector<const Completion*>& completions,
                                            std::optional<Duration> limit,
                                            CompletionEstimates& known,
                                            const std::function<bool()>& interrupted);

}  // namespace ballast
