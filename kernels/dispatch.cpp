// Chooses among the tables by asking the machine, once.

#include <array>

#include "kernels/kernels.h"
#include "kernels/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace ballast::kernels {
namespace {

struct Available {
  std::array<const Table*, 3> tables{};
  size_t count = 0;

  void add(const Table& table) { tables[count++] = &table; }
};

#if defined(__x86_64__)
// Clang 14 does not let __builtin_cpu_supports ask for this one.
bool has_half_conversions() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

Available ask_machine() {
  Available found;
  found.add(kReferenceTable);
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_half_conversions();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx2) found.add(kAvx2Table);
  if (avx512) found.add(kAvx512Table);
#elif defined(__aarch64__)
  // The loops cut 64 parameters into whole vectors: lengths are powers of two, as the architecture
  // demands by now.
  if ((getauxval(AT_HWCAP) & HWCAP_SVE) != 0) {
    const int bytes = prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK;
    if ((bytes & (bytes - 1)) == 0) found.add(kSveTable);
  }
#endif
  return found;
}

}  // namespace

std::span<const Table* const> available() {
  static const Available found = ask_machine();
  return std::span(found.tables).first(found.count);
}

AdamArrays slice(const AdamArrays& arrays, int64_t begin, int64_t count) {
  AdamArrays part = arrays;
  part.master += begin;
  part.moment1 += begin;
  part.moment2 += begin;
  part.gradient =
      static_cast<const char*>(arrays.gradient) + begin * bytes_of(arrays.gradient_format);
  if (arrays.weights != nullptr) {
    part.weights = static_cast<char*>(arrays.weights) + begin * bytes_of(arrays.weights_format);
  }
  part.count = count;
  return part;
}

const Table& reference() { return kReferenceTable; }

const Table& best() { return *available().back(); }

const Table* find(std::string_view name) {
  for (const Table* table : available()) {
    if (table->name == name) return table;
  }
  return nullptr;
}

}  // namespace ballast::kernels
