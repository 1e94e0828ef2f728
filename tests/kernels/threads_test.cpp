// Whole buckets: no result depends on the number of threads, failures come back to the caller.

#include "kernels/threads.h"

#include <atomic>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdexcept>
#include <thread>

#include "tests/kernels/adam_inputs.h"

namespace ballast::kernels::testing {
namespace {

// 10 values in tiles of 4 over 3 threads: [0, 4), [4, 8), [8, 10).
TEST(threads, every_value_is_given_to_exactly_one_worker_at_tile_boundaries) {
  for (const int count : {1, 2, 3, 5}) {
    Workers workers(count, Pinning::kCores);
    std::vector<std::atomic<int>> visits(10);
    workers.for_tiles(10, 4, [&](int64_t begin, int64_t end) {
      EXPECT_EQ(begin % 4, 0);
      EXPECT_TRUE(end % 4 == 0 || end == 10);
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    for (const std::atomic<int>& visit : visits) EXPECT_EQ(visit, 1);
  }
}

// A thread of its own, so that the test's others stay where they are.
TEST(threads, pinned_ones_stay_where_the_thread_that_made_them_is_bound) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::thread([&] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      Workers workers(3, Pinning::kCores);
      std::atomic<int> elsewhere = 0;
      workers.for_tiles(3, 1, [&](int64_t, int64_t) {
        cpu_set_t own;
        CPU_ZERO(&own);
        const bool is_known = sched_getaffinity(0, sizeof(own), &own) == 0;
        if (!is_known || !CPU_EQUAL(&own, &one)) ++elsewhere;
      });
      EXPECT_EQ(elsewhere, 0) << "CPU " << cpu;
    }).join();
  }
}

// Each core is of exactly one part, where there are enough of them.
TEST(core_shares, divide_the_cores_that_this_thread_may_use) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const int cores = CPU_COUNT(&allowed);
  for (int parts = 1; parts <= cores; ++parts) {
    const std::vector<cpu_set_t> shares = core_shares(parts);
    ASSERT_EQ(std::ssize(shares), parts);
    cpu_set_t seen;
    CPU_ZERO(&seen);
    int sum = 0;
    for (const cpu_set_t& share : shares) {
      EXPECT_GE(CPU_COUNT(&share), 1);
      sum += CPU_COUNT(&share);
      CPU_OR(&seen, &seen, &share);
    }
    EXPECT_EQ(sum, cores);
    EXPECT_TRUE(CPU_EQUAL(&seen, &allowed));
  }
  EXPECT_TRUE(core_shares(cores + 1).empty());
}

TEST(core_binding, holds_for_threads_that_are_started_meanwhile_and_ends) {
  const auto binding = [] {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
    return cores;
  };
  const cpu_set_t before = binding();
  const std::vector<cpu_set_t> shares = core_shares(CPU_COUNT(&before));
  ASSERT_FALSE(shares.empty());
  {
    const CoreBinding bound(shares.back());
    cpu_set_t of_thread;
    CPU_ZERO(&of_thread);
    std::thread([&] { of_thread = binding(); }).join();
    EXPECT_TRUE(CPU_EQUAL(&of_thread, &shares.back()));
  }
  const cpu_set_t after = binding();
  EXPECT_TRUE(CPU_EQUAL(&after, &before));
}

TEST(threads, thousand_jobs_in_a_row_all_run) {
  Workers workers(2, Pinning::kNone);
  std::atomic<int64_t> sum = 0;
  for (int job = 0; job < 1000; ++job) {
    workers.for_tiles(2, 1, [&](int64_t begin, int64_t) { sum += begin + 1; });
  }
  EXPECT_EQ(sum, 3000);
}

TEST(threads, exception_of_a_worker_reaches_the_caller_and_the_next_job_runs) {
  Workers workers(2, Pinning::kNone);
  const auto fail = [](int64_t begin, int64_t) {
    if (begin == 1) throw std::runtime_error("second part");
  };
  EXPECT_THROW(workers.for_tiles(2, 1, fail), std::runtime_error);
  std::atomic<int> ran = 0;
  workers.for_tiles(2, 1, [&](int64_t, int64_t) { ++ran; });
  EXPECT_EQ(ran, 2);
}

TEST(threads, a_step_is_the_same_for_any_number_of_threads) {
  constexpr int64_t kCount = 3 * kNormBlock + 77;
  AdamState expected(kCount, {}, Values::kNormal, 53);
  const AdamConstants c = constants_of_step(5, 0.1f);
  {
    Workers one(1, Pinning::kNone);
    adam_step(one, best(), expected.arrays(), c);
  }
  for (const int count : {2, 3, 7}) {
    Workers workers(count, Pinning::kCores);
    AdamState state(kCount, {}, Values::kNormal, 53);
    adam_step(workers, best(), state.arrays(), c);
    EXPECT_EQ(state.first_difference(expected), "") << count;
  }
}

TEST(threads, streaming_copy_and_scale_equal_the_plain_ones_at_every_alignment) {
  Source source(59);
  for (const Table* table : available()) {
    for (const int64_t count : lengths()) {
      for (const int64_t shift : {0, 1, 15}) {
        Guarded<float> from(count, shift), to(count, shift + 2);
        for (float& value : from.values()) value = source.next(Values::kAnyBits);
        table->copy_streaming(from.data(), to.data(), 4 * count);
        ASSERT_EQ(std::memcmp(from.data(), to.data(), static_cast<size_t>(4 * count)), 0);
        ASSERT_TRUE(to.guards_are_intact()) << table->name << " " << count;
        for (const Format format : kFormats) {
          Guarded<float> expected = from, scaled = from;
          reference().scale(expected.data(), format, 0.3f, count);
          table->scale(scaled.data(), format, 0.3f, count);
          for (int64_t i = 0; i < count * bytes_of(format) / 4; ++i) {
            ASSERT_TRUE(
                bits_of(scaled.values()[i]) == bits_of(expected.values()[i]) ||
                (format == Format::kF32 && same_number(scaled.values()[i], expected.values()[i])))
                << table->name << " " << name_of(format) << " " << count << " at " << i;
          }
        }
      }
    }
  }
}

TEST(threads, bucket_cast_and_copy_reach_every_value) {
  constexpr int64_t kCount = 40001;
  Workers workers(3, Pinning::kNone);
  std::vector<float> from(kCount, 0.75f), back(kCount);
  std::vector<uint16_t> narrow(kCount);
  cast(workers, best(), from.data(), Format::kF32, narrow.data(), Format::kBf16, kCount);
  cast(workers, best(), narrow.data(), Format::kBf16, back.data(), Format::kF32, kCount);
  EXPECT_EQ(back, from);
  first_touch(workers, back.data(), 4, kCount);
  EXPECT_EQ(back, std::vector<float>(kCount));
  copy_streaming(workers, best(), from.data(), back.data(), 4 * kCount);
  EXPECT_EQ(back, from);
}

}  // namespace
}  // namespace ballast::kernels::testing
