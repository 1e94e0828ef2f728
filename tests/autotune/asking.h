// Questions of many searches, answered by searching at once.
#pragma once

#include "autotune/search/search_question.h"
#include "tests/autotune/support.h"

namespace ballast::tests {

enum class How : uint8_t { kByBounds, kExhaustively };

inline Ask searching(How how = How::kByBounds) {
  return [how](const SearchQuestion& question) -> std::optional<SearchResult> {
    SearchOptions options;
    options.exhaustive = how == How::kExhaustively;
    options.tolerance = question.tolerance;
    options.ranked = question.ranked;
    return search(question.model, question.space, question.machine, nullptr, options);
  };
}

// Micro-batch, activations and buckets on the GPU of one plan.
inline SearchQuestion small_question(const Plan& base, const Machine& machine) {
  SearchQuestion question;
  question.model = small_model();
  question.machine = machine;
  question.space.layouts = {base};
  question.space.open.add(KnobId::kMicroBatch).add(KnobId::kActivations);
  question.space.open.add(KnobId::kGpuBuckets);
  return question;
}

// Every plan of the question that fits, simulated.
inline std::vector<Candidate> all_plans(SearchQuestion question) {
  question.ranked = 1'000'000;
  return searching(How::kExhaustively)(question)->ranked;
}

inline Bytes gpu_memory(const Candidate& candidate) {
  return candidate.memory[static_cast<size_t>(Place::kHbm)];
}

}  // namespace ballast::tests
