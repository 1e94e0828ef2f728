// The exact undo: whatever the input, no bit of master and moments differs after it.

#include "kernels/undo.h"

#include <gtest/gtest.h>

#include "kernels/threads.h"
#include "kernels/undo_codes.h"
#include "tests/kernels/adam_inputs.h"

namespace ballast::kernels::testing {
namespace {

// Copies of the three arrays, compared by bits: NaN payloads count.
struct Copy {
  explicit Copy(const AdamArrays& a)
      : w(a.master, a.master + a.count),
        m(a.moment1, a.moment1 + a.count),
        v(a.moment2, a.moment2 + a.count) {}

  int64_t different_bits(const AdamArrays& a) const {
    int64_t different = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      different += bits_of(w[i]) != bits_of(a.master[i]) ? 1 : 0;
      different += bits_of(m[i]) != bits_of(a.moment1[i]) ? 1 : 0;
      different += bits_of(v[i]) != bits_of(a.moment2[i]) ? 1 : 0;
    }
    return different;
  }

  std::vector<float> w, m, v;
};

struct Raw {
  std::vector<uint8_t> codes, escapes;
  std::vector<int64_t> ends;
};

Raw step_with_undo(const Table& table, const AdamArrays& a, const AdamConstants& c) {
  Raw raw;
  raw.codes.resize(static_cast<size_t>(a.count));
  raw.escapes.resize(static_cast<size_t>(a.count * kUndoEscapeBytesMax));
  raw.ends.resize(static_cast<size_t>((a.count + kUndoTile - 1) / kUndoTile));
  table.adam_step_with_undo(a, c, raw.codes.data(), raw.escapes.data(), raw.ends.data());
  raw.escapes.resize(raw.ends.empty() ? 0 : static_cast<size_t>(raw.ends.back()));
  return raw;
}

AdamConstants constants_of(Values values, int64_t count) {
  AdamConstants c = constants_of_step(3, count % 2 == 0 ? 0.1f : 0.0f);
  if (values == Values::kAnyBits && count % 3 == 0) c.learning_rate = 1e30f;
  if (values == Values::kAnyBits && count % 5 == 0) c.beta1 = 0.0f;  // nothing of m is left
  return c;
}

TEST(undo, every_escape_form_comes_back) {
  const uint32_t differences[] = {0,   1,   2,    3,    22,   23,   31,         32,
                                  127, 128, 1023, 1024, 4095, 4096, 0x7fffffffu};
  for (const uint32_t dw : differences) {
    for (const uint32_t dv : differences) {
      for (const uint32_t dm : differences) {
        for (const uint32_t sign : {1u, ~0u}) {
          const ThreeWords d = {sign * dw, sign * dm, ~sign * dv};
          uint8_t bytes[kUndoEscapeBytesMax];
          const uint8_t* end = put_escape(bytes, d);
          ThreeWords back = {};
          EXPECT_EQ(take_escape(bytes, &back), end);
          EXPECT_EQ(back.w, d.w);
          EXPECT_EQ(back.m, d.m);
          EXPECT_EQ(back.v, d.v);
        }
      }
    }
  }
}

TEST(undo, step_with_undo_is_the_step) {
  for (const Table* table : available()) {
    for (const Values values : {Values::kNormal, Values::kAdversarial, Values::kAnyBits}) {
      for (const Streams& streams : all_streams()) {
        for (const int64_t count : lengths()) {
          AdamState plain(count, streams, values, 23), recorded(count, streams, values, 23);
          const AdamConstants c = constants_of(values, count);
          table->adam_step(plain.arrays(), c);
          step_with_undo(*table, recorded.arrays(), c);
          ASSERT_EQ(recorded.first_difference(plain), "") << table->name << streams.name();
        }
      }
    }
  }
}

TEST(undo, every_bit_comes_back_in_every_format_at_every_length) {
  for (const Table* table : available()) {
    for (const Values values : {Values::kNormal, Values::kAdversarial, Values::kAnyBits}) {
      for (const Streams& streams : all_streams()) {
        for (const int64_t count : lengths()) {
          AdamState state(count, streams, values, 29);
          const AdamConstants c = constants_of(values, count);
          const Copy before(state.arrays());
          const Raw raw = step_with_undo(*table, state.arrays(), c);
          table->adam_undo(state.arrays(), c, raw.codes.data(), raw.escapes.data());
          ASSERT_EQ(before.different_bits(state.arrays()), 0)
              << table->name << " " << streams.name() << " count " << count;
          ASSERT_TRUE(state.guards_are_intact());
        }
      }
    }
  }
}

// Codes and escapes are part of what the tables agree on, as far as numbers are finite.
TEST(undo, every_table_writes_the_record_of_the_reference) {
  std::vector<int64_t> counts = lengths();
  for (const int64_t over : {-1, 0, 1, 64, 100}) counts.push_back(2 * kUndoTile + over);
  for (const Table* table : vector_tables()) {
    for (const int64_t count : counts) {
      AdamState a(count, {}, Values::kNormal, 31), b(count, {}, Values::kNormal, 31);
      const AdamConstants c = constants_of_step(2, 0.01f);
      const Raw expected = step_with_undo(reference(), a.arrays(), c);
      const Raw got = step_with_undo(*table, b.arrays(), c);
      ASSERT_EQ(got.codes, expected.codes) << table->name << " " << count;
      ASSERT_EQ(got.escapes, expected.escapes) << table->name << " " << count;
      ASSERT_EQ(got.ends, expected.ends) << table->name << " " << count;
    }
  }
}

// An overflow in fp16 makes the gradients of whole layers Inf or NaN: nothing moves, nothing grows.
TEST(undo, step_on_gradients_that_are_not_finite_is_undone_without_escapes) {
  constexpr int64_t kCount = 1000;
  for (const Table* table : available()) {
    AdamState state(kCount, {}, Values::kNormal, 37);
    std::vector<float> g(kCount, std::numeric_limits<float>::infinity());
    g[1] = std::numeric_limits<float>::quiet_NaN();
    AdamArrays a = state.arrays();
    a.gradient = g.data();
    const Copy before(a);
    const Raw raw = step_with_undo(*table, a, {});
    EXPECT_EQ(raw.escapes.size(), 0u);
    table->adam_undo(a, {}, raw.codes.data(), raw.escapes.data());
    EXPECT_EQ(before.different_bits(a), 0) << table->name;
  }
}

// Gaussian gradients of layers of different size, moments from zero. The second step of a run needs
// most.
TEST(undo, record_takes_little_more_than_a_byte_on_gaussian_gradients) {
  constexpr int64_t kCount = 1 << 17;
  Source source(41);
  std::vector<float> w(kCount), m(kCount), v(kCount), g(kCount), scale(kCount);
  for (float& value : w) value = 0.02f * source.next(Values::kNormal);
  for (float& value : scale) value = 1e-4f * std::exp(3 * source.next(Values::kNormal));
  const AdamArrays a = {.master = w.data(),
                        .moment1 = m.data(),
                        .moment2 = v.data(),
                        .gradient = g.data(),
                        .count = kCount};
  std::vector<uint8_t> fixed(
      static_cast<size_t>(UndoRecord::fixed_bytes(kCount, UndoForm::kRecord)));
  UndoRecord record(fixed, kCount, UndoForm::kRecord);
  constexpr int kSteps = 10;
  double sum = 0;
  for (int t = 1; t <= kSteps; ++t) {
    for (size_t i = 0; i < g.size(); ++i) g[i] = scale[i] * source.next(Values::kNormal);
    record.step_tiles(best(), a, constants_of_step(t, 0.01f), 0, record.tiles());
    const double bytes = static_cast<double>(record.used_bytes()) / kCount;
    RecordProperty("bytes_per_parameter_step_" + std::to_string(t), std::to_string(bytes));
    sum += bytes;
    EXPECT_LT(bytes, t == 2 ? 1.65 : 1.25) << "step " << t;
    if (t == kSteps) {
      EXPECT_LT(bytes, 1.06);
    }
  }
  EXPECT_LT(sum / kSteps, 1.2);
}

TEST(undo, bucket_comes_back_through_the_fixed_part_the_overflow_and_the_snapshot) {
  for (const UndoForm form : {UndoForm::kRecord, UndoForm::kSnapshot}) {
    for (const Values values : {Values::kNormal, Values::kAnyBits}) {
      for (const int64_t count : {int64_t{1}, kUndoTile, 3 * kUndoTile + 5, 9 * kUndoTile + 1}) {
        AdamState state(count, {}, values, 43);
        const AdamConstants c = constants_of_step(2, 0.1f);
        const Copy before(state.arrays());
        std::vector<uint8_t> fixed(static_cast<size_t>(UndoRecord::fixed_bytes(count, form)));
        UndoRecord record(fixed, count, form);
        Workers workers(3, Pinning::kNone);
        adam_step_with_undo(workers, best(), state.arrays(), c, record);
        EXPECT_GT(before.different_bits(state.arrays()), count);
        EXPECT_EQ(record.overflow_bytes() > 0,
                  form == UndoForm::kRecord && values == Values::kAnyBits && count > 1);
        adam_undo(workers, best(), state.arrays(), c, record);
        ASSERT_EQ(before.different_bits(state.arrays()), 0) << count;
      }
    }
  }
}

// Each of 40 rounds takes one more step, undoes it and takes it again: the end is that of 40 steps.
TEST(undo, run_with_undone_steps_in_between_ends_where_the_plain_run_ends) {
  constexpr int64_t kCount = 777;
  for (const Table* table : available()) {
    AdamState plain(kCount, {}, Values::kNormal, 47), undone(kCount, {}, Values::kNormal, 47);
    for (int t = 1; t <= 40; ++t) {
      const AdamConstants c = constants_of_step(t, 0.1f);
      table->adam_step(plain.arrays(), c);
      const Raw raw = step_with_undo(*table, undone.arrays(), c);
      table->adam_undo(undone.arrays(), c, raw.codes.data(), raw.escapes.data());
      table->adam_step(undone.arrays(), c);
    }
    EXPECT_EQ(undone.first_difference(plain), "") << table->name;
  }
}

}  // namespace
}  // namespace ballast::kernels::testing
