// Long work that its caller may end before it is done: by a deadline, or because a user asks.
//
// Who starts the work says when it must stop (StopScope); the work, however deep below, asks
// between two pieces of it (stop_point), and is left by an exception where it must. Threads of
// parallel_for ask for their caller, and so do those with an AskedFor. Where no scope is open a
// stop point does nothing.
// Will not do: end what never asks, or undo what was begun: only work that changes nothing but what
// it returns may have stop points.
#pragma once

#include <functional>
#include <optional>

namespace ballast {

// Thrown by stop_point(). No Error: nothing is wrong.
class Stopped {};

class StopScope {
 public:
  // `must_stop` may be called by several threads at once, and must outlive this.
  explicit StopScope(const std::function<bool()>& must_stop);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  bool must_stop() const;

 private:
  const std::function<bool()>& must_stop_;
  const StopScope* const outer_;
};

// Throws Stopped where a scope around the caller says so.
void stop_point();

// What this thread asks; null where it asks nothing.
const StopScope* current_stop_scope();

// While it lives, this thread asks what another does that it works for: its current_stop_scope(),
// which must outlive this.
class AskedFor {
 public:
  explicit AskedFor(const StopScope* scope);
  ~AskedFor();
  AskedFor(const AskedFor&) = delete;
  AskedFor& operator=(const AskedFor&) = delete;

 private:
  const StopScope* const before_;
};

// What `work` returns; nothing where `must_stop` ended it.
template <class Work>
auto unless_stopped(const std::function<bool()>& must_stop, const Work& work)
    -> std::optional<decltype(work())> {
  const StopScope scope(must_stop);
  try {
    return work();
  } catch (const Stopped&) {
    return std::nullopt;
  }
}

}  // namespace ballast
