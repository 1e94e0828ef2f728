// Attention against the host's, by both paths: head sizes, formats, groups, rotation, odd lengths.

#include <array>

#include "backend/host/transformer.h"
#include "tests/cuda/arrays.h"

namespace ballast::kernels::cuda::testing {
namespace {

enum class Rotary { kNone, kRotated };

struct Case {
  AttentionShape shape;
  Format format = Format::kBf16;
  AttentionPath path = AttentionPath::kFastest;
  Rotary rotary = Rotary::kNone;

  std::string name() const {
    return name_of(format) + " B" + std::to_string(shape.sequences) + " S" +
           std::to_string(shape.length) + " H" + std::to_string(shape.heads) + "/" +
           std::to_string(shape.kv_heads) + " D" + std::to_string(shape.head_size) +
           (path == AttentionPath::kPlain ? " plain" : " fastest") +
           (rotary == Rotary::kRotated ? " rotary" : "");
  }
};

Model model_of(const Case& c) {
  Model model;
  model.heads = c.shape.heads;
  model.kv_heads = c.shape.kv_heads;
  model.head_size = c.shape.head_size;
  model.hidden = c.shape.heads * c.shape.head_size;
  model.rope_theta = 500;
  model.position = c.rotary == Rotary::kRotated ? PositionKind::kRope : PositionKind::kLearned;
  return model;
}

// What attention reads and writes, as fp32 on the host.
struct Arrays {
  std::vector<float> qkv, out, log_sum_exp, dout, dqkv;
};

Arrays on_host(const Case& c) {
  const Model model = model_of(c);
  const int64_t tokens = c.shape.tokens(), width = c.shape.heads * c.shape.head_size;
  Arrays a;
  a.qkv = normal({0, 1, 7}, c.format, tokens * c.shape.width());
  a.dout = normal({0, 1, 8}, c.format, tokens * width);
  a.out.resize(static_cast<size_t>(tokens * width));
  a.log_sum_exp.resize(static_cast<size_t>(tokens * c.shape.heads));
  a.dqkv.resize(a.qkv.size());
  const transformer::Shape shape{c.shape.sequences, c.shape.length};
  const transformer::View qkv{a.qkv.data(), DType::kF32, tokens, c.shape.width()};
  const transformer::View out{a.out.data(), DType::kF32, tokens, width};
  const transformer::View sums{a.log_sum_exp.data(), DType::kF32, c.shape.sequences * c.shape.heads,
                               c.shape.length};
  const transformer::View dout{a.dout.data(), DType::kF32, tokens, width};
  const transformer::View dqkv{a.dqkv.data(), DType::kF32, tokens, c.shape.width()};
  transformer::attention_forward(model, shape, qkv, out, sums);
  transformer::attention_backward(model, shape, qkv, out, sums, dout, dqkv);
  return a;
}

// Its arrays on the machine. Backward starts from the host's out and log-sum-exp.
struct OnDevice {
  OnDevice(const Case& tried, const Arrays& a)
      : c(tried),
        qkv(tried.format, a.qkv),
        out(tried.format, static_cast<int64_t>(a.out.size())),
        log_sum_exp(Format::kF32, static_cast<int64_t>(a.log_sum_exp.size())),
        host_out(tried.format, a.out),
        host_log_sum_exp(Format::kF32, a.log_sum_exp),
        dout(tried.format, a.dout),
        dqkv(tried.format, static_cast<int64_t>(a.dqkv.size())),
        rope(Format::kF32, rope_table()) {}

  // More positions than the sequences have.
  std::vector<float> rope_table() const {
    const RopeTable table{500, c.shape.head_size, c.shape.length + 5};
    std::vector<float> values(static_cast<size_t>(table.values()));
    fill_rope_table(table, values.data());
    return values;
  }

  std::vector<unsigned char> forward() {
    AttentionForward d;
    d.shape = c.shape;
    d.qkv = qkv.array();
    if (c.rotary == Rotary::kRotated) d.rope = rope.floats();
    d.rope_positions = c.shape.length + 5;
    d.out = out.array();
    d.log_sum_exp = log_sum_exp.floats();
    d.path = c.path;
    const Memory scratch(attention_forward_scratch_bytes(d));
    d.scratch = scratch.data();
    out.poison(), log_sum_exp.poison();
    expect_launched(attention_forward(d, nullptr));
    return out.bytes();
  }

  std::vector<unsigned char> backward() {
    AttentionBackward d;
    d.shape = c.shape;
    d.qkv = qkv.array();
    if (c.rotary == Rotary::kRotated) d.rope = rope.floats();
    d.rope_positions = c.shape.length + 5;
    d.out = host_out.array();
    d.log_sum_exp = host_log_sum_exp.floats();
    d.dout = dout.array();
    d.dqkv = dqkv.array();
    d.path = c.path;
    const Memory scratch(attention_backward_scratch_bytes(d));
    d.scratch = scratch.data();
    dqkv.poison();
    expect_launched(attention_backward(d, nullptr));
    return dqkv.bytes();
  }

