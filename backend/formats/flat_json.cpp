#include "backend/formats/flat_json.h"

#include <cctype>
#include <limits>

namespace ballast {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&out](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

// Length of the UTF-8 sequence that `lead` starts, 0 if it cannot start one.
int sequence_length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const auto byte = [&](size_t k) { return static_cast<uint8_t>(bytes[i + k]); };
    const int length = sequence_length(byte(0));
    if (length == 0 || bytes.size() - i < static_cast<size_t>(length)) return false;
    for (int k = 1; k < length; ++k) {
      if ((byte(static_cast<size_t>(k)) & 0xC0) != 0x80) return false;
    }
    // The second byte decides between a valid value and an overlong, surrogate or too large one.
    if (byte(0) == 0xE0 && byte(1) < 0xA0) return false;
    if (byte(0) == 0xED && byte(1) > 0x9F) return false;
    if (byte(0) == 0xF0 && byte(1) < 0x90) return false;
    if (byte(0) == 0xF4 && byte(1) > 0x8F) return false;
    i += static_cast<size_t>(length);
  }
  return true;
}

std::string json_quoted(std::string_view text) {
  CHECK(is_utf8(text));
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20) {
      out += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

void JsonCursor::fail(const std::string& what) const {
  throw Error(where_, "header is not valid: " + what + " at header byte " + std::to_string(at_),
              "the file is damaged or of another format; write or download it again");
}

void JsonCursor::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

bool JsonCursor::accept(char wanted) {
  skip_space();
  if (at_ >= text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

void JsonCursor::expect(char wanted) {
  if (!accept(wanted)) fail(std::string("'") + wanted + "' expected");
}

char JsonCursor::take() {
  if (at_ >= text_.size()) fail("it ends inside a string");
  return text_[at_++];
}

uint32_t JsonCursor::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = take();
    uint32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a') + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint32_t>(c - 'A') + 10;
    } else {
      fail("four hexadecimal digits expected");
    }
    value = value * 16 + digit;
  }
  return value;
}

void JsonCursor::append_escape(std::string& out) {
  const char c = take();
  switch (c) {
    case '"':
    case '\\':
    case '/':
      out.push_back(c);
      return;
    case 'b':
      out.push_back('\b');
      return;
    case 'f':
      out.push_back('\f');
      return;
    case 'n':
      out.push_back('\n');
      return;
    case 'r':
      out.push_back('\r');
      return;
    case 't':
      out.push_back('\t');
      return;
    case 'u':
      break;
    default:
      fail("unknown escape in a string");
  }
  uint32_t code = hex4();
  if (code >= 0xDC00 && code <= 0xDFFF) fail("low surrogate without a high one");
  if (code >= 0xD800 && code <= 0xDBFF) {
    if (take() != '\\' || take() != 'u') fail("high surrogate without a low one");
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail("high surrogate without a low one");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code);
}

std::string JsonCursor::string() {
  expect('"');
  std::string out;
  while (true) {
    const char c = take();
    if (c == '"') break;
    if (static_cast<uint8_t>(c) < 0x20) fail("control character in a string");
    if (c == '\\') {
      append_escape(out);
    } else {
      out.push_back(c);
    }
  }
  if (!is_utf8(out)) fail("string that is not UTF-8 ends");
  return out;
}

int64_t JsonCursor::whole_number() {
  skip_space();
  const auto digit_follows = [this] {
    return at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9';
  };
  if (!digit_follows()) fail("whole number expected");
  const bool leading_zero = text_[at_] == '0';
  int64_t value = 0;
  const size_t begin = at_;
  while (digit_follows()) {
    const int64_t digit = text_[at_] - '0';
    if (value > (std::numeric_limits<int64_t>::max() - digit) / 10) fail("number is too large");
    value = value * 10 + digit;
    ++at_;
  }
  if (leading_zero && at_ - begin > 1) fail("number with a leading zero ends");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E')) {
    fail("whole number expected, fraction or exponent found");
  }
  return value;
}

void JsonCursor::skip_nested(int depth) {
  if (depth > kMostNested) fail("it is nested too deep");
  skip_space();
  const char next = at_ < text_.size() ? text_[at_] : '\0';
  if (next == '{') return object([&](const std::string&) { skip_nested(depth + 1); });
  if (next == '[') return array([&] { skip_nested(depth + 1); });
  if (next == '"') return static_cast<void>(string());
  const size_t begin = at_;
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
  };
  while (at_ < text_.size() && is_part(text_[at_])) ++at_;
  if (at_ == begin) fail("a value expected");
}

void JsonCursor::end() {
  skip_space();
  if (at_ != text_.size()) fail("more text after the end");
}

}  // namespace ballast
