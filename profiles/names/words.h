// Words as people write them: which of those that are known is meant, and which are near. What an
// unknown name of a machine, model, strategy or stack, or an unknown key, is answered with.
//
// Will not do: know what is shipped (profiles/shipped.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ballast {

// Capitals become small letters.
std::string lower_case(std::string_view text);

// The candidate with the least edit distance to `word`; empty where none is near enough to help.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The candidates that hold every word of `word`, each from where one of their own words begins,
// whatever divides words ('-', '_', '.', a space) and whether letters are capitals. "rtx4090" and
// "4090" are parts of "rtx-4090-pcie", "h200" is none of "alps-gh200-quad". In the order of the
// candidates.
std::vector<std::string> containing(std::string_view word,
                                    const std::vector<std::string>& candidates);

// "did you mean 'x' or 'y'?": those that hold the word, behind one from which a single letter
// differs; else the nearest; else those that share most of its words; else "known are a, b, c".
std::string suggestion(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace ballast