  Case c;
  Values qkv, out, log_sum_exp, host_out, host_log_sum_exp, dout, dqkv, rope;
};

// A rounding of q, k, probabilities, out and their gradients each; fp32 differs in order only.
double tolerance(Format format) { return format == Format::kF32 ? 4e-6 : 2 * roundoff(format); }

void expect_like_host(const Case& c) {
  const Arrays expected = on_host(c);
  OnDevice device(c, expected);
  same_every_time([&] { return device.forward(); });
  const double relative = tolerance(c.format);
  expect_near(device.out.get(), expected.out, relative, c.name() + " out");
  expect_near(device.log_sum_exp.get(), expected.log_sum_exp, relative, c.name() + " log-sum-exp");
  same_every_time([&] { return device.backward(); });
  expect_near(device.dqkv.get(), expected.dqkv, relative, c.name() + " dqkv");
}

class attention : public OnMachine {};

TEST_F(attention, one_token_attends_to_itself) {
  // One key: its probability is 1, so out = v; log-sum-exp = q k / sqrt(D) = 64 * 0.5 / 8 = 4.
  const Case c{{1, 1, 1, 1, 64}, Format::kBf16};
  Arrays a;
  a.qkv.assign(192, 0.5f);
  for (size_t i = 0; i < 64; ++i) a.qkv[i] = 1.0f;
  for (size_t i = 128; i < 192; ++i) a.qkv[i] = static_cast<float>(i);
  a.out.resize(64), a.log_sum_exp.resize(1), a.dout.resize(64), a.dqkv.resize(192);
  OnDevice device(c, a);
  device.forward();
  const std::vector<float> out = device.out.get();
  for (size_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], static_cast<float>(128 + i));
  EXPECT_FLOAT_EQ(device.log_sum_exp.get()[0], 4.0f);
}

TEST_F(attention, tensor_cores_give_what_the_host_gives_for_every_head_size_and_format) {
  for (const int64_t head_size : {64, 80, 96, 128}) {
    for (const Format format : {Format::kBf16, Format::kF16}) {
      for (const Rotary rotary : {Rotary::kNone, Rotary::kRotated}) {
        const Case c{{1, 70, 2, 1, head_size}, format, AttentionPath::kTensorCores, rotary};
        expect_like_host(c);
      }
    }
  }
}

TEST_F(attention, lengths_on_both_sides_of_every_tile_agree) {
  for (const int64_t length : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200}) {
    expect_like_host({{1, length, 1, 1, 64}, Format::kBf16, AttentionPath::kTensorCores});
  }
  for (const int64_t length : {1, 31, 32, 33, 65, 129}) {
    expect_like_host({{1, length, 1, 1, 128}, Format::kF16, AttentionPath::kTensorCores});
  }
}

TEST_F(attention, heads_and_sequences_do_not_mix) {
  expect_like_host(
      {{2, 37, 6, 2, 64}, Format::kBf16, AttentionPath::kTensorCores, Rotary::kRotated});
  expect_like_host({{3, 20, 4, 4, 80}, Format::kF16, AttentionPath::kTensorCores});
  expect_like_host({{2, 37, 6, 2, 24}, Format::kF32, AttentionPath::kPlain, Rotary::kRotated});
}

TEST_F(attention, the_plain_path_gives_what_the_host_gives_for_any_head_size) {
  for (const int64_t head_size : {2, 6, 64, 100}) {
    for (const Rotary rotary : {Rotary::kNone, Rotary::kRotated}) {
      expect_like_host({{1, 43, 2, 1, head_size}, Format::kF32, AttentionPath::kPlain, rotary});
    }
  }
  for (const Format format : kFormats) {
    expect_like_host({{1, 33, 1, 1, 36}, format, AttentionPath::kPlain, Rotary::kRotated});
  }
  expect_like_host({{1, 9, 1, 1, 256}, Format::kF32, AttentionPath::kPlain, Rotary::kRotated});
}

TEST_F(attention, large_scores_neither_overflow_nor_lose_the_largest) {
  // Scores up to some hundreds: exp of them overflows, exp of their differences does not.
  for (const AttentionPath path : {AttentionPath::kTensorCores, AttentionPath::kPlain}) {
    const Case c{{1, 50, 1, 1, 64}, Format::kBf16, path};
    Arrays a = on_host(c);
    for (float& value : a.qkv) value *= 8;
    const transformer::View qkv{a.qkv.data(), DType::kF32, 50, 192};
    const transformer::View out{a.out.data(), DType::kF32, 50, 64};
    const transformer::View sums{a.log_sum_exp.data(), DType::kF32, 1, 50};
    transformer::attention_forward(model_of(c), {1, 50}, qkv, out, sums);
    OnDevice device(c, a);
    device.forward();
    expect_near(device.out.get(), a.out, 1e-2, c.name());
    expect_near(device.log_sum_exp.get(), a.log_sum_exp, 1e-5, c.name());
  }
}

