// The program: runs one verb and turns whatever goes wrong into one line and an exit code.
#include <cstdio>
#include <exception>
#include <fmt/format.h>
#include <new>

#include "cli/verbs/verbs.h"
#include "sim/base/error.h"

namespace {

// One line without control characters, so that a file name cannot draw on a terminal.
int complain(const char* what) {
  std::fflush(stdout);
  fmt::print(stderr, "ballast: {}\n", ballast::one_line(what));
  return ballast::kBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return ballast::run_program({argv + 1, argv + argc});
  } catch (const ballast::Error& error) {
    return complain(error.what());
  } catch (const std::bad_alloc&) {
    return complain(
        "memory: the system refused more of it; use a smaller model or a smaller batch");
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}
