// Token sources: formats, folders, batches that depend on the step only, and every kind of bad
// data.
#include "backend/train/data.h"

#include <array>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/backend/temporary_folder.h"

namespace ballast {
namespace {

constexpr TokenOptions kAll = {.vocab = 256, .seed = 1, .validation_share = 0};

template <typename Number>
std::string raw(const std::vector<Number>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Number)};
}

template <typename Number>
std::string llm_c_file(int32_t magic, int32_t version, const std::vector<Number>& tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<int32_t>(tokens.size());
  return raw(header) + raw(tokens);
}

// 0, 1, 2, ...: a window's content tells where it was drawn.
template <typename Number>
std::vector<Number> counting(size_t count) {
  std::vector<Number> values(count);
  std::iota(values.begin(), values.end(), Number{0});
  return values;
}

std::vector<int32_t> draw(const TokenSource& source, const BatchRequest& request) {
  std::vector<int32_t> out(static_cast<size_t>(request.sequences * (request.length + 1)), -1);
  source.batch(request, out);
  return out;
}

// All tokens of a source that has exactly one window of that length.
std::vector<int32_t> whole(const TokenSource& source) {
  return draw(source, {.sequences = 1, .length = source.tokens(Split::kTraining) - 1});
}

std::string open_error(const std::string& path, const TokenOptions& options = kAll) {
  return error_of([&] { TokenSource::open(path, options); });
}

TEST(data, text_is_read_as_bytes) {
  const TemporaryFolder folder;
  const TokenSource source = TokenSource::open(folder.write("a.txt", "Az\xFF\n"), kAll);
  EXPECT_EQ(whole(source), (std::vector<int32_t>{65, 122, 255, 10}));
}

TEST(data, nanogpt_files_are_16_bit_tokens_without_a_header) {
  const TemporaryFolder folder;
  const std::string path = folder.write("t.bin", raw<uint16_t>({5, 50256, 7}));
  TokenOptions options = kAll;
  options.vocab = 50257;
  EXPECT_EQ(whole(TokenSource::open(path, options)), (std::vector<int32_t>{5, 50256, 7}));
}

TEST(data, llm_c_files_of_both_versions_are_read) {
  const TemporaryFolder folder;
  const auto first = folder.write("a.bin", llm_c_file<uint16_t>(20240520, 1, {1, 2, 65535}));
  const auto second = folder.write("b.bin", llm_c_file<uint32_t>(20240801, 7, {1, 128000}));
  TokenOptions options = kAll;
  options.vocab = 128256;
  EXPECT_EQ(whole(TokenSource::open(first, options)), (std::vector<int32_t>{1, 2, 65535}));
  EXPECT_EQ(whole(TokenSource::open(second, options)), (std::vector<int32_t>{1, 128000}));
}

