// The weight files: round trip, and every way in which a file can be damaged is an Error that says
// where.
#include "backend/formats/safetensors.h"

#include <cstring>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "backend/formats/flat_json.h"
#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

std::string length_prefix(uint64_t length) {
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  return prefix;
}

std::string file_with(const std::string& json, size_t data_bytes) {
  return length_prefix(json.size()) + json + std::string(data_bytes, 'x');
}

// The error of parsing a header before data_bytes bytes of data; empty if it is good.
std::string parse_error(const std::string& json, int64_t data_bytes) {
  return error_of([&] {
    parse_safetensors(json, 8 + static_cast<int64_t>(json.size()) + data_bytes, "w.safetensors");
  });
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(safetensors, what_is_written_is_read_back) {
  const TemporaryFolder folder;
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> half = {7, 8};
  const std::vector<TensorDeclaration> tensors = {
      {"h.0.weight", StoredType::kF32, {2, 3}},
      {"nothing", StoredType::kF32, {0, 5}},
      {"half", StoredType::kBf16, {2}},
      {"scalar", StoredType::kU8, {}},
  };
  const StoredMetadata metadata = {{"format", "pt"}, {"note", "a \"quoted\" \\ line\n\xC3\xA9"}};
  SafetensorsWriter writer(folder / "w.safetensors", tensors, metadata);
  EXPECT_EQ(writer.bytes_left(), 6 * 4 + 2 * 2 + 1);
  writer.write(std::as_bytes(std::span(weight)).first(10));  // calls need not end with a tensor
  writer.write(std::as_bytes(std::span(weight)).subspan(10));
  writer.write(std::as_bytes(std::span(half)));
  const std::byte scalar{9};
  writer.write({&scalar, 1});
  EXPECT_FALSE(std::filesystem::exists(folder / "w.safetensors"));
  writer.commit();

  SafetensorsReader opened(folder / "w.safetensors");
  const SafetensorsReader reader = std::move(opened);
  EXPECT_EQ(reader.metadata(), metadata);
  ASSERT_EQ(reader.tensors().size(), 4u);
  const StoredTensor& first = reader.at("h.0.weight");
  EXPECT_EQ(first.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(first.begin % 64, 0);
  EXPECT_EQ(first.elements(), 6);
  std::vector<float> back(6);
  reader.read(first, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, weight);
  std::vector<float> tail(2);  // elements 4 and 5 of the row-major six
  reader.read(first, 16, std::as_writable_bytes(std::span(tail)));
  EXPECT_EQ(tail, (std::vector<float>{5, 6}));
  EXPECT_EQ(reader.at("half").type, StoredType::kBf16);
  EXPECT_EQ(reader.at("nothing").bytes, 0);
  EXPECT_EQ(reader.at("scalar").elements(), 1);
  EXPECT_EQ(reader.find("missing"), nullptr);
  EXPECT_TRUE(mentions(error_of([&] { reader.at("missing"); }), "w.safetensors:missing: no such"));
}

TEST(safetensors, a_writer_without_commit_leaves_the_old_file) {
  const TemporaryFolder folder;
  const std::string path = folder.write("w.safetensors", "old");
  {
    const std::vector<TensorDeclaration> tensors = {{"a", StoredType::kU8, {1}}};
    SafetensorsWriter writer(path, tensors, {});
    const std::byte one{1};
    writer.write({&one, 1});
  }
  std::ifstream in(path);
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(content, "old");
  const std::filesystem::directory_iterator entries(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST(safetensors, a_full_disk_is_an_error_that_names_the_file) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full on this system";
  const std::vector<TensorDeclaration> tensors = {{"a", StoredType::kU8, {4}}};
  EXPECT_TRUE(mentions(error_of([&] { SafetensorsWriter("/dev/full", tensors, {}).commit(); }),
                       "/dev/full"));
}

TEST(safetensors, type_names_and_sizes_agree_with_the_trainer) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBf16, DType::kF16, DType::kI32}) {
    EXPECT_EQ(size_of(stored_type(dtype)), size_of(dtype));
    EXPECT_EQ(dtype_of(stored_type(dtype)), dtype);
  }
  EXPECT_EQ(dtype_of(StoredType::kU16), std::nullopt);
  EXPECT_EQ(to_string(StoredType::kBf16), "BF16");
}

