// Normal deviates by position: Philox's words, and of each the deviate of its probability.
//
// Only exactly rounded operations and integers, each value from its own word, so any instruction
// set gives the same bits. The loops have no branch, and compilers make vectors of them; they are
// plain C++ where the optimizer's are intrinsics because a start is made once a training.
// Everything has internal linkage (see step_constants.h), and nothing of std is instantiated.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace ballast::kernels {
namespace {

// One block of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11,
// section 3.2 and table 2): the counter's four words become random ones.
inline void philox_4x32(uint32_t (&words)[4], uint64_t key) {
  constexpr int kRounds = 10;
  constexpr uint64_t kMultiply0 = 0xD2511F53;
  constexpr uint64_t kMultiply1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiply0 * words[0];
    const uint64_t product1 = kMultiply1 * words[2];
    words[0] = static_cast<uint32_t>(product1 >> 32) ^ words[1] ^ key0;
    words[1] = static_cast<uint32_t>(product1);
    words[2] = static_cast<uint32_t>(product0 >> 32) ^ words[3] ^ key1;
    words[3] = static_cast<uint32_t>(product0);
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

template <class To, class From>
inline To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  __builtin_memcpy(&bits, &value, sizeof(To));
  return bits;
}

// The libraries' logarithms differ in the last bit, so this is the series
// ln m = 2 (s + s^3/3 + s^5/5 + ...), s = (m-1)/(m+1), with m in [sqrt(1/2), sqrt(2)): |s| < 0.172,
// and after 11 terms the rest is below 1e-17. Requires a normal x > 0.
inline double portable_log(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  constexpr int kTerms = 11;
  // x = m * 2^(biased - 1023). Doubles of one sign are ordered as their bits are, and those of m
  // begin at sqrt(1/2).
  const auto bits = same_bits<uint64_t>(x);
  constexpr int kFraction = 52;
  constexpr uint64_t kBias = 1023;
  const uint64_t biased = (bits - kSqrtHalf + (kBias << kFraction)) >> kFraction;
  const auto m = same_bits<double>(bits - ((biased - kBias) << kFraction));
  // As a double, without a conversion, which not every instruction set has for 64 bits: added to
  // the bits of 1.5 * 2^52 a small integer is added to the number.
  constexpr double kAnchor = 6755399441055744.0;
  const double exponent =
      same_bits<double>(same_bits<uint64_t>(kAnchor) + (biased - kBias)) - kAnchor;
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double sum = 0;
  for (int k = kTerms - 1; k >= 0; --k) sum = sum * s2 + 1.0 / (2 * k + 1);
  return 2 * s * sum + exponent * kLn2;
}

// Wichura, "Algorithm AS 241", Applied Statistics 37 (1988) 477-484, PPND16: coefficients lowest
// power first, for |q| <= kCentre and beyond. Its third part is for probabilities below exp(-25),
// which no word of 32 bits has: the least is 1.2e-10 = exp(-22.9).
constexpr double kCentre = 0.425;
constexpr double kCentreNumerator[] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                       1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                       4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                       3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr double kCentreDenominator[] = {1.0,
                                         4.2313330701600911252e+1,
                                         6.8718700749205790830e+2,
                                         5.3941960214247511077e+3,
                                         2.1213794301586595867e+4,
                                         3.9307895800092710610e+4,
                                         2.8729085735721942674e+4,
                                         5.2264952788528545610e+3};
constexpr double kOuterNumerator[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                      5.76949722146069140550e0,  3.64784832476320460504e0,
                                      1.27045825245236838258e0,  2.41780725177450611770e-1,
                                      2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kOuterDenominator[] = {1.0,
                                        2.05319162663775882187e0,
                                        1.67638483018380384940e0,
                                        6.89767334985100004550e-1,
                                        1.48103976427480074590e-1,
                                        1.51986665636164571966e-2,
                                        5.47593808499534494600e-4,
                                        1.05075007164441684324e-9};

inline double polynomial(const double (&coefficients)[8], double x) {
  double sum = 0;
  for (int k = 7; k >= 0; --k) sum = sum * x + coefficients[k];
  return sum;
}

// What the probability (word + 1/2) / 2^32 differs from 1/2 by. Exact.
inline double from_middle(uint32_t word) { return (word + 0.5) / 4294967296.0 - 0.5; }

inline double magnitude(double q) { return q < 0 ? -q : q; }

inline double central_deviate(double q) {
  const double r = 0.180625 - q * q;
  return q * (polynomial(kCentreNumerator, r) / polynomial(kCentreDenominator, r));
}

// Where |q| > kCentre.
inline double outer_deviate(double q) {
  const double r = __builtin_sqrt(-portable_log(0.5 - magnitude(q))) - 1.6;
  return __builtin_copysign(polynomial(kOuterNumerator, r) / polynomial(kOuterDenominator, r), q);
}

// The standard normal deviate of probability (word + 1/2) / 2^32, at most 6.4 in magnitude.
inline double normal_deviate(uint32_t word) {
  const double q = from_middle(word);
  return magnitude(q) <= kCentre ? central_deviate(q) : outer_deviate(q);
}

// Table::normals, in blocks that fit the first cache. All of a block are taken as central first,
// which 17 of 20 are; the others are gathered, so that their loop has no branch either.
inline void normals_in_blocks(uint64_t key, double deviation, int64_t first, float* out,
                              int64_t count) {
  constexpr int kCounters = 64;
  constexpr int kValues = 4 * kCounters;
  for (int64_t at = 0; at < count; at += kValues) {
    uint32_t words[4][kCounters];
    const uint64_t counter = static_cast<uint64_t>(first + at) / 4;
    for (int i = 0; i < kCounters; ++i) {
      const uint64_t here = counter + static_cast<uint64_t>(i);
      uint32_t four[4] = {static_cast<uint32_t>(here), static_cast<uint32_t>(here >> 32), 0, 0};
      philox_4x32(four, key);
      for (int j = 0; j < 4; ++j) words[j][i] = four[j];
    }
    double q[kValues];
    for (int i = 0; i < kCounters; ++i) {
      for (int j = 0; j < 4; ++j) q[4 * i + j] = from_middle(words[j][i]);
    }
    double deviates[kValues];
    for (int i = 0; i < kValues; ++i) deviates[i] = central_deviate(q[i]);

    int places[kValues];
    int outer = 0;
    for (int i = 0; i < kValues; ++i) {
      places[outer] = i;
      outer += magnitude(q[i]) > kCentre ? 1 : 0;
    }
    double gathered[kValues];
    for (int i = 0; i < outer; ++i) gathered[i] = q[places[i]];
    for (int i = 0; i < outer; ++i) gathered[i] = outer_deviate(gathered[i]);
    for (int i = 0; i < outer; ++i) deviates[places[i]] = gathered[i];

    if (count - at >= kValues) {
      for (int i = 0; i < kValues; ++i) out[at + i] = static_cast<float>(deviation * deviates[i]);
    } else {
      for (int i = 0; i < static_cast<int>(count - at); ++i) {
        out[at + i] = static_cast<float>(deviation * deviates[i]);
      }
    }
  }
}

}  // namespace
}  // namespace ballast::kernels
