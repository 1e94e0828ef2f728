#include "profiles/names/words.h"

#include <algorithm>
#include <cctype>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <numeric>
#include <set>

namespace ballast {
namespace {

constexpr size_t kMaxCompared = 64;  // longer words are never a slip of the finger
constexpr size_t kMostSuggested = 6;
constexpr size_t kLeastPart = 2;  // a single letter is a part of anything

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

bool is_of_a_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Letters and digits between what divides words, in small letters.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : lower_case(text)) {
    if (is_of_a_word(c) && !inside) words.emplace_back();
    inside = is_of_a_word(c);
    if (inside) words.back() += c;
  }
  return words;
}

std::string joined(const std::vector<std::string>& words, size_t first) {
  std::string text;
  for (size_t i = first; i < words.size(); ++i) text += words[i];
  return text;
}

// Whether `word` is found from where one of `words` begins, over their ends too.
bool begins_in(const std::string& word, const std::vector<std::string>& words) {
  for (size_t first = 0; first < words.size(); ++first) {
    if (joined(words, first).starts_with(word)) return true;
  }
  return false;
}

// Those that share most of the words of `word`; empty where none shares any.
std::vector<std::string> sharing(std::string_view word,
                                 const std::vector<std::string>& candidates) {
  const std::vector<std::string> asked = words_of(word);
  size_t most = 1;
  std::vector<std::string> best;
  for (const std::string& candidate : candidates) {
    const std::vector<std::string> words = words_of(candidate);
    const std::set<std::string> has(words.begin(), words.end());
    const auto shared =
        static_cast<size_t>(std::count_if(asked.begin(), asked.end(), [&](const std::string& one) {
          return one.size() >= kLeastPart && has.contains(one);
        }));
    if (shared > most) best.clear();
    if (shared < most) continue;
    most = shared;
    best.push_back(candidate);
  }
  return best;
}

std::string question(const std::vector<std::string>& names) {
  std::string text;
  const size_t shown = std::min(names.size(), kMostSuggested);
  for (size_t i = 0; i < shown; ++i) {
    const bool last = i + 1 == names.size();
    text += (i == 0 ? "" : last ? " or " : ", ") + fmt::format("'{}'", names[i]);
  }
  const size_t others = names.size() - shown;
  return "did you mean " + text + (others > 0 ? fmt::format(" or {} more", others) : "") + "?";
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string small(text);
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return small;
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > kMaxCompared) return {};
  std::string best;
  // A suggestion that shares less than half of the word would only mislead.
  size_t least = std::max<size_t>(1, word.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> containing(std::string_view word,
                                    const std::vector<std::string>& candidates) {
  const std::vector<std::string> asked = words_of(word);
  std::vector<std::string> found;
  if (joined(asked, 0).size() < kLeastPart) return found;
  for (const std::string& candidate : candidates) {
    const std::vector<std::string> words = words_of(candidate);
    const bool all = std::all_of(asked.begin(), asked.end(),
                                 [&](const std::string& one) { return begins_in(one, words); });
    if (all) found.push_back(candidate);
  }
  return found;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string best = nearest(word, candidates);
  std::vector<std::string> parts = containing(word, candidates);
  // One letter is a slip of the finger, and goes before what the word is a part of.
  if (!parts.empty() && !best.empty() && edit_distance(word, best) <= 1) {
    std::erase(parts, best);
    parts.insert(parts.begin(), best);
  }
  if (!parts.empty()) return question(parts);
  if (!best.empty()) return question({best});
  const std::vector<std::string> related = sharing(word, candidates);
  if (!related.empty()) return question(related);
  if (candidates.empty()) return "none is known";
  return fmt::format("known are {}", fmt::join(candidates, ", "));
}

}  // namespace ballast
