#include "backend/train/data.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "backend/train/random.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHeaderInts = 256;
constexpr int64_t kHeaderBytes = kHeaderInts * 4;
constexpr int64_t kCheckedAtOpen = int64_t{256} << 20;
constexpr int64_t kTextVocab = 256;

// llm.c's headers (dev/data/data_common.py). Read as nanoGPT's first two tokens the magics would be
// ids above 55,000, which GPT-2's vocabulary of 50,257 does not have, so the formats cannot be
// confused.
struct HeaderKind {
  int32_t magic;
  int32_t version;
  int64_t token_bytes;
};
constexpr std::array<HeaderKind, 2> kHeaderKinds = {{{20240520, 1, 2}, {20240801, 7, 4}}};

uint32_t little_endian(const std::byte* bytes, int64_t count) {
  uint32_t value = 0;
  for (int64_t i = 0; i < count; ++i) value |= std::to_integer<uint32_t>(bytes[i]) << (8 * i);
  return value;
}

// A file open for reading, as long as the object lives.
class InputFile {
 public:
  explicit InputFile(const std::string& path) : path_(path) {
    // Without O_NONBLOCK opening a named pipe would wait for a writer.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) {
      throw Error(path, std::string("cannot be opened: ") + std::strerror(errno),
                  "check the path and its permissions");
    }
  }
  ~InputFile() { ::close(descriptor_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int64_t size() const {
    struct stat status = {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      throw Error(path_, "not a regular file", "name a text file, a .bin file or a folder");
    }
    return status.st_size;
  }

  // Reads exactly out.size() bytes.
  void read(int64_t offset, std::span<std::byte> out) const {
    while (!out.empty()) {
      const ssize_t got = ::pread(descriptor_, out.data(), out.size(), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        throw Error(path_, std::string("cannot be read: ") + std::strerror(errno),
                    "check the disk and the file");
      }
      if (got == 0) {
        throw Error(path_, "the file became shorter while it was used", "leave the data in place");
      }
      offset += got;
      out = out.subspan(static_cast<size_t>(got));
    }
  }

 private:
  std::string path_;
  int descriptor_ = -1;
};

// The regular files below a folder, sorted by path. A folder or file that several links lead to is
// taken once, which also ends every cycle.
std::vector<std::string> files_below(const fs::path& root) {
  std::vector<std::string> files;
  std::set<fs::path> seen = {fs::canonical(root)};
  std::vector<fs::path> folders = {root};
  while (!folders.empty()) {
    const fs::path folder = folders.back();
    folders.pop_back();
    std::vector<fs::path> entries;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      if (!entry.path().filename().string().starts_with('.')) entries.push_back(entry.path());
    }
    std::ranges::sort(entries);  // which of several links is taken must not depend on the disk
    for (const fs::path& entry : entries) {
      std::error_code broken;  // a link to nothing, or to itself
      const fs::file_status status = fs::status(entry, broken);
      if (broken || (!fs::is_directory(status) && !fs::is_regular_file(status))) continue;
      if (!seen.insert(fs::canonical(entry)).second) continue;
      if (fs::is_directory(status)) {
        folders.push_back(entry);
      } else {
        files.push_back(entry.string());
      }
    }
  }
  std::ranges::sort(files);
  return files;
}

bool is_token_file(const std::string& path) { return path.ends_with(".bin"); }

// The files that a path stands for: itself, or what lies below it.
std::vector<std::string> files_of(const std::string& path) {
  try {
    if (!fs::exists(path)) {
      throw Error(path, "no such file or folder", "name a text file, a .bin file or a folder");
    }
    if (!fs::is_directory(path)) return {path};
    std::vector<std::string> files = files_below(path);
    if (files.empty()) throw Error(path, "the folder holds no files", "name another folder");
    const auto odd = std::ranges::find_if(files, [&files](const std::string& file) {
      return is_token_file(file) != is_token_file(files.front());
    });
    if (odd != files.end()) {
      throw Error(is_token_file(*odd) ? *odd : files.front(),
                  "a token file in a folder of other files",
                  "name the .bin file itself, or a folder that holds only one kind");
    }
    return files;
  } catch (const fs::filesystem_error& error) {
    throw Error(path, std::string("cannot be listed: ") + error.code().message(),
                "check the folder's permissions");
  }
}

