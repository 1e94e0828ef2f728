// The choice among tables.

#include <gtest/gtest.h>

#include "tests/kernels/inputs.h"

namespace ballast::kernels::testing {
namespace {

TEST(dispatch, reference_comes_first_and_best_last) {
  EXPECT_EQ(available().front(), &reference());
  EXPECT_EQ(available().back(), &best());
  std::string names;
  for (const Table* table : available()) names += std::string(table->name) + " ";
  std::printf("tables of this machine: %s\n", names.c_str());
}

TEST(dispatch, every_table_is_found_by_its_name_and_has_every_function) {
  for (const Table* table : available()) {
    EXPECT_EQ(find(table->name), table);
    EXPECT_NE(table->adam_step, nullptr);
    EXPECT_NE(table->sum_of_squares, nullptr);
    EXPECT_NE(table->cast, nullptr);
    EXPECT_NE(table->adam_step_with_undo, nullptr);
    EXPECT_NE(table->adam_undo, nullptr);
    EXPECT_NE(table->scale, nullptr);
    EXPECT_NE(table->normals, nullptr);
    EXPECT_NE(table->copy_streaming, nullptr);
  }
  EXPECT_EQ(find("mmx"), nullptr);
}

// Parameters 2 and 3 of 5: 8 bytes into f32 arrays, 4 into 16-bit ones.
TEST(dispatch, slice_moves_every_array_by_its_own_size) {
  float w[5], m[5], v[5];
  uint16_t g[5], low[5];
  const AdamArrays part = slice({.master = w,
                                 .moment1 = m,
                                 .moment2 = v,
                                 .gradient = g,
                                 .gradient_format = Format::kBf16,
                                 .weights = low,
                                 .count = 5},
                                2, 2);
  EXPECT_EQ(part.master, w + 2);
  EXPECT_EQ(part.moment1, m + 2);
  EXPECT_EQ(part.moment2, v + 2);
  EXPECT_EQ(part.gradient, g + 2);
  EXPECT_EQ(part.weights, low + 2);
  EXPECT_EQ(part.count, 2);
}

}  // namespace
}  // namespace ballast::kernels::testing
