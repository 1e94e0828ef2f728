// The second half of every sum over rows: partial sums of runs of rows, added in order.
#pragma once

#include "kernels/cuda/cuda_kernels.h"

namespace ballast::kernels::cuda {

// to[j] = (or +=) the sum over runs of partials[run, j]; partials: fp32 [runs, columns]. Without
// runs the sum is 0.
struct SumPartials {
  const float* partials = nullptr;
  int64_t runs = 0;
  int64_t columns = 0;
  Array to;
  Write write = Write::kOverwrite;
};
Status sum_partials(const SumPartials&, Stream);

}  // namespace ballast::kernels::cuda
