#include "sim/base/units.h"

#include <fmt/format.h>

namespace ballast {

void refuse_seconds(double seconds) {
  throw Error("time",
              fmt::format("{:.3g} s are longer than the 106 days that are simulated", seconds),
              "give faster rates, or a smaller model or batch");
}

void refuse_sum() {
  throw Error("time", "a step is longer than the 106 days that are simulated",
              "give faster rates, or a smaller model or batch");
}

std::string bytes_text(Bytes size) {
  const auto count = static_cast<double>(size.count);
  if (count >= 999.95e6) return fmt::format("{:.3f} GB", count * 1e-9);
  if (count >= 999.95e3) return fmt::format("{:.1f} MB", count * 1e-6);
  if (count >= 1e3) return fmt::format("{:.1f} KB", count * 1e-3);
  return fmt::format("{} bytes", size.count);
}

}  // namespace ballast
