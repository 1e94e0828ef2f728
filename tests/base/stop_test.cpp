// Work that its caller ends: at its stop points alone, in every thread that works for it.
#include "sim/base/stop.h"

#include <atomic>
#include <future>
#include <gtest/gtest.h>

#include "sim/base/parallel.h"

namespace ballast {
namespace {

const std::function<bool()> kNever = [] { return false; };
const std::function<bool()> kAtOnce = [] { return true; };

int asks_and_returns(int value) {
  stop_point();
  return value;
}

TEST(Stop, points_do_nothing_outside_a_scope_and_after_it) {
  EXPECT_EQ(asks_and_returns(3), 3);
  EXPECT_FALSE(unless_stopped(kAtOnce, [] { return asks_and_returns(3); }));
  EXPECT_EQ(asks_and_returns(4), 4);
  EXPECT_EQ(current_stop_scope(), nullptr);
}

TEST(Stop, work_that_may_go_on_or_never_asks_returns_what_it_found) {
  EXPECT_EQ(unless_stopped(kNever, [] { return asks_and_returns(3); }), 3);
  EXPECT_EQ(unless_stopped({}, [] { return asks_and_returns(3); }), 3);
  EXPECT_EQ(unless_stopped(kAtOnce, [] { return 3; }), 3);
}

TEST(Stop, ends_the_work_at_the_point_where_it_is_said) {
  int done = 0;
  EXPECT_FALSE(unless_stopped([&] { return done == 5; },
                              [&] {
                                for (; done < 10; ++done) stop_point();
                                return done;
                              }));
  EXPECT_EQ(done, 5);
}

TEST(Stop, of_an_outer_scope_ends_the_work_of_an_inner_one) {
  bool outer = false;
  int inner_ended = 0;
  const auto work = [&] {
    const std::optional<int> found = unless_stopped(kNever, [&] {
      outer = true;
      return asks_and_returns(1);
    });
    inner_ended += !found;
    return asks_and_returns(2);
  };
  EXPECT_FALSE(unless_stopped([&] { return outer; }, work));
  EXPECT_EQ(inner_ended, 1);
}

TEST(Stop, of_an_inner_scope_leaves_the_outer_work_going) {
  const auto work = [] {
    EXPECT_FALSE(unless_stopped(kAtOnce, [] { return asks_and_returns(1); }));
    return asks_and_returns(2);
  };
  EXPECT_EQ(unless_stopped(kNever, work), 2);
}

TEST(Stop, is_asked_by_all_threads_that_work_for_the_caller) {
  constexpr size_t kItems = 64;
  std::atomic<int> went_on = 0;
  const auto work = [&] {
    parallel_for(kItems, 4, [&](size_t i) {
      if (i % 2 == 1) stop_point();
      ++went_on;
    });
    return true;
  };
  EXPECT_FALSE(unless_stopped(kAtOnce, work));
  EXPECT_LE(went_on, 8);  // once a thread is stopped none begins another
  // Its threads' scope ended with it.
  went_on = 0;
  EXPECT_TRUE(work());
  EXPECT_EQ(went_on, kItems);
}

TEST(Stop, is_asked_by_another_thread_as_long_as_that_works_for_the_caller) {
  const auto work = [&] {
    return std::async(std::launch::async,
                      [scope = current_stop_scope()] {
                        const AskedFor asks(scope);
                        return asks_and_returns(1);
                      })
        .get();
  };
  EXPECT_FALSE(unless_stopped(kAtOnce, work));
  EXPECT_EQ(work(), 1);
  // On the caller's own thread what it asked before is asked again.
  EXPECT_FALSE(unless_stopped(kAtOnce, [] {
    {
      const AskedFor nobody(nullptr);
      stop_point();
    }
    return asks_and_returns(1);
  }));
}

}  // namespace
}  // namespace ballast
