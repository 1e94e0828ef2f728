// A call of the system that failed, by its own name: a full disk, a used-up quota, a disk that
// fails, one mounted for reading, and a missing permission are not the same, nor is what helps.
//
// Will not do: SQLite's faults (profiles/store_sqlite.h).
#pragma once

#include <string>

namespace ballast {

// code: of errno. "No space left on device".
std::string fault_name(int code);
// What to do about it, as the third part of an Error.
std::string fault_remedy(int code);

}  // namespace ballast
