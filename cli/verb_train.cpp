#include "cli/verbs.h"
#include "sim/base/error.h"
namespace ballast {
int run_train(Words) { throw Error("train", "soon", "wait"); }
}  // namespace ballast
