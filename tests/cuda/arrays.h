// Arrays of the machine under test, and comparison with what the host computes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "sim/spec/dtype.h"
#include "tests/cuda/machine.h"

namespace ballast::kernels::cuda::testing {

inline constexpr Format kFormats[] = {Format::kF32, Format::kBf16, Format::kF16};

inline std::string name_of(Format format) {
  return format == Format::kF32 ? "f32" : format == Format::kBf16 ? "bf16" : "f16";
}
inline DType dtype_of(Format format) {
  return format == Format::kF32    ? DType::kF32
         : format == Format::kBf16 ? DType::kBf16
                                   : DType::kF16;
}
// Half a unit in the last place of 1.
inline double roundoff(Format format) {
  return format == Format::kF32 ? 0x1p-24 : format == Format::kBf16 ? 0x1p-8 : 0x1p-11;
}

// Bytes of the machine between guards; all of it begins as NaN of every format.
class Memory {
 public:
  // `shift` bytes off an address aligned to 256.
  explicit Memory(int64_t bytes, int64_t shift = 0)
      : bytes_(bytes),
        shift_(shift),
        host_(static_cast<size_t>(bytes + shift + 2 * kGuard), kPoison),
        memory_(static_cast<char*>(allocate(bytes + shift + 2 * kGuard))) {
    poison();
  }
  ~Memory() {
    std::vector<unsigned char> all(host_.size());
    copy_out(all.data(), memory_, static_cast<int64_t>(all.size()));
    const auto start = static_cast<size_t>(kGuard + shift_);
    for (size_t i = 0; i < all.size(); ++i) {
      const bool inside = i >= start && i < start + static_cast<size_t>(bytes_);
      if (!inside && all[i] != kPoison) {
        ADD_FAILURE() << "a byte " << static_cast<int64_t>(i - start) << " from the start of "
                      << bytes_ << " was written";
        break;
      }
    }
    release(memory_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void poison() { copy_in(memory_, host_.data(), static_cast<int64_t>(host_.size())); }
  void* data() const { return memory_ + kGuard + shift_; }
  int64_t bytes() const { return bytes_; }
  void set(const void* host) { copy_in(data(), host, bytes_); }
  std::vector<unsigned char> get() const {
    std::vector<unsigned char> values(static_cast<size_t>(bytes_));
    copy_out(values.data(), data(), bytes_);
    return values;
  }
  template <class T>
  std::vector<T> get_as() const {
    std::vector<T> values(static_cast<size_t>(bytes_) / sizeof(T));
    copy_out(values.data(), data(), bytes_);
    return values;
  }

 private:
  static constexpr int64_t kGuard = 256;
  static constexpr unsigned char kPoison = 0xff;
  int64_t bytes_;
  int64_t shift_;
  std::vector<unsigned char> host_;
  char* memory_;
};

// `values` as they are after storage in the format.
inline std::vector<float> rounded(std::span<const float> values, Format format) {
  std::vector<unsigned char> stored(values.size() * static_cast<size_t>(bytes_of(format)));
  std::vector<float> result(values.size());
  const auto count = static_cast<int64_t>(values.size());
  reference().cast(values.data(), Format::kF32, stored.data(), format, count);
  reference().cast(stored.data(), format, result.data(), Format::kF32, count);
  return result;
}

// Values of a format on the machine, misaligned by `shift` values.
class Values {
 public:
  Values(Format format, int64_t count, int64_t shift = 0)
      : format_(format),
        count_(count),
        memory_(count * bytes_of(format), shift * bytes_of(format)) {}
  Values(Format format, std::span<const float> values, int64_t shift = 0)
      : Values(format, static_cast<int64_t>(values.size()), shift) {
    set(values);
  }
  void set(std::span<const float> values) {
    std::vector<unsigned char> stored(static_cast<size_t>(memory_.bytes()));
    reference().cast(values.data(), Format::kF32, stored.data(), format_, count_);
    memory_.set(stored.data());
  }
  std::vector<float> get() const {
    const std::vector<unsigned char> stored = memory_.get();
    std::vector<float> values(static_cast<size_t>(count_));
    reference().cast(stored.data(), format_, values.data(), Format::kF32, count_);
    return values;
  }
  std::vector<unsigned char> bytes() const { return memory_.get(); }
  void poison() { memory_.poison(); }
  Array array() const { return {memory_.data(), format_}; }
  void* data() const { return memory_.data(); }
  float* floats() const { return static_cast<float*>(memory_.data()); }
  Format format() const { return format_; }
  int64_t count() const { return count_; }

 private:
  Format format_;
  int64_t count_;
  Memory memory_;
};

// Normal values of deviation `spread` about `centre`, rounded to the format.
struct Normal {
  float centre = 0;
  float spread = 1;
  uint32_t seed = 1;
};
inline std::vector<float> normal(const Normal& n, Format format, int64_t count) {
  std::mt19937 generator(n.seed);
  std::normal_distribution<float> distribution(n.centre, n.spread);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = distribution(generator);
  return rounded(values, format);
}

// Every value within `roundings` of the format of the expected one, relative to it, and within
// 64 roundings of fp32 of the largest: the order of a sum. NaN never passes.
inline void expect_close(std::span<const float> actual, std::span<const float> expected,
                         Format format, double roundings, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(double{value}));
  const double least = format == Format::kF16 ? 0x1p-24 : 1e-30;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double bound = roundings * roundoff(format) * std::abs(double{expected[i]}) +
                         64 * roundoff(Format::kF32) * largest + least;
    ASSERT_LE(std::abs(double{actual[i]} - double{expected[i]}), bound)
        << what << ", element " << i << ": " << actual[i] << " is not " << expected[i];
  }
}

// |actual - expected| / |expected| over all, and no value further off than 8 times as much of the
// largest. NaN never passes.
inline void expect_near(std::span<const float> actual, std::span<const float> expected,
                        double relative, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double difference = 0, size = 0, largest = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = double{actual[i]} - double{expected[i]};
    difference += d * d;
    size += double{expected[i]} * double{expected[i]};
    largest = std::max(largest, std::abs(double{expected[i]}));
  }
  EXPECT_LE(std::sqrt(difference), relative * std::sqrt(size)) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::abs(double{actual[i]} - double{expected[i]}), 8 * relative * largest)
        << what << ", element " << i << ": " << actual[i] << " is not " << expected[i];
  }
}

inline void expect_launched(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.kernel << ": " << status.text() << ", " << status.blocks
                           << " blocks of " << status.threads << " threads, " << status.shared_bytes
                           << " bytes of shared memory";
}

// Runs the launches once in each thread order (on a GPU: as many times) and expects the same bytes.
// run() launches and returns what it wrote.
template <class Run>
auto same_every_time(Run run) {
  set_thread_order(0);
  const auto first = run();
  for (int order = 1; order < kOrders; ++order) {
    set_thread_order(order);
    EXPECT_EQ(run(), first) << "another result in run " << order;
  }
  set_thread_order(0);
  return first;
}

// A test that needs the machine; skipped with the reason where there is none.
class OnMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = missing_machine();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};

}  // namespace ballast::kernels::cuda::testing
