#include "autotune/studies/explain.h"

#include <fmt/format.h>

#include "autotune/studies/studied_knobs.h"

namespace ballast {

std::vector<std::string> differing_knobs(const Plan& plan, const Plan& other) {
  std::vector<std::string> result;
  for (const StudiedKnob& knob : studied_knobs()) {
    const std::string mine = knob.text(plan);
    const std::string its = knob.text(other);
    if (mine != its) result.push_back(fmt::format("{}: {}, not {}", knob.name, mine, its));
  }
  return result;
}

}  // namespace ballast
