// Who holds memory, against a list with an entry for each byte.
#include "sim/graph/core/occupied_memory.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace ballast {
namespace {

// Tensors whose byte lay there, in the order of addresses, each once for every stretch of it.
std::vector<TensorId> holders(const std::vector<TensorId>& of_byte, int64_t begin, int64_t end) {
  std::vector<TensorId> found;
  TensorId before = -1;
  for (int64_t i = begin; i < end; ++i) {
    const TensorId tensor = of_byte[static_cast<size_t>(i)];
    if (tensor >= 0 && tensor != before) found.push_back(tensor);
    before = tensor;
  }
  return found;
}

// Many small ranges, so that there are many blocks, and now and then one over half of all.
TEST(OccupiedMemory, tells_of_each_range_whose_it_was) {
  constexpr int64_t kBytes = 3000;
  for (const int64_t largest : {1, 3, 10, 60}) {
    std::mt19937 random(static_cast<unsigned>(largest));
    const auto below = [&](int64_t most) { return static_cast<int64_t>(random()) % most; };
    OccupiedMemory memory;
    std::vector<TensorId> of_byte(static_cast<size_t>(kBytes), -1);
    size_t most_replaced = 0;
    for (TensorId tensor = 0; tensor < 20'000; ++tensor) {
      const int64_t bytes = tensor % 2000 == 1999 ? kBytes / 2 : below(largest + 1);
      const int64_t begin = below(kBytes - bytes);
      std::vector<TensorId> replaced;
      memory.take(begin, begin + bytes, tensor, replaced);
      ASSERT_EQ(replaced, holders(of_byte, begin, begin + bytes)) << largest << ' ' << tensor;
      std::fill_n(of_byte.begin() + begin, bytes, tensor);
      most_replaced = std::max(most_replaced, replaced.size());
    }
    EXPECT_GT(most_replaced, 30);
  }
}

TEST(OccupiedMemory, appends_to_what_was_replaced_before) {
  OccupiedMemory memory;
  std::vector<TensorId> replaced = {7};
  memory.take(0, 10, 1, replaced);
  memory.take(4, 6, 2, replaced);
  memory.take(0, 10, 3, replaced);
  EXPECT_EQ(replaced, (std::vector<TensorId>{7, 1, 1, 2, 1}));
}

}  // namespace
}  // namespace ballast
