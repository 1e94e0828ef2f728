#include "backend/formats/weight_files.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <set>

#include "backend/formats/flat_json.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "sim/base/fault.h"
#include "sim/base/files.h"

namespace ballast {

namespace {

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

std::string text_of(const std::string& path) {
  refuse_named_pipe(path);
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Error(path, "cannot be read", "check the file and its permissions");
  return text;
}

int64_t bytes_of(const TensorDeclaration& tensor) {
  int64_t bytes = size_of(tensor.type);
  for (const int64_t extent : tensor.shape) bytes *= extent;
  return bytes;
}

// Other programs write no checksums that are known here.
bool is_of_ballast(const std::string& path) {
  try {
    return SafetensorsReader(path).has_checksums();
  } catch (const Error&) {
    return false;
  }
}

// STEM-00002-of-00003EXTENSION.
bool is_numbered(std::string_view name, std::string_view stem, std::string_view extension) {
  constexpr std::string_view kPattern = "-ddddd-of-ddddd";
  if (name.size() != stem.size() + kPattern.size() + extension.size()) return false;
  if (!name.starts_with(stem) || !name.ends_with(extension)) return false;
  const std::string_view numbers = name.substr(stem.size(), kPattern.size());
  return std::equal(numbers.begin(), numbers.end(), kPattern.begin(), [](char c, char pattern) {
    return pattern == 'd' ? c >= '0' && c <= '9' : c == pattern;
  });
}

}  // namespace

std::vector<size_t> cut_into_files(std::span<const TensorDeclaration> tensors,
                                   std::optional<int64_t> most) {
  if (!most) return {tensors.size()};
  std::vector<size_t> counts;
  int64_t left = 0;
  for (const TensorDeclaration& tensor : tensors) {
    const int64_t bytes = bytes_of(tensor);
    if (counts.empty() || bytes > left) {
      counts.push_back(0);
      left = *most;
    }
    ++counts.back();
    left -= bytes;
  }
  return counts;
}

WeightFilesWriter::WeightFilesWriter(const WeightsTarget& target,
                                     std::span<const TensorDeclaration> tensors,
                                     const StoredMetadata& metadata, Files& files)
    : target_(target),
      tensors_(tensors.begin(), tensors.end()),
      files_(&files),
      counts_(cut_into_files(tensors, target.most)) {
  for (const TensorDeclaration& tensor : tensors) total_ += bytes_of(tensor);
  size_t first = 0;
  for (size_t file = 0; file < counts_.size(); ++file) {
    writers_.emplace_back(path_of(file), tensors.subspan(first, counts_[file]), metadata, files);
    first += counts_[file];
  }
}

// "model-00002-of-00003.safetensors" beside "model.safetensors".
std::string WeightFilesWriter::path_of(size_t file) const {
  if (counts_.size() == 1) return target_.path;
  const std::filesystem::path path = target_.path;
  const std::string name = fmt::format("{}-{:05}-of-{:05}{}", path.stem().string(), file + 1,
                                       counts_.size(), path.extension().string());
  return (path.parent_path() / name).string();
}

void WeightFilesWriter::write(std::span<const std::byte> tensor) {
  while (written_ == counts_[file_]) {
    ++file_;
    written_ = 0;
  }
  writers_[file_].write(tensor);
  ++written_;
}

std::string WeightFilesWriter::index_text() const {
  std::string map;
  size_t tensor = 0;
  for (size_t file = 0; file < counts_.size(); ++file) {
    const std::string name = std::filesystem::path(path_of(file)).filename().string();
    for (size_t i = 0; i < counts_[file]; ++i, ++tensor) {
      map += fmt::format("{}\n    {}: {}", map.empty() ? "" : ",",
                         json_quoted(tensors_[tensor].name), json_quoted(name));
    }
  }
  return fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": "
      "{{{}\n  }}\n}}\n",
      total_, map);
}

