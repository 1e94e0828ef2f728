// The device tables: every measured point returns itself, points that are left out are predicted by
// the rest, and what lies beyond the points stays sane.
#include "profiles/tables/kernels.h"

#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>

#include "profiles/load.h"
#include "profiles/shipped.h"
#include "sim/engine/cost.h"
#include "sim/graph/passes/decoder/attention.h"
#include "tests/engine/costed.h"

namespace ballast {
namespace {

// FNV-1a of a point's text (Fowler, Noll and Vo), so that what is left out depends on the point.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211U;
  return hash >> 16;
}

std::string key_of(const std::string& part, const GemmPoint& p) {
  return fmt::format("{} {} {} {} {}", part, p.batch, p.m, p.n, p.k);
}
std::string key_of(const std::string& part, const AttentionPoint& p) {
  return fmt::format("{} {} {} {} {}", part, p.head_size, p.length, p.backward, p.causal);
}

// Measured over predicted, less 1, of every point of every table; with `keep`, of those points that
// are not kept by a model made of those that are. By table.
using Keep = std::function<bool(const std::string& key)>;
struct Errors {
  std::string table;
  std::vector<double> errors;
  double mean() const {
    double sum = 0;
    for (const double error : errors) sum += std::abs(error);
    return errors.empty() ? 0 : sum / static_cast<double>(errors.size());
  }
};

template <class Table>
void thin_out(std::vector<Table>& tables, const Keep& keep) {
  for (Table& table : tables) {
    for (auto& series : table.series) {
      std::erase_if(series.points, [&](const auto& p) { return !keep(key_of(series.part, p)); });
    }
  }
}

KernelTables thinned(KernelTables tables, const Keep& keep) {
  thin_out(tables.gemm, keep);
  thin_out(tables.attention, keep);
  return tables;
}

double error_of(const KernelModel& model, const GemmTable& table, const std::string& part,
                const GemmPoint& p) {
  const KernelPart& kernel = *model.part(part);
  const KernelUse use{part, 1, kernel.memory, kernel.multiprocessors};
  const auto time = model.gemm_time({table.format, p.batch, p.m, p.n, p.k}, use);
  return time->seconds() / p.time.seconds() - 1;
}
double error_of(const KernelModel& model, const AttentionTable& table, const std::string& part,
                const AttentionPoint& p) {
  const AttentionQuery query{table.kernel, p.head_size, p.length, p.backward, p.causal};
  return p.rate.flops_per_s / model.attention_rate(query, part)->flops_per_s - 1;
}

template <class Table>
void add_errors(const KernelModel& model, const std::vector<Table>& tables, const Keep& asked,
                const std::function<std::string(const Table&)>& name, std::vector<Errors>& all) {
  for (const Table& table : tables) {
    Errors result{name(table), {}};
    for (const auto& series : table.series) {
      for (const auto& point : series.points) {
        if (!asked(key_of(series.part, point))) continue;
        result.errors.push_back(error_of(model, table, series.part, point));
      }
    }
    all.push_back(std::move(result));
  }
}

std::vector<Errors> errors_of(const KernelModel& model, const KernelTables& points,
                              const Keep& asked) {
  std::vector<Errors> all;
  add_errors<GemmTable>(
      model, points.gemm, asked,
      [&](const GemmTable& table) {
        const bool fp8 = table.format == ProductFormat::kFp8;
        return fmt::format("{} products {}", points.generation, fp8 ? "fp8" : "16-bit");
      },
      all);
  add_errors<AttentionTable>(
      model, points.attention, asked,
      [&](const AttentionTable& table) {
        return fmt::format("{} attention {}", points.generation, to_string(table.kernel));
      },
      all);
  return all;
}

TEST(Kernels, every_point_returns_itself) {
  for (const std::string& name : shipped_names("kernels")) {
    const auto model = load_kernels(name);
    for (const Errors& table :
         errors_of(*model, model->tables(), [](const std::string&) { return true; })) {
      double worst = 0;
      for (const double error : table.errors) worst = std::max(worst, std::abs(error));
      fmt::print("{}: {} points, worst {:.2f} %\n", table.table, table.errors.size(), 100 * worst);
      EXPECT_LT(worst, 0.01) << table.table;
    }
  }
}

// Every third point, by its hash, is left out and predicted from the others; three times, so that
// each is left out once.
TEST(Kernels, points_that_are_left_out_are_predicted_by_the_others) {
  for (const std::string& name : shipped_names("kernels")) {
    const auto full = load_kernels(name);
    std::vector<Errors> sums;
    for (uint64_t fold = 0; fold < 3; ++fold) {
      const Keep left_out = [&](const std::string& key) { return hash_of(key) % 3 == fold; };
      const Keep kept = [&](const std::string& key) { return !left_out(key); };
      const KernelModel model(thinned(full->tables(), kept));
      const std::vector<Errors> errors = errors_of(model, full->tables(), left_out);
      if (sums.empty()) sums.resize(errors.size());
      for (size_t i = 0; i < errors.size(); ++i) {
        sums[i].table = errors[i].table;
        sums[i].errors.insert(sums[i].errors.end(), errors[i].errors.begin(),
                              errors[i].errors.end());
      }
    }
    for (const Errors& table : sums) {
      fmt::print("{}: {} points left out, mean error {:.1f} %\n", table.table, table.errors.size(),
                 100 * table.mean());
      EXPECT_LT(table.mean(), 0.08) << table.table;
    }
  }
}

// Beyond the points: larger products and longer sequences go on at the rate of the largest, within
// a fifth, other head sizes near the next one, and no time or rate is out of this world.
TEST(Kernels, what_lies_beyond_the_points_stays_near_their_edge) {
  for (const std::string& name : shipped_names("kernels")) {
    const auto model = load_kernels(name);
    const KernelPart& part = model->tables().parts.front();
    const auto tflops = [&](int64_t m, int64_t n, int64_t k) {
      const auto time = model->gemm_time({ProductFormat::kAsStored, 1, m, n, k},
                                         {part.name, 1, part.memory, part.multiprocessors});
      return 2e-12 * static_cast<double>(m * n) * static_cast<double>(k) / time->seconds();
    };
    const double cube = tflops(8192, 8192, 8192);
    EXPECT_NEAR(tflops(131072, 28672, 8192) / cube, 1, 0.2) << name;
    EXPECT_NEAR(tflops(262144, 16384, 65536) / cube, 1, 0.2) << name;
    EXPECT_LT(tflops(8192, 8192, 128), 0.6 * cube) << name;
    for (const AttentionTable& table : model->tables().attention) {
      for (const bool backward : {false, true}) {
        const auto rate = [&](int64_t head_size, int64_t length) {
          return model->attention_rate({table.kernel, head_size, length, backward}, part.name)
              ->tflops();
        };
        const std::string what = fmt::format("{} {}", name, to_string(table.kernel));
        EXPECT_NEAR(rate(128, 1 << 20) / rate(128, 32768), 1, 0.1) << what;
        EXPECT_GT(rate(128, 8192), 1.2 * rate(128, 512)) << what;
        EXPECT_NEAR(rate(256, 8192) / rate(128, 8192), 1, 0.4) << what;
        EXPECT_LT(rate(32, 8192), rate(128, 8192)) << what;
        EXPECT_NEAR(rate(96, 8192) / (0.5 * (rate(64, 8192) + rate(128, 8192))), 1, 0.1) << what;
      }
    }
  }
}

// FlashAttention by version, on H100 at 8192 tokens and a head size of 128, causal (Dao-AILab,
// pull request 1791): 284.1 and 287.1 against 630.0 and 531.6. A kernel without a table runs as
// the second version.
TEST(Kernels, attention_is_as_fast_as_its_version) {
  const auto model = load_kernels("hopper");
  const auto rate = [&](AttentionKernel kernel, bool backward) {
    return model->attention_rate({kernel, 128, 8192, backward}, "h100")->tflops();
  };
  EXPECT_NEAR(rate(AttentionKernel::kFlash2, false), 284.1, 1);
  EXPECT_NEAR(rate(AttentionKernel::kFlash2, true), 287.1, 1);
  EXPECT_NEAR(rate(AttentionKernel::kFlash3, false), 630.0, 1);
  EXPECT_NEAR(rate(AttentionKernel::kFlash3, true), 531.6, 1);
  EXPECT_EQ(rate(AttentionKernel::kFlash4, true), rate(AttentionKernel::kFlash2, true));
  EXPECT_LT(rate(AttentionKernel::kFlash1, true), 0.6 * rate(AttentionKernel::kFlash2, true));
}

// cuDNN 9.13.1 on B200, causal, heads of 128 (NVIDIA/cudnn-frontend at 0b1577c8): 1332.4 forward of
// 16384 tokens, where later versions are faster. Hopper's table is of one version.
TEST(Kernels, an_older_cudnn_is_slower_where_a_generation_has_a_table_of_it) {
  const auto rate = [&](const char* generation, const char* part, AttentionKernel kernel) {
    return load_kernels(generation)->attention_rate({kernel, 128, 16384, false}, part)->tflops();
  };
  EXPECT_NEAR(rate("blackwell", "b200", AttentionKernel::kCudnn9_13), 1332.4, 1);
  for (const char* part : {"b200", "gb200", "gb300"}) {
    EXPECT_LT(rate("blackwell", part, AttentionKernel::kCudnn9_13),
              0.95 * rate("blackwell", part, AttentionKernel::kCudnn));
  }
  EXPECT_EQ(rate("hopper", "h200", AttentionKernel::kCudnn9_13),
            rate("hopper", "h200", AttentionKernel::kCudnn));
}

// cuDNN with heads of 64 and a window (NVIDIA/cudnn-frontend at 3929da2e, gpt_oss): 128 positions
// on GB200, 161 forward and 186 TFLOP/s backward; 1,024 on H200, 349 and 299. FLOPs are those of
// what the window leaves, which a graph counts alike.
TEST(Kernels, a_window_is_as_fast_as_it_was_timed) {
  const auto rate = [](const std::string& machine_name, int64_t window, bool backward) {
    Model model = load_model("gpt-oss-20b");
    model.sliding_window = window;
    Plan plan;
    plan.strategy = "megatron";
    plan.devices = plan.data = 1;
    plan.global_batch = 2;
    plan.micro_batch = 2;
    plan.sequence_length = 16384;
    plan.activations.emplace();
    Stack stack;
    stack.facts.attention_kernel = AttentionKernel::kCudnn;
    const Phase phase = backward ? Phase::kBackward : Phase::kForward;
    AttentionWork work = attention_work(model, plan, stack.facts, phase, 0, {0, 16384});
    EXPECT_EQ(work.window, window);
    work.passed = {};
    Op op;
    op.kind = OpKind::kAttention;
    op.phase = phase;
    op.work = work;
    const auto costed = tests::cost_with(op, load_machine(machine_name), {plan, stack});
    return work.flops.count / costed.us() / 1e6;
  };
  EXPECT_NEAR(rate("gb200-nvl72", 128, false), 161, 0.02 * 161);
  EXPECT_NEAR(rate("gb200-nvl72", 128, true), 186, 0.02 * 186);
  EXPECT_NEAR(rate("hgx-h200-sxm", 1024, false), 349, 0.02 * 349);
  EXPECT_NEAR(rate("hgx-h200-sxm", 1024, true), 299, 0.02 * 299);
}

// Half of the time of Hopper's products is of persistent kernels, which make 47 of 80 % beside an
// all-gather; the rest has 112 of 132 multiprocessors (docs/device-tables.md).
TEST(Kernels, hopper_alone_has_products_that_a_collective_holds_up) {
  const auto& beside = load_kernels("hopper")->tables().product_beside_collective;
  ASSERT_TRUE(beside.has_value());
  EXPECT_NEAR(beside->share, 1 / (0.5 * 80 / 47 + 0.5 * 132 / 112), 0.005);
  for (const char* generation : {"ampere", "blackwell"}) {
    EXPECT_FALSE(load_kernels(generation)->tables().product_beside_collective) << generation;
  }
}

// Products of 16-bit factors take longer under load than their table says, of any framework. Those
// in 8 bits were measured under load on Hopper, and in the same bursts as the others on Blackwell;
// other generations have a share of their own.
TEST(Kernels, what_a_generation_sustains_slows_products_that_were_timed_in_bursts) {
  const auto time_of = [](const std::string& machine_name, ProductFormat format, double share) {
    const Machine machine = load_machine(machine_name);
    Stack stack;
    for (const char* generation : {"hopper", "blackwell"}) {
      stack.constants.sustained_gemm[generation] = share;
    }
    Op op;
    op.kind = OpKind::kGemm;
    GemmWork work{8192, 8192, 8192, DType::kBf16, false, format};
    work.rounding = Rounding::kNone;  // whose passes the share is not of
    op.work = work;
    return tests::cost_with(op, machine, {Plan{}, stack}).us();
  };
  constexpr auto k16 = ProductFormat::kAsStored;
  EXPECT_NEAR(time_of("h100-sxm-80gb", k16, 0.8) / time_of("h100-sxm-80gb", k16, 1), 1.25, 0.03);
  EXPECT_EQ(time_of("h100-sxm-80gb", ProductFormat::kFp8, 0.8),
            time_of("h100-sxm-80gb", ProductFormat::kFp8, 1));
  for (const ProductFormat format : {k16, ProductFormat::kFp8}) {
    EXPECT_NEAR(time_of("dgx-b200", format, 0.8) / time_of("dgx-b200", format, 1), 1.25, 0.05);
  }
  EXPECT_EQ(time_of("hgx-a100-80gb", k16, 0.8), time_of("hgx-a100-80gb", k16, 1));
}

}  // namespace
}  // namespace ballast
