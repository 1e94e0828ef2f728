// What must have the very bits of the CPU: casts, scaling, AdamW, sums of squares. And the probes.

#include <deque>

#include "kernels/cuda/geometry.h"
#include "kernels/undo.h"
#include "tests/cuda/arrays.h"
#include "tests/kernels/adam_inputs.h"

namespace ballast::kernels::cuda::testing {
namespace {

using kernels::testing::AdamState;
using kernels::testing::all_streams;
using kernels::testing::constants_of_step;
using kernels::testing::Source;
using kernels::testing::Streams;

// Lengths about the widths of 4 and 8 values and of a block.
constexpr int64_t kLengths[] = {0, 1, 3, 4, 7, 8, 9, 1023, 1024, 1025, 2500};

std::vector<float> some(kernels::testing::Values kind, int64_t count) {
  Source source(42);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = source.next(kind);
  return values;
}

class bits : public OnMachine {};

TEST_F(bits, casts_between_any_formats_are_the_hosts) {
  for (const Format from : kFormats) {
    for (const Format to : kFormats) {
      for (const int64_t count : kLengths) {
        for (const int64_t shift : {0, 1}) {
          const std::vector<float> values = some(kernels::testing::Values::kAnyBits, count);
          const Values source(from, values, shift);
          const std::vector<unsigned char> stored = source.bytes();
          std::vector<unsigned char> expected(static_cast<size_t>(count * bytes_of(to)));
          reference().cast(stored.data(), from, expected.data(), to, count);
          for (const bool crosses_link : {false, true}) {
            const Values result(to, count, shift);
            const Cast one{source.array(), result.array(), count};
            expect_launched(crosses_link ? casts_across_link({&one, 1}, nullptr)
                                         : cast(one, nullptr));
            EXPECT_EQ(result.bytes(), expected) << name_of(from) << " to " << name_of(to);
          }
        }
      }
    }
  }
}

// Longer than what the blocks across the link take at a time, twice and a part.
TEST_F(bits, casts_across_the_link_go_on_until_the_end) {
  const int64_t count = 2 * kDirectAhead * kDirectBlocks * kDirectThreads * kWide + 12345;
  const std::vector<float> values = some(kernels::testing::Values::kAnyBits, count);
  for (const auto& [from, to] :
       {std::pair(Format::kBf16, Format::kF32), {Format::kF32, Format::kBf16}}) {
    const Values source(from, values);
    const std::vector<unsigned char> stored = source.bytes();
    std::vector<unsigned char> expected(static_cast<size_t>(count * bytes_of(to)));
    reference().cast(stored.data(), from, expected.data(), to, count);
    const Values result(to, count);
    const Cast one{source.array(), result.array(), count};
    expect_launched(casts_across_link({&one, 1}, nullptr));
    EXPECT_EQ(result.bytes(), expected) << name_of(from) << " to " << name_of(to);
  }
}

// More than one kernel takes, of every length, aligned or not, and of two formats.
TEST_F(bits, casts_across_the_link_are_many_at_once) {
  std::deque<Values> sources, results;
  std::vector<Cast> casts;
  for (int i = 0; i < 2 * kMostCasts + 7; ++i) {
    const int64_t count = kLengths[static_cast<size_t>(i) % std::size(kLengths)];
    const Format from = i % 3 == 0 ? Format::kF32 : Format::kBf16;
    sources.emplace_back(from, some(kernels::testing::Values::kAnyBits, count), i % 2);
    results.emplace_back(Format::kF32, count, i % 2);
    casts.push_back({sources.back().array(), results.back().array(), count});
  }
  expect_launched(casts_across_link(casts, nullptr));
  for (size_t i = 0; i < casts.size(); ++i) {
    const std::vector<unsigned char> stored = sources[i].bytes();
    std::vector<unsigned char> expected(static_cast<size_t>(casts[i].count * 4));
    reference().cast(stored.data(), casts[i].from.format, expected.data(), Format::kF32,
                     casts[i].count);
    EXPECT_EQ(results[i].bytes(), expected) << i;
  }
}

TEST_F(bits, every_16_bit_value_is_converted_as_the_host_does) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const Format from : {Format::kBf16, Format::kF16}) {
    Memory source(2 * 65536);
    source.set(all.data());
    const Values result(Format::kF32, 65536);
    expect_launched(cast({{source.data(), from}, result.array(), 65536}, nullptr));
    std::vector<unsigned char> expected(4 * 65536);
    reference().cast(all.data(), from, expected.data(), Format::kF32, 65536);
    EXPECT_EQ(result.bytes(), expected) << name_of(from);
  }
}

