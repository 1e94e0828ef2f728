#include "sim/base/stop.h"

namespace ballast {
namespace {

thread_local const StopScope* current = nullptr;

}  // namespace

StopScope::StopScope(const std::function<bool()>& must_stop)
    : must_stop_(must_stop), outer_(current) {
  current = this;
}

StopScope::~StopScope() { current = outer_; }

bool StopScope::must_stop() const {
  return (must_stop_ && must_stop_()) || (outer_ != nullptr && outer_->must_stop());
}

void stop_point() {
  if (current != nullptr && current->must_stop()) throw Stopped();
}

const StopScope* current_stop_scope() { return current; }

AskedFor::AskedFor(const StopScope* scope) : before_(current) { current = scope; }
AskedFor::~AskedFor() { current = before_; }

}  // namespace ballast
