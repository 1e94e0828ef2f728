#include "backend/train/random.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "kernels/normal_deviates.h"

namespace ballast {
namespace {

constexpr double kDeviation = 0.02;

uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }

}  // namespace

uint64_t random_bits(uint64_t key, RandomPosition position) {
  uint32_t words[4] = {low(position.column), high(position.column), low(position.row),
                       high(position.row)};
  kernels::philox_4x32(words, key);
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

void fill_normal(std::span<float> out, uint64_t key, double deviation, int64_t first) {
  CHECK(first >= 0 && first % 4 == 0);
  kernels::best().normals(key, deviation, first, out.data(), static_cast<int64_t>(out.size()));
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
