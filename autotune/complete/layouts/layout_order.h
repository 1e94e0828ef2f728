// The order in which open layouts are completed: by the step time that each promises.
//
// Bounds of one kind (a strategy and a ZeRO stage) lie farther below its plans than those of
// another. So a kind's bounds are scaled by the root of the smallest ratio of plan to bound that
// was found in it; a kind of which nothing is known is believed, and asked about first. A kind is
// left alone once its layouts go on being slower than its own best, or promise far less than the
// best of all, unless all of them are asked for. Will not do: estimate a plan
// (autotune/complete/complete.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autotune/complete/layouts/open_layouts.h"

namespace ballast {

// Of the layouts whose bounds leave room for a shorter step. Who needs a good plan soon, and has
// thousands of layouts, asks for the promising ones.
enum class LayoutReach : uint8_t { kPromising, kAll };

class LayoutOrder {
 public:
  // `layouts` must outlive this object.
  explicit LayoutOrder(const std::vector<OpenLayout>& layouts,
                       LayoutReach reach = LayoutReach::kPromising);

  // At most so many that were not taken yet, whose bounds do not refute them and leave room for a
  // shorter step than the best, the most promising first. Indices.
  std::vector<size_t> take(size_t most, std::optional<Duration> best);
  // As if it had not been taken.
  void give_back(size_t layout) { taken_[layout] = false; }
  // Whether its bounds leave room for a shorter step than the best, and its kind is not left alone.
  bool may_win(size_t layout, std::optional<Duration> best) const;

  // What a layout's best plan takes. True where it was not the first of its kind.
  bool learn(size_t layout, Duration step_time);
  // The same of one whose plans all take so long at least, which is no less than the best.
  bool learn_slower(size_t layout, Duration at_least);

 private:
  using KindOfLayout = std::pair<std::string, int64_t>;
  struct Known {
    double ratio = 1;
    Duration best;
    int slower = 0;  // in a row
  };

  KindOfLayout kind_of(size_t layout) const;
  double promise(size_t layout) const;  // seconds

  const std::vector<OpenLayout>& layouts_;
  const LayoutReach reach_;
  std::vector<bool> taken_;
  std::map<KindOfLayout, Known> known_;
};

}  // namespace ballast
