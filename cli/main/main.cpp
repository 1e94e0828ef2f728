// The program: runs one verb and turns whatever goes wrong into one line and an exit code.
#include <chrono>
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "backend/comm/mpi_ranks.h"
#include "cli/verbs/verbs.h"
#include "sim/base/error.h"

namespace {

// One line without control characters, so that a file name cannot draw on a terminal. Of several
// ranks the first one speaks for all where all fail alike; any other waits for that, and then says
// who it is, and all end.
int complain(const char* what) {
  std::fflush(stdout);
  const int rank = ballast::mpi_rank_of_this();
  if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(5));
  const std::string who = rank > 0 ? fmt::format("rank {}: ", rank) : "";
  fmt::print(stderr, "ballast: {}{}\n", who, ballast::one_line(what));
  std::fflush(stderr);
  ballast::mpi_end(ballast::kBadInput);
  return ballast::kBadInput;
}

int run(int argc, char** argv) {
  // One of several ranks prints.
  const bool silent = ballast::mpi_rank_of_this() > 0;
  if (silent && std::freopen("/dev/null", "w", stdout) == nullptr) {
    throw ballast::Error("/dev/null", "it cannot be opened", "see that it is there");
  }
  const int code = ballast::run_program({argv + 1, argv + argc});
  ballast::mpi_end(0);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const ballast::Error& error) {
    return complain(error.what());
  } catch (const std::bad_alloc&) {
    return complain(
        "memory: the system refused more of it; use a smaller model or a smaller batch");
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return complain(error.what());
    return complain(
        "threads: the system gives no more of them, or memory has no room for their stacks; allow "
        "more (ulimit -u, pids.max, --memory-limit)");
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}