void WeightFilesWriter::commit() {
  const bool in_folder = target_.most.has_value();
  if (counts_.size() == 1) {
    writers_.front().commit();
    if (in_folder && remove_older_files() == Older::kAllGone) files_->remove(index_path());
    return;
  }
  if (files_->remove(index_path()) != 0 && errno != ENOENT) {
    const int code = errno;
    throw Error(index_path(), "the one that was there cannot be removed: " + fault_name(code),
                fault_remedy(code));
  }
  for (SafetensorsWriter& writer : writers_) writer.commit();
  AtomicFile file(index_path(), {}, *files_);
  file.write(std::string_view(index_text()));
  file.commit();
  remove_older_files();
}

std::string WeightFilesWriter::index_path() const {
  return folder_of(target_.path) + "/" + kIndexFile;
}

// Nothing loads them any more, so that one which cannot be removed fails no export.
WeightFilesWriter::Older WeightFilesWriter::remove_older_files() const {
  std::set<std::string> own;
  for (size_t file = 0; file < counts_.size(); ++file) {
    own.insert(std::filesystem::path(path_of(file)).filename().string());
  }
  const std::filesystem::path path = target_.path;
  Older older = Older::kNone;
  for (const std::string& name : files_->names_in(folder_of(target_.path))) {
    const bool numbered = is_numbered(name, path.stem().string(), path.extension().string());
    if (!numbered || own.contains(name)) continue;
    const std::string whole = folder_of(target_.path) + "/" + name;
    const bool gone = is_of_ballast(whole) && files_->remove(whole) == 0;
    if (!gone) older = Older::kSomeStay;
    if (older == Older::kNone) older = Older::kAllGone;
  }
  return older;
}

WeightFiles::WeightFiles(const std::string& path) {
  std::error_code ignored;
  const std::string one = path + "/" + kOneFile;
  const std::string index = path + "/" + kIndexFile;
  if (!std::filesystem::is_directory(path, ignored)) {
    add(path);
  } else if (std::filesystem::exists(one, ignored)) {
    add(one);
  } else if (std::filesystem::exists(index, ignored)) {
    read_index(path, index);
  } else {
    throw Error(path, std::string("the folder has neither ") + kOneFile + " nor " + kIndexFile,
                "name a folder of safetensors weights, or one file of them");
  }
}

void WeightFiles::add(const std::string& path) {
  const SafetensorsReader& file = files_.emplace(path, SafetensorsReader(path)).first->second;
  for (const StoredTensor& tensor : file.tensors()) by_tensor_.emplace(tensor.name, &file);
}

// Files are named without a folder: an index is no way to read other places.
void WeightFiles::read_index(const std::string& folder, const std::string& index) {
  const std::string text = text_of(index);
  JsonCursor json(text, index);
  std::map<std::string, std::string> named;
  json.object([&](const std::string& key) {
    if (key != "weight_map") return json.skip();
    json.object([&](const std::string& tensor) {
      if (!named.emplace(tensor, json.string()).second) {
        throw Error(index, "\"" + tensor + "\" stands twice", "write the index again");
      }
    });
  });
  json.end();
  if (named.empty()) throw Error(index, "\"weight_map\" names no tensor", "write the index again");
  for (const auto& [tensor, file] : named) {
    if (file.empty() || file.find('/') != std::string::npos) {
      throw Error(index, "\"" + tensor + "\" is in \"" + file + "\", which is no file beside it",
                  "name files of the same folder");
    }
    const std::string path = folder + "/" + file;
    if (!files_.contains(path)) add(path);
    const SafetensorsReader& reader = files_.at(path);
    reader.at(tensor);
    by_tensor_[tensor] = &reader;
  }
}

bool WeightFiles::holds(std::string_view tensor) const {
  return by_tensor_.find(tensor) != by_tensor_.end();
}

const SafetensorsReader& WeightFiles::file_of(std::string_view tensor) const {
  const auto found = by_tensor_.find(tensor);
  return found == by_tensor_.end() ? files_.begin()->second : *found->second;
}

}  // namespace ballast
