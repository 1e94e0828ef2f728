#include "backend/formats/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <set>
#include <sys/stat.h>
#include <utility>

#include "backend/formats/flat_json.h"
#include "sim/base/crc32c.h"
#include "sim/base/direct_write.h"
#include "sim/base/fault.h"
#include "sim/base/files.h"

namespace ballast {
namespace {

// Data is written as it lies in memory, and the format is little-endian.
static_assert(std::endian::native == std::endian::little);

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kDataAlignment = 64;
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr char kRewrite[] = "the file is damaged or cut short; write or download it again";
constexpr char kChanged[] = "it is damaged, or another program changed it; write it again";
constexpr std::string_view kChecksum = "ballast.crc32c";
constexpr std::string_view kNoDigits = "00000000";
constexpr size_t kVerifiedAtOnce = size_t{4} << 20;  // bytes

struct TypeRow {
  StoredType type;
  std::string_view name;
  int64_t size;
};
constexpr std::array<TypeRow, 15> kTypes = {{
    {StoredType::kF64, "F64", 8},
    {StoredType::kF32, "F32", 4},
    {StoredType::kF16, "F16", 2},
    {StoredType::kBf16, "BF16", 2},
    {StoredType::kF8E4M3, "F8_E4M3", 1},
    {StoredType::kF8E5M2, "F8_E5M2", 1},
    {StoredType::kI64, "I64", 8},
    {StoredType::kI32, "I32", 4},
    {StoredType::kI16, "I16", 2},
    {StoredType::kI8, "I8", 1},
    {StoredType::kU64, "U64", 8},
    {StoredType::kU32, "U32", 4},
    {StoredType::kU16, "U16", 2},
    {StoredType::kU8, "U8", 1},
    {StoredType::kBool, "BOOL", 1},
}};

const TypeRow& row_of(StoredType type) {
  const auto found = std::ranges::find(kTypes, type, &TypeRow::type);
  CHECK(found != kTypes.end());
  return *found;
}

std::string place(const std::string& file, std::string_view tensor) {
  return file + ":" + std::string(tensor);
}

// Bytes of an array, or nothing where 63 bits do not hold the number.
std::optional<int64_t> array_bytes(const std::vector<int64_t>& shape, StoredType type) {
  int64_t bytes = size_of(type);
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  for (const int64_t extent : shape) {
    if (extent > std::numeric_limits<int64_t>::max() / bytes) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

// Of less than a chunk, everything goes through the cache all the same.
Cache cache_for(std::span<const TensorDeclaration> tensors) {
  int64_t left = DirectWrite::kChunkBytes;
  for (const TensorDeclaration& tensor : tensors) {
    const std::optional<int64_t> bytes = array_bytes(tensor.shape, tensor.type);
    if (!bytes || *bytes >= left) return Cache::kBypassed;
    left -= *bytes;
  }
  return Cache::kUsed;
}

StoredType parse_type(JsonCursor& json, const std::string& where) {
  const std::string name = json.string();
  const auto found = std::ranges::find(kTypes, name, &TypeRow::name);
  if (found == kTypes.end()) {
    throw Error(where, "unknown dtype \"" + name + "\"",
                "convert the tensor to F32, F16 or BF16 and write the file again");
  }
  return found->type;
}

// One tensor's {dtype, shape, data_offsets}; offsets are checked against the file afterwards.
StoredTensor parse_tensor(JsonCursor& json, std::string name, const std::string& file) {
  StoredTensor tensor;
  tensor.name = std::move(name);
  const std::string where = place(file, tensor.name);
  std::set<std::string> seen;
  std::vector<int64_t> offsets;
  json.object([&](const std::string& key) {
    if (!seen.insert(key).second) throw Error(where, "\"" + key + "\" stands twice", kRewrite);
    if (key == "dtype") {
      tensor.type = parse_type(json, where);
    } else if (key == "shape") {
      json.array([&] { tensor.shape.push_back(json.whole_number()); });
    } else if (key == "data_offsets") {
      json.array([&] { offsets.push_back(json.whole_number()); });
    } else {
      throw Error(where, "unknown key \"" + key + "\"", kRewrite);
    }
  });
  if (seen.size() != 3) throw Error(where, "dtype, shape or data_offsets is missing", kRewrite);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw Error(where, "data_offsets is not a pair [begin, end]", kRewrite);
  }
  const std::optional<int64_t> bytes = array_bytes(tensor.shape, tensor.type);
  if (!bytes || *bytes != offsets[1] - offsets[0]) {
    throw Error(where,
                "data_offsets span " + std::to_string(offsets[1] - offsets[0]) +
                    " bytes, shape and dtype need " + (bytes ? std::to_string(*bytes) : "2^63"),
                kRewrite);
  }
  tensor.begin = offsets[0];
  tensor.bytes = *bytes;
  return tensor;
}

// Sorts the tensors by offset and requires that they tile [0, data_bytes) exactly. Offsets become
// file offsets.
void place_tensors(SafetensorsHeader& header, int64_t data_bytes, const std::string& file) {
  std::ranges::stable_sort(header.tensors, {}, [](const StoredTensor& tensor) {
    return std::pair(tensor.begin, tensor.bytes);
  });
  int64_t covered = 0;
  for (StoredTensor& tensor : header.tensors) {
    if (tensor.begin != covered) {
      throw Error(place(file, tensor.name),
                  "data begins at byte " + std::to_string(tensor.begin) + " of the data, " +
                      (tensor.begin < covered ? "inside the tensor before it, which ends at "
                                              : "after a gap that starts at ") +
                      std::to_string(covered),
                  kRewrite);
    }
    if (tensor.bytes > data_bytes - covered) {
      throw Error(place(file, tensor.name),
                  "data ends at byte " + std::to_string(tensor.begin + tensor.bytes) +
                      " of the data, of which the file holds " + std::to_string(data_bytes),
                  kRewrite);
    }
    covered += tensor.bytes;
    tensor.begin += header.data_begin;
  }
  if (covered != data_bytes) {
    throw Error(file, std::to_string(data_bytes - covered) + " bytes after the last tensor",
                kRewrite);
  }
}

std::string checksum_key(std::string_view tensor) {
  return std::string(kChecksum) + "/" + std::string(tensor);
}

// The first bytes of a file: the length of its header.
std::string length_bytes(int64_t header_bytes) {
  std::string length;
  for (int i = 0; i < kLengthBytes; ++i) {
    length.push_back(static_cast<char>((header_bytes >> (8 * i)) & 0xFF));
  }
  return length;
}

uint32_t checksum_of(std::string_view text, uint32_t before = 0) {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())), before);
}

