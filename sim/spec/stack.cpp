#include "sim/spec/stack.h"

#include <cmath>

namespace ballast {
namespace {

constexpr int kLaunch = 4;

[[noreturn]] void refuse(const Stack& stack, const std::string& key, const std::string& what) {
  throw Error("stack " + stack.name + ": " + key, what, "correct it in the stack's file");
}

}  // namespace

std::string_view to_string(AttentionKind value) {
  return value == AttentionKind::kEager ? "eager" : "flash2";
}

std::string_view to_string(GradientPrecision value) {
  return value == GradientPrecision::kF32 ? "fp32" : "as_weights";
}

std::string_view to_string(Overlap value) {
  static constexpr std::array<std::string_view, kOverlaps> kNames = {"none", "partial", "full"};
  return kNames.at(static_cast<size_t>(value));
}

std::string_view to_string(Fusion value) {
  static constexpr std::array<std::string_view, kFusions> kNames = {"into_products", "one_pass",
                                                                    "none"};
  return kNames.at(static_cast<size_t>(value));
}

std::string_view to_string(LossPrecision value) {
  static constexpr std::array<std::string_view, kLossPrecisions> kNames = {"in_place", "fp32",
                                                                           "fp32_copies"};
  return kNames.at(static_cast<size_t>(value));
}

std::string_view constant_name(int index) {
  static constexpr std::array<std::string_view, kStackConstants> kNames = {
      "gemm_share",       "attention_share", "elementwise_share",
      "collective_share", "launch_us",       "memory_slack_share"};
  return kNames.at(static_cast<size_t>(index));
}

double constant(const StackConstants& constants, int index) {
  const std::array<double, kStackConstants> values = {
      constants.gemm,       constants.attention,   constants.elementwise,
      constants.collective, constants.launch.us(), constants.memory_slack};
  return values.at(static_cast<size_t>(index));
}

void set_constant(StackConstants& constants, int index, double value) {
  if (index == kLaunch) {
    constants.launch = Duration::from_us(value);
    return;
  }
  const std::array<double*, kStackConstants> places = {
      &constants.gemm, &constants.attention,   &constants.elementwise, &constants.collective,
      nullptr,         &constants.memory_slack};
  *places.at(static_cast<size_t>(index)) = value;
}

void check(const Stack& stack) {
  if (stack.name.empty()) refuse(stack, "name", "is empty");
  if (stack.facts.attention.empty()) refuse(stack, "attention", "names no kind");
  if (stack.facts.least_zero_stage < 0 || stack.facts.most_zero_stage > 3 ||
      stack.facts.least_zero_stage > stack.facts.most_zero_stage) {
    refuse(stack, "zero_stages", "are not an ascending pair from 0 to 3");
  }
  if (stack.facts.torch_adam_threads < 0) refuse(stack, "torch_adam_threads", "is negative");
  if (stack.facts.loss_chunks < 1) refuse(stack, "loss_chunks", "is less than 1");
  for (int i = 0; i < kStackConstants; ++i) {
    const double value = constant(stack.constants, i);
    const bool share = i < kLaunch;
    // A share above 1 says that the machine's own rate was underestimated; twice is a mistake.
    const bool legal = share ? value > 0 && value <= 2 : value >= 0 && value <= 1000;
    if (!std::isfinite(value) || !legal) {
      refuse(stack, std::string(constant_name(i)),
             share ? "is not a share above 0 and at most 2" : "is negative or absurdly large");
    }
  }
}

}  // namespace ballast
