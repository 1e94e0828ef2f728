// The order in which open layouts are completed: by the step time that each promises.
//
// Bounds of one strategy lie farther below its plans than those of another. So a strategy's bounds
// are scaled by the smallest ratio of plan to bound that was found among its layouts; one of which
// nothing is known is believed, and asked about first.
// Will not do: estimate a plan (autotune/complete/complete.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autotune/complete/open_layouts.h"

namespace ballast {

class LayoutOrder {
 public:
  // `layouts` must outlive this object.
  explicit LayoutOrder(const std::vector<OpenLayout>& layouts);

  // At most so many that were not taken yet, whose bounds do not refute them and leave room for a
  // shorter step than the best, the most promising first. Indices.
  std::vector<size_t> take(size_t most, std::optional<Duration> best);

  // What a layout's best plan takes.
  void learn(size_t layout, Duration step_time);

 private:
  double promise(size_t layout) const;  // seconds

  const std::vector<OpenLayout>& layouts_;
  std::vector<bool> taken_;
  std::map<std::string, double> ratio_;  // by strategy
};

}  // namespace ballast
