#include "sim/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "sim/base/stop.h"

namespace ballast {

int hardware_threads() {
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void parallel_for(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  size_t failed = count;
  const auto keep_failure = [&](size_t i) {
    const std::lock_guard lock(mutex);
    if (i >= failed) return;
    failed = i;
    failure = std::current_exception();
  };
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (const Stopped&) {
        keep_failure(i);
        next = count;
      } catch (...) {
        keep_failure(i);
      }
    }
  };
  std::vector<std::thread> helpers;
  const size_t wanted = std::min(count, static_cast<size_t>(std::max(threads, 1)));
  const auto help = [&run, scope = current_stop_scope()] {
    const AskedFor asks(scope);
    run();
  };
  for (size_t t = 1; t < wanted; ++t) helpers.emplace_back(help);
  run();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

void parallel_for(size_t count, int threads, const std::function<void(size_t)>& work,
                  const std::function<void(size_t index, size_t finished)>& done) {
  std::mutex mutex;
  size_t finished = 0;
  parallel_for(count, threads, [&](size_t i) {
    work(i);
    const std::lock_guard lock(mutex);
    done(i, ++finished);
  });
}

void run_all(const Tasks& tasks, int threads) {
  parallel_for(tasks.size(), threads, [&](size_t i) { tasks[i](); });
}

}  // namespace ballast
