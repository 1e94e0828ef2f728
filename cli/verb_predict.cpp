#include "cli/verbs.h"
#include "sim/base/error.h"
namespace ballast {
int run_predict(Words) { throw Error("predict", "soon", "wait"); }
}  // namespace ballast