std::vector<int64_t> version_numbers(const std::string& name) {
  std::vector<int64_t> numbers;
  const char* at = name.data();
  const char* const end = at + name.size();
  while (true) {
    int64_t number = 0;
    const auto [next, code] = std::from_chars(at, end, number);
    if (code != std::errc() || number < 0) return {};
    numbers.push_back(number);
    if (next == end) return numbers;
    if (*next != '.') return {};
    at = next + 1;
  }
}

}  // namespace

TokenLayout token_layout(std::span<const std::byte> first_bytes, int64_t file_bytes,
                         const std::string& where) {
  CHECK(std::ssize(first_bytes) == std::min(file_bytes, kHeaderBytes));
  const auto header_int = [&](int64_t index) {
    return static_cast<int32_t>(little_endian(&first_bytes[static_cast<size_t>(index * 4)], 4));
  };
  const auto kind = file_bytes < 4
                        ? kHeaderKinds.end()
                        : std::ranges::find(kHeaderKinds, header_int(0), &HeaderKind::magic);
  if (kind == kHeaderKinds.end()) {
    if (file_bytes % 2 != 0) {
      throw Error(where, "odd size of " + std::to_string(file_bytes) + " bytes, tokens have 2 each",
                  "name a token file of nanoGPT or llm.c, or text under another name than .bin");
    }
    return {0, 2, file_bytes / 2};
  }
  const char* const rewrite = "make the file again with llm.c's data scripts";
  if (file_bytes < kHeaderBytes) {
    throw Error(where, "header of " + std::to_string(kHeaderBytes) + " bytes is cut short",
                rewrite);
  }
  if (header_int(1) != kind->version) {
    throw Error(where,
                "version " + std::to_string(header_int(1)) + " of magic " +
                    std::to_string(kind->magic) + ", known is " + std::to_string(kind->version),
                rewrite);
  }
  const int64_t tokens = header_int(2);
  if (tokens < 0 || tokens * kind->token_bytes != file_bytes - kHeaderBytes) {
    throw Error(where,
                "header promises " + std::to_string(tokens) + " tokens of " +
                    std::to_string(kind->token_bytes) + " bytes, the file has " +
                    std::to_string(file_bytes - kHeaderBytes) + " bytes of them",
                rewrite);
  }
  return {kHeaderBytes, kind->token_bytes, tokens};
}

TokenSource::TokenSource(std::vector<Shard> shards, const TokenOptions& options,
                         const std::string& name)
    : name_(name), options_(options), shards_(std::move(shards)) {
  if (!(options.validation_share >= 0 && options.validation_share < 1)) {
    throw Error("validation share", "not between 0 and below 1", "use for instance 0.1");
  }
  CHECK(options.vocab > 0);
  for (Shard& shard : shards_) {
    shard.first_token = total_;
    total_ += shard.layout.tokens;
  }
  if (total_ == 0) throw Error(name, "holds no tokens", "name data that is not empty");
  const double held_out = std::floor(static_cast<double>(total_) * options.validation_share);
  training_ = total_ - std::min(total_, static_cast<int64_t>(held_out));
  check_beginning();
}

TokenSource::Shard TokenSource::open_token_file(const std::string& path) {
  const InputFile file(path);
  const int64_t file_bytes = file.size();
  std::vector<std::byte> head(static_cast<size_t>(std::min(file_bytes, kHeaderBytes)));
  file.read(0, head);
  return {path, std::nullopt, token_layout(head, file_bytes, path), 0};
}