TEST(data, a_folder_of_token_files_is_one_stream_in_order_of_names) {
  const TemporaryFolder folder;
  folder.write("c.bin", raw<uint16_t>({6}));
  folder.write("a.bin", llm_c_file<uint16_t>(20240520, 1, {1, 2}));
  folder.write("aa.bin", "");  // a shard without tokens is no obstacle
  folder.write("b.bin", llm_c_file<uint32_t>(20240801, 7, {3, 4, 5}));
  EXPECT_EQ(whole(TokenSource::open(folder.path(), kAll)),
            (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
}

TEST(data, a_folder_of_text_is_read_in_order_of_paths_without_hidden_files) {
  const TemporaryFolder folder;
  folder.write("b/2", "D");
  folder.write("b/1", "C");
  folder.write("b.txt", "B");  // '.' sorts before '/'
  folder.write("a", "A");
  folder.write(".git/x", "hidden");
  folder.write("empty", "");
  EXPECT_EQ(whole(TokenSource::open(folder.path(), kAll)),
            (std::vector<int32_t>{'A', 'B', 'C', 'D'}));
}

TEST(data, links_are_followed_once_and_cycles_end) {
  const TemporaryFolder folder;
  const TemporaryFolder outside;
  outside.write("deep/o", "O");
  folder.write("inner/i", "I");
  const auto link = [](const std::string& target, const std::string& name) {
    ASSERT_EQ(::symlink(target.c_str(), name.c_str()), 0);
  };
  link("..", folder / "inner/up");               // a cycle
  link("itself", folder / "itself");             // no target at all
  link("missing", folder / "dangling");          // nothing there
  link("inner/i", folder / "second_name");       // the same file again
  link(outside / "deep", folder / "elsewhere");  // as in the caches of model hubs
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(whole(TokenSource::open(folder.path(), kAll)), (std::vector<int32_t>{'O', 'I'}));
}

// 100 tokens 0..99, a tenth held out: training windows lie in 0..89, validation windows in 90..99.
TEST(data, training_never_sees_the_held_out_tail) {
  std::string text;
  for (int i = 0; i < 100; ++i) text.push_back(static_cast<char>(i));
  const TokenSource source =
      TokenSource::from_text(text, "t", {.vocab = 256, .seed = 3, .validation_share = 0.1});
  EXPECT_EQ(source.tokens(Split::kTraining), 90);
  EXPECT_EQ(source.tokens(Split::kValidation), 10);
  EXPECT_TRUE(source.holds(Split::kValidation, 9));
  EXPECT_FALSE(source.holds(Split::kValidation, 10));
  std::array<bool, 100> seen = {};
  for (const Split split : {Split::kTraining, Split::kValidation}) {
    const auto out =
        draw(source, {.split = split, .step = 0, .micro_batch = 0, .sequences = 500, .length = 3});
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i] < 90, split == Split::kTraining);
      if (i % 4 != 0) {
        EXPECT_EQ(out[i], out[i - 1] + 1);  // windows are contiguous
      }
      seen[static_cast<size_t>(out[i])] = true;
    }
  }
  // 500 draws of 87 starts miss a given one with probability (86/87)^500 = 0.3 %; the ends 0 and 89
  // have one start each and are drawn with this seed.
  EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 100);
}

TEST(data, batches_depend_on_seed_split_step_and_row_only) {
  const std::string text = raw(counting<uint8_t>(256));
  const TokenSource source =
      TokenSource::from_text(text, "t", {.seed = 7, .validation_share = 0.5});
  const TokenSource again = TokenSource::from_text(text, "t", {.seed = 7, .validation_share = 0.5});
  const TokenSource other = TokenSource::from_text(text, "t", {.seed = 8, .validation_share = 0.5});
  const BatchRequest request = {.step = 5, .micro_batch = 2, .sequences = 8, .length = 4};
  const std::vector<int32_t> expected = draw(source, request);
  for (int64_t step = 0; step < 4; ++step) draw(again, {.step = step, .sequences = 1, .length = 9});
  EXPECT_EQ(draw(again, request), expected);
  EXPECT_NE(draw(other, request), expected);
  BatchRequest changed = request;
  changed.step = 6;
  EXPECT_NE(draw(source, changed), expected);
  changed = request;
  changed.micro_batch = 3;
  EXPECT_NE(draw(source, changed), expected);
  // The validation half starts at 128; with its own draws it is not the training half moved by 128.
  changed = request;
  changed.split = Split::kValidation;
  std::vector<int32_t> moved = draw(source, changed);
  for (int32_t& token : moved) token -= 128;
  EXPECT_NE(moved, expected);
}

// A step of 8 sequences is the same whether drawn as 1 x 8, 2 x 4 or 8 x 1.
TEST(data, a_step_does_not_depend_on_how_it_is_cut_into_micro_batches) {
  const TokenSource source = TokenSource::from_text(raw(counting<uint8_t>(256)), "t", kAll);
  const std::vector<int32_t> expected = draw(source, {.step = 3, .sequences = 8, .length = 4});
  for (const int64_t sequences : {4, 1}) {
    std::vector<int32_t> joined;
    for (int64_t micro = 0; micro < 8 / sequences; ++micro) {
      const auto part =
          draw(source, {.step = 3, .micro_batch = micro, .sequences = sequences, .length = 4});
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, expected) << sequences;
  }
}

// The batches of a format or storage must not change between versions: a resumed run would train on
// other data. The starts are Philox(key, {row, 0, step, 0}) mod 253, as computed by an independent
// program (Python) from the definition.
TEST(data, batches_are_those_of_the_first_version) {
  const TokenSource source = TokenSource::from_text(
      raw(counting<uint8_t>(256)), "t", {.vocab = 256, .seed = 1234, .validation_share = 0});
  std::vector<int32_t> starts;
  const auto out = draw(source, {.step = 17, .micro_batch = 1, .sequences = 4, .length = 3});
  for (size_t i = 0; i < out.size(); i += 4) starts.push_back(out[i]);
  EXPECT_EQ(starts, (std::vector<int32_t>{172, 71, 42, 224}));
}

