#include "sim/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace ballast {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "ballast: internal error: CHECK(%s) failed at %s:%d\n", condition, file,
               line);
  std::abort();
}

}  // namespace ballast
