// Training written out as a plain loop, apart from graphs, buckets, devices and kernels' tables:
// the whole decoder forward and backward (decoder.h), the norm, the clipping, and AdamW in floats.
//
// What changes the arithmetic of a training by intent is held against it: the batch, the types,
// moments in bf16, and updates that are applied one step late.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/train/trainer.h"

namespace ballast::tiny {

// The parameters after `steps` steps, in flat order. Looks at the batch, the types, into
// how many pieces the loss cuts its tokens, at whether weights are split over ranks, and of the
// optimizer at `moments` and at whether it delays, and then at which weights flow; at no other knob
// of the plan.
std::vector<float> plain_loop(const Model& model, const Plan& plan, const TrainerOptions& options,
                              int64_t steps);

}  // namespace ballast::tiny
