#include "backend/paced/pacer.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

namespace ballast {

Pacer::Pacer(int32_t flows, RateFunction rates, Epoch epoch)
    : epoch_(epoch), rate_function_(std::move(rates)), flows_(static_cast<size_t>(flows)) {
  CHECK(rate_function_ != nullptr);
}

Instant Pacer::now() const {
  const auto since = std::chrono::steady_clock::now() - epoch_;
  return {std::chrono::duration_cast<std::chrono::nanoseconds>(since).count() * 1000};
}

std::chrono::steady_clock::time_point Pacer::real(Instant instant) const {
  return epoch_ + std::chrono::nanoseconds(div_ceil(instant.ps, 1000));
}

Instant Pacer::run(int32_t index, const Work& work) {
  if (work.begin > now()) std::this_thread::sleep_until(real(work.begin));
  if (work.alone.ps <= 0) return work.begin;
  Flow& flow = flows_[static_cast<size_t>(index)];
  std::unique_lock lock(mutex_);
  advance(now());
  begin(index, work);
  for (advance(now()); flow.running; advance(now())) {
    flow.earlier.wait_until(lock, real(flow.due_end));
  }
  return flow.due_end;
}

void Pacer::begin(int32_t index, const Work& work) {
  Flow& flow = flows_[static_cast<size_t>(index)];
  CHECK(!flow.running);
  flow.demands = work.demands;
  flow.begin = work.begin;
  flow.work_left = static_cast<double>(work.alone.ps);
  flow.rate = 0;  // until change_rates: it has done nothing yet
  flow.running = true;
  change_rates(work.begin);
}

// Brings every flow up to `to`, ending those whose end has come, in the order of their ends.
void Pacer::advance(Instant to) {
  while (true) {
    Flow* next = nullptr;
    for (Flow& flow : flows_) {
      if (flow.running && (next == nullptr || flow.due_end < next->due_end)) next = &flow;
    }
    if (next == nullptr || next->due_end > to) break;
    progress(next->due_end);
    next->running = false;
    next->earlier.notify_one();
    change_rates(next->due_end);
  }
  progress(to);
}

void Pacer::progress(Instant to) {
  if (to <= updated_) return;
  for (Flow& flow : flows_) {
    if (flow.running) flow.work_left -= static_cast<double>((to - updated_).ps) * flow.rate;
  }
  updated_ = to;
}

// The set of flows changed at `since`, at or before updated_. New rates, in hindsight from then on.
void Pacer::change_rates(Instant since) {
  running_.clear();
  demands_.clear();
  for (size_t i = 0; i < flows_.size(); ++i) {
    if (!flows_[i].running) continue;
    running_.push_back(static_cast<int32_t>(i));
    demands_.push_back(flows_[i].demands);
  }
  rates_.resize(running_.size());
  rate_function_(demands_, rates_);
  for (size_t i = 0; i < running_.size(); ++i) {
    Flow& flow = flows_[static_cast<size_t>(running_[i])];
    CHECK(rates_[i] > 0 && rates_[i] <= 1);
    const Duration past = updated_ - std::max(since, flow.begin);
    if (past.ps > 0) flow.work_left += (flow.rate - rates_[i]) * static_cast<double>(past.ps);
    const bool is_new = flow.rate == 0;
    flow.rate = rates_[i];
    const Duration left = {std::llround(flow.work_left / flow.rate)};
    const Instant due_end = std::max(updated_ + left, flow.begin);
    if (!is_new && due_end < flow.due_end) flow.earlier.notify_one();
    flow.due_end = due_end;
  }
}

}  // namespace ballast
