// Which elements of a parameter something has, where that is not all of them: a rank's part of what
// ranks split, as it stands in a checkpoint's shard.
//
// Will not do: know of ranks (rank_parts), or read and write values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

// Elements first + i * stride + j (i < runs, j < run), in this order: of a matrix that is split by
// columns a rank has so many runs, of others mostly one.
struct ElementRuns {
  int64_t first = 0;
  int64_t run = 0;     // elements side by side
  int64_t stride = 0;  // from the start of a run to that of the next; 0 of one alone
  int64_t runs = 1;
  int64_t count() const { return run * runs; }
  int64_t end() const { return first + (runs - 1) * stride + run; }
  bool operator==(const ElementRuns&) const = default;
};

int64_t count_of(std::span<const ElementRuns> all);

// False only where they have no element in common.
bool may_meet(const ElementRuns& one, const ElementRuns& other);
bool may_meet(std::span<const ElementRuns> some, std::span<const ElementRuns> others);

// "0:4096:0:1;8192:64:256:12", and back. Throws Error, which names `where`, for what is no such
// text, or elements beyond 2^62.
std::string text_of(std::span<const ElementRuns> all);
std::vector<ElementRuns> parse_runs(std::string_view text, const std::string& where);

}  // namespace ballast
