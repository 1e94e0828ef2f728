#include "tests/cuda/virtual/virtual_clock.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "sim/base/error.h"

namespace ballast::tests {

namespace {

using namespace std::chrono_literals;

// A thread that is taken to work and waits where the clock does not know holds everything up. Real
// time, which no result depends on: it ends a test that would never end.
constexpr auto kLongest = 300s;

}  // namespace

bool& VirtualClock::counts_me() {
  thread_local bool counted = false;
  return counted;
}

VirtualClock::Visit::Visit(VirtualClock& clock) : clock_(clock), was_counted_(counts_me()) {
  if (was_counted_) return;
  const Lock lock = clock_.lock();
  clock_.count(1);
  counts_me() = true;
}

VirtualClock::Visit::~Visit() {
  if (was_counted_) return;
  const Lock lock = clock_.lock();
  counts_me() = false;
  clock_.count(-1);
}

void VirtualClock::count(int more) {
  counted_ += more;
  CHECK(counted_ >= 0);
  go_on();
}

void VirtualClock::wake(Waiter& waiter) {
  waiter.woken = true;
  ++counted_;
  waiter.woken_up.notify_one();
}

void VirtualClock::wait(Lock& lock, Waiter& waiter) {
  waiters_.push_back(&waiter);
  if (waiter.works) change_rates();
  --counted_;
  CHECK(counted_ >= 0);
  go_on();
  while (!waiter.woken) {
    if (waiter.woken_up.wait_for(lock, kLongest) == std::cv_status::timeout && !waiter.woken) {
      std::fprintf(stderr, "virtual clock: nothing happens at %.6f ms; %d threads are counted\n",
                   static_cast<double>(now_.ps) / 1e9, counted_);
      std::abort();
    }
  }
}

void VirtualClock::wait_until(Lock& lock, Instant time) {
  if (time <= now_) return;
  Waiter waiter;
  waiter.due = time;
  wait(lock, waiter);
}

void VirtualClock::work(Lock& lock, Duration alone, std::span<const Demand> demands) {
  if (alone.ps <= 0) return;
  Waiter waiter;
  waiter.works = true;
  waiter.demands = demands;
  waiter.work_left = static_cast<double>(alone.ps);
  wait(lock, waiter);
}

void VirtualClock::wait_for(Lock& lock, const std::function<bool()>& has_come) {
  if (has_come()) return;
  Waiter waiter;
  waiter.has_come = has_come;
  wait(lock, waiter);
}

void VirtualClock::changed() {
  for (auto at = waiters_.begin(); at != waiters_.end();) {
    Waiter& waiter = **at;
    const bool comes = waiter.has_come && waiter.has_come();
    at = comes ? waiters_.erase(at) : std::next(at);
    if (comes) wake(waiter);
  }
}

// Those that work are asked for their rates again whenever one comes or goes.
void VirtualClock::change_rates() {
  std::vector<Waiter*> working;
  std::vector<std::span<const Demand>> demands;
  for (Waiter* waiter : waiters_) {
    if (!waiter->works) continue;
    working.push_back(waiter);
    demands.push_back(waiter->demands);
  }
  std::vector<double> rates(working.size());
  rate_function_(demands, rates);
  for (size_t i = 0; i < working.size(); ++i) {
    CHECK(rates[i] > 0 && rates[i] <= 1);
    working[i]->rate = rates[i];
    const double left = std::max(0.0, working[i]->work_left / rates[i]);
    working[i]->due = now_ + Duration{std::llround(left)};
  }
}

// To the next time that is due, as long as all wait.
void VirtualClock::go_on() {
  while (counted_ == 0) {
    const Waiter* next = nullptr;
    for (const Waiter* waiter : waiters_) {
      if (waiter->has_come) continue;
      if (next == nullptr || waiter->due < next->due) next = waiter;
    }
    if (next == nullptr) return;
    const Instant then = std::max(now_, next->due);
    bool ended = false;
    for (auto at = waiters_.begin(); at != waiters_.end();) {
      Waiter& waiter = **at;
      if (waiter.works) waiter.work_left -= static_cast<double>((then - now_).ps) * waiter.rate;
      const bool is_due = !waiter.has_come && waiter.due <= then;
      at = is_due ? waiters_.erase(at) : std::next(at);
      if (!is_due) continue;
      ended = ended || waiter.works;
      wake(waiter);
    }
    now_ = then;
    if (ended) change_rates();
  }
}

}  // namespace ballast::tests
