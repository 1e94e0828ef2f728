// The arrays of one AdamW step for the tests: misaligned, guarded by NaN, in any formats.
#pragma once

#include <cstring>

#include "tests/kernels/inputs.h"

namespace ballast::kernels::testing {

// Defaults of arXiv 1412.6980 at step t, rate 1e-3.
inline AdamConstants constants_of_step(int t, float weight_decay) {
  AdamConstants c;
  c.weight_decay = weight_decay;
  c.bias_correction1 = static_cast<float>(1.0 / (1.0 - std::pow(double{c.beta1}, t)));
  c.bias_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(double{c.beta2}, t)));
  return c;
}

struct Streams {
  Format gradient = Format::kF32;
  Format weights = Format::kBf16;
  enum class Low { kNone, kWritten } low = Low::kWritten;

  std::string name() const {
    return "gradient " + name_of(gradient) + " weights " +
           (low == Low::kNone ? "none" : name_of(weights));
  }
};

inline std::vector<Streams> all_streams() {
  std::vector<Streams> result;
  for (const Format gradient : kFormats) {
    result.push_back({gradient, Format::kF32, Streams::Low::kNone});
    for (const Format weights : kFormats) {
      result.push_back({gradient, weights, Streams::Low::kWritten});
    }
  }
  return result;
}

class AdamState {
 public:
  AdamState(int64_t count, const Streams& streams, Values values, uint64_t seed)
      : streams_(streams),
        count_(count),
        master_(count, 1),
        moment1_(count, 2),
        moment2_(count, 3),
        gradient_(count, 5),
        weights_(count, 6) {
    Source source(seed);
    for (float& value : master_.values()) value = source.next(values);
    for (float& value : moment1_.values()) value = source.next(values);
    for (float& value : moment2_.values()) value = second_moment(source.next(values), values);
    for (int64_t i = 0; i < count; ++i) {
      const float value = source.next(values);
      reference().cast(&value, Format::kF32, gradient_bytes() + i * bytes_of(streams.gradient),
                       streams.gradient, 1);
    }
  }

  AdamArrays arrays() {
    return {.master = master_.data(),
            .moment1 = moment1_.data(),
            .moment2 = moment2_.data(),
            .gradient = gradient_.data(),
            .gradient_format = streams_.gradient,
            .weights = streams_.low == Streams::Low::kNone ? nullptr : weights_.data(),
            .weights_format = streams_.weights,
            .count = count_};
  }

  // Names the first array and index that differ, or says nothing.
  std::string first_difference(const AdamState& other) const {
    const auto differs = [](const Guarded<float>& a, const Guarded<float>& b, const char* name) {
      for (size_t i = 0; i < a.values().size(); ++i) {
        if (!same_number(a.values()[i], b.values()[i])) {
          return std::string(name) + " " + std::to_string(i) + ": " +
                 std::to_string(bits_of(a.values()[i])) + " is not " +
                 std::to_string(bits_of(b.values()[i]));
        }
      }
      return std::string();
    };
    std::string found = differs(master_, other.master_, "master");
    if (found.empty()) found = differs(moment1_, other.moment1_, "moment1");
    if (found.empty()) found = differs(moment2_, other.moment2_, "moment2");
    if (found.empty() && streams_.low == Streams::Low::kWritten) found = low_difference(other);
    return found;
  }

  bool guards_are_intact() const {
    return master_.guards_are_intact() && moment1_.guards_are_intact() &&
           moment2_.guards_are_intact() && gradient_.guards_are_intact() &&
           (streams_.weights != Format::kF32 || weights_.guards_are_intact());
  }

 private:
  static float second_moment(float value, Values values) {
    return values == Values::kAnyBits ? value : std::abs(value);
  }
  char* gradient_bytes() { return reinterpret_cast<char*>(gradient_.data()); }

  std::string low_difference(const AdamState& other) const {
    const auto* a = reinterpret_cast<const char*>(weights_.data());
    const auto* b = reinterpret_cast<const char*>(other.weights_.data());
    for (int64_t i = 0; i < count_; ++i) {
      float x = 0.0f, y = 0.0f;
      const int64_t at = i * bytes_of(streams_.weights);
      reference().cast(a + at, streams_.weights, &x, Format::kF32, 1);
      reference().cast(b + at, streams_.weights, &y, Format::kF32, 1);
      if (!same_number(x, y)) return "weights " + std::to_string(i);
    }
    return {};
  }

  Streams streams_;
  int64_t count_;
  Guarded<float> master_, moment1_, moment2_, gradient_, weights_;
};

}  // namespace ballast::kernels::testing
