#include "cli/main/outcome.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <fmt/format.h>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "backend/comm/launch.h"
#include "backend/comm/mpi_ranks.h"
#include "cli/terminal/standard_error.h"
#include "cli/verbs/verbs.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// One line without control characters, so that a file name cannot draw on a terminal. Of several
// ranks the first one speaks for all where all fail alike; any other waits for that, and then says
// who it is, and all end.
int complain(const char* what) {
  std::fflush(stdout);
  const int rank = rank_of_this().rank;
  if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(5));
  const std::string who = rank > 0 ? fmt::format("rank {}: ", rank) : "";
  print_to_stderr("ballast: {}{}\n", who, one_line(what));
  std::fflush(stderr);
  mpi_end(kBadInput);
  return kBadInput;
}

// A stream that the caller closed would be the number of the next file that is opened, and what is
// told there would be written into that: it is one that takes nothing instead.
void hold_closed_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const bool is_closed = ::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF;
    // The lowest number that is free.
    if (is_closed && ::open("/dev/null", O_RDONLY) != descriptor) return;
  }
}

int run(int argc, char** argv) {
  // One of several ranks prints.
  const bool silent = rank_of_this().rank > 0;
  if (silent && std::freopen("/dev/null", "w", stdout) == nullptr) {
    throw Error("/dev/null", "it cannot be opened", "see that it is there");
  }
  const int code = run_program({argv + 1, argv + argc});
  mpi_end(0);
  return code;
}

}  // namespace

int outcome_of(int argc, char** argv) {
  hold_closed_streams();
  try {
    return run(argc, argv);
  } catch (const Error& error) {
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

}  // namespace ballast
