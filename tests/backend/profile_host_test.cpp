#include "backend/measure/profile_host.h"

#include <gtest/gtest.h>
#include <set>

#include "backend/measure/profile_operations.h"
#include "backend/measure/profile_probes.h"
#include "sim/engine/cost.h"

namespace ballast {
namespace {

HostProfileOptions quick_host() {
  HostProfileOptions options;
  options.effort = ProfileEffort::kQuick;
  options.when = "2026-01-02";
  return options;
}

// Sorted: 1 2 3 4 100, median 3. Distances 2 1 0 1 97, sorted 0 1 1 2 97, median 1.
TEST(profile, deviation_is_the_median_distance_from_the_median) {
  const Timing timing = summarise({{4}, {1}, {100}, {3}, {2}});
  EXPECT_EQ(timing.median.ps, 3);
  EXPECT_EQ(timing.deviation.ps, 1);
  EXPECT_EQ(timing.repeats, 5);
}

// Two that want 30 each and run at two thirds share 40; beside a third that wants 5 and is not
// slowed, 40 is still the best.
TEST(profile, shared_capacity_reproduces_the_slowdown) {
  const Beside both{{30, 30}, {2.0 / 3, 2.0 / 3}};
  EXPECT_NEAR(shared_capacity({both}, 30), 40, 0.2);
  EXPECT_NEAR(shared_capacity({both, {{30, 5}, {1, 1}}}, 30), 40, 0.2);
}

TEST(profile, what_is_not_slowed_has_room_for_all) {
  EXPECT_DOUBLE_EQ(shared_capacity({{{30, 20}, {1, 1}}}, 30), 50);
}

// A capacity below what one of them uses alone would contradict the measurement alone.
TEST(profile, shared_capacity_is_never_below_the_least) {
  EXPECT_GE(shared_capacity({{{30, 30}, {0.1, 0.1}}}, 30), 30);
}

TEST(profile, repeats_end_when_the_deviation_is_small) {
  int calls = 0;
  ProbeLimits limits;
  limits.small_deviation = 1e9;
  const Timing timing = time_alone([&](int) { ++calls; }, limits);
  EXPECT_EQ(timing.repeats, limits.least_repeats);
  EXPECT_EQ(calls, limits.least_repeats + 1);  // and the warm-up
}

TEST(profile, repeats_end_at_the_most) {
  ProbeLimits limits;
  limits.small_deviation = -1;
  limits.most_repeats = 7;
  limits.seconds = 60;
  EXPECT_EQ(time_alone([](int) {}, limits).repeats, 7);
}

TEST(profile, failure_of_one_thread_ends_both) {
  const Body fine = [](int) {};
  const Body fails = [](int repeat) {
    if (repeat == 2) throw Error("a probe", "fails", "mend it");
  };
  EXPECT_THROW(time_together(fine, fails, 60), Error);
  EXPECT_THROW(time_together(fails, fine, 60), Error);
}

TEST(profile, byte_that_did_not_arrive_is_noticed) {
  Arena source("source", Bytes{4096});
  Arena destination("destination", Bytes{4096});
  CopyProbe probe(source, destination);
  probe.fill();
  EXPECT_FALSE(probe.verify(1024, 0));
  probe.copy(1024, 0);  // bytes 1024 to 2047
  EXPECT_TRUE(probe.verify(1024, 0));
  EXPECT_FALSE(probe.verify(1024, 1));
  *destination.at(1500) ^= std::byte{1};
  EXPECT_FALSE(probe.verify(1024, 0));
}

void wrong_step(const kernels::AdamArrays& arrays, const kernels::AdamConstants& constants) {
  kernels::reference().adam_step(arrays, constants);
  arrays.master[arrays.count - 1] += 1;
}

TEST(profile, adam_that_steps_wrongly_is_noticed) {
  OptimizerProbe probe(1024);
  for (const kernels::Table* table : kernels::available()) {
    EXPECT_TRUE(probe.verify(*table, 1000)) << table->name;
  }
  kernels::Table wrong = kernels::reference();
  wrong.adam_step = wrong_step;
  EXPECT_FALSE(probe.verify(wrong, 1000));
}

TEST(profile, grid_has_every_number_format_and_both_architectures) {
  std::set<DType> dtypes;
  std::set<std::string> architectures;
  for (const OperationCase& operation : operation_grid(1024)) {
    check(operation.plan, operation.model);
    dtypes.insert(operation.plan.dtype);
    architectures.insert(operation.model.architecture);
  }
  EXPECT_EQ(dtypes, (std::set<DType>{DType::kF32, DType::kBf16, DType::kF16}));
  EXPECT_EQ(architectures, (std::set<std::string>{"gpt2", "llama"}));
}

TEST(profile, quick_profile_is_a_complete_machine) {
  std::vector<ProbeReport> seen;
  HostProfileOptions options = quick_host();
  options.on_probe = [&](const ProbeReport& report) { seen.push_back(report); };
  const Profile profile = profile_host(options);
  const Machine& machine = profile.machine;
  EXPECT_NO_THROW(check(machine));
  EXPECT_EQ(machine.name, "here");
  EXPECT_TRUE(machine.gpu.is_host_thread);
  EXPECT_EQ(machine.cpu.cores, host_facts().cores);
  EXPECT_EQ(machine.handover.source, "measured 2026-01-02 by ballast profile");
  EXPECT_TRUE(machine.cpu.memory_bandwidth.measured);
  EXPECT_EQ(machine.cpu.adam.size(), kernels::available().size());
  ASSERT_EQ(seen.size(), profile.probes.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].index, static_cast<int>(i) + 1);
    EXPECT_EQ(seen[i].count, static_cast<int>(seen.size()));
    EXPECT_FALSE(seen[i].result.empty());
  }
  std::set<std::string> keys;
  std::set<OpKind> kinds;
  for (const OperationTime& time : profile.operations) {
    EXPECT_TRUE(keys.insert(cost_key(time.op)).second) << cost_key(time.op);
    EXPECT_GT(time.median.ps, 0);
    kinds.insert(time.op.kind);
  }
  for (const OpKind kind : {OpKind::kGemm, OpKind::kAttention, OpKind::kNorm, OpKind::kActivation,
                            OpKind::kLoss, OpKind::kEmbedding, OpKind::kAdam, OpKind::kCopy}) {
    EXPECT_TRUE(kinds.contains(kind)) << to_string(kind);
  }
}

