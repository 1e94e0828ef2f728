// Models of shipped tables, made once a process: thousands of plans ask for the same few.
//
// Only sources of this folder include this header. Will not do: parse (kernels, fabrics).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "profiles/json_reader.h"
#include "profiles/shipped.h"

namespace ballast {

// `parse(text, path)` gives what a Model is made of. Every Model has files in one folder of
// profiles.
template <class Model, class Parse>
std::shared_ptr<const Model> load_once(const std::string& name, const char* folder, Parse parse) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Model>> known;
  const Found found = find_file(name, folder);
  const std::lock_guard lock(mutex);
  std::shared_ptr<const Model>& model = known[found.path];
  if (!model) model = std::make_shared<Model>(parse(read_text_file(found.path), found.path));
  return model;
}

}  // namespace ballast
