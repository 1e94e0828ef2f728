#include "backend/checkpoint/element_runs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>

#include "sim/base/error.h"

namespace ballast {

namespace {

constexpr int64_t kMostElements = int64_t{1} << 62;

// The four numbers of `text`, which parts a colon each.
bool read_numbers(std::string_view text, std::array<int64_t, 4>& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const char* const end = text.data() + text.size();
    const auto [at, failure] = std::from_chars(text.data(), end, numbers[i]);
    if (failure != std::errc{} || numbers[i] < 0) return false;
    text.remove_prefix(static_cast<size_t>(at - text.data()));
    if (i + 1 == numbers.size()) return text.empty();
    if (!text.starts_with(':')) return false;
    text.remove_prefix(1);
  }
  return false;
}

// Runs that lie apart, and elements that a number of 62 bits counts.
bool are_runs(const ElementRuns& one) {
  if (one.run < 1 || one.runs < 1 || one.first > kMostElements || one.run > kMostElements) {
    return false;
  }
  if (one.runs == 1) return one.stride == 0;
  return one.stride >= one.run && one.stride <= kMostElements / one.runs;
}

}  // namespace

int64_t count_of(std::span<const ElementRuns> all) {
  int64_t count = 0;
  for (const ElementRuns& one : all) count += one.count();
  return count;
}

// Parts of the columns of one matrix meet where their columns do; none of these wraps into the next
// row, for a run is no longer than its stride.
bool may_meet(const ElementRuns& one, const ElementRuns& other) {
  if (one.end() <= other.first || other.end() <= one.first) return false;
  if (one.runs == 1 || other.runs == 1 || one.stride != other.stride) return true;
  const int64_t apart = (other.first - one.first) % one.stride;
  const int64_t after = apart < 0 ? apart + one.stride : apart;  // of `one`, in a row
  return after < one.run || after + other.run > one.stride;
}

bool may_meet(std::span<const ElementRuns> some, std::span<const ElementRuns> others) {
  return std::any_of(some.begin(), some.end(), [&](const ElementRuns& one) {
    return std::any_of(others.begin(), others.end(),
                       [&](const ElementRuns& other) { return may_meet(one, other); });
  });
}

std::string text_of(std::span<const ElementRuns> all) {
  std::string text;
  for (const ElementRuns& one : all) {
    text += fmt::format("{}{}:{}:{}:{}", text.empty() ? "" : ";", one.first, one.run, one.stride,
                        one.runs);
  }
  return text;
}

std::vector<ElementRuns> parse_runs(std::string_view text, const std::string& where) {
  std::vector<ElementRuns> all;
  const std::string whole(text);
  while (!text.empty()) {
    const size_t end = std::min(text.find(';'), text.size());
    std::array<int64_t, 4> numbers{};
    const bool read = read_numbers(text.substr(0, end), numbers);
    const ElementRuns one{numbers[0], numbers[1], numbers[2], numbers[3]};
    if (!read || !are_runs(one)) {
      throw Error(where, "'" + whole + "' does not say which elements it holds",
                  "give a checkpoint that this program wrote for this model");
    }
    all.push_back(one);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return all;
}

}  // namespace ballast
