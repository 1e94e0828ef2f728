// Timing of a plan's operations ends where somebody says so, with what had been timed by then.
#include "backend/measure/operation_times.h"

#include <gtest/gtest.h>
#include <set>

#include "sim/graph/build.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

TEST(operation_times, end_before_the_next_operation_once_asked_to) {
  const Model model = tiny::one_layer_gpt2();
  const Plan plan = tiny::plan_of_both_homes(SyncMode::kWait);
  const Graph graph = build_to_run(model, plan);
  const auto operations = std::ssize(graph.step.ops);
  const auto keys_until = [&](int64_t most) {
    int64_t asked = 0;
    const auto must_stop = [&] { return asked++ == most; };
    std::set<std::string> keys;
    for (const OperationTime& time :
         measure_operations(model, plan, 3600, tiny::options_for(1), must_stop)) {
      keys.insert(cost_key(time.op));
    }
    EXPECT_EQ(asked, most + 1);
    return keys;
  };
  std::set<std::string> all;
  for (const Op& op : graph.step.ops) {
    if (!std::holds_alternative<std::monostate>(op.work)) all.insert(cost_key(op));
  }
  EXPECT_TRUE(keys_until(0).empty());
  EXPECT_TRUE(keys_until(operations / 2).empty());               // in the warm-up
  EXPECT_TRUE(keys_until(operations + operations / 2).empty());  // before a program had ended
  EXPECT_EQ(keys_until(2 * operations), all);
  EXPECT_EQ(keys_until(3 * operations + 1), all);
}

}  // namespace
}  // namespace ballast