// All of the memory is handed out: a quarter of 100 to the GPU leaves 75 to the CPU, to a byte.
TEST(profile, memory_is_split_by_the_share) {
  HostProfileOptions options = quick_host();
  options.gpu_memory_share = 0.25;
  const Machine machine = profile_host(options).machine;
  const auto gpu = static_cast<double>(machine.gpu.memory.value.count);
  const auto cpu = static_cast<double>(machine.cpu.memory.value.count);
  EXPECT_NEAR(gpu + cpu, static_cast<double>(host_facts().memory.count), 2);
  EXPECT_NEAR(cpu, 3 * gpu, 8);
}

TEST(profile, impossible_options_are_refused) {
  HostProfileOptions all_memory = quick_host();
  all_memory.gpu_memory_share = 1;
  EXPECT_THROW(profile_host(all_memory), Error);
  HostProfileOptions many_threads = quick_host();
  many_threads.optimizer_threads = static_cast<int>(host_facts().cores) + 1;
  HostProfileOptions many_compute = quick_host();
  many_compute.compute_threads = static_cast<int>(host_facts().cores) + 1;
  EXPECT_THROW(profile_host(many_compute), Error);
  EXPECT_THROW(profile_host(many_threads), Error);
}

}  // namespace
}  // namespace ballast
