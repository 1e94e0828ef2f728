#include "backend/checkpoint/shards.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <random>

#include "sim/base/crc32c.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

constexpr std::string_view kShardPrefix = "shard-";
constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::string_view kElements = "elements/";
constexpr const char* kShardCount = "shards";
constexpr const char* kNotWhole = "bring back a copy of all of its files, or go on from another";

std::string shard_key(size_t index) { return fmt::format("shard/{:05}", index); }

template <class Number>
bool read_whole(std::string_view text, Number& number, int base = 10) {
  const auto [at, failure] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return failure == std::errc{} && at == text.data() + text.size();
}

[[noreturn]] void refuse_manifest(const std::string& path, const std::string& what) {
  throw Error(path, what, kNotWhole);
}

}  // namespace

std::string new_shard_mark() {
  std::random_device random;
  return fmt::format("{:08x}", random());
}

std::string shard_file(const ShardName& name) {
  return fmt::format("{}{:08}-{}-{}-of-{}{}", kShardPrefix, name.next_step, name.mark, name.rank,
                     name.ranks, kShardSuffix);
}

std::optional<int64_t> step_of_shard(std::string_view file) {
  if (!file.starts_with(kShardPrefix) || !file.ends_with(kShardSuffix)) return std::nullopt;
  file.remove_prefix(kShardPrefix.size());
  int64_t step = 0;
  if (!read_whole(file.substr(0, file.find('-')), step)) return std::nullopt;
  return step;
}

std::string elements_key(const std::string& parameter) {
  return std::string(kElements) + parameter;
}

void add_shards(std::span<const Shard> shards, StoredMetadata& metadata) {
  metadata[kShardCount] = fmt::format("{}", shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    metadata[shard_key(i)] = fmt::format("{} {}", hex_of(shards[i].checksum), shards[i].file);
  }
}

std::vector<Shard> shards_of(const StoredMetadata& metadata, const std::string& path) {
  const auto found = metadata.find(kShardCount);
  if (found == metadata.end()) return {};
  size_t count = 0;
  if (!read_whole(found->second, count) || count == 0 || count > metadata.size()) {
    refuse_manifest(path, "it names '" + found->second + "' shards");
  }
  std::vector<Shard> shards;
  for (size_t i = 0; i < count; ++i) {
    const auto one = metadata.find(shard_key(i));
    if (one == metadata.end()) {
      refuse_manifest(path, fmt::format("it does not name shard {} of {}", i, count));
    }
    const std::string_view text = one->second;
    const size_t space = std::min(text.find(' '), text.size());
    Shard shard{std::string(text.substr(std::min(space + 1, text.size()))), 0};
    // A manifest is no way to read other places.
    const bool beside = step_of_shard(shard.file) && shard.file.find('/') == std::string::npos;
    if (!beside || !read_whole(text.substr(0, space), shard.checksum, 16)) {
      refuse_manifest(path, "'" + one->second + "' names no shard beside it");
    }
    shards.push_back(std::move(shard));
  }
  return shards;
}

ShardReaders::ShardReaders(const std::string& manifest, std::span<const Shard> shards, Files& files)
    : manifest_(manifest) {
  for (const Shard& shard : shards) {
    SafetensorsReader reader(folder_of(manifest) + "/" + shard.file, files);
    if (reader.checksum() != shard.checksum) {
      throw Error(reader.path(), "it is not the file that " + manifest + " was written with",
                  kNotWhole);
    }
    One& one = shards_.emplace_back(One{std::move(reader), {}});
    for (const auto& [key, value] : one.file.metadata()) {
      if (!key.starts_with(kElements)) continue;
      one.elements[key.substr(kElements.size())] = parse_runs(value, one.file.path() + ", " + key);
    }
  }
}

void ShardReaders::verify() const {
  for (const One& shard : shards_) shard.file.verify();
}

namespace {

// A tensor of a shard, to where its elements belong.
void place(const SafetensorsReader& file, const StoredTensor& tensor,
           std::span<const ElementRuns> elements, std::span<float> values) {
  if (tensor.type != StoredType::kF32 || tensor.elements() != count_of(elements)) {
    throw Error(file.path() + ":" + tensor.name, "it has other elements than its metadata say",
                kNotWhole);
  }
  std::vector<float> stored(static_cast<size_t>(tensor.elements()));
  file.read(tensor, std::as_writable_bytes(std::span(stored)));
  auto from = stored.begin();
  for (const ElementRuns& runs : elements) {
    for (int64_t i = 0; i < runs.runs; ++i, from += runs.run) {
      std::copy_n(from, runs.run, values.begin() + runs.first + i * runs.stride);
    }
  }
}

}  // namespace

std::vector<float> ShardReaders::read(const std::string& prefix, const std::string& parameter,
                                      int64_t count, std::span<const ElementRuns> wanted,
                                      Values kind) const {
  std::vector<float> values(static_cast<size_t>(count));
  int64_t of_all = 0;
  for (const One& shard : shards_) {
    const auto found = shard.elements.find(parameter);
    if (found == shard.elements.end()) continue;
    of_all += count_of(found->second);
    for (const ElementRuns& runs : found->second) {
      if (runs.end() <= count) continue;
      throw Error(
          shard.file.path(),
          fmt::format("it has elements of '{}' beyond the {} of the model", parameter, count),
          "give a checkpoint of this very model");
    }
    if (!may_meet(found->second, wanted)) continue;
    place(shard.file, shard.file.at(prefix + parameter), found->second, values);
  }
  if (of_all != count) {
    throw Error(
        manifest_,
        fmt::format("its shards have {} of the {} elements of '{}'", of_all, count, parameter),
        "give a checkpoint of this very model");
  }
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (kind == Values::kAny || bad == values.end()) return values;
  throw Error(manifest_,
              fmt::format("tensor '{}{}' has a value that is not finite: {} at {} of {}", prefix,
                          parameter, *bad, bad - values.begin(), count),
              "give weights that can be trained on");
}

}  // namespace ballast