TEST_F(bits, scaling_and_adding_round_once) {
  for (const Format format : kFormats) {
    for (const int64_t count : kLengths) {
      const std::vector<float> x = normal({0, 1, 1}, format, count);
      const std::vector<float> y = normal({0, 1, 2}, format, count);
      std::vector<float> scaled(x.size()), sums(x.size());
      for (size_t i = 0; i < x.size(); ++i) scaled[i] = 1.3f * x[i], sums[i] = x[i] + y[i];
      const Values left(format, x), right(format, y);
      expect_launched(add({left.array(), right.array(), right.array(), count}, nullptr));
      EXPECT_EQ(right.get(), rounded(sums, format)) << name_of(format) << " " << count;
      expect_launched(scale({left.array(), 1.3f, count}, nullptr));
      EXPECT_EQ(left.get(), rounded(scaled, format)) << name_of(format) << " " << count;
    }
  }
}

// The arrays of a step on the machine.
struct AdamOnDevice {
  AdamOnDevice(const AdamArrays& a, int64_t shift)
      : count(a.count),
        master(Format::kF32, {a.master, size()}, shift),
        moment1(Format::kF32, {a.moment1, size()}, shift),
        moment2(Format::kF32, {a.moment2, size()}, shift),
        gradient(a.count * bytes_of(a.gradient_format), shift * bytes_of(a.gradient_format)),
        weights(a.count * bytes_of(a.weights_format), shift * bytes_of(a.weights_format)),
        arrays(a) {
    gradient.set(a.gradient);
    arrays.master = master.floats(), arrays.moment1 = moment1.floats();
    arrays.moment2 = moment2.floats(), arrays.gradient = gradient.data();
    if (a.weights != nullptr) arrays.weights = weights.data();
  }
  size_t size() const { return static_cast<size_t>(count); }
  // Takes the results to the host's arrays.
  void get(const AdamArrays& a) const {
    copy_out(a.master, master.data(), 4 * count);
    copy_out(a.moment1, moment1.data(), 4 * count);
    copy_out(a.moment2, moment2.data(), 4 * count);
    if (a.weights != nullptr) copy_out(a.weights, weights.data(), weights.bytes());
  }
  int64_t count;
  Values master, moment1, moment2;
  Memory gradient, weights;
  AdamArrays arrays;
};

void expect_same_step(const Streams& streams, int64_t count, kernels::testing::Values values,
                      float decay) {
  for (const int64_t shift : {0, 1}) {
    AdamState expected(count, streams, values, 99), actual(count, streams, values, 99);
    AdamConstants constants = constants_of_step(3, decay);
    constants.gradient_scale = 0.7f;
    const AdamOnDevice device(actual.arrays(), shift);
    reference().adam_step(expected.arrays(), constants);
    expect_launched(adam_step(device.arrays, constants, {}, nullptr));
    device.get(actual.arrays());
    EXPECT_EQ(actual.first_difference(expected), "") << streams.name() << " " << count;
  }
}

TEST_F(bits, an_adam_step_is_the_hosts_for_all_formats_and_any_values) {
  for (const Streams& streams : all_streams()) {
    for (const int64_t count : {1, 5, 1024, 2051}) {
      for (const auto values :
           {kernels::testing::Values::kNormal, kernels::testing::Values::kAdversarial,
            kernels::testing::Values::kAnyBits}) {
        expect_same_step(streams, count, values, 0.1f);
      }
    }
    expect_same_step(streams, 100, kernels::testing::Values::kNormal, 0.0f);
  }
  expect_same_step({}, 0, kernels::testing::Values::kNormal, 0.0f);
}