// Of a header with its own digits as zeros; nothing where they are not where the writer puts them.
std::optional<uint32_t> header_checksum(std::string_view json) {
  const std::string key = json_quoted(kChecksum) + ":\"";
  const size_t found = json.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  const size_t begin = found + key.size();
  if (json.size() - begin < kNoDigits.size()) return std::nullopt;
  uint32_t sum = checksum_of(length_bytes(std::ssize(json)));
  sum = checksum_of(json.substr(0, begin), sum);
  sum = checksum_of(kNoDigits, sum);
  return checksum_of(json.substr(begin + kNoDigits.size()), sum);
}

// Moves the checksums out of the metadata to where they are needed.
void take_checksums(SafetensorsHeader& header, std::string_view json, const std::string& file) {
  StoredMetadata& metadata = header.metadata;
  const auto first = metadata.lower_bound(std::string(kChecksum));
  if (first == metadata.end() || !first->first.starts_with(kChecksum)) return;
  const std::optional<uint32_t> sum = header_checksum(json);
  if (first->first != kChecksum || !sum || first->second != hex_of(*sum)) {
    throw Error(file, "its header has another checksum than when it was written", kChanged);
  }
  metadata.erase(first);
  for (StoredTensor& tensor : header.tensors) {
    const auto found = metadata.find(checksum_key(tensor.name));
    uint32_t value = 0;
    const char* const text = found == metadata.end() ? "" : found->second.c_str();
    const char* const end = text + std::strlen(text);
    const auto [at, failure] = std::from_chars(text, end, value, 16);
    if (failure != std::errc{} || at != end) {
      throw Error(place(file, tensor.name), "it has no checksum, and others have", kChanged);
    }
    tensor.checksum = value;
    metadata.erase(found);
  }
  header.has_checksums = true;
  header.checksum = *sum;
}

// Reads exactly out.size() bytes at `offset`.
void read_exactly(Files& files, int descriptor, int64_t offset, std::span<std::byte> out,
                  const std::string& where) {
  while (!out.empty()) {
    const ssize_t got = files.read_at(descriptor, offset, out);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const int code = errno;
      throw Error(where, "cannot be read: " + fault_name(code), fault_remedy(code));
    }
    if (got == 0) throw Error(where, "the file ends early", kRewrite);
    offset += got;
    out = out.subspan(static_cast<size_t>(got));
  }
}

}  // namespace

int64_t size_of(StoredType type) { return row_of(type).size; }
std::string_view to_string(StoredType type) { return row_of(type).name; }

StoredType stored_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return StoredType::kF64;
    case DType::kF32:
      return StoredType::kF32;
    case DType::kBf16:
      return StoredType::kBf16;
    case DType::kF16:
      return StoredType::kF16;
    case DType::kI32:
      return StoredType::kI32;
    case DType::kU8:
      return StoredType::kU8;
    case DType::kE4m3:
    case DType::kE5m2:
      break;  // factors of products, which no file holds
  }
  CHECK(false);
}

