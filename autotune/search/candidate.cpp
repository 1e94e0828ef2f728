#include "autotune/search/candidate.h"

namespace ballast {

Candidate candidate_of(const Plan& plan, const Prediction& prediction) {
  Candidate candidate;
  candidate.plan = plan;
  candidate.step_time = prediction.step_time;
  candidate.tokens_per_s = prediction.tokens_per_s;
  for (const PlacePeak& peak : prediction.peaks) {
    candidate.memory[static_cast<size_t>(peak.place)] = peak.arena;
  }
  return candidate;
}

}  // namespace ballast
