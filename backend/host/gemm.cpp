// Chooses among the compiled units by asking the machine, once.

#include "backend/host/gemm.h"

#include <array>

#include "backend/host/gemm/units.h"
#include "backend/host/transformer_rows.h"

namespace ballast {
namespace {

struct Available {
  std::array<GemmTable, 3> gemms{};
  std::array<const transformer::RowLoops<float>*, 3> rows{};
  size_t count = 0;

  void add(const GemmTable& gemm, const transformer::RowLoops<float>& row_loops) {
    gemms[count] = gemm;
    rows[count++] = &row_loops;
  }
};

Available ask_machine() {
  Available found;
  found.add(kGemmBaseline, kRowsBaseline);
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx2) found.add(kGemmAvx2, kRowsAvx2);
  if (avx512) found.add(kGemmAvx512, kRowsAvx512);
#endif
  return found;
}

const Available& available() {
  static const Available found = ask_machine();
  return found;
}

}  // namespace

std::span<const GemmTable> gemm_tables() {
  return std::span(available().gemms).first(available().count);
}

void gemm(const GemmArguments<float>& arguments) { gemm_tables().back().gemm(arguments); }
void gemm(const GemmArguments<double>& arguments) { gemm_double(arguments); }

namespace transformer {

std::span<const RowLoops<float>* const> row_loop_tables() {
  return std::span(available().rows).first(available().count);
}

template <>
const RowLoops<float>& row_loops<float>() {
  return *row_loop_tables().back();
}

template <>
const RowLoops<double>& row_loops<double>() {
  return kRowsDouble;
}

}  // namespace transformer
}  // namespace ballast
