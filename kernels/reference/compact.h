// The step with compact moments, for the reference table.
#pragma once

#include "kernels/kernels.h"

namespace ballast::kernels {

void adam_step_compact_reference(const CompactArrays& arrays, const AdamConstants& constants);

}  // namespace ballast::kernels
