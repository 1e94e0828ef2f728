#include "backend/train/training_device.h"

#include <fmt/format.h>
#include <utility>

#include "sim/base/error.h"

namespace ballast {

void refuse_what_cannot_run(const Model& model, const Plan& plan, const std::string& device) {
  const std::pair<bool, const char*> reasons[] = {
      {model.qk_norm, "its heads normalise q and k (qwen3)"},
      {model.experts > 0, "it routes tokens to experts"},
      {model.is_latent(), "its attention is latent (deepseek_v3)"},
      {model.attention_sinks, "its attention has sinks (gpt_oss)"},
      {model.sliding_window > 0, "some of its layers see a window only"},
      {model.scaled_rope, "its rotary positions are scaled (rope_scaling)"}};
  for (const auto& [applies, reason] : reasons) {
    if (!applies) continue;
    throw Error("model " + model.name,
                fmt::format("{}, which the {} device cannot run", reason, device),
                "predict it, or train a model without");
  }
  if (plan.devices > 1) {
    throw Error("plan, devices", fmt::format("{} devices, and the {} is one", plan.devices, device),
                "set devices to 1 to run it here");
  }
}

BatchRequest batch_request(const Plan& plan, const Op& op, Split split, int32_t step) {
  BatchRequest request;
  request.split = split;
  request.step = step;
  request.micro_batch = op.label.micro_batch;
  request.sequences = *plan.micro_batch;
  request.length = plan.sequence_length;
  return request;
}

std::vector<float> read_floats_of(TrainingDevice& device, TensorId tensor, int64_t begin,
                                  int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  device.read(tensor, 0, begin * static_cast<int64_t>(sizeof(float)),
              std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace ballast
