// The AdamW step with both moments kept in bf16: widened, stepped in fp32 by a table, and rounded
// to nearest even when they are stored. Since casts and steps of every table give the same bits, so
// does this.
//
// What rounding to nearest costs: a second moment changes by 1 - beta2 of the difference a step,
// and what is below 2^-9 of its value is lost, so with beta2 = 0.999 it hardly decays any more.
// Will not do: undo a step exactly; a record (undo.h) is of fp32 moments.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace ballast::kernels {

struct Bf16Moments {
  uint16_t* moment1 = nullptr;
  uint16_t* moment2 = nullptr;
};

// slice() of arrays whose moments are kept apart and are null here.
AdamArrays slice_without_moments(const AdamArrays& arrays, int64_t begin, int64_t count);

// One step over the run; arrays.moment1 and moment2 are not looked at.
void adam_step_bf16_moments(const Table& table, const AdamArrays& arrays,
                            const Bf16Moments& moments, const AdamConstants& constants);

}  // namespace ballast::kernels