TEST_F(bits, a_snapshot_is_what_was_there_before_the_step) {
  for (const int64_t count : {3, 1030}) {
    AdamState before(count, {}, kernels::testing::Values::kNormal, 5);
    const AdamArrays a = before.arrays();
    const AdamOnDevice device(a, 0);
    const Values master(Format::kF32, count), moment1(Format::kF32, count),
        moment2(Format::kF32, count);
    const Snapshot snapshot{master.floats(), moment1.floats(), moment2.floats()};
    expect_launched(adam_step(device.arrays, constants_of_step(1, 0.1f), snapshot, nullptr));
    const auto size = static_cast<size_t>(count);
    EXPECT_EQ(master.get(), std::vector<float>(a.master, a.master + size));
    EXPECT_EQ(moment1.get(), std::vector<float>(a.moment1, a.moment1 + size));
    EXPECT_EQ(moment2.get(), std::vector<float>(a.moment2, a.moment2 + size));
    EXPECT_NE(device.master.get(), master.get());
  }
}

// How many tiles kept their escapes, with some among them, and how many were left to the end.
struct Tiles {
  int64_t with_escapes = 0;
  int64_t left = 0;
};

// A recorded step from these values: taken back it has never been, and finished it is the host's.
void expect_step_and_undo(const AdamState& begin, Tiles& tiles, int64_t shift,
                          const std::string& name) {
  AdamConstants constants = constants_of_step(3, 0.1f);
  constants.gradient_scale = 0.7f;
  AdamState before = begin, expected = begin;
  reference().cast(before.arrays().master, Format::kF32, before.arrays().weights,
                   before.arrays().weights_format, before.arrays().count);
  reference().adam_step(expected.arrays(), constants);
  for (const bool taken_back : {false, true}) {
    AdamState actual = begin;
    const AdamArrays arrays = actual.arrays();
    const AdamOnDevice device(arrays, shift);
    const int64_t bytes = UndoRecord::fixed_bytes(arrays.count, UndoForm::kRecord);
    const Memory record(bytes);
    const Memory left(4);  // begins as what no step has for a mark
    const RecordedStep step{device.arrays, constants, static_cast<uint8_t*>(record.data()),
                            static_cast<uint32_t*>(left.data()), 7};
    expect_launched(recorded_step(step, RecordedPart::kStep, nullptr));
    int64_t left_here = 0;
    std::vector<uint8_t> written(static_cast<size_t>(bytes));
    copy_out(written.data(), record.data(), bytes);
    const int64_t all = (arrays.count + kUndoTile - 1) / kUndoTile;
    for (int64_t tile = 0; tile < all; ++tile) {
      uint32_t length = 0;
      std::memcpy(&length, written.data() + all * (kUndoTile + kUndoTileReserve) + 4 * tile, 4);
      left_here += length == UINT32_MAX;
      tiles.with_escapes += length > 0 && length <= kUndoTileReserve / 2;
    }
    tiles.left += left_here;
    EXPECT_EQ(left.get_as<uint32_t>()[0], left_here > 0 ? 7 : UINT32_MAX) << name;
    const RecordedPart then = taken_back ? RecordedPart::kUndo : RecordedPart::kFinish;
    for (int times = 0; times < (taken_back ? 1 : 2); ++times) {
      expect_launched(recorded_step(step, then, nullptr));
    }
    device.get(arrays);
    EXPECT_EQ(actual.first_difference(taken_back ? before : expected), "") << name << taken_back;
  }
}

