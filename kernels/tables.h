// The tables that this build contains, for dispatch.cpp and nobody else.
//
// Says nothing of whether the machine can run them: dispatch.cpp asks the machine.
#pragma once

#include "kernels/kernels.h"

namespace ballast::kernels {

extern const Table kReferenceTable;
extern const Table kAvx2Table;    // x86-64 builds only
extern const Table kAvx512Table;  // x86-64 builds only
extern const Table kSveTable;     // aarch64 builds only

}  // namespace ballast::kernels
