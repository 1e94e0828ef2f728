// JSON text in, checked values out: every error names the file, the key's path and a remedy.
//
// Only sources of this folder include this header.
// Will not do: know any format of ours (machine.cpp, model.cpp, plan.cpp, strategy.cpp do).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

using Json = nlohmann::json;                 // what is read
using OrderedJson = nlohmann::ordered_json;  // what is written: keys in the order of our structs

// Inclusive.
struct WholeRange {
  int64_t least = 0;
  int64_t most = 0;
};
struct NumberRange {
  double least = 0;
  double most = 0;
  // The least is refused too ("above 0").
  bool least_excluded = false;
};

// The document, which must be one JSON object. Throws Error on broken text, a key given twice, or
// nesting deeper than any format of ours. `source` names the file in messages.
Json parse_json(std::string_view text, const std::string& source);

// The text of a file. Throws Error if it cannot be read or is larger than a description can be.
std::string read_text_file(const std::string& path);

// The document as text, indented by one. Bytes that are not UTF-8 (in a file's name) become U+FFFD.
std::string to_text(const OrderedJson& document);

// `text` between quotes, on one line, shortened: safe in a message whatever it holds.
std::string in_quotes(std::string_view text);

// Other than those between words and lines (tab, line feed, carriage return): what reaches a
// terminal with one could move its cursor.
bool has_control_characters(std::string_view text);

// Reads one JSON object key by key, and remembers which keys were asked for, so that the keys its
// format knows are exactly those its loader reads. Holds references: the document must outlive it.
class JsonReader {
 public:
  // path: dotted key path of `value` in its file, empty for the document itself.
  JsonReader(const Json& value, std::string source, std::string path);

  // Present and not null. Marks the key as known.
  bool has(const std::string& key);

  // Each throws Error if the key is missing, of another type, or out of range.
  std::string text(const std::string& key);
  bool boolean(const std::string& key);
  int64_t whole(const std::string& key, WholeRange range);
  double number(const std::string& key, NumberRange range);
  std::vector<double> numbers(const std::string& key, NumberRange range);
  std::vector<std::string> texts(const std::string& key);  // of a list, which may be empty
  JsonReader object(const std::string& key);
  // Of a list of objects, one reader each, whose path names its place.
  std::vector<JsonReader> objects(const std::string& key);
  // The value itself, for keys of more than one type. Throws if missing.
  const Json& raw(const std::string& key);

  // The index of a text in `names`.
  size_t choice(const std::string& key, const std::vector<std::string>& names);

  // Keys of the object, known or not.
  std::vector<std::string> keys() const;

  // Throws Error for the first key that nobody asked for. Strict formats call it last.
  void finish() const;

  [[noreturn]] void fail(const std::string& key, const std::string& what,
                         const std::string& remedy) const;

 private:
  const Json& require(const std::string& key);
  double checked(const std::string& key, const Json& value, NumberRange range) const;
  // Throws Error where it holds what could draw on a terminal. `value` is a text.
  std::string shown_text(const std::string& key, const Json& value) const;

  const Json* value_;
  std::string source_;
  std::string path_;
  std::vector<std::string> known_;
};

}  // namespace ballast
