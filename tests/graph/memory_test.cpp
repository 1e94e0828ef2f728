#include "sim/graph/report/memory.h"

#include <gtest/gtest.h>

#include "tests/engine/tiny_graph.h"

namespace ballast {
namespace {

using tests::TinyGraph;

// A tiny graph with tensors of int32 elements, four bytes each.
class TinyProgram : public TinyGraph {
 public:
  TensorId tensor(int64_t elements, Category category = Category::kActivations,
                  Place place = Place::kHbm) {
    Tensor added;
    added.category = category;
    added.place = place;
    added.dtype = DType::kI32;
    added.elements = elements;
    graph.tensors.push_back(added);
    return static_cast<TensorId>(graph.tensors.size()) - 1;
  }

  OpId touch(LaneKind lane, std::vector<std::pair<TensorId, AccessMode>> accesses) {
    const OpId added = op(lane, 1);
    for (const auto& [id, mode] : accesses) {
      graph.step.ops[static_cast<size_t>(added)].accesses.push_back({id, Role::kInput, mode, 0});
    }
    return added;
  }
};

constexpr AccessMode kRead = AccessMode::kRead;
constexpr AccessMode kWrite = AccessMode::kWrite;
constexpr LaneKind kGpu = LaneKind::kCompute;

// weights (10 elements, only read) are carried; x lives in operations 0..1, y in 1..2.
struct ThreeTensors : ::testing::Test {
  ThreeTensors() {
    weights = program.tensor(10, Category::kWeights);
    x = program.tensor(5);
    y = program.tensor(7);
    program.touch(kGpu, {{weights, kRead}, {x, kWrite}});
    program.touch(kGpu, {{x, kRead}, {y, kWrite}});
    program.touch(kGpu, {{y, kRead}});
  }
  TinyProgram program;
  TensorId weights = -1, x = -1, y = -1;
};

TEST_F(ThreeTensors, a_life_runs_from_the_first_to_the_last_access) {
  const std::vector<Life> lives = lives_of(program.graph);
  EXPECT_TRUE(lives[static_cast<size_t>(weights)].carried);
  EXPECT_FALSE(lives[static_cast<size_t>(x)].carried);
  EXPECT_EQ(lives[static_cast<size_t>(x)].first, 0);
  EXPECT_EQ(lives[static_cast<size_t>(x)].last, 1);
  EXPECT_EQ(lives[static_cast<size_t>(y)].first, 1);
  EXPECT_EQ(lives[static_cast<size_t>(y)].last, 2);
}

// Alive, in elements: 10+5, 10+5+7, 10+7: the peak of 22 elements, 88 bytes, is at operation 1.
TEST_F(ThreeTensors, the_peak_is_where_most_is_alive_and_names_its_holders) {
  program.graph.arenas.size[0] = Bytes{96};
  const std::vector<PlacePeak> peaks = memory_peaks(program.graph);
  ASSERT_EQ(peaks.size(), 3u);
  EXPECT_EQ(peaks[0].place, Place::kHbm);
  EXPECT_EQ(peaks[0].arena.count, 96);
  EXPECT_EQ(peaks[0].live.count, 88);
  EXPECT_EQ(peaks[0].at, 1);
  ASSERT_EQ(peaks[0].holders.size(), 2u);
  EXPECT_EQ(peaks[0].holders[0].category, Category::kActivations);
  EXPECT_EQ(peaks[0].holders[0].bytes.count, 48);
  EXPECT_EQ(peaks[0].holders[1].bytes.count, 40);
  EXPECT_EQ(peaks[1].live.count, 0);
  EXPECT_EQ(peaks[1].at, -1);
}

// Step 1 runs at 30..60, ten a piece: 15 elements, from 40 on 22 (x until 50), from 50 on 17, and
// from the end of operation 2 nothing but the weights, which is the end of the step.
TEST_F(ThreeTensors, memory_over_time_follows_the_spans_of_the_last_step) {
  Timeline timeline;
  timeline.steps = 2;
  for (int32_t i = 0; i < 6; ++i) {
    timeline.spans.push_back({i % 3, i / 3, Instant{i * 10}, Instant{i * 10 + 10}});
  }
  const std::vector<MemoryPoint> points = memory_over_time(program.graph, timeline, Place::kHbm);
  ASSERT_EQ(points.size(), 4u);
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 60}, {10, 88}, {20, 68}, {30, 40}};
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].at.ps, expected[i].first);
    EXPECT_EQ(points[i].live.count, expected[i].second);
  }
}