TEST(data, disk_and_memory_give_the_same_batches) {
  const TemporaryFolder folder;
  const std::string content = raw(counting<uint16_t>(1000));
  TokenOptions options = kAll;
  options.vocab = 1000;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(content));
  const TokenSource disk = TokenSource::open(folder.write("t.bin", content), options);
  const TokenSource memory =
      TokenSource::from_token_file({bytes.begin(), bytes.end()}, "t.bin", options);
  folder.write("cut/1.bin", content.substr(0, 514));
  folder.write("cut/2.bin", content.substr(514));
  const TokenSource cut = TokenSource::open(folder / "cut", options);
  const BatchRequest request = {.step = 1, .sequences = 64, .length = 300};
  EXPECT_EQ(draw(disk, request), draw(memory, request));
  EXPECT_EQ(draw(disk, request), draw(cut, request));
}

TEST(data, missing_empty_and_unusable_paths_are_errors) {
  const TemporaryFolder folder;
  EXPECT_TRUE(mentions(open_error(folder / "none"), "none: no such file or folder"));
  EXPECT_TRUE(mentions(open_error(folder.path()), "holds no files"));
  EXPECT_TRUE(mentions(open_error(folder.write("e.txt", "")), "e.txt: holds no tokens"));
  EXPECT_TRUE(mentions(open_error(folder.write("e.bin", "")), "e.bin: holds no tokens"));
  EXPECT_TRUE(mentions(open_error(folder.path()), "e.bin: a token file in a folder of other"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(mentions(open_error(folder / "pipe"), "pipe: not a regular file"));
  ASSERT_EQ(::symlink("loop", (folder / "loop").c_str()), 0);
  EXPECT_TRUE(mentions(open_error(folder / "loop"), "loop: "));
}

TEST(data, what_may_not_be_read_is_an_error) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const TemporaryFolder folder;
  const std::string file = folder.write("secret/a.txt", "abc");
  ASSERT_EQ(::chmod(file.c_str(), 0), 0);
  EXPECT_TRUE(mentions(open_error(file), "a.txt: cannot be opened"));
  ASSERT_EQ(::chmod((folder / "secret").c_str(), 0), 0);
  EXPECT_TRUE(mentions(open_error(folder / "secret"), "cannot be listed"));
  ASSERT_EQ(::chmod((folder / "secret").c_str(), 0700), 0);
}

TEST(data, text_beyond_the_limit_is_an_error_that_names_the_file) {
  const TemporaryFolder folder;
  folder.write("a", "1234");
  folder.write("b", "56");
  TokenOptions options = kAll;
  options.text_limit = {6};
  EXPECT_EQ(open_error(folder.path(), options), "");
  options.text_limit = {5};
  EXPECT_TRUE(mentions(open_error(folder.path(), options), "more than 5 bytes of text at "));
  EXPECT_TRUE(mentions(open_error(folder.path(), options), "/b;"));
}

TEST(data, damaged_token_files_are_errors) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& content) {
    return open_error(folder.write("t.bin", content));
  };
  const std::string good = llm_c_file<uint16_t>(20240520, 1, {1, 2, 3});
  EXPECT_EQ(error(good), "");
  EXPECT_TRUE(mentions(error("abc"), "t.bin: odd size of 3 bytes"));
  EXPECT_TRUE(mentions(error(good.substr(0, 1023)), "header of 1024 bytes is cut short"));
  EXPECT_TRUE(mentions(error(good.substr(0, 4)), "header of 1024 bytes is cut short"));
  EXPECT_TRUE(mentions(error(good.substr(0, 1028)), "promises 3 tokens of 2 bytes"));
  EXPECT_TRUE(mentions(error(good + "xx"), "the file has 8 bytes of them"));
  EXPECT_TRUE(mentions(error(llm_c_file<uint16_t>(20240520, 2, {1})), "version 2 of magic"));
  EXPECT_TRUE(mentions(error(llm_c_file<uint32_t>(20240801, 1, {1})), "version 1 of magic"));
  std::string negative = good;
  const int32_t count = -3;
  std::memcpy(negative.data() + 8, &count, 4);
  EXPECT_TRUE(mentions(error(negative), "promises -3 tokens"));
}