std::optional<DType> dtype_of(StoredType type) {
  switch (type) {
    case StoredType::kF64:
      return DType::kF64;
    case StoredType::kF32:
      return DType::kF32;
    case StoredType::kBf16:
      return DType::kBf16;
    case StoredType::kF16:
      return DType::kF16;
    case StoredType::kI32:
      return DType::kI32;
    default:
      return std::nullopt;
  }
}

int64_t safetensors_header_bytes(std::span<const std::byte> first_bytes, int64_t file_bytes,
                                 const std::string& where) {
  if (first_bytes.size() < kLengthBytes || file_bytes < kLengthBytes) {
    throw Error(where, "too short for a safetensors file", kRewrite);
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(first_bytes[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    throw Error(where, "not a safetensors file: header of " + std::to_string(length) + " bytes",
                "name a .safetensors file");
  }
  if (static_cast<int64_t>(length) > file_bytes - kLengthBytes) {
    throw Error(
        where,
        "header of " + std::to_string(length) + " bytes in a file of " + std::to_string(file_bytes),
        kRewrite);
  }
  return static_cast<int64_t>(length);
}

SafetensorsHeader parse_safetensors(std::string_view json_text, int64_t file_bytes,
                                    const std::string& where) {
  const auto header_bytes = static_cast<int64_t>(json_text.size());
  CHECK(file_bytes - kLengthBytes >= header_bytes);
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + header_bytes;
  std::set<std::string> names;
  JsonCursor json(json_text, where);
  json.object([&](const std::string& name) {
    if (!names.insert(name).second) throw Error(place(where, name), "stands twice", kRewrite);
    if (name != kMetadataKey) {
      header.tensors.push_back(parse_tensor(json, name, where));
      return;
    }
    json.object([&](const std::string& key) {
      if (!header.metadata.emplace(key, json.string()).second) {
        throw Error(place(where, name), "\"" + key + "\" stands twice", kRewrite);
      }
    });
  });
  json.end();
  place_tensors(header, file_bytes - header.data_begin, where);
  take_checksums(header, json_text, where);
  return header;
}

SafetensorsReader::SafetensorsReader(const std::string& path, Files& files)
    : files_(&files), path_(path) {
  // Without O_NONBLOCK opening a named pipe would wait for a writer.
  descriptor_ = files.open(path, O_RDONLY | O_NONBLOCK, 0);
  if (descriptor_ < 0) {
    throw Error(path, "cannot be opened: " + fault_name(errno),
                "check the path and its permissions");
  }
  try {
    struct stat status = {};
    if (files.status(descriptor_, status) != 0 || !S_ISREG(status.st_mode)) {
      throw Error(path, "not a regular file", "name a .safetensors file");
    }
    const int64_t file_bytes = status.st_size;
    std::array<std::byte, kLengthBytes> first = {};
    if (file_bytes >= kLengthBytes) read_exactly(files, descriptor_, 0, first, path);
    const int64_t header_bytes = safetensors_header_bytes(first, file_bytes, path);
    std::string json(static_cast<size_t>(header_bytes), '\0');
    read_exactly(files, descriptor_, kLengthBytes, std::as_writable_bytes(std::span(json)), path);
    header_ = parse_safetensors(json, file_bytes, path);
    for (size_t i = 0; i < header_.tensors.size(); ++i) by_name_[header_.tensors[i].name] = i;
  } catch (...) {
    files.close(descriptor_);
    throw;
  }
}

SafetensorsReader::~SafetensorsReader() {
  if (descriptor_ >= 0) files_->close(descriptor_);
}

SafetensorsReader::SafetensorsReader(SafetensorsReader&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      header_(std::move(other.header_)),
      by_name_(std::move(other.by_name_)) {}

const StoredTensor* SafetensorsReader::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

const StoredTensor& SafetensorsReader::at(std::string_view name) const {
  const StoredTensor* tensor = find(name);
  if (tensor == nullptr) {
    throw Error(place(path_, name), "no such tensor in the file",
                "use weights of the same model and architecture");
  }
  return *tensor;
}

void SafetensorsReader::read(const StoredTensor& tensor, int64_t first_byte,
                             std::span<std::byte> out) const {
  const auto bytes = static_cast<int64_t>(out.size());
  CHECK(first_byte >= 0 && bytes <= tensor.bytes && first_byte <= tensor.bytes - bytes);
  read_exactly(*files_, descriptor_, tensor.begin + first_byte, out, place(path_, tensor.name));
}

void SafetensorsReader::read(const StoredTensor& tensor, std::span<std::byte> out) const {
  read(tensor, 0, out);
  if (tensor.checksum) require_checksum(tensor, crc32c(out));
}

void SafetensorsReader::verify() const {
  std::vector<std::byte> part;
  for (const StoredTensor& tensor : header_.tensors) {
    if (!tensor.checksum) continue;
    uint32_t sum = 0;
    for (int64_t at = 0; at < tensor.bytes; at += std::ssize(part)) {
      part.resize(std::min(kVerifiedAtOnce, static_cast<size_t>(tensor.bytes - at)));
      read(tensor, at, part);
      sum = crc32c(part, sum);
    }
    require_checksum(tensor, sum);
  }
}

void SafetensorsReader::require_checksum(const StoredTensor& tensor, uint32_t found) const {
  if (found == *tensor.checksum) return;
  throw Error(place(path_, tensor.name),
              "its checksum is " + hex_of(found) + " and was " + hex_of(*tensor.checksum) +
                  " when it was written",
              kChanged);
}

std::string safetensors_preamble(std::span<const TensorDeclaration> tensors,
                                 const StoredMetadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    json += json_quoted(kMetadataKey) + ":{";
    for (const auto& [key, value] : metadata) {
      if (json.back() != '{') json += ',';
      json += json_quoted(key) + ":" + json_quoted(value);
    }
    json += '}';
  }
  std::set<std::string_view> names = {kMetadataKey};
  int64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    CHECK(names.insert(tensor.name).second);
    CHECK(offset % size_of(tensor.type) == 0);
    const std::optional<int64_t> bytes = array_bytes(tensor.shape, tensor.type);
    CHECK(bytes && *bytes <= std::numeric_limits<int64_t>::max() - offset);
    if (json.size() > 1) json += ',';
    json += json_quoted(tensor.name) + ":{\"dtype\":\"" + std::string(to_string(tensor.type)) +
            "\",\"shape\":[";
    for (const int64_t extent : tensor.shape) {
      CHECK(extent >= 0);
      if (json.back() != '[') json += ',';
      json += std::to_string(extent);
    }
    json += "],\"data_offsets\":[" + std::to_string(offset) + "," +
            std::to_string(offset + *bytes) + "]}";
    offset += *bytes;
  }
  json += '}';
  const int64_t padded = round_up(kLengthBytes + std::ssize(json), kDataAlignment) - kLengthBytes;
  CHECK(padded <= kMaxHeaderBytes);
  json.resize(static_cast<size_t>(padded), ' ');
  return length_bytes(padded) + json;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     std::span<const TensorDeclaration> tensors,
                                     const StoredMetadata& metadata, Files& files)
    : file_(path, {}, files, cache_for(tensors)),
      tensors_(tensors.begin(), tensors.end()),
      metadata_(metadata),
      checksums_(tensors.size(), 0) {
  if (file_.can_rewrite()) {
    metadata_[std::string(kChecksum)] = kNoDigits;
    for (const TensorDeclaration& tensor : tensors)
      metadata_[checksum_key(tensor.name)] = kNoDigits;
  }
  file_.write(std::string_view(safetensors_preamble(tensors_, metadata_)));
  for (const TensorDeclaration& tensor : tensors) {
    bytes_left_ += *array_bytes(tensor.shape, tensor.type);
  }
  if (!tensors_.empty()) left_of_it_ = *array_bytes(tensors_[0].shape, tensors_[0].type);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  CHECK(std::ssize(bytes) <= bytes_left_);
  file_.write(bytes);
  bytes_left_ -= std::ssize(bytes);
  count_in(bytes);
  if (bytes_left_ == 0) file_.finish_appending();
}

void SafetensorsWriter::count_in(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (left_of_it_ == 0) {
      ++at_;
      left_of_it_ = *array_bytes(tensors_[at_].shape, tensors_[at_].type);
      continue;
    }
    const auto part = bytes.first(std::min(bytes.size(), static_cast<size_t>(left_of_it_)));
    checksums_[at_] = crc32c(part, checksums_[at_]);
    left_of_it_ -= std::ssize(part);
    bytes = bytes.subspan(part.size());
  }
}

uint32_t SafetensorsWriter::commit() {
  CHECK(bytes_left_ == 0);
  uint32_t checksum = 0;
  if (file_.can_rewrite()) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      metadata_[checksum_key(tensors_[i].name)] = hex_of(checksums_[i]);
    }
    const std::string sums = safetensors_preamble(tensors_, metadata_);
    const std::optional<uint32_t> whole =
        header_checksum(std::string_view(sums).substr(kLengthBytes));
    CHECK(whole);
    checksum = *whole;
    metadata_[std::string(kChecksum)] = hex_of(*whole);
    const std::string preamble = safetensors_preamble(tensors_, metadata_);
    file_.rewrite(0, std::as_bytes(std::span(preamble)));
  }
  file_.commit();
  return checksum;
}

}  // namespace ballast
