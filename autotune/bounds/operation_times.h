// What single operations of an optimizer take alone, priced together: add them, price(), then take
// their times in the same order.
#pragma once

#include <cstdint>

#include "sim/engine/cost.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/plan.h"

namespace ballast {

class Prices {
 public:
  // Of one layout; the plan must outlive this object.
  explicit Prices(const Plan& plan);

  void add(OpKind kind, LaneKind lane, Work work);
  // Values of a type across the link, by what the plan has for that; what a kernel that brings them
  // writes may be in the plan's own type.
  void add_transfer(LaneKind lane, CopyDirection direction, int64_t count, DType type);
  void add_adam(int64_t count, Site site, bool exact_undo);
  // What ranks that share state or gradients tell each other, in 16 bits at least; nothing where
  // they do not talk.
  void add_exchange(CollectiveKind kind, int64_t count, bool talks);

  void price(const CostModel& costs);
  int64_t next() { return table_.ops[next_++].alone.ps; }
  // Host time of the first operation of a kind, each of which takes as much at least.
  int64_t host_ps(OpKind kind) const;

 private:
  const Plan& plan_;
  Graph graph_;
  CostTable table_;
  size_t next_ = 0;
};

}  // namespace ballast
