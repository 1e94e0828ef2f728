#include "profiles/json_reader.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "profiles/json_depth.h"
#include "profiles/names/words.h"
#include "sim/base/error.h"
#include "sim/base/files.h"

namespace ballast {
namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMaxFileBytes = 4 << 20;
constexpr size_t kMaxQuoted = 80;

// nlohmann's messages begin with "[json.exception...] ", which means nothing to a user.
std::string plain(const std::exception& error) {
  const std::string_view message = error.what();
  const size_t end = message.find("] ");
  std::string text(end == std::string_view::npos ? message : message.substr(end + 2));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  if (text.size() > 3 * kMaxQuoted) text = text.substr(0, 3 * kMaxQuoted) + "...";
  return text;
}

std::string_view type_of(const Json& value) {
  if (value.is_number_integer()) return "a whole number";
  return value.is_number()    ? "a number"
         : value.is_string()  ? "a text"
         : value.is_boolean() ? "true or false"
         : value.is_object()  ? "an object"
         : value.is_array()   ? "a list"
                              : "null";
}

}  // namespace

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, kMaxQuoted)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte > 0x7e ? '?' : c;
  }
  if (text.size() > kMaxQuoted) out += "...";
  return out + "'";
}

void check_depth(std::string_view text, const std::string& source) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\' && in_text) {
      ++i;
    } else if (c == '"') {
      in_text = !in_text;
    } else if (!in_text && (c == '[' || c == '{')) {
      if (++depth <= kMaxDepth + 1) continue;
      throw Error(source, fmt::format("is nested deeper than {} levels", kMaxDepth),
                  "give a flat description");
    } else if (!in_text && (c == ']' || c == '}')) {
      --depth;
    }
  }
}

Json parse_json(std::string_view text, const std::string& source) {
  check_depth(text, source);
  std::vector<std::set<std::string>> open;  // keys seen in each object that is open
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      open.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!open.back().insert(key).second) {
        throw Error(source, fmt::format("has the key {} twice", in_quotes(key)),
                    "remove one of them");
      }
    }
    return true;
  };
  Json document;
  try {
    document = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    throw Error(source, "is not JSON: " + plain(error), "correct it at that place");
  }
  if (!document.is_object()) {
    throw Error(source, fmt::format("holds {} and not an object", type_of(document)),
                "put the keys between { and }");
  }
  return document;
}

std::string read_text_file(const std::string& path) {
  refuse_named_pipe(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(path, std::string("cannot be opened: ") + std::strerror(errno), "check the path");
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (!file.eof() && file.fail())) {
    throw Error(path, "cannot be read", "check that it is a file and not a folder");
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    throw Error(path, fmt::format("is larger than {} MiB", kMaxFileBytes >> 20),
                "give a JSON description, not weights or data");
  }
  return text;
}

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char letter) {
    const auto code = static_cast<unsigned char>(letter);
    const bool divides = letter == '\t' || letter == '\n' || letter == '\r';
    return (code < 0x20 && !divides) || code == 0x7f;
  });
}

std::string to_text(const OrderedJson& document) {
  return document.dump(1, ' ', false, OrderedJson::error_handler_t::replace);
}

JsonReader::JsonReader(const Json& value, std::string source, std::string path)
    : value_(&value), source_(std::move(source)), path_(std::move(path)) {
  if (!value.is_object()) {
    throw Error(path_.empty() ? source_ : fmt::format("{}: key {}", source_, in_quotes(path_)),
                fmt::format("must be an object, and is {}", type_of(value)),
                "put its keys between { and }");
  }
}

void JsonReader::fail(const std::string& key, const std::string& what,
                      const std::string& remedy) const {
  const std::string full = path_.empty() ? key : path_ + "." + key;
  throw Error(fmt::format("{}: key {}", source_, in_quotes(full)), what, remedy);
}

