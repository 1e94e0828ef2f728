// Sequences of 512 tokens that pass the layers in four parts of 128: what every part computes,
// reads and leaves, by hand. tiny::model(): 2 heads of 4, so queries, keys and values are 8 wide
// each.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <string>
#include <tuple>
#include <vector>

#include "sim/graph/report/memory.h"
#include "sim/graph/schedules/pipeline.h"
#include "tests/graph/tiny_plans.h"

namespace ballast {
namespace {

constexpr int64_t kLength = 512;
constexpr int64_t kPart = 128;
constexpr int64_t kParts = 4;

Plan whole_plan() {
  Plan plan = tiny::plan();
  plan.sequence_length = kLength;
  plan.global_batch = 2;
  plan.micro_batch = 1;
  return plan;
}

Plan divided_plan() {
  Plan plan = whole_plan();
  plan.subsequences = kParts;
  return plan;
}

std::vector<const Op*> operations(const Graph& graph, OpKind kind, Phase phase, ModuleKind module) {
  std::vector<const Op*> found;
  for (const Op& op : graph.step.ops) {
    if (op.kind == kind && op.phase == phase && op.label.module == module) found.push_back(&op);
  }
  return found;
}

std::vector<const Op*> attention(const Graph& graph, Phase phase) {
  return operations(graph, OpKind::kAttention, phase, ModuleKind::kCoreAttention);
}

double flops_of_all(const Graph& graph) {
  double sum = 0;
  for (const Op& op : graph.step.ops) sum += flops_of(op.work).count;
  return sum;
}

int64_t accesses_of(const Op& op, Role role) {
  return std::count_if(op.accesses.begin(), op.accesses.end(),
                       [&](const Access& access) { return access.role == role; });
}

// Most bytes of these tensors that are alive at once.
template <class Predicate>
int64_t most_alive(const Graph& graph, const Predicate& counts) {
  const std::vector<Life> lives = lives_of(graph);
  return peak_of(live_bytes(graph, lives, [&](size_t t) { return counts(graph.tensors[t]); }))
      .live.count;
}

// Part i sees 128 * 128 * (2 i + 1) of the pairs, counted twice; forward two products of it with 8
// columns, backward five. Their sum is that of the whole square.
TEST(subsequences, attention_of_a_part_costs_what_its_queries_see) {
  const Graph graph = build_plain(tiny::model(), divided_plan());
  for (const auto& [phase, products] : {std::pair(Phase::kForward, 2), {Phase::kBackward, 5}}) {
    const std::vector<const Op*> ops = attention(graph, phase);
    ASSERT_EQ(ops.size(), 2u * 2u * kParts);  // micro-batches, layers, parts
    double sum = 0;
    for (size_t i = 0; i < kParts; ++i) {
      const size_t part = phase == Phase::kForward ? i : kParts - 1 - i;
      const auto& work = std::get<AttentionWork>(ops[i]->work);
      EXPECT_EQ(ops[i]->label.subsequence, static_cast<int16_t>(part));
      EXPECT_EQ(work.length, kPart);
      EXPECT_EQ(work.tokens_before, kPart * static_cast<int64_t>(part));
      const double pairs = 128.0 * 128.0 * (2.0 * static_cast<double>(part) + 1);
      EXPECT_DOUBLE_EQ(work.flops.count, products * pairs * 8);
      EXPECT_EQ(accesses_of(*ops[i], Role::kKeysValues), static_cast<int64_t>(part) + 1);
      sum += work.flops.count;
    }
    EXPECT_DOUBLE_EQ(sum, products * 512.0 * 512.0 * 8);
  }
}

// Forward: queries and output of a part, 128 * 8 each, keys and values of all so far, 16 wide.
// Backward: all of it twice (with gradients), the output once more; of the sums of gradients of
// keys and values before, 32 bits are read and written and no 16.
TEST(subsequences, attention_of_a_part_moves_what_it_reads_and_writes) {
  const Graph graph = build_plain(tiny::model(), divided_plan());
  for (size_t part = 0; part < kParts; ++part) {
    const auto before = static_cast<int64_t>(part) * kPart * 16;
    const int64_t own = kPart * (8 + 8 + 16);
    const Op& forward = *attention(graph, Phase::kForward)[part];
    EXPECT_EQ(bytes_of(forward.work).count, 2 * (own + before));
    const Op& backward = *attention(graph, Phase::kBackward)[kParts - 1 - part];
    EXPECT_EQ(bytes_of(backward.work).count, 2 * (2 * own + before + kPart * 8) + 2 * 4 * before);
  }
}

TEST(subsequences, parts_multiply_and_sum_as_much_as_the_whole) {
  const Graph whole = build_plain(tiny::model(), whole_plan());
  const Graph divided = build_plain(tiny::model(), divided_plan());
  EXPECT_DOUBLE_EQ(flops_of_all(divided), flops_of_all(whole));
  EXPECT_EQ(divided.step.ops.size() - 2,
            kParts * (whole.step.ops.size() - 2));  // batches are whole
  // What is saved is the same, keys and values apart.
  EXPECT_EQ(tiny::elements(divided, TensorKind::kOutput) +
                tiny::elements(divided, TensorKind::kKeysValues),
            tiny::elements(whole, TensorKind::kOutput));
  EXPECT_EQ(tiny::elements(divided, TensorKind::kKeysValues), 2 * 2 * kLength * 16);
}

// The first operation of a step that writes a gradient overwrites it; each later one adds.
TEST(subsequences, gradients_of_weights_add_up_from_the_last_part_on) {
  const Graph graph = build_plain(tiny::model(), divided_plan());
  const std::vector<const Op*> ops =
      operations(graph, OpKind::kGemm, Phase::kBackwardWeight, ModuleKind::kFc1);
  ASSERT_EQ(ops.size(), 2u * 2u * kParts);
  for (size_t i = 0; i < ops.size(); ++i) {
    const bool first = ops[i]->label.micro_batch == 0 && ops[i]->label.subsequence == 3;
    EXPECT_EQ(std::get<GemmWork>(ops[i]->work).accumulate, !first) << describe(*ops[i]);
    EXPECT_EQ(std::get<GemmWork>(ops[i]->work).k, kPart);
  }
}

// With a window of 129 tokens a query sees into the part before its own, of 128 into nothing but
// the last 127 tokens of it: both need two parts. The first 129 tokens' pairs are all there are.
TEST(subsequences, parts_that_no_window_reaches_are_not_read) {
  Model model = tiny::model();
  model.sliding_window = 128;
  const Graph graph = build_plain(model, divided_plan());
  double sum = 0;
  for (size_t part = 0; part < kParts; ++part) {
    const Op& op = *attention(graph, Phase::kForward)[part];
    EXPECT_EQ(accesses_of(op, Role::kKeysValues), part == 0 ? 1 : 2);
    sum += flops_of(op.work).count;
    const Op& back = *attention(graph, Phase::kBackward)[kParts - 1 - part];
    // Its sums of the part before; and, but for the last part, those that were left for it.
    EXPECT_EQ(accesses_of(back, Role::kKeyGradient), (part > 0) + (part + 1 < kParts));
  }
  EXPECT_DOUBLE_EQ(sum, 2.0 * 128 * (2 * 512 - 128) * 8);
  // All tokens of the first part see as far back as there are any.
  const auto window_of = [&](size_t part) {
    return std::get<AttentionWork>(attention(graph, Phase::kForward)[part]->work).window;
  };
  EXPECT_EQ(window_of(0), 0);
  EXPECT_EQ(window_of(1), 128);
  model.sliding_window = 1;
  const Graph alone = build_plain(model, divided_plan());
  for (const Op* op : attention(alone, Phase::kForward)) {
    EXPECT_EQ(accesses_of(*op, Role::kKeysValues), 1);
  }
}

// Of what is transient only one part is there at a time: logits of 16, the gradient of fc1, 64
// wide. Sums of gradients of keys and values: of three parts of one layer, 16 wide in 32 bits.
TEST(subsequences, what_is_transient_is_of_one_part) {
  const Graph whole = build_plain(tiny::model(), whole_plan());
  const Graph divided = build_plain(tiny::model(), divided_plan());
  const auto logits = [](const Tensor& t) {
    return t.kind == TensorKind::kOutput && t.label.module == ModuleKind::kHead;
  };
  const auto fc1_gradient = [](const Tensor& t) {
    return t.kind == TensorKind::kOutputGradient && t.label.module == ModuleKind::kFc1;
  };
  const auto sums = [](const Tensor& t) { return t.kind == TensorKind::kKeyGradient; };
  constexpr int64_t kStride = 64;  // of 16 ids: StackFacts::logits_multiple
  EXPECT_EQ(most_alive(whole, logits), kLength * kStride * 2);
  EXPECT_EQ(most_alive(divided, logits), kPart * kStride * 2);
  EXPECT_EQ(most_alive(whole, fc1_gradient), kLength * 64 * 2);
  EXPECT_EQ(most_alive(divided, fc1_gradient), kPart * 64 * 2);
  EXPECT_EQ(most_alive(whole, sums), 0);
  EXPECT_EQ(most_alive(divided, sums), 3 * kPart * 16 * 4);
}

// Recomputed, a layer's keys and values of all parts are made again before the backward of its last
// part; fc1, which no other part reads, part by part.
TEST(subsequences, a_layer_that_is_recomputed_has_one_parts_feed_forward) {
  Plan plan = divided_plan();
  plan.activations->fate.fill(ActivationFate::kRecompute);
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
  const Graph graph = checkpoint_pass(build_plain(tiny::model(), plan), plan, StackFacts{});
  const auto fc1 = [](const Tensor& t) {
    return t.kind == TensorKind::kOutput && t.label.module == ModuleKind::kFc1;
  };
  const auto keys_values = [](const Tensor& t) { return t.kind == TensorKind::kKeysValues; };
  EXPECT_EQ(most_alive(graph, fc1), kPart * 64 * 2);
  EXPECT_EQ(most_alive(graph, keys_values), kLength * 16 * 2);
  EXPECT_EQ(operations(graph, OpKind::kGemm, Phase::kRecompute, ModuleKind::kQkv).size(),
            2u * 2u * kParts);
}

// Keys and values leave after the last part's forward has read them, part by part, and are back
// before its backward.
TEST(subsequences, keys_and_values_rest_in_cpu_memory_between_forward_and_backward) {
  Plan plan = divided_plan();
  plan.global_batch = 1;
  plan.activations->fate[static_cast<size_t>(ModuleKind::kQkv)] = ActivationFate::kOffload;
  const Graph graph = checkpoint_pass(build_plain(tiny::model(), plan), plan, StackFacts{});
  // Of the first layer; the last one keeps. Queries and pairs of four parts, there and back.
  std::vector<size_t> leaves;
  std::vector<size_t> returns;
  size_t last_forward = 0;
  size_t first_backward = 0;
  for (size_t i = 0; i < graph.step.ops.size(); ++i) {
    const Op& op = graph.step.ops[i];
    if (op.label.layer != 0 || op.kind == OpKind::kGemm) continue;
    if (op.kind == OpKind::kAttention && op.phase == Phase::kForward) last_forward = i;
    if (op.kind == OpKind::kAttention && op.phase == Phase::kBackward && first_backward == 0) {
      first_backward = i;
    }
    if (op.kind != OpKind::kCopy || op.label.module != ModuleKind::kQkv) continue;
    const Tensor& from = graph.tensor(op.accesses.front().tensor);
    const bool pair = from.elements == kPart * 16;
    if (pair && op.phase == Phase::kOffload) leaves.push_back(i);
    if (pair && op.phase == Phase::kReload) returns.push_back(i);
  }
  ASSERT_EQ(leaves.size(), static_cast<size_t>(kParts));
  ASSERT_EQ(returns.size(), static_cast<size_t>(kParts));
  EXPECT_GT(leaves.front(), last_forward);
  EXPECT_LT(returns.back(), first_backward);
}

// Bytes that leave of each part of layer 0, and those of what it keeps between its halves.
struct PartBytes {
  std::vector<int64_t> made = std::vector<int64_t>(kParts);
  std::vector<int64_t> left = std::vector<int64_t>(kParts);
};
PartBytes part_bytes(const Plan& plan, ModuleKind module) {
  PartBytes bytes;
  const auto of = [](const Label& label) { return static_cast<size_t>(label.subsequence); };
  for (const Tensor& tensor : build_plain(tiny::model(), plan).tensors) {
    const bool counts = tensor.kind == TensorKind::kOutput && tensor.label.layer == 0;
    if (counts && tensor.label.module == module)
      bytes.made[of(tensor.label)] += tensor.bytes().count;
  }
  const Graph graph = checkpoint_pass(build_plain(tiny::model(), plan), plan, StackFacts{});
  for (const Op& op : graph.step.ops) {
    if (op.phase == Phase::kOffload) bytes.left[of(op.label)] += bytes_of(op.work).count;
  }
  return bytes;
}

// A layer's forward is 2048 FLOPs a token and attention 2 * 8 (2 i + 1) 128^2: 524,288 (i + 1) for
// part i, and 70 a token and column of 8 that norms and activation take. fc1 leaves 128 * 64 values
// of 2 bytes, A = 16,384. At 12,000 bytes for a million FLOPs of part 1 there is room for 0.77 of
// it, and of later parts for more, but no share grows; the last part has nothing after it.
// M_i = M_{i-1} + A - share * A: the peak is 4 A less 3 shares (arXiv 2503.10377).
TEST(subsequences, sppo_sends_away_what_fits_under_the_next_part) {
  Plan plan = divided_plan();
  plan.global_batch = 1;
  plan.activations->fate[static_cast<size_t>(ModuleKind::kFc1)] = ActivationFate::kOffload;
  plan.activations->offload_per_mflop = 12'000;
  const double part_1 = 524'288 * 2 + 128 * (2 * 8 * 8 + 12 * 32);
  const double share = 12e-3 * part_1 / 16'384;
  const int64_t leaves = 2 * std::llround(share * 128 * 64);
  EXPECT_NEAR(share, 0.77, 0.05);
  const PartBytes bytes = part_bytes(plan, ModuleKind::kFc1);
  EXPECT_EQ(bytes.made, std::vector<int64_t>(kParts, 16'384));
  EXPECT_EQ(bytes.left, (std::vector<int64_t>{leaves, leaves, leaves, 0}));
  // What is on the GPU when a part ends and what left of those before it is away.
  const Graph graph = checkpoint_pass(build_plain(tiny::model(), plan), plan, StackFacts{});
  const auto of_layer = [](const Tensor& t) {
    return t.kind == TensorKind::kOutput && t.label.module == ModuleKind::kFc1 &&
           t.label.layer == 0;
  };
  int64_t recurrence = 16'384;
  for (int64_t part = 1; part < kParts; ++part) recurrence += 16'384 - leaves;
  EXPECT_EQ(most_alive(graph, of_layer), recurrence);
}

// At a rate that carries all of every part, all but the last leave whole; keys and values never do.
TEST(subsequences, sppo_keeps_keys_and_values) {
  Plan plan = divided_plan();
  plan.global_batch = 1;
  plan.activations->fate[static_cast<size_t>(ModuleKind::kQkv)] = ActivationFate::kOffload;
  plan.activations->offload_per_mflop = 1 << 30;
  const int64_t queries = kPart * 8 * 2;
  EXPECT_EQ(part_bytes(plan, ModuleKind::kQkv).left,
            (std::vector<int64_t>{queries, queries, queries, 0}));
}

// Two stages of a layer, queries, keys and values offloaded, all else kept: X bytes a part, which
// is what a part keeps in all but its 128 * 24 values of 2 bytes. Folded, keys and values (4,096
// bytes a part) leave where they are once the last part has read them, and come back to where the
// backward reads them; of the last part they pass through, with its queries, in 6,144 bytes. They
// are there once beside the sums of their gradients, of 8,192 bytes a part, while it goes back; and
// the queries of the part before it, 2,048, are back for their turn.
TEST(subsequences, folded_stages_hold_keys_and_values_once) {
  Plan plan = divided_plan();
  plan.global_batch = 1;
  plan.devices = plan.pipeline = 2;
  const auto of_first = [](const Tensor& t) {
    return t.kind == TensorKind::kSaved && t.device == 0 && t.place == Place::kHbm;
  };
  const auto folded = [&] {
    return build_pipeline(tiny::model(), plan, StackFacts(), Folding::kOn);
  };
  const int64_t sums = 3 * 8192;
  const int64_t kept = most_alive(folded(), of_first) - sums;
  plan.activations->fate[static_cast<size_t>(ModuleKind::kQkv)] = ActivationFate::kOffload;
  const Graph graph = folded();
  EXPECT_EQ(most_alive(graph, of_first), kept - kParts * 6144 + 3 * 4096 + 6144 + 2048 + sums);
  // Whatever leaves comes back.
  int64_t left = 0, returned = 0;
  for (const Op& op : graph.step.ops) {
    if (device_of(op.lane) != 0) continue;
    if (op.phase == Phase::kOffload) left += bytes_of(op.work).count;
    if (op.phase == Phase::kReload) returned += bytes_of(op.work).count;
  }
  EXPECT_EQ(left, kParts * 6144);
  EXPECT_EQ(returned, kParts * 6144);
}

// Two ranks have 64 tokens each of a part. Of a layer and part queries (64 * 8 values of 2 bytes),
// keys and values (64 * 16) and the output are exchanged; back the gradient of the output and that
// of all three. What was exchanged of parts before is by heads already.
TEST(subsequences, ulysses_exchanges_the_keys_of_every_part_once) {
  Plan plan = divided_plan();
  plan.global_batch = 1;
  plan.devices = plan.sequence = 2;
  const Graph graph = sequence_pass(build_plain(tiny::model(), plan), plan);
  const auto message = [](int64_t width) {
    return CollectiveWork{CollectiveKind::kAllToAll, {64 * width * 2}, 2, 1};
  };
  std::vector<CollectiveWork> forward, backward;
  for (int i = 0; i < 2 * kParts; ++i) {
    forward.insert(forward.end(), {message(8), message(16), message(8)});
    backward.insert(backward.end(), {message(8), message(24)});
  }
  EXPECT_EQ(tiny::exchanges(graph, Phase::kForward).layers, forward);
  EXPECT_EQ(tiny::exchanges(graph, Phase::kBackward).layers, backward);
  // Each reads its own, exchanged, and those of the parts before as these read them.
  const std::vector<const Op*> ops = attention(graph, Phase::kForward);
  const auto pairs = [](const Op& op) {
    std::vector<TensorId> ids;
    for (const Access& access : op.accesses) {
      if (access.role == Role::kKeysValues) ids.push_back(access.tensor);
    }
    return ids;
  };
  const std::vector<TensorId> last = pairs(*ops[kParts - 1]);
  for (size_t part = 0; part < kParts; ++part) {
    EXPECT_EQ(pairs(*ops[part]),
              std::vector<TensorId>(last.begin(), last.begin() + 1 + static_cast<int>(part)));
    EXPECT_EQ(pairs(*attention(graph, Phase::kBackward)[2 * kParts - 1 - part]), pairs(*ops[part]));
  }
  EXPECT_DOUBLE_EQ(2 * flops_of_all(graph), flops_of_all(build_plain(tiny::model(), [&] {
                     Plan whole = whole_plan();
                     whole.global_batch = 1;
                     return whole;
                   }())));
}

// A rank has keys and values of 64 tokens of every part, 64 * 16 values of 2 bytes; part i sends
// those of i + 1 parts round the ring of two, back with their gradients.
TEST(subsequences, the_ring_carries_the_keys_of_all_parts_so_far) {
  Plan plan = divided_plan();
  plan.global_batch = 1;
  plan.devices = plan.context = 2;
  const Graph graph = sequence_pass(build_plain(tiny::model(), plan), plan);
  const auto message = [](int64_t pairs) {
    return CollectiveWork{CollectiveKind::kSendReceive, {pairs * 64 * 16 * 2}, 2, 1};
  };
  const auto twice = [](std::vector<CollectiveWork> layer) {
    layer.insert(layer.end(), layer.begin(), layer.begin() + kParts);
    return layer;
  };
  EXPECT_EQ(tiny::exchanges(graph, Phase::kForward).layers,
            twice({message(1), message(2), message(3), message(4)}));
  EXPECT_EQ(tiny::exchanges(graph, Phase::kBackward).layers,
            twice({message(8), message(6), message(4), message(2)}));
  // Of heads, where both share a sequence: 32 tokens a rank, of two ranks' of one head of two.
  plan.devices = 4;
  plan.sequence = 2;
  const Graph both = sequence_pass(build_plain(tiny::model(), plan), plan);
  const std::vector<CollectiveWork> sent = tiny::exchanges(both, Phase::kForward).layers;
  EXPECT_EQ(sent[2], (CollectiveWork{CollectiveKind::kSendReceive, {32 * 16 * 2}, 2, 1}));
}

// A layer of tiny::model() has 192 + 64 + 512 + 256 weights: 2,048 FLOPs a token, and 16 for every
// square of tokens seen. Over 8,192 tokens i / N of that is reached by the root of 16 x^2 + 2048 x;
// for four parts at 4064.4, 5774.0 and 7086.0, of which the nearest by FLOPs are these.
TEST(subsequences, parts_of_equal_flops_grow_shorter) {
  Plan plan = divided_plan();
  plan.sequence_length = 8192;
  plan.subsequence_split = SubsequenceSplit::kFlops;
  const auto begins = [&] {
    check(plan, tiny::model());
    std::vector<int64_t> list;
    for (const Subsequence& part : subsequences_of(plan, tiny::model())) list.push_back(part.begin);
    return list;
  };
  EXPECT_EQ(begins(), (std::vector<int64_t>{0, 4096, 5760, 7040}));
  plan.subsequences = 16;
  EXPECT_EQ(begins(), (std::vector<int64_t>{0, 2048, 2816, 3456, 4096, 4608, 4992, 5376, 5760, 6144,
                                            6400, 6784, 7040, 7424, 7680, 7936}));
  EXPECT_EQ(subsequences_of(plan, tiny::model()).back(), (Subsequence{7936, 256}));
}

// Equal to within a tile of the last, most dear tokens.
TEST(subsequences, parts_of_equal_flops_compute_the_same) {
  Plan plan = whole_plan();
  plan.sequence_length = 65536;
  plan.global_batch = 1;
  plan.subsequences = 4;
  plan.subsequence_split = SubsequenceSplit::kFlops;
  const Graph graph = build_plain(tiny::model(), plan);
  std::vector<double> flops(4);
  for (const Op& op : graph.step.ops) {
    const bool counts = op.phase == Phase::kForward && op.label.layer == 0 &&
                        (op.kind == OpKind::kGemm || op.kind == OpKind::kAttention);
    if (counts) flops[static_cast<size_t>(op.label.subsequence)] += flops_of(op.work).count;
  }
  const double tile = 128 * (2048 + 32 * 65536.0);
  for (const double one : flops) EXPECT_NEAR(one, flops[0], tile);
}

// Every pass takes such a graph: verify() runs after each, link() at the end.
TEST(subsequences, every_pass_takes_them) {
  for (const bool offload : {false, true}) {
    for (const int64_t stage : {0, 1, 2, 3}) {
      for (const auto& [tensor, sequence, context] :
           {std::tuple(1, 1, 1), {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 2, 2}, {2, 1, 2}}) {
        for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
          Plan plan = divided_plan();
          plan.data = stage == 0 ? 1 : 2;
          plan.tensor = tensor;
          plan.tensor_sequence = tensor > 1 && offload;
          plan.sequence = sequence;
          plan.context = context;
          plan.devices = plan.data * tensor * sequence * context;
          plan.global_batch = 2 * plan.data;
          plan.zero_stage = plan.replicas() > 1 ? std::max<int64_t>(stage, 1) : stage;
          plan.optimizer.sync = sync;
          plan.weights.flow_share = offload && stage < 3 ? 1 : 0;
          plan.activations->fate.fill(offload ? ActivationFate::kOffload
                                              : ActivationFate::kRecompute);
          plan.activations->fate[static_cast<size_t>(ModuleKind::kFc2)] = ActivationFate::kKeep;
          const Graph graph = build(tiny::model(), plan);
          EXPECT_GT(graph.step.ops.size(), 100u);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ballast
