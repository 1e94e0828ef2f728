// How many kernels a framework launches for an operation: what the operation costs its host.
//
//   rows        a kernel goes over three arrays at most, and those of a norm over 2.25 on average:
//               the LlamaRMSNorm of transformers 4.40 is 8 kernels that read or write 18 values for
//               each value of the result (modeling_llama.py, lines 82 to 87). A fused pass is one.
//   attention   one forward; three backward (flash_attn 2.5: dot_do_o, dq_dk_dv, convert_dq). What
//               stores its scores: two or four products, and a kernel for each other two passes.
//   optimizer   one for 320 chunks of 65,536 values (apex, csrc/multi_tensor_apply.cuh,
//               depth_to_max_blocks; DeepSpeed and Megatron take the same chunks), or what the
//               operation says (BucketWork::launches).
//   copies      one call each; collectives one kernel; products one, in 8 bits five. Where a
//               framework multiplies expert by expert each counts as one, and in 8 bits as two: a
//               Linear that rounds takes the host more than twice as long as one that does not
//               (NVIDIA/TransformerEngine, issue 761). A factor whose scale is that of its own
//               values is three kernels more, which clear and find the largest, and divide (the
//               same at v2.9, common/recipe/current_scaling.cu lines 75, 97 and 258; for each
//               expert: pytorch/csrc/extensions/cast.cpp line 147). One is far more than a kernel
//               to the host, and has a constant of its own.
//
// Will not do: know what a launch takes (StackConstants::launch, expert_launch), or a time
// (sim/engine/cost).
#pragma once

#include <cstdint>

#include "sim/graph/core/graph.h"

namespace ballast {

// 0 for what a GPU's host does not enqueue: work of the CPU and of NVMe, decisions, and blocks,
// which stand for operations of their own.
int64_t kernels_of(const Op& op);
// Whether those are products of experts, one by one.
bool is_by_expert(const Op& op);

}  // namespace ballast
