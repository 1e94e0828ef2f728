// The safetensors files of one model: a file, or a folder as Hugging Face lays it out, with
// model.safetensors or with several files and model.safetensors.index.json, which says in which of
// them each tensor is.
//
// Will not do: config.json, or weights in any other format.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/formats/safetensors.h"

namespace ballast {

// Where weights are written: a file, or, where they are larger than `most` bytes, beside it several
// with an index, as huggingface_hub cuts them (serialization/_base.py,
// split_state_dict_into_shards_factory): tensors in their order, each file as full as it gets, a
// tensor that is larger alone.
struct WeightsTarget {
  std::string path;             // of several files: FOLDER/model.safetensors
  std::optional<int64_t> most;  // nothing: one file, whatever its size
};

// How many of the tensors, in their order, go into each file.
std::vector<size_t> cut_into_files(std::span<const TensorDeclaration> tensors,
                                   std::optional<int64_t> most);

// Writes the tensors one after another. All files appear at commit, the index last, and not before
// an index that was there is gone: what can be loaded is never half of two exports. In a folder
// what an earlier export left goes then: files of another number, and with the last of them an
// index that stands beside one file. What another program wrote stays, and no index names it.
class WeightFilesWriter {
 public:
  // As SafetensorsWriter, for each file. `target.path` is then one of a folder.
  WeightFilesWriter(const WeightsTarget& target, std::span<const TensorDeclaration> tensors,
                    const StoredMetadata& metadata, Files& files = system_files());
  // The bytes of the next tensor.
  void write(std::span<const std::byte> tensor);
  void commit();

 private:
  std::string path_of(size_t file) const;
  std::string index_text() const;
  std::string index_path() const;
  // What becomes of numbered files that lie in the folder and are not of this export: those of
  // Ballast are removed.
  enum class Older : uint8_t { kNone, kAllGone, kSomeStay };
  Older remove_older_files() const;

  WeightsTarget target_;
  std::vector<TensorDeclaration> tensors_;
  Files* files_;
  std::vector<size_t> counts_;  // of tensors, by file
  std::deque<SafetensorsWriter> writers_;
  size_t file_ = 0;     // that is being written
  size_t written_ = 0;  // tensors of it
  int64_t total_ = 0;   // bytes
};

class WeightFiles {
 public:
  // Throws Error where a file is missing or damaged, or a folder holds none that is known.
  explicit WeightFiles(const std::string& path);

  bool holds(std::string_view tensor) const;
  // The file in which a tensor is; any file where none holds it, for its error.
  const SafetensorsReader& file_of(std::string_view tensor) const;

 private:
  void add(const std::string& path);
  void read_index(const std::string& folder, const std::string& index);

  std::map<std::string, SafetensorsReader> files_;  // by path
  std::map<std::string, const SafetensorsReader*, std::less<>> by_tensor_;
};

}  // namespace ballast
