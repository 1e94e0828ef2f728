#include "cli/verbs.h"
#include "sim/base/error.h"
namespace ballast {
int run_report(Words) { throw Error("report", "soon", "wait"); }
}  // namespace ballast
