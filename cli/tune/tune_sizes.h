// `tune` for the longest sequence or the largest model: the search decides what fits, and how the
// size that does is run fastest.
//
// Will not do: vary devices or batches (cli/tune/tune_objectives.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/flags/tune_flags.h"
#include "cli/text/prediction.h"
#include "cli/tune/search_cache.h"

namespace ballast {

// What --objective longest-sequence and largest-model find.
struct TunedSize {
  Setting setting;  // of the size that fits, its plan the fastest
  LargestSize found;
  double value = 0;       // tokens, or parameters
  double next_value = 0;  // 0: all that are allowed fit
  std::string grain;      // in which steps sizes were tried
};
TunedSize tune_size(TuneFlags& flags, SearchCache& cache);
OrderedJson size_json(const TuneFlags& flags, const TunedSize& size);
std::string size_text(const TuneFlags& flags, const TunedSize& size);

}  // namespace ballast
