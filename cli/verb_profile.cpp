#include "cli/verbs.h"
#include "sim/base/error.h"
namespace ballast {
int run_profile(Words) { throw Error("profile", "soon", "wait"); }
}  // namespace ballast
