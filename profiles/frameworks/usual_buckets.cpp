#include "profiles/frameworks/usual_buckets.h"

#include <algorithm>

#include "sim/base/units.h"

namespace ballast {
namespace {

// All of the gradients in one buffer: as many elements as a plan may name.
constexpr int64_t kWhole = int64_t{1} << 38;

struct UsualBucket {
  std::string_view stack;
  int64_t elements = 0;
  int64_t of_rank = 0;  // at least so many for each data-parallel rank
};

constexpr UsualBucket kUsual[] = {
    // Megatron-LM, megatron/core/distributed/distributed_data_parallel.py: 40,000,000 elements, and
    // since core_r0.5 1,000,000 a rank where that is more.
    {"megatron-core-2024", 40'000'000, 1'000'000},
    {"nemo-2025", 40'000'000, 1'000'000},
    {"megatron-bridge-2025", 40'000'000, 1'000'000},
    {"megatron-2023", 40'000'000},
    // InternEvo, configs/7B_sft.py at fa7337b: reduce_bucket_size.
    {"internevo-2023", int64_t{512} << 20},
    // Before that, megatron/model/distributed.py: one buffer of each type, reduced whole.
    {"megatron-2021", kWhole},
    {"megatron-2022", kWhole},
    // kwai/Megatron-Kwai: the same, behind the last micro-batch.
    {"megatron-kwai-2024", kWhole},
    // DeepSpeed, runtime/zero/config.py line 113: reduce_bucket_size, of stages 1 and 2 too.
    {"deepspeed-2024", 500'000'000},
    {"deepspeed-2025", 500'000'000},
    {"deepspeed-gh200", 500'000'000},
    {"lsaie-2025", 500'000'000},
    // torch DistributedDataParallel: 25 MiB (bucket_cap_mb), of 32-bit gradients; of 16-bit ones in
    // nanotron (config.model.ddp_bucket_cap_mb).
    {"torch-2025", (25 << 20) / 4},
    {"torchtitan-2025", (25 << 20) / 4},
    {"fms-fsdp-2024", (25 << 20) / 4},
    {"kempnerforge-2026", (25 << 20) / 4},
    {"llm-foundry-2023", (25 << 20) / 4},
    {"nanotron-2025", (25 << 20) / 2},
};

}  // namespace

std::optional<Bytes> usual_bucket(std::string_view stack, const Plan& plan) {
  const auto found = std::find_if(std::begin(kUsual), std::end(kUsual),
                                  [&](const UsualBucket& usual) { return usual.stack == stack; });
  if (found == std::end(kUsual)) return std::nullopt;
  // nanotron, src/nanotron/trainer.py line 786 at e24d2483: no DDP, and so no buckets, with ZeRO-1
  // and 32-bit sums, which are reduced as one buffer (gradient_accumulator.py,
  // sync_gradients_across_dp).
  if (stack == "nanotron-2025" && plan.zero_stage > 0) return bytes_of(kWhole, DType::kF32);
  return bytes_of(std::max(found->elements, found->of_rank * plan.data), DType::kF32);
}

void use_usual_bucket(std::string_view stack, Plan& plan) {
  if (plan.optimizer.placement != OptimizerPlacement::kGpu) return;
  plan.optimizer.bucket_bytes = usual_bucket(stack, plan).value_or(plan.optimizer.bucket_bytes);
}

}  // namespace ballast
