#include "cli/verbs.h"
#include "sim/base/error.h"
namespace ballast {
int run_graph(Words) { throw Error("graph", "soon", "wait"); }
}  // namespace ballast
