#include "sim/graph/passes/decoder/attention.h"

#include <algorithm>

#include "sim/graph/core/edit.h"
#include "sim/spec/ranks/ring.h"

namespace ballast {
namespace {

// Passes over the scores, each [B, H, S, S] read or written once. Forward: written by the first
// product, softmax (scale and mask with it) reads and writes, the second product reads. Backward:
// written, softmax reads it and the scores and writes, three products read. A fused softmax reads
// what the mask leaves alone, one half, and writes all (Megatron-LM,
// megatron/fused_kernels/scaled_upper_triang_masked_softmax.h: local_seq). Dropout reads and
// writes once more and a byte of mask; unfused scaling and masking read and write each.
void make_eager(AttentionWork& work, int64_t values, const StackFacts& facts, Phase phase) {
  const bool backward = is_backward(phase);
  work.kind = AttentionKind::kEager;
  const auto length = static_cast<double>(work.length);
  const auto keys = static_cast<double>(work.tokens_before + work.length);
  work.flops = {(backward ? 8 : 4) * length * keys *
                static_cast<double>(work.head_size * work.heads * work.sequences)};
  int64_t halves = backward ? 12 : 7;
  if (facts.fusion == Fusion::kNone) halves += backward ? 6 : 9;
  work.moved = bytes_of(values * halves / 2, work.dtype);
  if (facts.dropout) work.moved += bytes_of(2 * values, work.dtype) + Bytes{values};
}

// Rotary positions turn queries and keys, and turn their gradients back; beside that what a
// framework does to lay out queries, keys and values. Of the tokens that this rank has, in
// whichever heads.
Bytes passes_around(const Model& rank, int64_t tokens, const StackFacts& facts, DType dtype,
                    bool backward) {
  const int64_t queries = tokens * rank.heads * rank.head_size;
  const int64_t keys = tokens * rank.kv_heads * rank.head_size;
  const int64_t pairs = tokens * rank.kv_heads * (rank.head_size + rank.value_head_size());
  int64_t bytes = queries * (backward ? facts.query_backward_bytes : facts.query_bytes) +
                  pairs * (backward ? facts.key_backward_bytes : facts.key_bytes);
  if (rank.position == PositionKind::kRope) {
    int64_t own = backward ? facts.rotary_backward_bytes : facts.rotary_bytes;
    const int64_t scaled = backward ? facts.yarn_backward_bytes : facts.yarn_bytes;
    // Latent attention has kernels of its own for its few rotary columns.
    if (rank.yarn && !rank.is_latent() && scaled > 0) own = scaled;
    const bool is_fused = facts.fusion == Fusion::kIntoProducts;
    const int64_t one_pass = is_fused ? 0 : 2 * size_of(dtype);
    bytes += (queries + keys) * (own > 0 ? own : one_pass);
  }
  return {bytes};
}

}  // namespace

int64_t first_seen(Subsequence part, int64_t window) {
  return window > 0 ? std::max<int64_t>(part.begin - window + 1, 0) : 0;
}

int64_t scores_count(const Model& rank, const Plan& plan, Subsequence part) {
  return *plan.micro_batch * div_ceil(rank.heads, plan.sequence) *
         div_ceil(part.length, plan.context) * part.end();
}

AttentionWork attention_work(const Model& rank, const Plan& plan, const StackFacts& facts,
                             Phase phase, int64_t layer, Subsequence part) {
  const bool backward = is_backward(phase);
  AttentionWork work;
  work.sequences = *plan.micro_batch;
  // Of a ring the queries of this rank, which see the keys of all ranks as these come round.
  work.length = div_ceil(part.length, plan.context);
  work.tokens_before = part.end() - work.length;
  work.heads = div_ceil(rank.heads, plan.sequence);
  work.kv_heads = div_ceil(rank.kv_heads, plan.sequence);
  // Queries and keys are as wide as the values but for latent attention.
  work.head_size = div_ceil(rank.head_size + rank.value_head_size(), 2);
  work.dtype = plan.dtype;
  work.passed = passes_around(rank, part_tokens(plan, part), facts, plan.dtype, backward);
  if (facts.attention.front() == AttentionKind::kEager) {
    // What the mask hides is multiplied too, so all ranks of a ring have as much whichever tokens
    // they have.
    const int64_t scores = scores_count(rank, plan, part);
    make_eager(work, scores, facts, phase);
    const bool is_biased = !backward && rank.position == PositionKind::kLearned;
    if (is_biased) work.moved += Bytes{scores * facts.score_bytes};
    return work;
  }
  const auto length = static_cast<double>(plan.sequence_length);
  const int64_t window = rank.window_of(layer);
  if (window < part.end()) work.window = window;
  // Each product of the causal half of [S, S] with D costs S*S*D. A window w leaves 2wS - w^2 of
  // the S^2 that the half is counted by; a part what its queries see. All ranks of a ring wait for
  // the one that attends for most.
  work.is_helped = ring_rounds(plan).helped > 0;
  const auto ranks = static_cast<double>(plan.context);
  double products = (backward ? 5 : 2) / ranks;
  const double area = ranks * busiest_area(plan, part, window);
  if (area != length * length) products *= area / (length * length);
  work.flops = {products * length * length *
                static_cast<double>(work.head_size * work.heads * work.sequences)};
  const int64_t tokens = part_tokens(plan, part);
  const int64_t pair = rank.kv_heads * (rank.head_size + rank.value_head_size());
  // Of the parts before, of some heads (Ulysses), or as they come round the ring.
  const int64_t before =
      work.sequences * div_ceil(part.begin - first_seen(part, window), plan.sequence);
  const int64_t values = tokens * (rank.qkv_width() + rank.attention_width()) + before * pair;
  work.moved =
      bytes_of(backward ? 2 * values + tokens * rank.attention_width() : values, plan.dtype);
  if (backward && before > 0) {
    // Gradients of keys and values before are sums, which are read and written in 32 bits.
    work.moved = work.moved - bytes_of(before * pair, plan.dtype);
    work.moved += bytes_of(2 * before * pair, DType::kF32);
  }
  return work;
}

}  // namespace ballast