// Token 2 of the file stands at byte 1024 + 2 * 2 = 1028; of the file without a header at byte 4.
TEST(data, a_token_outside_the_vocabulary_is_an_error_that_names_file_and_byte) {
  const TemporaryFolder folder;
  const auto first = folder.write("a.bin", llm_c_file<uint16_t>(20240520, 1, {1, 2, 256, 3}));
  EXPECT_TRUE(mentions(open_error(first), "a.bin: token id 256 at byte 1028 is not below"));
  const auto second = folder.write("b.bin", raw<uint16_t>({1, 2, 300}));
  EXPECT_TRUE(mentions(open_error(second), "b.bin: token id 300 at byte 4 is not below"));
  const auto third = folder.write("c.bin", llm_c_file<uint32_t>(20240801, 7, {~0u}));
  TokenOptions options = kAll;
  options.vocab = int64_t{1} << 40;  // even then an id must fit the int32 of a batch
  EXPECT_TRUE(mentions(open_error(third, options), "token id 4294967295"));
  options.vocab = 100;
  EXPECT_TRUE(mentions(open_error(folder.write("t.txt", "aé"), options), "t.txt: token id 195"));
  EXPECT_EQ(open_error(folder.write("t.txt", "abc"), options), "");
}

TEST(data, data_that_changes_while_it_is_used_is_an_error) {
  const TemporaryFolder folder;
  const std::string path = folder.write("t.bin", raw<uint16_t>({1, 2, 3, 4}));
  const TokenSource source = TokenSource::open(path, kAll);
  std::filesystem::resize_file(path, 6);
  EXPECT_TRUE(mentions(error_of([&] { whole(source); }), "t.bin: the file became shorter"));
  folder.write("t.bin", raw<uint16_t>({1, 2, 3, 400}));
  EXPECT_TRUE(mentions(error_of([&] { whole(source); }), "token id 400 at byte 6"));
}

TEST(data, a_split_shorter_than_a_sequence_is_an_error) {
  const TokenSource source = TokenSource::from_text("0123456789", "t", {.validation_share = 0.2});
  EXPECT_NO_THROW(draw(source, {.sequences = 1, .length = 7}));
  const auto error = [&](const BatchRequest& request) {
    return error_of([&] { draw(source, request); });
  };
  EXPECT_TRUE(mentions(error({.sequences = 1, .length = 8}), "t: 8 tokens for training are fewer"));
  EXPECT_TRUE(mentions(error({.split = Split::kValidation, .sequences = 1, .length = 2}),
                       "2 tokens for validation"));
}

TEST(data, an_impossible_validation_share_is_an_error) {
  for (const double share : {-0.1, 1.0, 2.0, double{NAN}}) {
    EXPECT_THROW(TokenSource::from_text("abc", "t", {.validation_share = share}), Error) << share;
  }
}

TEST(data, the_default_text_is_that_of_the_newest_compiler) {
  const TemporaryFolder folder;
  folder.write("a/9/x", "");
  folder.write("a/12/x", "");
  folder.write("a/12.2.0/x", "");
  folder.write("a/v13/x", "");
  folder.write("a/14", "a file");
  folder.write("b/11/x", "");
  const std::array<std::string, 3> roots = {folder / "none", folder / "a", folder / "b"};
  EXPECT_EQ(newest_version_folder(roots), folder / "a/12.2.0");
  EXPECT_TRUE(mentions(error_of([&] { newest_version_folder(std::span(roots).first(1)); }),
                       "no C++ standard library headers found"));
}

TEST(data, the_default_text_is_some_megabytes) {
  // What builds this test has the headers, so there is nothing to skip for.
  const TokenSource source = TokenSource::open(default_text_folder(), {});
  EXPECT_GT(source.tokens(Split::kTraining), 1'000'000);
}

TEST(data, text_in_a_larger_vocabulary_than_that_of_bytes_has_a_note) {
  TokenOptions options;
  EXPECT_EQ(TokenSource::from_text("some text", "text", options).note(), "");
  options.vocab = 50257;
  const std::string note = TokenSource::from_text("some text", "text", options).note();
  EXPECT_NE(note.find("first 256 of 50257 tokens"), std::string::npos) << note;
}

}  // namespace
}  // namespace ballast
