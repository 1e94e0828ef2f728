// A clock of its own that real threads live by: time stands still while any of them works, and goes
// on to the next thing that is due when all of them wait. So what a run takes does not depend on
// how fast, or how loaded, the machine is that runs it.
//
// A thread that time waits for is *counted*. It waits here in three ways: for a time, for work that
// shares capacities with other work (max-min fairness, as on the virtual clock of sim/engine), or
// for something that another thread does. Whoever waits elsewhere (the executor's threads, for
// operations of other lanes) must be taken out of the count meanwhile, by whoever knows.
// Will not do: know operations, streams or lanes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <vector>

#include "backend/paced/pacer.h"
#include "sim/base/units.h"
#include "sim/graph/core/op_cost.h"

namespace ballast::tests {

class VirtualClock {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit VirtualClock(RateFunction rates) : rate_function_(std::move(rates)) {}

  // All else is called with this lock held; what waits gives it back meanwhile.
  Lock lock() { return Lock(mutex_); }
  Instant now() const { return now_; }

  // So many more, or fewer, threads are counted. Fewer may let time go on.
  void count(int more);

  // Of counted threads. What anyone waits for may have come: `changed` lets them look.
  void wait_until(Lock& lock, Instant time);
  void work(Lock& lock, Duration alone, std::span<const Demand> demands);
  void wait_for(Lock& lock, const std::function<bool()>& has_come);
  void changed();

  // A thread that is counted for as long as this lives, if it was not before.
  class Visit {
   public:
    explicit Visit(VirtualClock& clock);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    VirtualClock& clock_;
    bool was_counted_;
  };
  // Whether the calling thread is counted; of threads that are counted for longer than a visit
  // whoever counts them says so.
  static bool& counts_me();

 private:
  struct Waiter {
    std::condition_variable woken_up;
    bool woken = false;
    Instant due;                     // of one that waits for a time, or works
    std::function<bool()> has_come;  // of one that waits for something
    bool works = false;
    std::span<const Demand> demands;
    double work_left = 0;  // picoseconds at full speed, as of now_
    double rate = 0;
  };

  void wait(Lock& lock, Waiter& waiter);
  void wake(Waiter& waiter);
  void go_on();
  void change_rates();

  RateFunction rate_function_;
  std::mutex mutex_;  // guards all below
  Instant now_;
  int counted_ = 0;  // those that do not wait
  std::list<Waiter*> waiters_;
};

}  // namespace ballast::tests
