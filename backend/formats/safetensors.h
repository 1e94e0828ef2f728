// Safetensors files: named, typed, shaped arrays in one file, as Hugging Face reads and writes
// them.
//
// Format: 8 bytes little-endian header length N; N bytes of JSON {name: {dtype, shape,
// data_offsets [begin, end)}}, "__metadata__": {string: string}}; then the data, without gaps.
// (huggingface/safetensors README "Format"; the limit of 100 MB on N is that library's.)
// What the writer makes carries checksums (CRC-32C) in its metadata, which other readers pass over:
// "ballast.crc32c/NAME" of the bytes of each tensor, and "ballast.crc32c" of the whole header, its
// own digits taken as zeros, and through theirs of the whole file. A header that has them is held
// against them when the file is opened, a tensor when it is read.
// Will not do: convert numbers, map the file into memory (a file cut short while mapped kills the
// process), or read the index of a model split over several files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/atomic_file.h"
#include "sim/spec/dtype.h"

namespace ballast {

// Every element type a Hugging Face weight file may hold; the trainer itself uses those of DType.
enum class StoredType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBf16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

int64_t size_of(StoredType type);             // bytes of one element
std::string_view to_string(StoredType type);  // the format's own name: "F32", "BF16"
StoredType stored_type(DType dtype);
std::optional<DType> dtype_of(StoredType type);  // empty where DType has none

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;  // row-major; empty for a scalar
  int64_t begin = 0;           // bytes from the start of the file, of any alignment
  int64_t bytes = 0;
  std::optional<uint32_t> checksum{};  // of its bytes
  int64_t elements() const { return div_exact(bytes, size_of(type)); }
};

using StoredMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // in the order of their bytes in the file
  StoredMetadata metadata;            // without checksums
  int64_t data_begin = 0;
  bool has_checksums = false;
  uint32_t checksum = 0;  // of the header, where it has one
};

// Header length from the first 8 bytes. Throws Error where it is impossible for a file of
// file_bytes bytes. where: the file, for errors.
int64_t safetensors_header_bytes(std::span<const std::byte> first_bytes, int64_t file_bytes,
                                 const std::string& where);

// Checks a whole header (the JSON after the first 8 bytes) against the size of its file: offsets
// tile the data exactly, sizes agree with shape and type, names are unique, and its own checksum
// where it has one. Throws Error.
SafetensorsHeader parse_safetensors(std::string_view json, int64_t file_bytes,
                                    const std::string& where);

// An open file, fully checked. Reads need no lock and may run in several threads at once.
class SafetensorsReader {
 public:
  // `files` must outlive this object.
  explicit SafetensorsReader(const std::string& path, Files& files = system_files());
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&& other) noexcept;
  SafetensorsReader& operator=(SafetensorsReader&&) = delete;

  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const StoredMetadata& metadata() const { return header_.metadata; }
  bool has_checksums() const { return header_.has_checksums; }
  // Of the header, and through those of the tensors of the whole file; nothing where it has none.
  std::optional<uint32_t> checksum() const {
    return has_checksums() ? std::optional(header_.checksum) : std::nullopt;
  }
  const std::string& path() const { return path_; }
  // Null if there is none of that name. Valid as long as the reader.
  const StoredTensor* find(std::string_view name) const;
  // As find, but throws Error naming the file and the tensor.
  const StoredTensor& at(std::string_view name) const;

  // Copies out.size() bytes of the tensor from its byte first_byte on. The bytes must lie inside.
  void read(const StoredTensor& tensor, int64_t first_byte, std::span<std::byte> out) const;
  // The whole tensor; out.size() == tensor.bytes. Throws Error where its checksum is another.
  void read(const StoredTensor& tensor, std::span<std::byte> out) const;
  // Reads the data of all tensors that have checksums. Throws Error where one is another.
  void verify() const;

 private:
  void require_checksum(const StoredTensor& tensor, uint32_t found) const;

  Files* files_;
  std::string path_;
  int descriptor_ = -1;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

struct TensorDeclaration {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;
};

// Writes a file in one pass. It appears under its name at commit, whole and on disk, or not at all:
// a writer destroyed before that leaves what was there. Holds no data beyond a write call, but at
// most a chunk of a large file, which bypasses the page cache. Carries checksums, which are
// written into the header last; not into what is no regular file.
class SafetensorsWriter {
 public:
  // Declares all tensors, in the order of their bytes. Names are unique UTF-8 and not
  // "__metadata__"; types stand widest first, so that every tensor starts aligned to its type
  // (the format allows no padding between tensors). The data starts at a multiple of 64 bytes.
  SafetensorsWriter(const std::string& path, std::span<const TensorDeclaration> tensors,
                    const StoredMetadata& metadata, Files& files = system_files());

  // Appends the next bytes; a call may hold a part of a tensor or several tensors.
  void write(std::span<const std::byte> bytes);
  // Requires that every declared byte has been written. Returns SafetensorsReader::checksum of the
  // file; 0 of what is no regular file, which has none.
  uint32_t commit();

  // Declared bytes that have not been written yet.
  int64_t bytes_left() const { return bytes_left_; }

 private:
  void count_in(std::span<const std::byte> bytes);

  AtomicFile file_;
  std::vector<TensorDeclaration> tensors_;
  StoredMetadata metadata_;
  std::vector<uint32_t> checksums_;  // of the tensors, so far
  size_t at_ = 0;                    // the tensor that is being written
  int64_t left_of_it_ = 0;           // bytes
  int64_t bytes_left_ = 0;
};

// The first bytes of such a file (length and JSON, padded), as the writer puts them down.
std::string safetensors_preamble(std::span<const TensorDeclaration> tensors,
                                 const StoredMetadata& metadata);

}  // namespace ballast
