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

}  // namespace ballast
