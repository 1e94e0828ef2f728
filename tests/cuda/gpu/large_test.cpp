// Sizes of real models, too large for the emulation: the fast kernels against the plain ones, and
// against sums that are known.

#include "backend/cuda/libraries/cuda_attention.h"
#include "backend/cuda/libraries/cudnn_attention.h"
#include "tests/cuda/arrays.h"

namespace ballast::kernels::cuda::testing {
namespace {

class large : public OnMachine {};

struct Passed {
  std::vector<float> out, log_sum_exp, dqkv;
};

// Forward and backward by one path, in any format; values are those of bf16.
Passed pass(const AttentionShape& shape, Format format, AttentionPath path) {
  const int64_t width = shape.heads * shape.head_size;
  const Values qkv(format, normal({0, 1, 1}, Format::kBf16, shape.tokens() * shape.width()));
  const Values dout(format, normal({0, 1, 2}, Format::kBf16, shape.tokens() * width));
  const Values out(format, shape.tokens() * width), dqkv(format, qkv.count());
  const Values sums(Format::kF32, shape.tokens() * shape.heads);
  std::vector<float> table(static_cast<size_t>(shape.length * shape.head_size));
  fill_rope_table({10000, shape.head_size, shape.length}, table.data());
  const Values rope(Format::kF32, table);
  AttentionForward f{shape,       qkv.array(),   rope.floats(), shape.length,
                     out.array(), sums.floats(), nullptr,       path};
  const Memory forward_scratch(attention_forward_scratch_bytes(f));
  f.scratch = forward_scratch.data();
  expect_launched(attention_forward(f, nullptr));
  AttentionBackward b{shape,         qkv.array(),  rope.floats(), shape.length, out.array(),
                      sums.floats(), dout.array(), dqkv.array(),  nullptr,      path};
  const Memory backward_scratch(attention_backward_scratch_bytes(b));
  b.scratch = backward_scratch.data();
  const auto first = same_every_time([&] {
    expect_launched(attention_backward(b, nullptr));
    return dqkv.bytes();
  });
  return {out.get(), sums.get(), dqkv.get()};
}

TEST_F(large, tensor_cores_agree_with_fp32_on_long_sequences) {
  for (const int64_t head_size : {64, 80, 96, 128}) {
    const AttentionShape shape{2, 1500, 8, 2, head_size};
    const Passed exact = pass(shape, Format::kF32, AttentionPath::kPlain);
    for (const Format format : {Format::kBf16, Format::kF16}) {
      const Passed fast = pass(shape, format, AttentionPath::kTensorCores);
      const std::string name = name_of(format) + " D" + std::to_string(head_size);
      expect_near(fast.out, exact.out, 3 * roundoff(format), name + " out");
      expect_near(fast.log_sum_exp, exact.log_sum_exp, roundoff(format), name + " log-sum-exp");
      expect_near(fast.dqkv, exact.dqkv, 4 * roundoff(format), name + " dqkv");
    }
  }
}

// The same by cuDNN, in slices of the workspace.
Passed pass_of_library(const AttentionShape& shape, Format format, Bytes workspace) {
  const std::unique_ptr<CudaRuntime> runtime = open_cuda_runtime(0);
  CudaAttention attention(*runtime, open_cudnn_attention(), {workspace});
  const int64_t width = shape.heads * shape.head_size;
  const Values qkv(format, normal({0, 1, 1}, Format::kBf16, shape.tokens() * shape.width()));
  const Values dout(format, normal({0, 1, 2}, Format::kBf16, shape.tokens() * width));
  const Values out(format, shape.tokens() * width), dqkv(format, qkv.count());
  const Values sums(Format::kF32, shape.tokens() * shape.heads);
  std::vector<float> table(static_cast<size_t>(shape.length * shape.head_size));
  fill_rope_table({10000, shape.head_size, shape.length}, table.data());
  const Values rope(Format::kF32, table);
  AttentionForward f{shape,       qkv.array(),   rope.floats(), shape.length,
                     out.array(), sums.floats(), nullptr};
  const Memory forward_scratch(attention.scratch_of(f).count);
  f.scratch = forward_scratch.data();
  AttentionBackward b{shape,         qkv.array(),  rope.floats(), shape.length, out.array(),
                      sums.floats(), dout.array(), dqkv.array(),  nullptr};
  const Memory backward_scratch(attention.scratch_of(b).count);
  b.scratch = backward_scratch.data();
  const CudaStream stream{nullptr, "default"};
  for (const AttentionDirection direction :
       {AttentionDirection::kForward, AttentionDirection::kBackward}) {
    AttentionPass whole;
    whole.direction = direction;
    whole.shape = shape;
    whole.format = format;
    whole.query_stride = (shape.heads + shape.kv_heads) * shape.head_size;
    EXPECT_TRUE(attention.slice_of(whole).has_value()) << "the library leaves it to our kernels";
  }
  same_every_time([&] {
    attention.run(f, stream);
    return out.bytes();
  });
  same_every_time([&] {
    attention.run(b, stream);
    return dqkv.bytes();
  });
  return {out.get(), sums.get(), dqkv.get()};
}

TEST_F(large, cudnn_and_our_kernels_are_the_reference_of_each_other) {
  const std::string missing = why_no_cudnn(cudnn_library_name());
  if (!missing.empty()) GTEST_SKIP() << missing;
  ASSERT_TRUE(open_cudnn_attention().library)
      << cudnn_library_name() << " is here and does not serve";
  for (const AttentionShape& shape :
       {AttentionShape{2, 1024, 12, 12, 64}, AttentionShape{2, 1500, 8, 2, 128},
        AttentionShape{3, 333, 6, 2, 96}, AttentionShape{1, 4096, 8, 2, 128}}) {
    const Passed exact = pass(shape, Format::kF32, AttentionPath::kPlain);
    for (const Format format : {Format::kBf16, Format::kF16}) {
      const Passed ours = pass(shape, format, AttentionPath::kTensorCores);
      // All at once where 256 MiB are enough, and in smaller slices.
      for (const Bytes workspace : {kLibraryWorkspace, Bytes{int64_t{160} << 20}}) {
        const Passed its = pass_of_library(shape, format, workspace);
        const std::string name = name_of(format) + " S" + std::to_string(shape.length);
        expect_near(its.out, exact.out, 3 * roundoff(format), name + " out");
        expect_near(its.log_sum_exp, exact.log_sum_exp, roundoff(format), name + " sums");
        // Turning back rounds once more than ours.
        expect_near(its.dqkv, exact.dqkv, 5 * roundoff(format), name + " dqkv");
        expect_near(its.out, ours.out, 4 * roundoff(format), name + " out, ours");
        expect_near(its.dqkv, ours.dqkv, 6 * roundoff(format), name + " dqkv, ours");
      }
    }
  }
}

TEST_F(large, a_token_that_is_everywhere_gathers_all_rows) {
  // 40,000 rows of 1 for one id: 40,000 exactly in fp32; every other id gets 0.
  const EmbeddingShape shape{40, 1000, 768, 50257, 1024};
  std::vector<int32_t> ids(static_cast<size_t>(shape.sequences * (shape.length + 1)), 11);
  Memory tokens(static_cast<int64_t>(4 * ids.size()));
  tokens.set(ids.data());
  const std::vector<float> ones(static_cast<size_t>(shape.tokens() * shape.width), 1.0f);
  const Values dout(Format::kBf16, ones);
  const Values dparams(Format::kF32, (shape.vocab + shape.positions) * shape.width);
  const Memory scratch(embedding_backward_scratch_bytes(shape));
  expect_launched(
      embedding_backward({shape, static_cast<const int32_t*>(tokens.data()), dout.array(),
                          dparams.array(), Write::kOverwrite, scratch.data()},
                         nullptr));
  const std::vector<float> sums = dparams.get();
  for (size_t i = 0; i < sums.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / shape.width;
    const int64_t position = row - shape.vocab;
    const float expected = row == 11                                  ? 40000.0f
                           : position >= 0 && position < shape.length ? 40.0f
                                                                      : 0.0f;
    ASSERT_EQ(sums[i], expected) << i;
  }
}

TEST_F(large, a_classifier_over_a_vocabulary_that_is_not_aligned) {
  // Equal logits: loss ln V, gradient 1 / V, less 1 at the target.
  constexpr int64_t kVocab = 50257, kRows = 300;
  std::vector<int32_t> ids(kRows + 1, 5);
  Memory tokens(4 * (kRows + 1));
  tokens.set(ids.data());
  const Values logits(Format::kBf16, std::vector<float>(kVocab * kRows, 2.0f));
  const Memory losses(8 * kRows);
  expect_launched(classifier({{1, kRows, 0, kRows},
                              kVocab,
                              static_cast<const int32_t*>(tokens.data()),
                              logits.array(),
                              1.0f,
                              static_cast<double*>(losses.data())},
                             nullptr));
  for (const double loss : losses.get_as<double>()) {
    ASSERT_NEAR(loss, std::log(double{kVocab}), 1e-5);
  }
  std::vector<float> expected(kVocab * kRows, static_cast<float>(1.0 / kVocab));
  for (size_t row = 0; row < kRows; ++row) expected[row * kVocab + 5] -= 1.0f;
  EXPECT_EQ(logits.get(), rounded(expected, Format::kBf16));
}

// Rows of 6,144 values have 48 KB of sums, which with what the kernel has statically are more than
// a block gets unasked; rows of 8,192 have more in any case.
class wide_norms : public OnMachine, public ::testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(columns, wide_norms, ::testing::Values(6144, 8192));

TEST_P(wide_norms, of_many_rows_have_exact_sums) {
  // x = +1 and -1 in turn: mean 0, variance 1, so out = x, dweight = sum of dout * x.
  const NormShape shape{NormKind::kLayerNorm, 20000, GetParam()};
  std::vector<float> x(static_cast<size_t>(shape.rows * shape.columns));
  for (size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? 1.0f : -1.0f;
  std::vector<float> params(static_cast<size_t>(shape.parameters()), 1.0f);
  std::fill(params.begin() + shape.columns, params.end(), 0.0f);
  const Values in(Format::kBf16, x), weights(Format::kBf16, params);
  const Values out(Format::kBf16, in.count()), statistics(Format::kF32, 2 * shape.rows);
  expect_launched(norm_forward(
      {shape, 0.0f, in.array(), weights.array(), out.array(), statistics.floats()}, nullptr));
  EXPECT_EQ(out.get(), x);
  const Values dparams(Format::kF32, shape.parameters());
  const Memory scratch(norm_backward_scratch_bytes(shape));
  expect_launched(norm_backward({shape,
                                 in.array(),
                                 statistics.floats(),
                                 weights.array(),
                                 in.array(),
                                 {},
                                 out.array(),
                                 dparams.array(),
                                 Write::kOverwrite,
                                 scratch.data()},
                                nullptr));
  const std::vector<float> sums = dparams.get();
  for (int64_t i = 0; i < shape.columns; ++i) {
    ASSERT_EQ(sums[static_cast<size_t>(i)], 20000.0f);
    ASSERT_EQ(sums[static_cast<size_t>(shape.columns + i)], i % 2 == 0 ? 20000.0f : -20000.0f);
  }
}

}  // namespace
}  // namespace ballast::kernels::cuda::testing
