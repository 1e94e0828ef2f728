// Runs a function for many indices on a few threads, which ask their caller's stop scope
// (sim/base/stop.h).
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace ballast {

// Cores of this machine, at least 1.
int hardware_threads();

// Calls work(i) once for every i in [0, count), on up to `threads` threads, and returns when all
// are done. If calls throw, the exception of the smallest such index is thrown on. Once one of them
// was stopped (sim/base/stop.h), no other begins.
void parallel_for(size_t count, int threads, const std::function<void(size_t)>& work);
// The same; after each work(i) that returned, `done` hears of i and of how many have, one at a
// time.
void parallel_for(size_t count, int threads, const std::function<void(size_t)>& work,
                  const std::function<void(size_t index, size_t finished)>& done);

// Work of several pieces of code that runs together, in any order.
using Tasks = std::vector<std::function<void()>>;
void run_all(const Tasks& tasks, int threads);

}  // namespace ballast
