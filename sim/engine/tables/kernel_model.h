// Times of kernels from the device tables of a generation of GPUs: a simple physical model, times
// what was measured beside it (sim/engine/tables/correction).
//
// A product's model. Output tiles are computed `multiprocessors` at a time, so time comes in whole
// waves (NVIDIA, "Matrix Multiplication Background User's Guide"); smaller tiles run slower because
// each operand that they load serves fewer products; few tiles with a long k are split along k. A
// kernel starts, and writes its output when a tile is done, beside nothing: at n = m = 8192 the
// time of k = 256 ... 16384 is linear with an intercept of just that write (tile-ai/tilelang,
// benchmark/matmul). The correction depends on m, n and k; a batch counts as so much more of m and
// n. Attention: see AttentionConstants; times each part's own level of what was timed on it.
// Will not do: hold what a framework loses (sim/spec/stack.h), or a host's time to launch.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/engine/tables/correction.h"
#include "sim/spec/kernels.h"

namespace ballast {

// The part of a generation that a machine's GPU is of, and how its own rates relate to the part's.
struct KernelUse {
  std::string part;
  double rate = 1;              // of products, machine over part; a stack's share of it times that
  Bandwidth memory;             // the machine's
  int64_t multiprocessors = 1;  // the machine's
};

struct GemmQuery {
  ProductFormat format{};
  int64_t batch = 1, m = 0, n = 0, k = 0;
};

struct AttentionQuery {
  AttentionKernel kernel{};
  int64_t head_size = 0, length = 0;
  bool backward = false, causal = true;
};

class KernelModel {
 public:
  // Requires tables that were checked (profiles/tables/kernels.cpp).
  explicit KernelModel(KernelTables tables);
  KernelModel(const KernelModel&) = delete;

  const KernelTables& tables() const { return tables_; }
  // Null where the generation has no such part.
  const KernelPart* part(const std::string& name) const;

  // None where there is no table of this format.
  std::optional<Duration> gemm_time(const GemmQuery& query, const KernelUse& use) const;
  // Whether products of this format were timed as those of 16-bit factors were, in bursts or under
  // load: what these sustain in a step is then told of both (StackConstants::sustained_gemm).
  bool timed_as_16_bit(ProductFormat format) const;
  // Of a kernel that has no table here: that of cuDNN's latest version where it is an older one,
  // kFlash2's of others. None where that has none either.
  std::optional<FlopRate> attention_rate(const AttentionQuery& query,
                                         const std::string& part) const;

 private:
  struct Mean {
    double sum = 0;
    int64_t count = 0;

    void add(double value) {
      sum += value;
      ++count;
    }
    double mean() const { return sum / static_cast<double>(count); }  // requires count > 0
  };
  struct Gemm {
    const GemmTable* table = nullptr;
    Correction correction;
  };
  struct Attention {
    const AttentionTable* table = nullptr;
    // Of each part, forward and backward: its points over what the constants say, on average.
    std::vector<std::array<double, 2>> levels;
    Correction correction;
  };
  const GemmTable* gemm_table(ProductFormat format) const;  // null where there is none
  double part_axis(const std::string& name) const;
  // Rate of products of a part over that of the first one, which the constants are of.
  double rate_of(const KernelPart& part, ProductFormat format) const;
  TablePlace place_of(const GemmQuery& query, const std::string& part) const;
  TablePlace place_of(const AttentionQuery& query, const std::string& part) const;
  // By the constants alone, of the generation's products rather than of attention on that part.
  FlopRate modelled(const AttentionTable& table, const AttentionQuery& query,
                    const KernelPart& part) const;
  // By part that was timed: the logarithm of its points over what the constants say.
  std::map<size_t, Mean> misses_of(const AttentionTable& table, bool backward) const;
  std::vector<std::array<double, 2>> levels_of(const AttentionTable& table) const;
  Duration modelled(const GemmTable& table, const GemmQuery& query, const KernelPart& part,
                    const KernelUse& use) const;

  KernelTables tables_;
  std::vector<Gemm> gemm_;
  std::vector<Attention> attention_;
};

}  // namespace ballast
