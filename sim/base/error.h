// The three kinds of failure (style rule 5) and the two of them that are types.
//
//  * An infeasible plan is a value: a result record with `fits == false` and a reason.
//  * A failed environment or bad input throws Error: what was attempted, on what, what to do.
//    It is caught once, in main, printed as one line, and the program exits with 2.
//  * A bug fails CHECK, in release builds too: it prints the place and aborts.
#pragma once

#include <stdexcept>
#include <string>

namespace ballast {

// Bad input or a failed environment. `what()` is one line: "WHERE: WHAT; TO DO".
class Error : public std::runtime_error {
 public:
  // where: a file and key, a flag, a device. what: what is wrong with it. remedy: what to do.
  Error(const std::string& where, const std::string& what, const std::string& remedy)
      : std::runtime_error(where + ": " + what + "; " + remedy) {}
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace ballast

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) ::ballast::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
