// Sweeps, grids of cells, the best column of a row, and where it changes.
#include "autotune/studies/whatif.h"

#include <algorithm>
#include <atomic>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "tests/autotune/support.h"

namespace ballast {
namespace {

using Values = std::vector<std::string>;

std::string error_of(const std::string& argument) {
  try {
    parse_sweep(argument);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// 0 to 1 in five: steps of (1 - 0) / 4 = 0.25; the ends stay as they were written.
TEST(Sweep, linear_range_has_equal_steps_and_both_ends) {
  const auto axis = parse_sweep("plan.optimizer.stream_share=0..1:lin:5");
  ASSERT_TRUE(axis.has_value());
  EXPECT_EQ(axis->name, "plan.optimizer.stream_share");
  EXPECT_EQ(axis->values, (Values{"0", "0.25", "0.5", "0.75", "1"}));
  EXPECT_TRUE(axis->is_sweep());
}

// 8 to 64 in four: ratios of (64 / 8)^(1/3) = 2.
TEST(Sweep, logarithmic_range_has_equal_ratios) {
  EXPECT_EQ(parse_sweep("plan.global_batch=8..64:log:4")->values, (Values{"8", "16", "32", "64"}));
}

// 100 to 10 in three: 10^1.5 = 31.6 is between whole ends, so it is 32; between 100.0 and 10 as
// well, for 100.0 is whole; between 0.1 and 10 the middle is 1.
TEST(Sweep, values_between_whole_ends_are_whole) {
  EXPECT_EQ(parse_sweep("machine.link.gb_per_s=100..10:log:3")->values,
            (Values{"100", "32", "10"}));
  EXPECT_EQ(parse_sweep("machine.link.gb_per_s=0.1..10:log:3")->values, (Values{"0.1", "1", "10"}));
  EXPECT_EQ(parse_sweep("model.x=1..2:lin:3")->values, (Values{"1", "1.5", "2"}))
      << "whole values would come twice";
}

TEST(Sweep, list_keeps_its_order_and_is_ordered_only_where_it_rises_or_falls) {
  EXPECT_EQ(parse_sweep("plan.micro_batch=1,2,4")->numbers, (std::vector<double>{1, 2, 4}));
  EXPECT_TRUE(parse_sweep("plan.micro_batch=4,2,1")->is_sweep());
  EXPECT_FALSE(parse_sweep("plan.micro_batch=1,4,2")->is_sweep());
  EXPECT_FALSE(parse_sweep("plan.optimizer.cast=cpu,gpu")->is_sweep());
}

TEST(Sweep, one_value_is_none_even_with_commas_inside) {
  EXPECT_FALSE(parse_sweep("plan.optimizer.cast=cpu").has_value());
  EXPECT_FALSE(parse_sweep("model.dense_layers=[9,7]").has_value());
  EXPECT_FALSE(parse_sweep("plan.model=../models/a.json").has_value()) << "a path, not a range";
  EXPECT_EQ(parse_sweep("model.dense_layers=[9,7],[8]")->values, (Values{"[9,7]", "[8]"}));
}

TEST(Sweep, what_is_no_sweep_says_why) {
  const auto says = [](const std::string& argument, const std::string& part) {
    EXPECT_NE(error_of(argument).find(part), std::string::npos)
        << argument << ": " << error_of(argument);
  };
  says("machine.x=0..10:log:3", "reaches 0");
  says("machine.x=-1..10:log:3", "reaches 0");
  says("machine.x=1..10:lin:0", "empty sweep");
  says("machine.x=1..10:lin:1", "empty sweep");
  says("machine.x=5..5:lin:3", "empty sweep");
  says("machine.x=", "empty sweep");
  says("machine.x=1,,2", "empty value");
  says("machine.x=1..10", "not a sweep");
  says("machine.x=1..10:cubic:3", "not a sweep");
  says("machine.x=1..10:lin:three", "counts its values");
  says("machine.x=1..ten:lin:3", "ends at 'ten'");
  says("machine.x=1..10:lin:10001", "10001 values");
}

Grid two_by_two() {
  return {{make_axis("model", {"a", "b"}), make_axis("x", {"1", "2", "3"})},
          {make_axis("strategy", {"one", "two"})}};
}

// Rows a1 a2 a3 b1 b2 b3, two columns each: cell 5 is row 2 (a3), column 1.
TEST(GridOfCells, last_axis_varies_fastest) {
  const Grid grid = two_by_two();
  EXPECT_EQ(grid.rows(), 6U);
  EXPECT_EQ(grid.cells(), 12U);
  EXPECT_EQ(grid.value(5, "model"), "a");
  EXPECT_EQ(grid.value(5, "x"), "3");
  EXPECT_EQ(grid.value(5, "strategy"), "two");
  EXPECT_EQ(grid.row_at(4), (std::vector<size_t>{1, 1}));
}

TEST(GridOfCells, more_than_ten_thousand_are_refused) {
  const Axis hundred = *parse_sweep("plan.a=1..100:lin:100");
  const Axis hundred_and_one = *parse_sweep("plan.b=1..101:lin:101");
  EXPECT_EQ(Grid({hundred}, {hundred}).cells(), 10'000U);
  EXPECT_THROW(Grid({hundred}, {hundred_and_one}), Error);
  EXPECT_THROW(Grid({hundred, hundred_and_one}, {}), Error);
}

CellResult fitting(double tokens_per_s) {
  CellResult cell;
  cell.fits = true;
  cell.tokens_per_s = cell.tokens_per_s_per_device = tokens_per_s;
  cell.step_time = Duration::from_seconds(1000 / tokens_per_s);
  return cell;
}

// 3,600 tokens a second and device are 12.96e6 an hour: at 6.48 an hour a million costs 0.5.
TEST(Cells, cost_is_the_price_of_a_million_tokens) {
  CellResult cell = fitting(3600);
  cell.price_per_device_hour = 6.48;
  EXPECT_NEAR(value_of(cell, Criterion::kCostPerToken), 0.5, 1e-12);
}

// 120 tokens a second against 100 are 20 % more; 8.33 s against 10 s are 16.7 % less.
TEST(Cells, winner_is_the_best_that_fits_and_leads_by_a_share_of_the_next) {
  const Grid grid({}, {make_axis("strategy", {"a", "b", "c"})});
  std::vector<CellResult> cells = {fitting(100), fitting(120), illegal_cell("no")};
  const auto best = winners(grid, cells, Criterion::kTokensPerS);
  ASSERT_TRUE(best[0].has_value());
  EXPECT_EQ(best[0]->column, 1U);
  EXPECT_NEAR(*best[0]->lead, 0.2, 1e-12);
  EXPECT_NEAR(*winners(grid, cells, Criterion::kStepTime)[0]->lead, 1 - 100.0 / 120, 1e-9);
  cells[0] = illegal_cell("no");
  EXPECT_FALSE(winners(grid, cells, Criterion::kTokensPerS)[0]->lead.has_value()) << "alone";
  cells[1] = illegal_cell("no");
  EXPECT_FALSE(winners(grid, cells, Criterion::kTokensPerS)[0].has_value());
}

TEST(Cells, first_of_equals_wins) {
  const Grid grid({}, {make_axis("strategy", {"a", "b"})});
  EXPECT_EQ(winners(grid, {fitting(100), fitting(100)}, Criterion::kTokensPerS)[0]->column, 0U);
}

// Along x the best of model a is one, two, two; of model b nothing, one, one.
TEST(Crossings, are_between_neighbours_along_a_sweep_alone) {
  const Grid grid = two_by_two();
  const CellResult none = illegal_cell("no");
  const std::vector<CellResult> cells = {fitting(2), fitting(1), fitting(1), fitting(2),
                                         fitting(1), fitting(2), none,       none,
                                         fitting(2), fitting(1), fitting(2), none};
  const auto found = crossings(grid, winners(grid, cells, Criterion::kTokensPerS));
  ASSERT_EQ(found.size(), 2U) << "models are no sweep";
  EXPECT_EQ(found[0].axis, 1U);
  EXPECT_EQ(found[0].row_before, 0U);
  EXPECT_EQ(found[0].row_after, 1U);
  EXPECT_EQ(found[1].row_before, 3U);
  EXPECT_EQ(found[1].row_after, 4U);
}

TEST(ComputeCells, one_that_throws_is_illegal_and_all_that_throw_are_an_error) {
  CellWork work;
  work.count = 5;
  size_t last = 0;
  work.cell = [](size_t i) {
    if (i == 3) throw Error("cell 3", "is wrong", "leave it out");
    return fitting(static_cast<double>(i + 1));
  };
  work.done = [&](const CellWork::Done& done) { last = done.finished; };
  const std::vector<CellResult> cells = compute_cells(work);
  EXPECT_EQ(last, 5U);
  EXPECT_EQ(cells[4].tokens_per_s, 5);
  EXPECT_FALSE(cells[3].fits);
  EXPECT_EQ(cells[3].obstacle, Obstacle::kIllegal);
  EXPECT_NE(cells[3].reason.find("is wrong"), std::string::npos);
  work.cell = [](size_t i) -> CellResult {
    throw Error("cell " + std::to_string(i), "is wrong", "leave it out");
  };
  try {
    compute_cells(work);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cell 0"), std::string::npos);
  }
}

// What was done before stays; what is under way or left is not decided, and is no error.
TEST(ComputeCells, one_that_is_interrupted_leaves_the_others_undecided) {
  CellWork work;
  work.count = 40;
  std::atomic<size_t> begun = 0;
  std::atomic<bool> stop = false;
  size_t heard = 0;
  work.interrupted = [&] { return stop.load(); };
  work.cell = [&](size_t i) {
    ++begun;
    if (i == 20) stop = true;
    if (i == 20) throw Error("cell", "was cut short", "ask again");
    return fitting(1);
  };
  work.done = [&](const CellWork::Done& done) {
    ++heard;
    EXPECT_TRUE(done.cell.fits);
  };
  const std::vector<CellResult> cells = compute_cells(work);
  EXPECT_EQ(cells[20].obstacle, Obstacle::kNotDecided);
  EXPECT_EQ(cells[39].obstacle, Obstacle::kNotDecided);
  const auto fit =
      std::count_if(cells.begin(), cells.end(), [](const CellResult& cell) { return cell.fits; });
  EXPECT_GE(fit, 1) << "the first was long done";
  EXPECT_LE(heard, static_cast<size_t>(fit));
  EXPECT_LT(begun, 40U);
}

// Three offers of 100, 200 and 50 tokens a second and device at 1, 3 and 2 an hour: tokens cost as
// 1 : 1.5 : 4. The second draws level at 3 / 1.5 = 2, the third at 2 / 4 = 0.5, the first stays
// ahead up to 1 * 1.5; one without a price draws level at its rate over the first's.
TEST(Standings, level_price_is_the_price_times_the_ratio_of_costs) {
  const Grid grid({}, {make_axis(kOfferAxis, {"a", "b", "c", "d", "e"})});
  const double rates[] = {100, 200, 50, 25, 10};
  const double prices[] = {1, 3, 2, 0, 1};
  std::vector<CellResult> cells;
  for (size_t i = 0; i < 5; ++i) {
    cells.push_back(fitting(rates[i]));
    cells.back().tokens_per_s_per_device = rates[i];
    cells.back().price_per_device_hour = prices[i];
  }
  cells[4] = illegal_cell("no");
  const std::vector<std::optional<Standing>> found = standings(grid, cells);
  ASSERT_EQ(found.size(), 5U);
  const double level[] = {1.5, 2, 0.5, 0.25};
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(found[i]) << i;
    EXPECT_NEAR(found[i]->level_price, level[i], 1e-12) << i;
    EXPECT_EQ(found[i]->cheapest, i == 0);
    EXPECT_EQ(found[i]->rival, i == 0 ? 1U : 0U);
    EXPECT_TRUE(found[i]->told_apart) << i;
    // At that price the two cost the same.
    CellResult moved = cells[i];
    moved.price_per_device_hour = found[i]->level_price;
    EXPECT_NEAR(moved.cost_per_million_tokens(), cells[found[i]->rival].cost_per_million_tokens(),
                1e-12);
  }
  EXPECT_FALSE(found[4]);
  cells[1].price_per_device_hour = 2.02;
  EXPECT_FALSE(standings(grid, cells)[1]->told_apart) << "1 % is nothing";
  EXPECT_FALSE(standings(grid, cells)[0]->told_apart);
}

// 700 W at 100 tokens a second are 7 J a token.
TEST(Energy, is_that_of_every_device_at_its_power_or_not_known) {
  CellResult cell = fitting(100);
  cell.tokens_per_s_per_device = 100;
  EXPECT_FALSE(cell.joules_of_run(1e6));
  cell.power_watts = Sourced<double>{700, false, "a data sheet"};
  EXPECT_NEAR(*cell.joules_of_run(1e6), 7e6, 1e-6);
}

// 0.86M parameters at 16 bytes are 14 MB: a GPU of 1 GiB holds them, one of 1 MiB holds nothing.
TEST(TunedCell, is_the_optimum_of_the_search_or_says_which_memory_is_too_small) {
  const Model model = tests::small_model();
  Machine machine = tests::gpu_machine();
  Plan plan;
  plan.model = model.name;
  plan.machine = machine.name;
  plan.global_batch = 4;
  plan.sequence_length = 32;
  OpenKnobs open;
  open.add(KnobId::kMicroBatch);
  const SearchSpace space{{plan}, open};
  CellSearchLimits exactly;
  exactly.tolerance = 0;
  const CellResult cell = tuned_cell({model, plan, machine, {}}, space, {}, exactly);
  ASSERT_TRUE(cell.fits) << cell.reason;
  SearchOptions options;
  options.exhaustive = true;
  const SearchResult all = search(model, space, machine, nullptr, options);
  EXPECT_EQ(cell.step_time, all.best->step_time);
  ASSERT_TRUE(cell.search);
  EXPECT_EQ(cell.search->stop, SearchStop::kNone);
  EXPECT_EQ(cell.search->proven_within, 0);
  CellSearchLimits never;
  never.interrupted = [] { return true; };
  const CellResult stopped = tuned_cell({model, plan, machine, {}}, space, {}, never);
  EXPECT_FALSE(stopped.fits);
  EXPECT_EQ(stopped.obstacle, Obstacle::kNotDecided) << stopped.reason;
  machine.gpu.memory.value = Bytes{1 << 20};
  const CellResult tight = tuned_cell({model, plan, machine, {}}, space, {}, exactly);
  EXPECT_FALSE(tight.fits);
  EXPECT_EQ(tight.obstacle, Obstacle::kGpu);
  EXPECT_NE(tight.reason.find("GPU memory"), std::string::npos);
  plan.devices = plan.data = 4;
  const CellResult many = tuned_cell({model, plan, machine, {}}, {{plan}, open}, {}, exactly);
  EXPECT_EQ(many.obstacle, Obstacle::kDevices);
}

}  // namespace
}  // namespace ballast
