// Device tables: what kernels were measured to reach on one generation of GPUs, by shape and
// length, as published; what the cost model interpolates between (sim/engine/tables/kernel_model).
//
// A generation (hopper) has parts (h100, h200, gh200-quad), which share how time depends on a
// shape and differ by rate, memory and power. Times are of one kernel on the device, its start
// included. Will not do: read files (profiles/tables/kernels.cpp), or interpolate.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/units.h"
#include "sim/spec/attention_kernel.h"
#include "sim/spec/dtype.h"

namespace ballast {

// The tile model of matrix products (kernel_model.h), fitted to the points of its own
// table; what is left is interpolated.
struct GemmConstants {
  FlopRate rate;       // of the largest tile in its inner loop
  Duration start;      // of a kernel: the time of a product of nothing
  double load = 0;     // multiply-adds of an element that take as long as loading it
  double start_k = 0;  // k that starting and ending a tile costs
  Duration split;      // of combining the parts of a product that is split along k
};

// One measured product: `batch` of m x n x k in `time`.
struct GemmPoint {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  Duration time;
};
struct GemmSeries {
  std::string part;
  std::string source;
  std::vector<GemmPoint> points;
};
struct GemmTable {
  ProductFormat format{};  // kAsStored: of 16-bit operands
  // Timed after so many others that the GPU had the clocks that its power limit leaves; else in
  // bursts, at clocks that it does not hold for long.
  bool under_load = false;
  GemmConstants constants;
  std::vector<GemmSeries> series;
};

// Rates in FLOP/s as published benchmarks count them: the causal half of the square where the mask
// is causal, a backward 2.5 times its forward.
struct AttentionPoint {
  int64_t head_size = 0, length = 0;
  bool backward = false, causal = false;
  FlopRate rate;
};
struct AttentionSeries {
  std::string part;
  std::string source;
  std::vector<AttentionPoint> points;
};
// rate = best / (1 + half / length) / (1 + half_head / head size), and where causal
// / (1 + diagonal / length), of products of that part, times its own level and what is left.
struct AttentionConstants {
  FlopRate forward, backward;                  // at great length and head size
  double half_forward = 0, half_backward = 0;  // tokens at which starting up halves the rate
  double half_head = 0;  // head size at which the passes beside the products halve it
  double diagonal = 0;   // tokens, of causal masks alone
};
struct AttentionTable {
  AttentionKernel kernel{};
  AttentionConstants constants;
  std::vector<AttentionSeries> series;
};

struct KernelPart {
  std::string name;
  int64_t multiprocessors = 0;
  // Best measured rate of products by storage type: what a machine of this part has unless its file
  // says otherwise. The constants of products are of the first part; another one is as much faster
  // or slower as these rates say. Of attention they are of all parts.
  std::map<DType, FlopRate> matmul;
  Bandwidth memory;       // of a stream, read plus write
  bool measured = false;  // these rates, else derived from another part's
  std::string source;
};

// What persistent kernels of products keep of their speed, at most, while a collective holds any
// multiprocessor: they start one block on each and give each an equal part of the output, so blocks
// that find theirs taken begin when others end. Products of many small blocks are slowed by the
// share that is held.
struct BesideCollective {
  double share = 1;
  std::string source;
};

struct KernelTables {
  std::string generation;
  // Layouts of its codes that an 8-bit factor is needed in: products of Hopper sum over what lies
  // side by side alone, so that a factor of two products is written row by row and column by
  // column.
  int64_t code_layouts = 2;
  std::optional<BesideCollective> product_beside_collective = {};
  std::vector<KernelPart> parts;
  std::vector<GemmTable> gemm;
  std::vector<AttentionTable> attention;
};

}  // namespace ballast
