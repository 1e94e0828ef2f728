// How deep JSON may be nested that comes from outside: the one limit, for every verb and file.
#pragma once

#include <string>
#include <string_view>

namespace ballast {

// Throws Error where brackets are nested deeper than any format of ours. What copies or prints a
// document goes down into it call by call, so deeper ones would end the program. Of text that is no
// JSON nothing is said. `source` names the file in messages.
void check_depth(std::string_view text, const std::string& source);

}  // namespace ballast
