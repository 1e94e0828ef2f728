// A cursor over the small JSON that file headers are made of: objects, arrays, strings and whole
// numbers, in a text that may be damaged or hostile.
//
// Will not do: build a tree, accept comments, read fractions and literals (true, null), which it
// only skips, or look past the end of its text. The caller says what comes next, so depth is
// bounded by the caller's code and anything else is an Error that names the byte. Configurations
// are read elsewhere (profiles/load).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/base/error.h"

namespace ballast {

class JsonCursor {
 public:
  // text outlives the cursor. where: the file, for errors.
  JsonCursor(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  // Reads an object; calls on_member(key) after each colon, which must consume the value.
  template <typename OnMember>
  void object(OnMember&& on_member) {
    expect('{');
    if (accept('}')) return;
    do {
      const std::string key = string();
      expect(':');
      on_member(key);
    } while (accept(','));
    expect('}');
  }

  // Reads an array; calls on_element() before each element, which must consume it.
  template <typename OnElement>
  void array(OnElement&& on_element) {
    expect('[');
    if (accept(']')) return;
    do {
      on_element();
    } while (accept(','));
    expect(']');
  }

  // A string, unescaped, which must be UTF-8.
  std::string string();

  // A whole number from 0 to 2^63-1, without leading zeros.
  int64_t whole_number();

  // Passes over any value: what an index of weights says beside its map. Of what is not a string,
  // an object or an array only the end is looked for. Nested at most kMostNested deep.
  void skip() { skip_nested(0); }

  // Requires that nothing but white space is left.
  void end();

  [[noreturn]] void fail(const std::string& what) const;

 private:
  static constexpr int kMostNested = 32;
  void skip_nested(int depth);
  void skip_space();
  bool accept(char wanted);
  void expect(char wanted);
  char take();
  uint32_t hex4();
  void append_escape(std::string& out);

  std::string_view text_;
  std::string where_;
  size_t at_ = 0;
};

// Whether the bytes are UTF-8 without overlong forms, surrogates or values above U+10FFFF.
bool is_utf8(std::string_view bytes);

// text in quotes with what JSON demands escaped. Requires is_utf8(text).
std::string json_quoted(std::string_view text);

}  // namespace ballast
