// Pacer: lets threads wait as if they worked, each at a rate that depends on who else works.
//
// Every flow has work left, which shrinks at its rate; when one begins or ends, all rates are asked
// for again. A thread wakes later than it should, so the pacer reckons in *due* times: a flow ends
// at the instant its work is done, whenever its thread comes to know, and a flow may begin in the
// past. Rates that were wrong meanwhile are made good to first order: what others gained or lost
// between the due time and the present is taken from or added to the work that they have left.
// Will not do: know operations, edges, or what may be forgiven (backend/paced/device_paced).
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "sim/base/units.h"
#include "sim/graph/core/op_cost.h"

namespace ballast {

// Writes the rate of every running flow, above 0 and at most 1, given what each demands.
using RateFunction =
    std::function<void(std::span<const std::span<const Demand>> running, std::span<double> rates)>;

class Pacer {
 public:
  // At most `flows` flows at a time, numbered from 0. `rates` is called by one thread at a time.
  // Pacers of one epoch have one clock.
  using Epoch = std::chrono::steady_clock::time_point;
  Pacer(int32_t flows, RateFunction rates, Epoch epoch = std::chrono::steady_clock::now());

  // Real time since the epoch.
  Instant now() const;

  struct Work {
    Instant begin;  // past or future
    Duration alone;
    std::span<const Demand> demands;  // must stay until run() returns
  };
  // Holds the calling thread until the work is done; returns the due end, which is not after now.
  // The flow must not be running. The thread waits for a future begin without being a flow.
  Instant run(int32_t flow, const Work& work);

 private:
  struct Flow {
    std::condition_variable earlier;  // the due end has moved forward, or it has come
    std::span<const Demand> demands;
    Instant begin;
    Instant due_end;       // while running: if rates stay as they are
    double work_left = 0;  // picoseconds at full speed, as of updated_
    double rate = 0;
    bool running = false;
  };

  std::chrono::steady_clock::time_point real(Instant instant) const;
  void begin(int32_t flow, const Work& work);
  void advance(Instant to);
  void progress(Instant to);
  void change_rates(Instant since);

  const Epoch epoch_;
  RateFunction rate_function_;
  std::mutex mutex_;  // guards all below
  std::vector<Flow> flows_;
  Instant updated_;
  // The running flows, in the order of their numbers; working space.
  std::vector<int32_t> running_;
  std::vector<std::span<const Demand>> demands_;
  std::vector<double> rates_;
};

}  // namespace ballast
