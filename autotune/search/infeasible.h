// Infeasible plans of a search, booked under the first memory that they overfill and what fills
// that most, each reason with the plan that misses by least.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "autotune/bounds/cell_bound.h"
#include "autotune/search/search.h"

namespace ballast {

class Infeasible {
 public:
  // References must outlive this object.
  Infeasible(const Machine& machine, const Usable& usable) : machine_(machine), usable_(usable) {}

  // `count` plans like this one, which needs so much at least. One of the peaks is above what is
  // usable.
  void refuse(const Plan& plan, int64_t count, const std::vector<PlacePeak>& peaks);
  // `count` plans that need more devices than the machine has, this one among them.
  void refuse_for_devices(const Plan& plan, int64_t count);

  int64_t count() const { return count_; }
  std::vector<InfeasibleReason> reasons() const;  // most frequent first

 private:
  const Machine& machine_;
  const Usable& usable_;
  std::map<std::string, InfeasibleReason> reasons_;
  int64_t count_ = 0;
};

}  // namespace ballast
