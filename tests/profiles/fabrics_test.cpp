// Collectives as they were measured: every point returns itself, and points that are left out are
// predicted by the others.
#include "profiles/tables/fabrics.h"

#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>

#include "profiles/load.h"
#include "profiles/shipped.h"

namespace ballast {
namespace {

// FNV-1a of a point's text (Fowler, Noll and Vo), so that what is left out depends on the point.
uint64_t hash_of(const FabricSeries& series, const FabricPoint& point) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : fmt::format("{} {} {} {}", to_string(series.kind), series.ranks, series.nodes,
                                  point.bytes.count)) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211U;
  }
  return hash >> 16;
}

using Asked = std::function<bool(const FabricSeries&, const FabricPoint&)>;

std::vector<double> errors_of(const FabricModel& model, const FabricTables& points,
                              const Asked& asked) {
  std::vector<double> errors;
  for (const FabricSeries& series : points.series) {
    const Layout layout{series.ranks, series.ranks / series.nodes, series.nodes};
    for (const FabricPoint& point : series.points) {
      if (!asked(series, point)) continue;
      const auto time = model.time(series.kind, point.bytes, layout, model.wiring());
      errors.push_back(time->seconds() / point.time.seconds() - 1);
    }
  }
  return errors;
}

double mean(const std::vector<double>& errors) {
  double sum = 0;
  for (const double error : errors) sum += std::abs(error);
  return errors.empty() ? 0 : sum / static_cast<double>(errors.size());
}

TEST(Fabrics, every_point_returns_itself) {
  for (const std::string& name : shipped_names("fabrics")) {
    const auto model = load_fabric(name);
    EXPECT_EQ(model->tables().name, name);
    const auto errors =
        errors_of(*model, model->tables(), [](const auto&, const auto&) { return true; });
    double worst = 0;
    for (const double error : errors) worst = std::max(worst, std::abs(error));
    fmt::print("{}: {} points, worst {:.2f} %\n", name, errors.size(), 100 * worst);
    EXPECT_LT(worst, 0.01) << name;
  }
}

TEST(Fabrics, points_that_are_left_out_are_predicted_by_the_others) {
  for (const std::string& name : shipped_names("fabrics")) {
    const auto full = load_fabric(name);
    std::vector<double> errors;
    for (uint64_t fold = 0; fold < 3; ++fold) {
      const Asked left_out = [&](const FabricSeries& series, const FabricPoint& point) {
        return hash_of(series, point) % 3 == fold;
      };
      FabricTables tables = full->tables();
      for (FabricSeries& series : tables.series) {
        std::erase_if(series.points, [&](const auto& point) { return left_out(series, point); });
      }
      const auto some = errors_of(FabricModel(tables), full->tables(), left_out);
      errors.insert(errors.end(), some.begin(), some.end());
    }
    fmt::print("{}: {} points left out, mean error {:.1f} %\n", name, errors.size(),
               100 * mean(errors));
    EXPECT_LT(mean(errors), 0.08) << name;
  }
}

// Four nodes of eight cards of 48 GB/s were measured. Groups of one rank a node, of 64 MiB, load
// their card as 512 MiB over eight ranks a node do, and lose as much to it: of 60 us and 1.5 times
// their bytes at 48 GB/s what those lose of 60 us and 2 * 31 / 32 times theirs at 8 * 48 GB/s.
TEST(Fabrics, rings_between_nodes_lose_what_rings_of_the_same_bytes_a_card_do) {
  const auto model = load_fabric("efa-b200");
  const auto seconds = [&](int64_t mib, const Layout& layout) {
    return model->time(CollectiveKind::kAllReduce, Bytes{mib << 20}, layout, model->wiring())
        ->seconds();
  };
  const double at_the_card = 64.0 * (1 << 20) / 48e9;
  EXPECT_NEAR(seconds(64, {4, 1, 4}) / seconds(512, {32, 8, 4}),
              (60e-6 + 1.5 * at_the_card) / (60e-6 + 2 * 31.0 / 32 * at_the_card), 1e-9);
}

}  // namespace
}  // namespace ballast
