// Training data: token streams from text or token files, and batches that are a function of
// (seed, step, row), so that a resumed run needs only the number of its step.
//
// Sources: any text file or folder of text (bytes, vocabulary 256); token files NAME.bin, or a
// folder of them: llm.c's (256 int32 of header, magic 20240520 version 1: uint16 tokens, magic
// 20240801 version 7: uint32) and nanoGPT's (uint16 from the first byte, no header).
// Will not do: make tokens of text beyond its bytes, shuffle without replacement, or prefetch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/base/units.h"

namespace ballast {

struct TokenOptions {
  int64_t vocab = 256;  // ids must lie below; text needs 256
  uint64_t seed = 0;
  double validation_share = 0.1;  // of the tokens, at the end, never trained on; 0 to below 1
  Bytes text_limit = {int64_t{1} << 30};  // more text than this is an Error: it is held in memory
};

enum class Split : uint8_t { kTraining, kValidation };

// Which sequences of a step. Rows of a step are numbered micro_batch * sequences + row over all
// ranks, so a step draws the same sequences however it is cut into micro-batches.
struct BatchRequest {
  Split split = Split::kTraining;
  int64_t step = 0;
  int64_t micro_batch = 0;  // within the step, counted over all ranks
  int64_t sequences = 0;    // B
  int64_t length = 0;       // S
};

// How the tokens lie in a token file.
struct TokenLayout {
  int64_t first_byte = 0;
  int64_t token_bytes = 0;  // 1, 2 or 4, little-endian
  int64_t tokens = 0;
};

// Tells the format of a token file from its first bytes (1024, or all of a shorter file) and its
// size. Throws Error naming `where` for an odd size, an unknown version or a count that disagrees.
TokenLayout token_layout(std::span<const std::byte> first_bytes, int64_t file_bytes,
                         const std::string& where);

class TokenSource {
 public:
  // A text file, a token file (*.bin), a folder of text or a folder of token files. Folders are
  // read recursively, in the order of their paths; names that begin with a dot are left out; links
  // are followed, each file and folder once. Text is read into memory; token files stay on disk,
  // their first 256 MiB are checked here and the rest as it is drawn. Throws Error.
  static TokenSource open(const std::string& path, const TokenOptions& options);

  // The same from memory; `name` stands for the file in errors.
  static TokenSource from_text(std::string text, const std::string& name,
                               const TokenOptions& options);
  static TokenSource from_token_file(std::vector<std::byte> file, const std::string& name,
                                     const TokenOptions& options);

  int64_t vocab() const { return options_.vocab; }
  // What somebody may take text for: where it is read into a larger vocabulary than that of bytes,
  // that this is not the model's own tokenizer. Else empty.
  std::string note() const;
  // Tells other data from these: of the number of tokens, and of the tokens of windows spread
  // evenly over them, which are all of them up to four million.
  uint64_t fingerprint() const;
  int64_t tokens() const { return total_; }
  int64_t tokens(Split split) const;
  // Whether a split holds one sequence of this length and its last target.
  bool holds(Split split, int64_t length) const { return tokens(split) > length; }

  // Fills out [B, S+1] with the request's sequences, each a window drawn uniformly from the split.
  // Throws Error where the split is shorter than a window or a token is outside the vocabulary.
  // May run in several threads at once.
  void batch(const BatchRequest& request, std::span<int32_t> out) const;

 private:
  // One file's tokens, on disk or in memory.
  struct Shard {
    std::string name;
    std::optional<std::vector<std::byte>> memory;
    TokenLayout layout;
    int64_t first_token = 0;  // of the whole source
  };

  TokenSource(std::vector<Shard> shards, const TokenOptions& options, const std::string& name);
  static Shard open_token_file(const std::string& path);
  static Shard open_text(const std::vector<std::string>& files, const std::string& name,
                         Bytes limit);
  void check_beginning() const;
  void read(int64_t first, std::span<int32_t> out) const;
  void read_shard(const Shard& shard, int64_t first, std::span<int32_t> out) const;

  std::string name_;
  TokenOptions options_;
  std::vector<Shard> shards_;
  int64_t total_ = 0;
  int64_t training_ = 0;
};

// The C++ standard library's headers of the newest installed compiler, a text of some megabytes
// that any machine which can build this program has. Throws Error if there is none.
std::string default_text_folder();
// The same below other roots, for each of which ROOT/VERSION is a candidate (tests).
std::string newest_version_folder(std::span<const std::string> roots);

}  // namespace ballast
