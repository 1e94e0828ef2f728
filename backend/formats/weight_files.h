// The safetensors files of one model: a file, or a folder as Hugging Face lays it out, with
// model.safetensors or with several files and model.safetensors.index.json, which says in which of
// them each tensor is.
//
// Will not do: config.json, or weights in any other format.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "backend/formats/safetensors.h"

namespace ballast {

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