// The last step lasts from 20 to 40, but its operation 0 ran ahead at 15..20, and so will that of
// the step after at 35..40. x (5 elements, 20 bytes) is written by operation 0 and read by
// operation 1 at 20..30: alive at 0..10 of the step, and again at 15..20.
TEST(MemoryTest, what_runs_ahead_counts_at_the_end_of_the_step) {
  TinyProgram program;
  const TensorId x = program.tensor(5);
  program.touch(kGpu, {{x, kWrite}});
  program.touch(LaneKind::kCopyOut, {{x, kRead}});
  program.touch(LaneKind::kCpu, {});
  Timeline timeline;
  timeline.steps = 2;
  timeline.spans = {{0, 0, Instant{-5}, Instant{0}},  {1, 0, Instant{0}, Instant{10}},
                    {2, 0, Instant{10}, Instant{20}}, {0, 1, Instant{15}, Instant{20}},
                    {1, 1, Instant{20}, Instant{30}}, {2, 1, Instant{30}, Instant{40}}};
  const std::vector<MemoryPoint> points = memory_over_time(program.graph, timeline, Place::kHbm);
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 20}, {10, 0}, {15, 20}, {20, 0}};
  ASSERT_EQ(points.size(), expected.size());
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].at.ps, expected[i].first);
    EXPECT_EQ(points[i].live.count, expected[i].second);
  }
}

// A tensor of two copies takes both; one that is read of another step lives through the whole step.
TEST(MemoryTest, both_copies_of_a_double_buffer_count) {
  TinyProgram program;
  const TensorId buffer = program.tensor(5);
  program.graph.tensors[0].copies = 2;
  program.touch(kGpu, {{buffer, kWrite}});
  program.touch(LaneKind::kCpu, {{buffer, kRead}});
  EXPECT_FALSE(lives_of(program.graph)[0].carried);
  EXPECT_EQ(memory_peaks(program.graph)[0].live.count, 40);
  program.graph.step.ops[1].accesses[0].step_offset = 1;
  EXPECT_TRUE(lives_of(program.graph)[0].carried);
}

// A rollback runs inside the commit: what it reads there, before the step writes it, is carried,
// and what only it touches is alive at the commit.
TEST(MemoryTest, a_rollback_finds_what_it_needs_at_the_commit) {
  TinyProgram program;
  const TensorId gradient = program.tensor(5);
  const TensorId staging = program.tensor(3);
  program.touch(kGpu, {});
  const OpId commit = program.touch(LaneKind::kCheck, {});
  program.touch(kGpu, {{gradient, kWrite}});
  program.graph.commit = commit;
  Op redo;
  redo.accesses = {{gradient, Role::kGradient, kRead, 0}, {staging, Role::kDestination, kWrite, 0}};
  program.graph.repair.ops = {redo};
  const std::vector<Life> lives = lives_of(program.graph);
  EXPECT_TRUE(lives[0].carried);
  EXPECT_FALSE(lives[1].carried);
  EXPECT_EQ(lives[1].first, commit);
  EXPECT_EQ(lives[1].last, commit);
}

// Two devices, 5 elements on one and 7 on the other: the peak of a place is that of one device.
TEST(MemoryTest, a_peak_is_that_of_the_fullest_device) {
  TinyProgram program;
  program.graph.lanes = 2 * kLaneKinds;
  const TensorId first = program.tensor(5);
  const TensorId second = program.tensor(7);
  program.graph.tensors[1].device = 1;
  program.touch(kGpu, {{first, kRead}, {second, kRead}});
  EXPECT_EQ(memory_peaks(program.graph)[0].live.count, 28);
}

}  // namespace
}  // namespace ballast
