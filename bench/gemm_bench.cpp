// Speed of the host device's fp32 GEMM and row loops, for each instruction set that this machine
// has, on one core; and of the fastest one in tiles, on 1 and 2 compute threads. Counters are per
// second: FLOP for products, elements for row loops.
//
// `gemm_bench` runs the real sizes; `gemm_bench --benchmark_filter=small` takes milliseconds. Every
// line ends with a checksum of its result, so that no work can be left out.

#include <array>
#include <benchmark/benchmark.h>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "backend/host/compute_threads.h"
#include "backend/host/gemm.h"
#include "backend/host/transformer_rows.h"

namespace {

using ballast::GemmArguments;
using ballast::GemmTable;
using ballast::transformer::RowLoops;

// Values in [-1, 1) without a period that a kernel could profit from.
std::vector<float> values(int64_t count, uint32_t seed) {
  std::vector<float> out(static_cast<size_t>(count));
  uint32_t state = seed;
  for (float& value : out) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  return out;
}

double checksum(const std::vector<float>& out) {
  return std::accumulate(out.begin(), out.end(), 0.0);
}

struct Product {
  const char* name;
  int64_t m, n, k;
  bool transpose_a, transpose_b;
};

// y = x W for [in, out] and [out, in] weights, dx = dy W^T, dW = x^T dy, a head's scores.
constexpr std::array<Product, 11> kProducts = {{
    {"small", 32, 32, 32, false, false},
    {"forward", 1024, 1024, 256, false, false},
    {"forward_out_in", 1024, 1024, 256, false, true},
    {"wide_k", 1024, 256, 1024, false, false},
    {"wide_k_out_in", 1024, 256, 1024, false, true},
    {"weight_gradient", 256, 1024, 1024, true, false},
    {"weight_gradient_out_in", 1024, 256, 1024, true, false},
    {"scores", 128, 1024, 64, false, true},
    {"values", 128, 64, 1024, false, false},
    {"layer_forward", 512, 3072, 768, false, false},
    {"layer_weight_gradient", 768, 3072, 512, true, false},
}};

template <class Multiply>
void run_product(benchmark::State& state, const Multiply& multiply, const Product& p) {
  const std::vector<float> a = values(p.m * p.k, 1);
  const std::vector<float> b = values(p.k * p.n, 2);
  std::vector<float> c(static_cast<size_t>(p.m * p.n));
  GemmArguments<float> g;
  g.m = p.m, g.n = p.n, g.k = p.k;
  g.a = a.data(), g.transpose_a = p.transpose_a, g.lda = p.transpose_a ? p.m : p.k;
  g.b = b.data(), g.transpose_b = p.transpose_b, g.ldb = p.transpose_b ? p.k : p.n;
  g.c = c.data(), g.ldc = p.n;
  for (auto _ : state) {
    multiply(g);
    benchmark::ClobberMemory();
  }
  const double flops = 2.0 * static_cast<double>(p.m * p.n * p.k);
  state.counters["FLOP"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel("checksum " + std::to_string(checksum(c)));
}

void run_in_tiles(benchmark::State& state, int count, const Product& p) {
  ballast::ComputeThreads threads(count);
  const ballast::ComputeThreads::Lease lease(&threads);
  run_product(
      state, [](const GemmArguments<float>& g) { ballast::gemm(g); }, p);
}

constexpr int64_t kRow = 4096;

void run_softmax(benchmark::State& state, const RowLoops<float>& rows) {
  const std::vector<float> x = values(kRow, 3);
  std::vector<float> row(x);
  for (auto _ : state) {
    row = x;
    benchmark::DoNotOptimize(rows.softmax(row.data(), kRow));
  }
  state.SetItemsProcessed(state.iterations() * kRow);
  state.SetLabel("checksum " + std::to_string(checksum(row)));
}

using Elementwise = void (*)(const float*, float*, int64_t);

void run_elementwise(benchmark::State& state, Elementwise loop) {
  const std::vector<float> x = values(2 * kRow, 4);
  std::vector<float> out(static_cast<size_t>(kRow));
  for (auto _ : state) {
    loop(x.data(), out.data(), kRow);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRow);
  state.SetLabel("checksum " + std::to_string(checksum(out)));
}

void register_all() {
  for (const GemmTable& table : ballast::gemm_tables()) {
    for (const Product& p : kProducts) {
      const std::string name = std::string(table.name) + "/" + p.name + "/" + std::to_string(p.m) +
                               "x" + std::to_string(p.n) + "x" + std::to_string(p.k) +
                               (p.transpose_a ? "/At" : "") + (p.transpose_b ? "/Bt" : "");
      benchmark::RegisterBenchmark(
          name.c_str(), [table, p](benchmark::State& state) { run_product(state, table.gemm, p); });
    }
  }
  for (const Product& p : kProducts) {
    for (const int threads : {1, 2}) {
      const std::string name =
          "tiles/" + std::string(p.name) + "/" + std::to_string(threads) + "_threads";
      benchmark::RegisterBenchmark(name.c_str(), [threads, p](benchmark::State& state) {
        run_in_tiles(state, threads, p);
      })->UseRealTime();
    }
  }
  for (const RowLoops<float>* rows : ballast::transformer::row_loop_tables()) {
    const std::string name(rows->name);
    benchmark::RegisterBenchmark((name + "/softmax").c_str(), run_softmax, *rows);
    benchmark::RegisterBenchmark((name + "/gelu_tanh").c_str(), run_elementwise, rows->gelu_tanh);
    benchmark::RegisterBenchmark((name + "/gelu").c_str(), run_elementwise, rows->gelu);
    benchmark::RegisterBenchmark((name + "/swiglu").c_str(), run_elementwise, rows->swiglu);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
