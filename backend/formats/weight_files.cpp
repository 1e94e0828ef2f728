#include "backend/formats/weight_files.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "backend/formats/flat_json.h"
#include "sim/base/error.h"
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

}  // namespace

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
