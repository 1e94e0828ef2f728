// What is told beside the result: progress, notes and errors.
#pragma once

#include <cstdio>
#include <fmt/format.h>
#include <string>
#include <utility>

namespace ballast {

// Prints to standard error. Where that cannot be written (a closed terminal, a full disk, a pipe
// that nobody reads) the text is lost and the work goes on: fmt::print would throw, in the middle
// of a training or of the report of another error.
template <class... Values>
void print_to_stderr(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace ballast
