#include "backend/train/random.h"

#include <algorithm>
#include <cmath>

namespace ballast {
namespace {

constexpr int kPhiloxRounds = 10;
constexpr uint32_t kPhiloxMultiply0 = 0xD2511F53;
constexpr uint32_t kPhiloxMultiply1 = 0xCD9E8D57;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9;  // golden ratio
constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85;  // sqrt(3) - 1

constexpr double kDeviation = 0.02;

uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

PhiloxKey philox_key(uint64_t key) { return {{low(key), high(key)}}; }

// The libraries' logarithms differ in the last bit, so this is the series
// ln m = 2 (s + s^3/3 + s^5/5 + ...), s = (m-1)/(m+1), with m in [sqrt(1/2), sqrt(2)): |s| < 0.172,
// and after 11 terms the rest is below 1e-17. Requires x > 0.
double portable_log(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  constexpr double kSqrtHalf = 0.70710678118654752440;
  constexpr int kTerms = 11;
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < kSqrtHalf) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double sum = 0;
  for (int k = kTerms - 1; k >= 0; --k) sum = sum * s2 + 1.0 / (2 * k + 1);
  return 2 * s * sum + exponent * kLn2;
}

using Coefficients = std::array<double, 8>;

double polynomial(const Coefficients& c, double x) {
  double sum = 0;
  for (size_t k = c.size(); k-- > 0;) sum = sum * x + c[k];
  return sum;
}

double rational(const Coefficients& numerator, const Coefficients& denominator, double x) {
  return polynomial(numerator, x) / polynomial(denominator, x);
}

// AS 241's coefficients, lowest power first: |q| <= 0.425, then r <= 5, then r > 5.
constexpr Coefficients kCentreNumerator = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                           1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                           4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                           3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr Coefficients kCentreDenominator = {1.0,
                                             4.2313330701600911252e+1,
                                             6.8718700749205790830e+2,
                                             5.3941960214247511077e+3,
                                             2.1213794301586595867e+4,
                                             3.9307895800092710610e+4,
                                             2.8729085735721942674e+4,
                                             5.2264952788528545610e+3};
constexpr Coefficients kMiddleNumerator = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                           5.76949722146069140550e0,  3.64784832476320460504e0,
                                           1.27045825245236838258e0,  2.41780725177450611770e-1,
                                           2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr Coefficients kMiddleDenominator = {1.0,
                                             2.05319162663775882187e0,
                                             1.67638483018380384940e0,
                                             6.89767334985100004550e-1,
                                             1.48103976427480074590e-1,
                                             1.51986665636164571966e-2,
                                             5.47593808499534494600e-4,
                                             1.05075007164441684324e-9};
constexpr Coefficients kTailNumerator = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                         1.78482653991729133580e0,  2.96560571828504891230e-1,
                                         2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                         2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr Coefficients kTailDenominator = {1.0,
                                           5.99832206555887937690e-1,
                                           1.36929880922735805310e-1,
                                           1.48753612908506148525e-2,
                                           7.86869131145613259100e-4,
                                           1.84631831751005468180e-5,
                                           1.42151175831644588870e-7,
                                           2.04426310338993978564e-15};

}  // namespace

std::array<uint32_t, 4> philox4x32(PhiloxCounter counter, PhiloxKey key) {
  std::array<uint32_t, 4> c = counter.words;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiply0} * c[0];
    const uint64_t product1 = uint64_t{kPhiloxMultiply1} * c[2];
    c = {high(product1) ^ c[1] ^ key.words[0], low(product1), high(product0) ^ c[3] ^ key.words[1],
         low(product0)};
    key.words[0] += kPhiloxWeyl0;
    key.words[1] += kPhiloxWeyl1;
  }
  return c;
}

