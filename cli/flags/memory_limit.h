// What this process may take of the machine's memory: out of it a verb ends in one line with exit
// code 2, and the system need not choose whom to kill.
//
// The limit is of private memory that may be written, stacks of threads among it (RLIMIT_DATA).
// Will not do: say what of it is used by whom (sim/graph/report/memory.h plans that of a training).
#pragma once

#include <optional>
#include <string>

#include "sim/base/units.h"

namespace ballast {

// From here on an allocation that fails says so and ends the process at once, on whatever thread:
// what unwinds needs memory too, and allocators written in C abort where nobody handles it.
void end_where_memory_ends();
// Says so and ends.
[[noreturn]] void end_without_memory();

// "4GB", "512MB", "2GiB"; nothing of any other text.
std::optional<Bytes> size_meant(const std::string& text);

// "4GB", "512MB", "2GiB", "50%" of what the container or the machine has. Throws Error.
Bytes memory_limit_of(const std::string& text);

// Takes the place of an earlier one, never of a lower one that the system set (ulimit -d).
// `said_by`: for the line that ends the process.
void limit_memory(Bytes most, const std::string& said_by);
// The share of the container's memory, or the machine's, that verbs which do not train may take.
void limit_memory_by_default();

}  // namespace ballast