TEST_F(bits, a_recorded_step_is_the_hosts_and_can_be_taken_back_whatever_the_values) {
  Tiles tiles;
  for (const Streams& streams : all_streams()) {
    if (streams.low == Streams::Low::kNone) continue;
    for (const auto values :
         {kernels::testing::Values::kNormal, kernels::testing::Values::kAdversarial,
          kernels::testing::Values::kAnyBits}) {
      for (const int64_t count : {5, 4096, 9001}) {
        const AdamState begin(count, streams, values, 77);
        const std::string name = streams.name() + " " + std::to_string(count) + " ";
        expect_step_and_undo(begin, tiles, count == 5, name);
      }
    }
  }
  EXPECT_GT(tiles.with_escapes, 20);
  EXPECT_GT(tiles.left, 20);
}

TEST_F(bits, sums_of_squares_by_segment_are_the_hosts) {
  for (const Format format : kFormats) {
    for (const int64_t count : {int64_t{1}, int64_t{15}, int64_t{17}, int64_t{4095}, int64_t{4097},
                                kNormBlock, kNormBlock + 1, 2 * kNormBlock + 5003}) {
      for (const int64_t shift : {0, 1}) {
        const Values values(format, normal({0, 3, 1}, format, count), shift);
        const Memory partials(8 * segments_of(count));
        expect_launched(sum_of_squares(
            {values.array(), count, static_cast<double*>(partials.data())}, nullptr));
        const std::vector<unsigned char> stored = values.bytes();
        std::vector<double> expected;
        for (int64_t at = 0; at < count; at += kNormBlock) {
          expected.push_back(reference().sum_of_squares(stored.data() + at * bytes_of(format),
                                                        format, std::min(kNormBlock, count - at)));
        }
        EXPECT_EQ(partials.get_as<double>(), expected) << name_of(format) << " " << count;
      }
    }
  }
}

TEST_F(bits, one_value_that_is_not_finite_shows_in_its_segment_and_no_other) {
  std::vector<float> values(2 * kNormBlock + 100, 0.5f);
  values[kNormBlock + 7] = INFINITY;
  values[2 * kNormBlock + 99] = NAN;
  for (const Format format : kFormats) {
    const Values on_device(format, values);
    const Memory partials(3 * 8);
    expect_launched(sum_of_squares(
        {on_device.array(), on_device.count(), static_cast<double*>(partials.data())}, nullptr));
    const std::vector<double> sums = partials.get_as<double>();
    EXPECT_EQ(sums[0], 0.25 * kNormBlock);
    EXPECT_FALSE(std::isfinite(sums[1]));
    EXPECT_FALSE(std::isfinite(sums[2]));
  }
}

TEST_F(bits, the_probes_do_what_they_time) {
  const std::vector<float> b = normal({0, 1, 1}, Format::kF32, 5000);
  const std::vector<float> c = normal({0, 1, 2}, Format::kF32, 5000);
  const Values from(Format::kF32, b), other(Format::kF32, c), to(Format::kF32, 5000);
  expect_launched(copy_probe({from.data(), to.data(), 20000}, nullptr));
  EXPECT_EQ(to.get(), b);
  expect_launched(triad_probe({to.floats(), from.floats(), other.floats(), 3.0f, 5000}, nullptr));
  std::vector<float> expected(5000);
  for (size_t i = 0; i < 5000; ++i) expected[i] = std::fma(3.0f, c[i], b[i]);
  EXPECT_EQ(to.get(), expected);
  expect_launched(empty_probe(nullptr));
}

// From 2, three times x / 2 + 1: 2, 2, 2. From 10: 6, 4, 3.
TEST_F(bits, the_arithmetic_probe_computes_every_round_of_every_value) {
  std::vector<float> start(2056, 2.0f);
  start.back() = 10.0f;
  const Values values(Format::kF32, start);
  expect_launched(arithmetic_probe({values.floats(), 2056, 3}, nullptr));
  std::vector<float> expected(2056, 2.0f);
  expected.back() = 3.0f;
  EXPECT_EQ(values.get(), expected);
}

}  // namespace
}  // namespace ballast::kernels::cuda::testing