TEST(safetensors, a_good_header_in_any_order_and_alignment_is_accepted) {
  // c stands first in the text and last in the data; b starts at byte 3 of the data, as the headers
  // of some published weights are not padded either.
  const std::string json = "{" + entry("c", "F16", "[1]", "[7,9]") + " , " +
                           entry("a", "U8", "[3]", "[0,3]") + "," +
                           entry("b", "F32", "[1]", "[3,7]") + "}  ";
  EXPECT_EQ(parse_error(json, 9), "");
  const auto bytes = static_cast<int64_t>(json.size());
  const SafetensorsHeader header = parse_safetensors(json, 8 + bytes + 9, "w");
  EXPECT_EQ(header.data_begin, 8 + bytes);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[2].name, "c");
  EXPECT_EQ(header.tensors[1].begin, 8 + bytes + 3);
}

TEST(safetensors, a_file_cut_short_anywhere_is_an_error) {
  const TemporaryFolder folder;
  const std::string whole = file_with("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 8);
  EXPECT_NO_THROW(SafetensorsReader(folder.write("whole", whole)));
  for (size_t kept = 0; kept < whole.size(); ++kept) {
    const std::string path = folder.write("cut", whole.substr(0, kept));
    EXPECT_THROW(SafetensorsReader{path}, Error) << "cut after byte " << kept;
  }
}

TEST(safetensors, a_file_cut_short_after_it_was_opened_is_an_error) {
  const TemporaryFolder folder;
  const std::string whole = file_with("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 8);
  const std::string path = folder.write("w", whole);
  const SafetensorsReader reader(path);
  std::filesystem::resize_file(path, whole.size() - 1);
  std::array<std::byte, 8> out = {};
  EXPECT_TRUE(mentions(error_of([&] { reader.read(reader.at("a"), out); }), "w:a: the file ends"));
}

TEST(safetensors, impossible_header_lengths_are_errors) {
  const TemporaryFolder folder;
  const auto opened = [&](const std::string& content) {
    return error_of([&] { SafetensorsReader(folder.write("w", content)); });
  };
  EXPECT_TRUE(mentions(opened(""), "too short"));
  EXPECT_TRUE(mentions(opened(length_prefix(3) + "{}"), "header of 3 bytes in a file of 10"));
  EXPECT_TRUE(mentions(opened(length_prefix(~uint64_t{0}) + "{}"), "not a safetensors file"));
  EXPECT_TRUE(mentions(opened(length_prefix(uint64_t{1} << 63) + "{}"), "not a safetensors file"));
  EXPECT_TRUE(mentions(opened(length_prefix(100'000'001) + "{}"), "not a safetensors file"));
  EXPECT_TRUE(mentions(opened(length_prefix(0)), "'{' expected"));
  EXPECT_EQ(opened(length_prefix(2) + "{}"), "");
}

TEST(safetensors, what_is_no_regular_file_is_an_error) {
  const TemporaryFolder folder;
  EXPECT_TRUE(mentions(error_of([&] { SafetensorsReader(folder / "none"); }), "cannot be opened"));
  EXPECT_TRUE(
      mentions(error_of([&] { SafetensorsReader reader(folder.path()); }), "not a regular file"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(
      mentions(error_of([&] { SafetensorsReader(folder / "pipe"); }), "not a regular file"));
}

TEST(safetensors, offsets_must_tile_the_data) {
  const auto pair = [](const std::string& a, const std::string& b) {
    return "{" + entry("a", "U8", "[4]", a) + "," + entry("b", "U8", "[4]", b) + "}";
  };
  EXPECT_EQ(parse_error(pair("[0,4]", "[4,8]"), 8), "");
  EXPECT_TRUE(mentions(parse_error(pair("[0,4]", "[3,7]"), 8), "b: data begins at byte 3"));
  EXPECT_TRUE(mentions(parse_error(pair("[0,4]", "[0,4]"), 8), "inside the tensor before it"));
  EXPECT_TRUE(mentions(parse_error(pair("[0,4]", "[5,9]"), 9), "after a gap that starts at 4"));
  EXPECT_TRUE(mentions(parse_error(pair("[1,5]", "[5,9]"), 9), "a: data begins at byte 1"));
  EXPECT_TRUE(mentions(parse_error(pair("[0,4]", "[4,8]"), 7), "of which the file holds 7"));
  EXPECT_TRUE(mentions(parse_error(pair("[0,4]", "[4,8]"), 9), "1 bytes after the last tensor"));
  EXPECT_TRUE(mentions(parse_error("{}", 1), "1 bytes after"));
}

TEST(safetensors, sizes_must_agree_with_shape_and_type) {
  const auto one = [](const std::string& type, const std::string& shape, const std::string& span) {
    return parse_error("{" + entry("a", type, shape, span) + "}", 8);
  };
  EXPECT_EQ(one("F32", "[2]", "[0,8]"), "");
  EXPECT_EQ(one("F64", "[]", "[0,8]"), "");
  EXPECT_TRUE(mentions(one("F32", "[1]", "[0,8]"), "span 8 bytes, shape and dtype need 4"));
  EXPECT_TRUE(mentions(one("F32", "[3]", "[0,8]"), "need 12"));
  EXPECT_TRUE(mentions(one("F128", "[2]", "[0,8]"), "w.safetensors:a: unknown dtype \"F128\""));
  EXPECT_TRUE(mentions(one("F32", "[2]", "[8,0]"), "not a pair"));
  EXPECT_TRUE(mentions(one("F32", "[2]", "[0]"), "not a pair"));
  EXPECT_TRUE(mentions(one("F32", "[2]", "[0,4,8]"), "not a pair"));
  // 2^62 elements of 4 bytes would wrap to 0 in 64 bits.
  EXPECT_TRUE(mentions(one("F32", "[4611686018427387904]", "[0,0]"), "need 2^63"));
  EXPECT_TRUE(mentions(one("F32", "[4294967296,4294967296]", "[0,0]"), "need 2^63"));
  EXPECT_TRUE(mentions(one("F32", "[4294967296,4294967296,0]", "[0,8]"), "need 0"));
  EXPECT_TRUE(mentions(one("F32", "[9223372036854775808]", "[0,8]"), "too large"));
  EXPECT_TRUE(mentions(one("F32", "[-2]", "[0,8]"), "whole number expected"));
  EXPECT_TRUE(mentions(one("F32", "[2.0]", "[0,8]"), "fraction"));
  EXPECT_TRUE(mentions(one("F32", "[2e0]", "[0,8]"), "fraction"));
  EXPECT_TRUE(mentions(one("F32", "[02]", "[0,8]"), "leading zero"));
}

TEST(safetensors, doubled_missing_and_unknown_names_are_errors) {
  const std::string a = entry("a", "U8", "[0]", "[0,0]");
  EXPECT_TRUE(mentions(parse_error("{" + a + "," + a + "}", 0), "w.safetensors:a: stands twice"));
  EXPECT_TRUE(mentions(parse_error("{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0), "is missing"));
  EXPECT_TRUE(mentions(parse_error("{\"a\":{}}", 0), "is missing"));
  EXPECT_TRUE(mentions(parse_error("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0), "twice"));
  EXPECT_TRUE(mentions(parse_error("{\"a\":{\"stride\":[1]}}", 0), "unknown key \"stride\""));
  EXPECT_TRUE(mentions(parse_error("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0), "twice"));
  EXPECT_TRUE(mentions(parse_error("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "twice"));
  EXPECT_TRUE(mentions(parse_error("{\"__metadata__\":{\"k\":1}}", 0), "'\"' expected"));
}

TEST(flat_json, damaged_text_is_an_error_and_never_read_past_its_end) {
  for (const char* bad : {"",
                          " ",
                          "[",
                          "{",
                          "{\"",
                          "{\"a",
                          "{\"a\"",
                          "{\"a\":",
                          "{\"a\":}",
                          "{,}",
                          "{}x",
                          "{}{}",
                          "{\"a\\",
                          "{\"\\u00",
                          "{\"\\u12G4\":0}",
                          "{\"\\q\":0}",
                          "{\"\\ud800\":0}",
                          "{\"\\udc00\":0}",
                          "{\"\\ud800\\u0041\":0}",
                          "{\"\x01\":0}",
                          "{\"\xC0\x80\":0}",
                          "{\"\xED\xA0\x80\":0}",
                          "{\"\xF4\x90\x80\x80\":0}",
                          "{\"\xE2\x82\":0}",
                          "{\"\xFF\":0}",
                          "{\"a\":{\"dtype\":\"U8\",}}",
                          "null",
                          "{\"a\":null}",
                          "\xEF\xBB\xBF{}"}) {
    EXPECT_NE(parse_error(bad, 0), "") << bad;
  }
}

TEST(flat_json, escapes_mean_what_json_says) {
  // U+1F600 as a surrogate pair is F0 9F 98 80 in UTF-8; U+20AC is E2 82 AC; U+00E9 is C3 A9.
  const std::string text = R"("\ud83d\ude00\u20ac\u00e9\u0041\n\t\b\f\r\/\\\"")";
  JsonCursor json(text, "w");
  EXPECT_EQ(json.string(),
            "\xF0\x9F\x98\x80\xE2\x82\xAC\xC3\xA9"
            "A\n\t\b\f\r/\\\"");
  json.end();
}

TEST(flat_json, the_largest_number_is_read_exactly_and_one_more_is_an_error) {
  JsonCursor largest("9223372036854775807", "w");
  EXPECT_EQ(largest.whole_number(), INT64_MAX);
  JsonCursor wrapped("9223372036854775808", "w");
  EXPECT_THROW(wrapped.whole_number(), Error);
}

}  // namespace
}  // namespace ballast
