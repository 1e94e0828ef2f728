// What the rows of the table of knobs share: values that searches try, ends of ranges, and when
// what concerns activations matters.
//
// Only the rows in sim/spec/knobs/ include this header.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "sim/spec/knobs.h"

namespace ballast::knob_domains {

template <auto... kValues>
inline constexpr int64_t kChoices[] = {static_cast<int64_t>(kValues)...};

inline constexpr double kQuarters[] = {0.0, 0.25, 0.5, 0.75, 1.0};
inline constexpr int64_t kMost = 1 << 30;
inline constexpr int64_t kMostBytes = int64_t{1} << 40;
// More chunks a stage than these only add messages; Megatron's largest published runs use six.
inline constexpr int64_t kChunksTried[] = {1, 2, 3, 4, 5, 6, 7, 8};
template <size_t kCount>
constexpr std::array<int64_t, kCount> first_numbers() {
  std::array<int64_t, kCount> numbers{};
  for (size_t i = 0; i < kCount; ++i) numbers[i] = static_cast<int64_t>(i);
  return numbers;
}
inline constexpr auto kSchedulesTried = first_numbers<std::size(kPipelineSchedules)>();
// Powers of two from 1 MiB to 256 MiB.
inline constexpr int64_t kBucketsTried[] = {1 << 20, 1 << 21, 1 << 22, 1 << 23, 1 << 24,
                                            1 << 25, 1 << 26, 1 << 27, 1 << 28};
inline constexpr int64_t kMostSubsequences = 4096;
inline constexpr int64_t kMostLossChunks = 4096;
// A stage is a number of 8 bits in a program.
inline constexpr int64_t kMostStages = 127;

inline bool steps_on_cpu(const Plan& plan) {
  return plan.optimizer.placement != OptimizerPlacement::kGpu;
}
inline bool offloads(const Plan& plan) {
  if (!plan.activations) return true;  // what is chosen for it may
  const Fates& fates = plan.activations->fate;
  return plan.activations->dispatched == ActivationFate::kOffload ||
         std::any_of(saving_kinds().begin(), saving_kinds().end(), [&](ModuleKind kind) {
           return fates[static_cast<size_t>(kind)] == ActivationFate::kOffload;
         });
}

inline bool recomputes(const Plan& plan) {
  if (!plan.activations) return true;  // what is chosen for it may
  const Fates& fates = plan.activations->fate;
  return plan.activations->scores == ActivationFate::kRecompute ||
         plan.activations->dispatched == ActivationFate::kRecompute ||
         std::any_of(saving_kinds().begin(), saving_kinds().end(), [&](ModuleKind kind) {
           return fates[static_cast<size_t>(kind)] == ActivationFate::kRecompute;
         });
}

inline bool recomputes_fc1(const Plan& plan) {
  constexpr auto kFc1 = static_cast<size_t>(ModuleKind::kFc1);
  return !plan.activations || plan.activations->fate[kFc1] == ActivationFate::kRecompute;
}

inline bool reloads_by_module(const Plan& plan) {
  return plan.activations && plan.activations->reload == ReloadOrder::kByModule;
}

}  // namespace ballast::knob_domains
