// Settings of a few layers of shipped models on shipped machines, at random or by name, small
// enough that every plan can be looked at.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "autotune/complete/layouts/open_layouts.h"
#include "autotune/complete/setting.h"
#include "autotune/space/layout.h"
#include "profiles/load.h"
#include "sim/base/error.h"
#include "tests/numbers.h"

namespace ballast::tests {

inline constexpr const char* kModels[] = {"gpt2-xl",     "llama-3.2-1b", "llama-3-8b",
                                          "gpt-13b",     "mixtral-8x7b", "qwen3-30b-a3b",
                                          "llama-3-70b", "gpt-oss-20b"};
inline constexpr const char* kMachines[] = {
    "alps-gh200-quad", "dgx-h100-80gb", "hgx-a100-80gb", "gh200-nvl2-96gb-240gb",
    "dgx-2-v100",      "hgx-h200-quad", "mi300a-quad",   "dgx-b200"};
inline constexpr const char* kStrategies[] = {"superoffload", "megatron", "zero-3", "zero-offload",
                                              "superoffload-ulysses"};
inline constexpr const char* kStacks[] = {"typical", "deepspeed-2025", "megatron-core-2024"};

template <size_t N>
const char* one_of(Numbers& numbers, const char* const (&names)[N]) {
  return names[numbers.below(N)];
}

// A few layers of a shipped model somewhere, with all degrees open that a strategy leaves open.
inline Setting random_setting(Numbers& numbers) {
  Setting setting;
  setting.model = load_model(one_of(numbers, kModels));
  setting.model.layers = 1 + numbers.below(3);
  setting.machine = load_machine(one_of(numbers, kMachines));
  setting.stack = load_stack(one_of(numbers, kStacks));
  const int64_t devices = int64_t{1} << numbers.below(3);
  PlanRequest request;
  request.strategy = one_of(numbers, kStrategies);
  request.knobs[KnobId::kDevices] = std::min(devices, setting.machine.devices_per_node);
  request.knobs[KnobId::kSequenceLength] = int64_t{1024} << (2 * numbers.below(3));
  setting.plan = resolve_plan(request);
  setting.plan.global_batch = setting.plan.devices << numbers.below(3);
  setting.plan.optimizer.bucket_bytes = {int64_t{1} << 28};  // so that there are few of them
  if (!setting.machine.gpu.matmul.contains(DType::kBf16)) setting.plan.dtype = DType::kF16;
  setting.model.max_positions = std::max(setting.model.max_positions, setting.plan.sequence_length);
  if (setting.plan.devices > 1) {
    for (const std::string& path : load_strategy(*request.strategy).layout) {
      setting.open.add(find_knob(path)->id);
    }
    if (!setting.open.empty()) setting.open.add(KnobId::kData);
  }
  return setting;
}

// A few layers of a shipped model on a shipped machine, as the typical framework runs them.
inline Setting setting_of(const char* model, int64_t layers, const char* machine,
                          const PlanRequest& request) {
  Setting setting;
  setting.model = load_model(model);
  setting.model.layers = layers;
  setting.machine = load_machine(machine);
  setting.stack = load_stack("typical");
  setting.plan = resolve_plan(request);
  return setting;
}

// With every degree open; there may be none.
inline std::vector<Plan> all_legal_layouts(const Setting& setting) {
  std::vector<Plan> legal;
  for (Plan& layout : layouts_of(setting.model, setting.plan, knobs_of(KnobSearch::kLayout))) {
    try {
      check(layout, setting.model);
      legal.push_back(std::move(layout));
    } catch (const Error&) {
      // Not legal.
    }
  }
  return legal;
}

// None where no layout is legal.
inline std::vector<OpenLayout> open_layouts_or_none(const Setting& setting) {
  try {
    return open_layouts(setting, nullptr);
  } catch (const Error&) {
    return {};
  }
}

inline std::string name_of(const Setting& setting) {
  const Plan& plan = setting.plan;
  return setting.model.name + " on " + setting.machine.name + ", " + plan.strategy + ", " +
         setting.stack.name + ", devices " + std::to_string(plan.devices) + ", layers " +
         std::to_string(setting.model.layers) + ", tokens " + std::to_string(plan.sequence_length) +
         ", batch " + std::to_string(plan.global_batch) + ", GPU " +
         std::to_string(setting.machine.gpu.memory.value.gb());
}

}  // namespace ballast::tests
