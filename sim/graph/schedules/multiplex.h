// Parts that all stages of a pipeline share (Plan::multiplex; SPPO, arXiv 2503.10377, multiplexed
// sequence partitioning).
//
// Part i of N passes stage s of p in slot i + s. Below slot p - 1 later stages have nothing to do
// yet, and from slot N on earlier stages nothing more. In these slots the devices of all stages
// take a stage's parts together, each a share of their tokens, as sequence ranks do: a shared turn.
//
//   left    parts i < p - 1 - s, of stage 0, then of stage 1, ...
//   steady  every stage its own parts, as without it
//   right   parts i >= N - s, of stage 1, then of stage 2, ...; back in reverse
//
// What a stage would do alone in such a slot takes a share of 1/p, and so the slots at either end
// take half of what they would. Of the layer that comes next a device is sent the weights, and for
// attention keys and values of the heads that it has; it sends back keys and values (left) or their
// gradients (right), and the gradients of weights are summed where the weights are. What it saves
// of its tokens for the backward it keeps, since the same devices share the same turn back.
//
// Will not do: say what a turn is in the graph (stage_program.cpp).
#pragma once

#include <vector>

#include "sim/graph/schedules/chunk.h"

namespace ballast {

// The shared turns of a stage are numbered by place_of() of two parts: left and right.
inline constexpr int64_t kSharedEnds = 2;
inline constexpr int64_t kLeft = 0;
inline constexpr int64_t kRight = 1;

// The turns of a stage that all stages share, layer by layer, with what is sent for them. `spread`:
// the stage's chunk by the plan spread_over_stages(plan).
ChunkKind shared_chunk(const ChunkKind& spread, const Plan& plan, const SharedParts& parts);

// Takes from a stage's chunk what it shares. In place of that, in the turn of the first part on the
// left and of the last one on the right, stands one operation that touches what the stage's other
// turns do: weights and gradients, keys, values and the sums of their gradients.
void leave_to_all_stages(ChunkKind& chunk, const Plan& plan, const SharedParts& parts);

// All turns of a device: the shared ones, each of chunk 1 + stage, around those of its own stage.
std::vector<Turn> multiplexed_turns(int64_t stage, const Plan& plan);

// The stage's own turn in whose place a shared one stands.
inline Turn own_turn_of(const Turn& shared, const Plan& plan) {
  return {shared.direction, 0, 0, shared.part == kLeft ? 0 : plan.subsequences - 1};
}

}  // namespace ballast
