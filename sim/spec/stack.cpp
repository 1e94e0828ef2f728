#include "sim/spec/stack.h"

#include <cmath>
#include <fmt/format.h>
#include <variant>

namespace ballast {
namespace {

[[noreturn]] void refuse(const Stack& stack, const std::string& key, const std::string& what) {
  throw Error("stack " + stack.name + ": " + key, what, "correct it in the stack's file");
}

}  // namespace

std::string_view to_string(AttentionKind value) {
  return value == AttentionKind::kEager ? "eager" : "flash";
}

std::string_view to_string(AttentionKernel value) {
  static constexpr std::array<std::string_view, kAttentionKernels> kNames = {
      "flash1", "triton", "flash2", "flash3", "flash4", "cudnn9.13", "cudnn"};
  return kNames.at(static_cast<size_t>(value));
}

std::string_view to_string(GradientPrecision value) {
  return value == GradientPrecision::kF32 ? "fp32" : "as_weights";
}

std::string_view to_string(Scaling8 value) {
  static constexpr std::array<std::string_view, kScalings8> kNames = {"just_in_time", "delayed",
                                                                      "current"};
  return kNames.at(static_cast<size_t>(value));
}

std::string_view to_string(Weights8 value) {
  static constexpr std::array<std::string_view, kWeights8> kNames = {"each_use", "kept", "stored"};
  return kNames.at(static_cast<size_t>(value));
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
  static constexpr std::array<std::string_view, kLossPrecisions> kNames = {
      "in_place", "fp32", "fp32_copies", "torch_fp32", "torch", "compiled"};
  return kNames.at(static_cast<size_t>(value));
}

std::string_view to_string(Stage3Sending value) {
  static constexpr std::array<std::string_view, kStage3Sendings> kNames = {"ahead", "waited",
                                                                           "cast_by_host"};
  return kNames.at(static_cast<size_t>(value));
}

std::string_view to_string(SpeculativeSending value) {
  static constexpr std::array<std::string_view, kSpeculativeSendings> kNames = {"as_waiting",
                                                                                "waited", "twice"};
  return kNames.at(static_cast<size_t>(value));
}

bool OffloadFacts::operator==(const OffloadFacts& other) const {
  if (facts == nullptr || other.facts == nullptr) return facts == other.facts;
  return *facts == *other.facts;
}

namespace {

struct ConstantRow {
  std::string_view name;
  ConstantKind kind;
  std::variant<double StackConstants::*, Duration StackConstants::*> place;
  // A share above 1 says that the machine's own rate was underestimated; twice is a mistake. Wires
  // carry no more than they can.
  double most = 2;
};
constexpr std::array<ConstantRow, kStackConstants> kConstants = {{
    {"gemm_share", ConstantKind::kShare, &StackConstants::gemm},
    {"attention_share", ConstantKind::kShare, &StackConstants::attention},
    {"elementwise_share", ConstantKind::kShare, &StackConstants::elementwise},
    {"node_collective_share", ConstantKind::kShare, &StackConstants::node_collective, 1},
    {"network_collective_share", ConstantKind::kShare, &StackConstants::network_collective, 1},
    {"launch_us", ConstantKind::kMicroseconds, &StackConstants::launch},
    {"expert_launch_us", ConstantKind::kMicroseconds, &StackConstants::expert_launch},
    {"memory_slack_share", ConstantKind::kSlack, &StackConstants::memory_slack},
    {"cpu_share", ConstantKind::kShare, &StackConstants::cpu},
}};

const ConstantRow& row_of(int index) { return kConstants.at(static_cast<size_t>(index)); }

}  // namespace

ConstantKind constant_kind(int index) { return row_of(index).kind; }

double most_of_constant(int index) {
  return row_of(index).kind == ConstantKind::kShare ? row_of(index).most : 1000;
}

std::string_view constant_name(int index) { return row_of(index).name; }

double constant(const StackConstants& constants, int index) {
  const auto& place = row_of(index).place;
  const auto* time = std::get_if<Duration StackConstants::*>(&place);
  return time ? (constants.*(*time)).us() : constants.*std::get<double StackConstants::*>(place);
}

void set_constant(StackConstants& constants, int index, double value) {
  const auto& place = row_of(index).place;
  if (const auto* time = std::get_if<Duration StackConstants::*>(&place)) {
    constants.*(*time) = Duration::from_us(value);
  } else {
    constants.*std::get<double StackConstants::*>(place) = value;
  }
}

double StackUncertainty::time_of(const Model& model) const {
  return model.experts > 0 ? expert_time : time;
}

namespace {

void check(const Stack& stack, const StackUncertainty& uncertainty) {
  const auto is_spread = [](double value) { return std::isfinite(value) && value >= 0; };
  const auto size = static_cast<size_t>(kStackConstants * kStackConstants);
  if (uncertainty.covariance.size() != size) {
    refuse(stack, "uncertainty.covariance",
           "has " + std::to_string(uncertainty.covariance.size()) + " numbers instead of " +
               std::to_string(size));
  }
  for (const double value : uncertainty.covariance) {
    if (!std::isfinite(value)) refuse(stack, "uncertainty.covariance", "holds no number");
  }
  if (!is_spread(uncertainty.time)) refuse(stack, "uncertainty.time", "is no spread");
  if (!is_spread(uncertainty.memory)) refuse(stack, "uncertainty.memory", "is no spread");
  if (!is_spread(uncertainty.expert_time)) {
    refuse(stack, "uncertainty.expert_time", "is no spread");
  }
}

}  // namespace

double coordinate(const StackConstants& constants, int index) {
  const double value = constant(constants, index);
  return constant_kind(index) == ConstantKind::kSlack ? value : std::log(value);
}

void set_coordinate(StackConstants& constants, int index, double coordinate) {
  const bool slack = constant_kind(index) == ConstantKind::kSlack;
  set_constant(constants, index, slack ? coordinate : std::exp(coordinate));
}

void check(const Stack& stack) {
  if (stack.uncertainty) check(stack, *stack.uncertainty);
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
    const bool share = constant_kind(i) == ConstantKind::kShare;
    const double most = most_of_constant(i);
    const bool legal = value >= (share ? 1e-3 : 0) && value <= most;
    if (!std::isfinite(value) || !legal) {
      refuse(stack, std::string(constant_name(i)),
             share ? fmt::format("is not a share from 0.001 to {}", most)
                   : "is negative or absurdly large");
    }
  }
  for (const auto& [generation, factor] : stack.constants.sustained_gemm) {
    if (!std::isfinite(factor) || factor <= 0 || factor > 2) {
      refuse(stack, "sustained_gemm." + generation, "is not a share above 0 and at most 2");
    }
  }
}

}  // namespace ballast