bool JsonReader::has(const std::string& key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

const Json& JsonReader::require(const std::string& key) {
  has(key);
  const auto found = value_->find(key);
  if (found != value_->end()) return *found;
  std::vector<std::string> unread;
  for (const std::string& present : keys()) {
    if (std::find(known_.begin(), known_.end(), present) == known_.end()) unread.push_back(present);
  }
  const std::string similar = nearest(key, unread);
  fail(key, "is missing",
       similar.empty() ? "add it" : fmt::format("add it, or rename {} to it", in_quotes(similar)));
}

const Json& JsonReader::raw(const std::string& key) { return require(key); }

std::string JsonReader::shown_text(const std::string& key, const Json& value) const {
  std::string text = value.get<std::string>();
  if (has_control_characters(text)) {
    fail(key, "holds a control character, which could draw on a terminal", "take it out");
  }
  return text;
}

std::string JsonReader::text(const std::string& key) {
  const Json& value = require(key);
  if (!value.is_string()) {
    fail(key, fmt::format("must be a text, and is {}", type_of(value)), "put it between quotes");
  }
  const std::string text = shown_text(key, value);
  // A file is always UTF-8 (the parser sees to it); a flag of the command line may not be.
  try {
    value.dump();
  } catch (const Json::exception&) {
    fail(key, "is not UTF-8 text", "use a name that is");
  }
  return text;
}

bool JsonReader::boolean(const std::string& key) {
  const Json& value = require(key);
  if (!value.is_boolean()) {
    fail(key, fmt::format("must be true or false, and is {}", type_of(value)), "write one of them");
  }
  return value.get<bool>();
}

int64_t JsonReader::whole(const std::string& key, WholeRange range) {
  const Json& value = require(key);
  if (!value.is_number_integer()) {
    fail(key, fmt::format("must be a whole number, and is {}", type_of(value)),
         "write it without quotes, point or exponent");
  }
  const bool too_large =
      value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_large ? INT64_MAX : value.get<int64_t>();
  if (number < range.least || number > range.most) {
    fail(key, fmt::format("is {}", value.dump()),
         fmt::format("give a whole number from {} to {}", range.least, range.most));
  }
  return number;
}

double JsonReader::checked(const std::string& key, const Json& value, NumberRange range) const {
  if (!value.is_number()) {
    fail(key, fmt::format("must be a number, and is {}", type_of(value)),
         "write it without quotes");
  }
  const double number = value.get<double>();
  const bool below = range.least_excluded ? number <= range.least : number < range.least;
  if (!std::isfinite(number) || below || number > range.most) {
    fail(key, fmt::format("is {}", value.dump()),
         fmt::format("give a number {} {:g} and at most {:g}",
                     range.least_excluded ? "above" : "of at least", range.least, range.most));
  }
  return number;
}

double JsonReader::number(const std::string& key, NumberRange range) {
  return checked(key, require(key), range);
}

std::vector<double> JsonReader::numbers(const std::string& key, NumberRange range) {
  const Json& value = require(key);
  if (!value.is_array() || value.empty()) {
    fail(key, "must be a list of numbers", "write it as [1, 2, 3]");
  }
  std::vector<double> list;
  for (const Json& element : value) list.push_back(checked(key, element, range));
  return list;
}

std::vector<std::string> JsonReader::texts(const std::string& key) {
  const Json& list = require(key);
  if (!list.is_array()) fail(key, "must be a list of texts", "write it as [\"one\"]");
  std::vector<std::string> found;
  for (const Json& one : list) {
    if (!one.is_string()) fail(key, "must hold texts only", "put each between quotes");
    found.push_back(shown_text(key, one));
  }
  return found;
}

JsonReader JsonReader::object(const std::string& key) {
  return JsonReader(require(key), source_, path_.empty() ? key : path_ + "." + key);
}

std::vector<JsonReader> JsonReader::objects(const std::string& key) {
  const Json& list = require(key);
  if (!list.is_array()) fail(key, "must be a list of objects", "put them between [ ]");
  std::vector<JsonReader> readers;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object()) fail(key, "must hold objects", "put keys between { }");
    const std::string place = key + "[" + std::to_string(i) + "]";
    readers.emplace_back(list[i], source_, path_.empty() ? place : path_ + "." + place);
  }
  return readers;
}

size_t JsonReader::choice(const std::string& key, const std::vector<std::string>& names) {
  const std::string chosen = text(key);
  const auto found = std::find(names.begin(), names.end(), chosen);
  if (found == names.end()) {
    fail(key, fmt::format("is {}", in_quotes(chosen)), suggestion(chosen, names));
  }
  return static_cast<size_t>(found - names.begin());
}

std::vector<std::string> JsonReader::keys() const {
  std::vector<std::string> all;
  for (const auto& item : value_->items()) all.push_back(item.key());
  return all;
}

void JsonReader::finish() const {
  for (const std::string& key : keys()) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      fail(key, "is unknown", suggestion(key, known_));
    }
  }
}

}  // namespace ballast
