// The host device's compute threads: every part once, errors, and the bits of one thread for every
// count, of each module and of a training.
#include "backend/host/compute_threads.h"

#include <atomic>
#include <gtest/gtest.h>
#include <set>
#include <stdexcept>
#include <vector>

#include "backend/host/gemm.h"
#include "backend/host/transformer.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

using transformer::ConstView;
using transformer::Shape;
using transformer::View;

TEST(ComputeThreads, every_part_is_done_once_and_by_several_threads) {
  ComputeThreads threads(3);
  EXPECT_EQ(threads.count(), 3);
  // Two parts that wait for one another cannot both be of one thread.
  std::atomic<int> arrived = 0;
  threads.run(2, [&](int64_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> times(static_cast<size_t>(round % 9));
    threads.run(round % 9, [&](int64_t part) { ++times[static_cast<size_t>(part)]; });
    for (const std::atomic<int>& count : times) EXPECT_EQ(count, 1);
  }
}

TEST(ComputeThreads, the_lowest_part_that_throws_is_heard_and_the_next_call_works) {
  ComputeThreads threads(2);
  try {
    threads.run(8, [](int64_t part) {
      if (part % 2 == 1) throw std::runtime_error(std::to_string(part));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "1");
  }
  std::atomic<int> done = 0;
  threads.run(8, [&](int64_t) { ++done; });
  EXPECT_EQ(done, 8);
}

TEST(ComputeThreads, what_a_part_divides_is_done_within_it) {
  ComputeThreads threads(2);
  const ComputeThreads::Lease lease(&threads);
  std::atomic<int> inner = 0;
  for_parts(4, [&](int64_t) {
    const std::thread::id here = std::this_thread::get_id();
    for_parts(4, [&](int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 16);
}

TEST(ComputeThreads, ranges_cover_everything_in_order_and_at_granules) {
  for (const int64_t count : {1, 47, 48, 383, 384, 769, 100'000}) {
    const RangeCut cut{384, 48};
    const int64_t parts = parts_of(count, cut);
    int64_t at = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const Range range = range_of(count, cut.granule, parts, part);
      EXPECT_EQ(range.begin, at);
      EXPECT_GT(range.end, range.begin);
      EXPECT_EQ(range.begin % cut.granule, 0);
      at = range.end;
    }
    EXPECT_EQ(at, count);
    EXPECT_LE(parts, std::max<int64_t>(count / cut.least, 1));
  }
}

// Large enough that every module is divided: several tiles of each product, ranges of rows.
constexpr Shape kShape{3, 96};

Model wide(Model model) {
  model.hidden = 192;
  model.heads = 6;
  model.head_size = 32;
  model.kv_heads = model.position == PositionKind::kRope ? 3 : 6;
  model.ffn = 800;
  model.vocab = 900;
  model.max_positions = 96;
  return model;
}

std::vector<std::byte> bytes_of(int64_t elements, DType dtype, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(elements));
  uint32_t state = seed * 2654435761u + 1u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  std::vector<std::byte> out(static_cast<size_t>(elements * size_of(dtype)));
  kernels::best().cast(values.data(), kernels::Format::kF32, out.data(),
                       dtype == DType::kF32 ? kernels::Format::kF32 : kernels::Format::kBf16,
                       elements);
  return out;
}

// Calls every function of transformer.h on fixed inputs and keeps all that it wrote.
class Everything {
 public:
  Everything(const Model& model, DType dtype) : model_(model), dtype_(dtype) {}

  std::vector<std::vector<std::byte>> run(int threads) {
    ComputeThreads own(threads);
    const ComputeThreads::Lease lease(&own);
    written_.clear();
    seed_ = 0;
    embedding();
    norm();
    for (const ModuleKind kind : {ModuleKind::kQkv, ModuleKind::kAttentionOut, ModuleKind::kFc1,
                                  ModuleKind::kFc2, ModuleKind::kHead}) {
      linear(kind);
    }
    attention();
    activation();
    loss();
    return written_;
  }

 private:
  // Inputs live in a list of their own; outputs are kept.
  ConstView in(int64_t rows, int64_t columns) {
    return view(inputs_.emplace_back(bytes_of(rows * columns, dtype_, ++seed_)), rows, columns);
  }
  View out(int64_t rows, int64_t columns, DType dtype) {
    std::vector<std::byte>& made = written_.emplace_back(bytes_of(rows * columns, dtype, ++seed_));
    return {made.data(), dtype, rows, columns};
  }
  View out(int64_t rows, int64_t columns) { return out(rows, columns, dtype_); }
  View view(std::vector<std::byte>& bytes, int64_t rows, int64_t columns) const {
    return {bytes.data(), dtype_, rows, columns};
  }
  std::vector<int32_t> tokens() const {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < kShape.sequences * (kShape.length + 1); ++i) {
      ids.push_back(static_cast<int32_t>(i * i % 97 % model_.vocab));
    }
    return ids;
  }
  int64_t count(ModuleKind kind) const {
    for (const Module& module : modules_of(model_)) {
      if (module.kind == kind && module.count > 0) return module.count;
    }
    return modules_of(model_).front().count;  // a tied head uses the embedding's
  }

  void embedding() {
    const int64_t parameters = count(ModuleKind::kEmbedding);
    const ConstView params = in(1, parameters);
    transformer::embedding_forward(model_, kShape, tokens().data(), params, out(t_, model_.hidden));
    transformer::embedding_backward(model_, kShape, tokens().data(), in(t_, model_.hidden),
                                    out(1, parameters), false);
  }
  void norm() {
    const int64_t parameters = count(ModuleKind::kNorm1);
    const ConstView x = in(t_, model_.hidden);
    const ConstView params = in(1, parameters);
    const View statistics = out(t_, 2, DType::kF32);
    transformer::norm_forward(model_, x, params, out(t_, model_.hidden), statistics);
    transformer::norm_backward(model_, x, statistics, params, in(t_, model_.hidden),
                               in(t_, model_.hidden), out(t_, model_.hidden), out(1, parameters),
                               true);
  }
  void linear(ModuleKind kind) {
    const auto [width, wide] = sizes(kind);
    const ConstView params = in(1, count(kind));
    const ConstView x = in(t_, width);
    const ConstView dy = in(t_, wide);
    const bool adds = kind == ModuleKind::kFc2;
    const ConstView residual = adds ? in(t_, wide) : ConstView();
    transformer::linear_forward(model_, kind, x, params, residual, out(t_, wide));
    transformer::linear_backward_input(model_, kind, dy, params, out(t_, width));
    transformer::linear_backward_weight(model_, kind, dy, x, out(1, count(kind)), adds);
  }
  std::pair<int64_t, int64_t> sizes(ModuleKind kind) const {
    if (kind == ModuleKind::kQkv) return {model_.hidden, model_.qkv_width()};
    if (kind == ModuleKind::kAttentionOut) return {model_.attention_width(), model_.hidden};
    if (kind == ModuleKind::kFc1) return {model_.hidden, model_.fc1_width()};
    if (kind == ModuleKind::kFc2) return {model_.ffn, model_.hidden};
    return {model_.hidden, model_.vocab};
  }
  void attention() {
    const ConstView qkv = in(t_, model_.qkv_width());
    const View forward = out(t_, model_.attention_width());
    const View sums = out(kShape.sequences * model_.heads, kShape.length, DType::kF32);
    transformer::attention_forward(model_, kShape, qkv, forward, sums);
    transformer::attention_backward(model_, kShape, qkv, forward, sums,
                                    in(t_, model_.attention_width()), out(t_, model_.qkv_width()));
  }
  void activation() {
    const ConstView h = in(t_, model_.fc1_width());
    transformer::activation_forward(model_, h, out(t_, model_.ffn));
    transformer::activation_backward(model_, h, in(t_, model_.ffn), out(t_, model_.fc1_width()));
  }
  void loss() {
    const double mean = transformer::loss_forward_backward(model_, kShape, tokens().data(),
                                                           out(t_, model_.vocab), 1e-3);
    const auto* raw = reinterpret_cast<const std::byte*>(&mean);
    written_.emplace_back(raw, raw + sizeof(mean));
  }

  const Model& model_;
  const DType dtype_;
  const int64_t t_ = kShape.tokens();
  uint32_t seed_ = 0;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<std::vector<std::byte>> written_;
};

TEST(ComputeThreads, every_module_gives_the_bits_of_one_thread) {
  for (const Model& model : {wide(tiny::gpt2_model()), wide(tiny::llama_model())}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const auto alone = Everything(model, dtype).run(1);
      for (const int threads : {2, 3}) {
        const auto divided = Everything(model, dtype).run(threads);
        ASSERT_EQ(divided.size(), alone.size());
        for (size_t i = 0; i < alone.size(); ++i) {
          EXPECT_TRUE(divided[i] == alone[i]) << model.architecture << ' ' << to_string(dtype)
                                              << ", array " << i << ", " << threads << " threads";
        }
      }
    }
  }
}

// Tiles of C are the same product: against one call of the fastest table, within the rounding of a
// sum of k terms, with every transposition, padding between rows and sums into C.
TEST(ComputeThreads, a_product_in_tiles_is_the_product) {
  constexpr int64_t kM = 500, kN = 900, kK = 70;
  ComputeThreads threads(2);
  const ComputeThreads::Lease lease(&threads);
  for (int kind = 0; kind < 8; ++kind) {
    GemmArguments<float> g;
    g.m = kM, g.n = kN, g.k = kK;
    g.transpose_a = (kind & 1) != 0, g.transpose_b = (kind & 2) != 0,
    g.accumulate = (kind & 4) != 0;
    g.lda = (g.transpose_a ? kM : kK) + 3, g.ldb = (g.transpose_b ? kK : kN) + 5, g.ldc = kN + 7;
    const auto a = bytes_of(g.lda * (g.transpose_a ? kK : kM), DType::kF32, 1);
    const auto b = bytes_of(g.ldb * (g.transpose_b ? kN : kK), DType::kF32, 2);
    auto tiled = bytes_of(g.ldc * kM, DType::kF32, 3);
    auto whole = tiled;
    g.a = reinterpret_cast<const float*>(a.data());
    g.b = reinterpret_cast<const float*>(b.data());
    g.c = reinterpret_cast<float*>(tiled.data());
    gemm(g);
    g.c = reinterpret_cast<float*>(whole.data());
    gemm_tables().back().gemm(g);
    const auto* x = reinterpret_cast<const float*>(tiled.data());
    for (int64_t i = 0; i < g.ldc * kM; ++i) EXPECT_NEAR(x[i], g.c[i], kK * kK * 0x1p-24) << kind;
  }
}

Plan plan_of(SyncMode sync, DType dtype) {
  Plan plan =
      tiny::waiting_plan({.sequences = 4, .micro_batch = 2, .tokens = 48}, 2 * kSegment * 4);
  plan.dtype = dtype;
  plan.optimizer.sync = sync;
  plan.optimizer.undo = UndoKind::kExact;
  plan.optimizer.gpu_buckets = sync == SyncMode::kDelay ? 0 : 1;
  plan.activations = tiny::all_activations(ActivationFate::kRecompute);
  return plan;
}

void train_on_threads(const Model& model) {
  constexpr int kSteps = 6;
  for (const SyncMode sync : {SyncMode::kWait, SyncMode::kDelay, SyncMode::kSpeculate}) {
    TrainerOptions options = tiny::options_for(kSteps);
    // In fp32 no rounding hides another order of a sum.
    const Plan plan = plan_of(sync, sync == SyncMode::kDelay ? DType::kBf16 : DType::kF32);
    const tiny::Outcome alone = tiny::train(model, plan, options, kSteps, false);
    ASSERT_EQ(alone.records.size(), static_cast<size_t>(kSteps));
    for (const int threads : {2, 3}) {
      options.compute_threads = threads;
      const tiny::Outcome divided = tiny::train(model, plan, options, kSteps, false);
      EXPECT_TRUE(tiny::same_bits(alone.parameters, divided.parameters))
          << model.name << ' ' << to_string(sync) << ", " << threads << " threads";
      for (size_t i = 0; i < divided.records.size(); ++i) {
        EXPECT_EQ(divided.records[i].loss, alone.records[i].loss) << to_string(sync) << i;
      }
    }
  }
}

TEST(ComputeThreads, a_training_gives_the_bits_of_one_thread) {
  train_on_threads(wide(tiny::gpt2_model()));
}

TEST(ComputeThreads, a_training_of_experts_and_norms_of_heads_gives_the_bits_of_one_thread) {
  for (const Model& model : tiny::newer_models()) train_on_threads(model);
}

}  // namespace
}  // namespace ballast
