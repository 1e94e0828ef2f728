#include "cli/verbs.h"
#include "sim/base/error.h"
namespace ballast {
int run_tune(Words) { throw Error("tune", "soon", "wait"); }
}  // namespace ballast
