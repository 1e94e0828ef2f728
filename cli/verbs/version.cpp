// Apart, because the commit changes with every build and nothing else needs to follow it.
#include <commit.h>  // made by scripts/commit.cmake

#include "cli/flags/arguments.h"

namespace ballast {

std::string program_version() { return BALLAST_VERSION; }
std::string program_commit() { return BALLAST_COMMIT; }

}  // namespace ballast
