#include "autotune/calibrate/priors.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace ballast {
namespace {

// Standard deviation of the logarithm of sustained_gemm_prior(): of one GPU of its generation, at
// the best of its shapes.
constexpr double kGenerationWidth = 0.05;

}  // namespace

Prior prior_of(int index) {
  static constexpr std::array<Prior, kStackConstants> kPriors = {{
      // Tables of a GPU generation hold what libraries reach for a shape, alone and cool. Beside
      // the traffic and at the clocks of a whole step, frameworks reach less of it.
      {0.9, 0.15, 0.12, 0.3, 1.3},
      // The same for attention kernels.
      {0.85, 0.2, 0.15, 0.3, 1.3},
      // Passes over memory reach four fifths of the data sheet's bandwidth (BabelStream's share on
      // H100 and GH200: profiles/published/hardware.json); separate small kernels reach less.
      {0.75, 0.25, 0.2, 0.2, 1.3},
      // Tables and formulas of a fabric hold what NCCL reaches alone, so that little is left to
      // lose. Inside a node ranks have wires of their own to the switch: what is lost is that they
      // start late, and that the memory of the GPU is read and written by others meanwhile.
      {0.9, 0.15, 0.15, 0.15, 1.0},
      // Between nodes there is more to lose, and it differs more: what was measured is one group of
      // a few nodes that nobody else used (profiles/fabrics). In a step many groups cross the same
      // switches at once, over paths that collide, with jobs of others beside, and each waits for
      // the slowest of more ranks.
      {0.8, 0.2, 0.3, 0.1, 1.0},
      // Host time of a launch: from a C++ loop (two microseconds) to eager PyTorch with its hooks
      // (a dozen or more).
      {5.0, 0.7, 0.5, 0.05, 50.0},
      // Transformer Engine's Linear takes the host 2.7 times as long as torch.nn.Linear (forward in
      // 16 bits, GH200 and GB200: NVIDIA/TransformerEngine, issue 2053), which is 36 us on the Xeon
      // of that issue. A grouped product does the same for each expert, without a module's hooks
      // and in C++ for a part. Where products and rounding are one kernel, 9 us were left for each
      // (GB200: issue 2897).
      {36.0, 0.7, 0.3, 1.0, 500.0},
      // Caching allocators lose some percent to fragments, and at times a lot.
      {0.06, 0.04, 0.05, 0.0, 0.6},
      // Passes of the CPU's optimizer were measured alone; in a step the threads are shared with
      // the framework's own, and copies draw on the same memory.
      {0.8, 0.25, 0.2, 0.1, 1.3},
  }};
  return kPriors.at(static_cast<size_t>(index));
}

StackConstants prior_constants() {
  StackConstants constants;
  for (int i = 0; i < kStackConstants; ++i) set_constant(constants, i, prior_of(i).value);
  return constants;
}

double sustained_gemm_prior(std::string_view generation) {
  // What back-to-back products settle at over what a burst reaches (stas00/ml-engineering,
  // "Maximum Achievable and Sustainable Matmul FLOPS": H200 755 of 834 TFLOP/s in bf16, B200 1429
  // of 1745). The 16-bit tables of both were measured in bursts, A100's after ten thousand products
  // on random numbers (Azure/AI-benchmarking-guide), 256.5 TFLOP/s where bursts reach 271.
  if (generation == "hopper") return 755.0 / 834.0;
  if (generation == "blackwell") return 1429.0 / 1745.0;
  return 1;
}

HierarchyPrior hierarchy_prior(const std::vector<std::string>& generations) {
  HierarchyPrior prior;
  prior.center = free_of(prior_constants());
  prior.width.resize(kStackConstants);
  prior.between.resize(kStackConstants);
  for (int i = 0; i < kStackConstants; ++i) {
    prior.width[i] = prior_of(i).width;
    prior.between[i] = prior_of(i).between;
  }
  // Two sources that run the same differ by a twentieth, and so do rows of one source.
  prior.source.fill(0.05);
  prior.within.fill(0.05);
  prior.generation = kGenerationWidth;
  prior.generation_center.resize(static_cast<Eigen::Index>(generations.size()));
  for (size_t g = 0; g < generations.size(); ++g) {
    prior.generation_center[static_cast<Eigen::Index>(g)] =
        std::log(sustained_gemm_prior(generations[g]));
  }
  prior.moved_by_generation = 0;  // gemm_share
  return prior;
}

Eigen::VectorXd free_of(const StackConstants& constants) {
  StackConstants bounded = constants;
  Eigen::VectorXd free(kStackConstants);
  for (int i = 0; i < kStackConstants; ++i) {
    const Prior prior = prior_of(i);
    set_constant(bounded, i, std::clamp(constant(constants, i), prior.least, prior.most));
    free[i] = coordinate(bounded, i);
  }
  return free;
}

StackConstants constants_of(const Eigen::VectorXd& free) {
  StackConstants constants;
  for (int i = 0; i < kStackConstants; ++i) {
    const Prior prior = prior_of(i);
    StackConstants least, most;
    set_constant(least, i, prior.least);
    set_constant(most, i, prior.most);
    // Kept within in coordinates: a time may be so far beyond them that no clock holds it.
    set_coordinate(constants, i, std::clamp(free[i], coordinate(least, i), coordinate(most, i)));
  }
  return constants;
}

}  // namespace ballast