uint64_t random_bits(uint64_t key, RandomPosition position) {
  const PhiloxCounter counter = {
      {low(position.column), high(position.column), low(position.row), high(position.row)}};
  const std::array<uint32_t, 4> words = philox4x32(counter, philox_key(key));
  return uint64_t{words[1]} << 32 | words[0];
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  constexpr uint64_t kFnvPrime = 0x100000001B3;
  uint64_t hash = 0xCBF29CE484222325;
  const auto mix = [&hash](uint8_t byte) { hash = (hash ^ byte) * kFnvPrime; };
  for (int shift = 0; shift < 64; shift += 8) mix(static_cast<uint8_t>(seed >> shift));
  for (const char c : name) mix(static_cast<uint8_t>(c));
  return hash;
}

namespace {

// Of a word's probability, what it differs from 1/2 by. Exact.
double from_middle(uint32_t word) { return (word + 0.5) / 4294967296.0 - 0.5; }

constexpr double kCentre = 0.425;

double central_deviate(double q) {
  return q * rational(kCentreNumerator, kCentreDenominator, 0.180625 - q * q);
}

// Where |q| > kCentre.
double outer_deviate(double q) {
  const double r = std::sqrt(-portable_log(0.5 - std::abs(q)));
  const double magnitude = r <= 5.0 ? rational(kMiddleNumerator, kMiddleDenominator, r - 1.6)
                                    : rational(kTailNumerator, kTailDenominator, r - 5.0);
  return q < 0 ? -magnitude : magnitude;
}

}  // namespace

double normal_deviate(uint32_t word) {
  const double q = from_middle(word);
  return std::abs(q) <= kCentre ? central_deviate(q) : outer_deviate(q);
}

// All of a block as if they were central first, without a branch, so that compilers vectorize it:
// 17 of 20 are.
void fill_normal(std::span<float> out, uint64_t key, double deviation, int64_t first) {
  constexpr size_t kBlock = 256;
  CHECK(first % 4 == 0);
  std::array<uint32_t, kBlock> words{};
  std::array<double, kBlock> normals;
  for (size_t at = 0; at < out.size(); at += kBlock) {
    const size_t count = std::min(kBlock, out.size() - at);
    for (size_t i = 0; i < count; i += 4) {
      const uint64_t counter = (static_cast<uint64_t>(first) + at + i) / 4;
      const auto four = philox4x32({{low(counter), high(counter), 0, 0}}, philox_key(key));
      std::ranges::copy(four, words.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (size_t i = 0; i < kBlock; ++i) normals[i] = central_deviate(from_middle(words[i]));
    for (size_t i = 0; i < count; ++i) {
      const double q = from_middle(words[i]);
      if (std::abs(q) > kCentre) normals[i] = outer_deviate(q);
      out[at + i] = static_cast<float>(deviation * normals[i]);
    }
  }
}

void initialise_part(const Module& module, const Parameter& parameter, const Model& model,
                     uint64_t seed, int64_t first, std::span<float> out) {
  if (!parameter.is_matrix) {
    // A vector is a norm's weight, neutral at 1, or a bias, neutral at 0.
    std::ranges::fill(out, parameter.name.ends_with("weight") ? 1.0f : 0.0f);
    return;
  }
  const bool residual = module.kind == ModuleKind::kAttentionOut || module.kind == ModuleKind::kFc2;
  const double deviation =
      residual ? kDeviation / std::sqrt(2.0 * static_cast<double>(model.layers)) : kDeviation;
  fill_normal(out, key_of(seed, parameter.name), deviation, first);
}

void initialise(const Module& module, const Model& model, uint64_t seed, std::span<float> out) {
  CHECK(static_cast<int64_t>(out.size()) == module.count);
  for (const Parameter& parameter : module.parameters) {
    CHECK(parameter.offset >= 0 && parameter.offset + parameter.count() <= module.count);
    const std::span<float> values =
        out.subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.count()));
    initialise_part(module, parameter, model, seed, 0, values);
  }
}

}  // namespace ballast
