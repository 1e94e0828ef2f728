// A small published case that the tests of cases and of calibration begin from.
#pragma once

#include <string>

#include "autotune/calibrate/published_cases.h"
#include "profiles/load.h"

namespace ballast::calibrated {

// A gpt2 of four layers of 256 on one A100 with everything on the GPU: eight sequences of 128
// tokens a step, two at a time, nothing recomputed, flash attention. Nothing measured yet.
inline CaseSetup small_setup(const std::string& id = "small") {
  CaseSetup setup;
  PublishedCase& published = setup.published;
  published.id = id;
  published.machine = "hgx-a100-80gb";
  published.stack = "ballast";
  published.model = parse_model(R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4,
                             "vocab_size": 2048, "n_positions": 128})",
                                id, id);
  published.plan.zero_stage = 0;
  published.plan.sequence_length = 128;
  published.plan.global_batch = 8;
  published.plan.micro_batch = 2;
  published.plan.weights.flow_share = 0;
  published.plan.optimizer.placement = OptimizerPlacement::kGpu;
  published.plan.optimizer.gpu_buckets = 0;
  published.plan.optimizer.sync = SyncMode::kWait;
  published.plan.activations = ActivationPlan{};
  setup.machine = load_machine(published.machine);
  setup.stack = load_stack(published.stack);
  return setup;
}

}  // namespace ballast::calibrated