TokenSource::Shard TokenSource::open_text(const std::vector<std::string>& files,
                                          const std::string& name, Bytes limit) {
  std::vector<std::byte> text;
  for (const std::string& path : files) {
    const InputFile file(path);
    const int64_t file_bytes = file.size();
    const int64_t before = std::ssize(text);
    if (file_bytes > limit.count - before) {
      throw Error(name, "more than " + std::to_string(limit.count) + " bytes of text at " + path,
                  "name a smaller text, or make a token file of it");
    }
    text.resize(static_cast<size_t>(before + file_bytes));
    file.read(0, std::span(text).subspan(static_cast<size_t>(before)));
  }
  const int64_t tokens = std::ssize(text);
  return {name, std::move(text), {0, 1, tokens}, 0};
}

TokenSource TokenSource::open(const std::string& path, const TokenOptions& options) {
  const std::vector<std::string> files = files_of(path);
  std::vector<Shard> shards;
  if (is_token_file(files.front())) {
    for (const std::string& file : files) shards.push_back(open_token_file(file));
  } else {
    shards.push_back(open_text(files, path, options.text_limit));
  }
  return TokenSource(std::move(shards), options, path);
}

TokenSource TokenSource::from_text(std::string text, const std::string& name,
                                   const TokenOptions& options) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  std::vector<Shard> shards;
  shards.push_back({name, std::vector(bytes.begin(), bytes.end()), {0, 1, std::ssize(bytes)}, 0});
  return TokenSource(std::move(shards), options, name);
}

TokenSource TokenSource::from_token_file(std::vector<std::byte> file, const std::string& name,
                                         const TokenOptions& options) {
  const int64_t file_bytes = std::ssize(file);
  const std::span<const std::byte> head =
      std::span(file).first(static_cast<size_t>(std::min(file_bytes, kHeaderBytes)));
  const TokenLayout layout = token_layout(head, file_bytes, name);
  std::vector<Shard> shards;
  shards.push_back({name, std::move(file), layout, 0});
  return TokenSource(std::move(shards), options, name);
}

int64_t TokenSource::tokens(Split split) const {
  return split == Split::kTraining ? training_ : total_ - training_;
}

std::string TokenSource::note() const {
  const bool is_text = shards_.front().memory && shards_.front().layout.token_bytes == 1;
  if (!is_text || options_.vocab <= kTextVocab) return "";
  return name_ + " is read as its bytes, the first " + std::to_string(kTextVocab) + " of " +
         std::to_string(options_.vocab) +
         " tokens: not what the model's tokenizer makes of a text, which token files (*.bin) hold";
}

// A vocabulary that does not fit the data should end a run before it starts.
void TokenSource::check_beginning() const {
  if (shards_.front().layout.token_bytes == 1 && options_.vocab >= kTextVocab) return;
  std::vector<int32_t> chunk(static_cast<size_t>(std::min<int64_t>(total_, 1 << 16)));
  int64_t checked_bytes = 0;
  for (int64_t first = 0; first < total_ && checked_bytes < kCheckedAtOpen;) {
    const int64_t count = std::min(total_ - first, std::ssize(chunk));
    read(first, std::span(chunk).first(static_cast<size_t>(count)));
    first += count;
    checked_bytes += count * shards_.front().layout.token_bytes;
  }
}

