// How many random settings a test tries.
#pragma once

#include <cstdlib>

namespace ballast::tests {

// What the environment's BALLAST_SETTINGS asks for, or what a test tries by itself.
inline int settings_or(int otherwise) {
  const char* const asked = std::getenv("BALLAST_SETTINGS");
  return asked == nullptr ? otherwise : std::atoi(asked);
}

}  // namespace ballast::tests