TEST_F(attention, a_nan_in_a_key_reaches_the_queries_that_see_it_and_no_other) {
  const Case c{{1, 40, 1, 1, 64}, Format::kBf16, AttentionPath::kTensorCores};
  Arrays a = on_host(c);
  a.qkv[20 * 192 + 64] = std::nanf("");
  OnDevice device(c, a);
  device.forward();
  const std::vector<float> out = device.out.get();
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 64 >= 20) << i;
}

TEST_F(attention, the_fastest_path_is_the_tensor_cores_where_they_can) {
  EXPECT_EQ(fastest_path({1, 8, 1, 1, 64}, Format::kBf16), AttentionPath::kTensorCores);
  EXPECT_EQ(fastest_path({1, 8, 1, 1, 128}, Format::kF16), AttentionPath::kTensorCores);
  EXPECT_EQ(fastest_path({1, 8, 1, 1, 64}, Format::kF32), AttentionPath::kPlain);
  EXPECT_EQ(fastest_path({1, 8, 1, 1, 72}, Format::kBf16), AttentionPath::kPlain);
}

TEST_F(attention, rotation_turns_pairs_by_their_position_and_back) {
  // D = 2: one pair a head, position p turns it by p radians. q head (3, 4), k head (1, 0).
  const AttentionShape shape{1, 3, 1, 1, 2};
  std::vector<float> qkv;
  for (int token = 0; token < 3; ++token) qkv.insert(qkv.end(), {3, 4, 1, 0, 7, 9});
  const RopeTable positions{500, 2, 5};
  std::vector<float> table(static_cast<size_t>(positions.values()));
  fill_rope_table(positions, table.data());
  const Values rows(Format::kF32, qkv), rope(Format::kF32, table), turned(Format::kF32, 12);
  expect_launched(rotate({shape, rows.array(), rope.floats(), 5, turned.data()}, nullptr));
  for (size_t p = 0; p < 3; ++p) {
    const double c = std::cos(static_cast<double>(p)), s = std::sin(static_cast<double>(p));
    const std::array expected{3 * c - 4 * s, 4 * c + 3 * s, c, s};
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(turned.get()[4 * p + i], expected[i], 1e-6);
  }
  // Back where they lie; v stays.
  std::vector<float> packed;
  for (size_t p = 0; p < 3; ++p) {
    for (size_t i = 0; i < 4; ++i) packed.push_back(turned.get()[4 * p + i]);
    packed.insert(packed.end(), {7, 9});
  }
  const Values again(Format::kF32, packed);
  expect_launched(rotate_back({shape, again.array(), rope.floats(), 5}, nullptr));
  for (size_t i = 0; i < qkv.size(); ++i) EXPECT_NEAR(again.get()[i], qkv[i], 1e-6) << i;
}

TEST_F(attention, rotation_is_what_our_kernels_do_within_a_rounding) {
  // Our forward on rows turned beforehand, without positions, is our forward with positions.
  for (const Format format : kFormats) {
    const AttentionShape shape{2, 37, 6, 2, 64};
    const Case c{shape, format, AttentionPath::kFastest, Rotary::kRotated};
    const Arrays host = on_host(c);
    OnDevice with(c, host);
    with.forward();
    const int64_t rotated_width = 8 * 64;
    const Values turned(format, shape.tokens() * rotated_width);
    expect_launched(
        rotate({shape, with.qkv.array(), with.rope.floats(), 42, turned.data()}, nullptr));
    std::vector<float> packed = with.qkv.get();
    const std::vector<float> q_and_k = turned.get();
    for (size_t t = 0; t < static_cast<size_t>(shape.tokens()); ++t) {
      std::copy_n(q_and_k.begin() + static_cast<int64_t>(t) * rotated_width, rotated_width,
                  packed.begin() + static_cast<int64_t>(t) * shape.width());
    }
    Arrays changed = host;
    changed.qkv = packed;
    OnDevice without({shape, format}, changed);
    EXPECT_EQ(without.forward(), with.out.bytes()) << name_of(format);
  }
}

TEST_F(attention, impossible_shapes_are_refused_and_nothing_is_launched) {
  AttentionForward d;
  d.shape = {1, 8, 3, 2, 64};  // 2 does not divide 3
  EXPECT_FALSE(attention_forward(d, nullptr).ok());
  d.shape = {1, 8, 1, 1, 512};
  EXPECT_FALSE(attention_forward(d, nullptr).ok());
  d.shape = {1, 8, 1, 1, 72};
  d.qkv.format = Format::kBf16;
  d.path = AttentionPath::kTensorCores;
  EXPECT_FALSE(attention_forward(d, nullptr).ok());
  const RotationBack odd{{1, 8, 1, 1, 3}, {}, nullptr, 8};
  EXPECT_FALSE(rotate_back(odd, nullptr).ok());
}

}  // namespace
}  // namespace ballast::kernels::cuda::testing