uint64_t TokenSource::fingerprint() const {
  constexpr int64_t kWindows = 1024;
  constexpr int64_t kWindow = 4096;
  const int64_t windows = std::min(div_ceil(total_, kWindow), kWindows);
  uint64_t hash = key_of(0, std::to_string(total_));
  std::vector<int32_t> window(static_cast<size_t>(std::min(total_, kWindow)));
  const int64_t last = total_ - std::ssize(window);  // where the last window begins
  for (int64_t i = 0; i < windows; ++i) {
    read(div_ceil(last * i, std::max<int64_t>(windows - 1, 1)), window);
    const auto bytes = std::as_bytes(std::span(window));
    hash = key_of(hash, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  return hash;
}

void TokenSource::read_shard(const Shard& shard, int64_t first, std::span<int32_t> out) const {
  const int64_t width = shard.layout.token_bytes;
  const int64_t begin = shard.layout.first_byte + first * width;
  std::vector<std::byte> from_disk;
  const std::byte* bytes = nullptr;
  if (shard.memory) {
    bytes = shard.memory->data() + begin;
  } else {
    from_disk.resize(out.size() * static_cast<size_t>(width));
    InputFile(shard.name).read(begin, from_disk);
    bytes = from_disk.data();
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * width;
    const uint32_t id = little_endian(bytes + at, width);
    if (id >= options_.vocab || id > INT32_MAX) {
      throw Error(shard.name,
                  "token id " + std::to_string(id) + " at byte " + std::to_string(begin + at) +
                      " is not below the vocabulary of " + std::to_string(options_.vocab),
                  "use data made for this model's tokenizer, or a model of a larger vocabulary");
    }
    out[i] = static_cast<int32_t>(id);
  }
}

void TokenSource::read(int64_t first, std::span<int32_t> out) const {
  // The last shard that begins at or before `first`.
  auto shard = std::ranges::upper_bound(shards_, first, {}, &Shard::first_token) - 1;
  while (!out.empty()) {
    const int64_t inside = first - shard->first_token;
    const int64_t count = std::min(shard->layout.tokens - inside, std::ssize(out));
    if (count > 0) read_shard(*shard, inside, out.first(static_cast<size_t>(count)));
    out = out.subspan(static_cast<size_t>(count));
    first += count;
    ++shard;
  }
}

void TokenSource::batch(const BatchRequest& request, std::span<int32_t> out) const {
  CHECK(request.step >= 0 && request.micro_batch >= 0);
  CHECK(request.sequences > 0 && request.length > 0);
  const int64_t window = request.length + 1;
  CHECK(std::ssize(out) == request.sequences * window);
  const bool training = request.split == Split::kTraining;
  if (!holds(request.split, request.length)) {
    throw Error(name_,
                std::to_string(tokens(request.split)) + " tokens for " +
                    (training ? "training" : "validation") + " are fewer than one sequence of " +
                    std::to_string(request.length) + " and its last target",
                "use more data or shorter sequences");
  }
  const auto starts = static_cast<uint64_t>(tokens(request.split) - request.length);
  const uint64_t key = key_of(options_.seed, training ? "training" : "validation");
  for (int64_t i = 0; i < request.sequences; ++i) {
    const uint64_t bits =
        random_bits(key, {static_cast<uint64_t>(request.step),
                          static_cast<uint64_t>(request.micro_batch * request.sequences + i)});
    // The remainder favours low starts by at most starts / 2^64, nothing for any real file.
    const auto start = static_cast<int64_t>(bits % starts);
    read((training ? 0 : training_) + start,
         out.subspan(static_cast<size_t>(i * window), static_cast<size_t>(window)));
  }
}

std::string newest_version_folder(std::span<const std::string> roots) {
  std::vector<int64_t> best;
  std::string folder;
  for (const std::string& root : roots) {
    std::error_code ignored;  // a root that does not exist has no candidates
    for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored)) {
      const std::vector<int64_t> version = version_numbers(entry.path().filename().string());
      if (version.empty() || !fs::is_directory(entry.path(), ignored) || version <= best) continue;
      best = version;
      folder = entry.path().string();
    }
  }
  if (folder.empty()) {
    throw Error("default training data",
                "no C++ standard library headers found (" + (roots.empty() ? "" : roots[0]) + "/*)",
                "install g++, or name a text file or folder");
  }
  return folder;
}

std::string default_text_folder() {
  const std::array<std::string, 2> roots = {"/usr/include/c++", "/usr/local/include/c++"};
  return newest_version_folder(roots);
}

}  // namespace ballast
