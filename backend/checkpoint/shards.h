// The files of a checkpoint that several ranks wrote: a shard of each, and a manifest that names
// them all.
//
// The manifest has the name of the checkpoint (step-00000120.safetensors) and no tensors: its
// metadata say what a checkpoint of one file says, and of every shard its file and the checksum of
// its header, which through those of its tensors is one of the whole file. It is written when all
// shards are on the disk, and removed before any of them: where it is, they are. A shard's name has
// a random part, so that no other checkpoint, of this run or another, ever writes to it.
// A shard (shard-00000120-9f3a61c2-0-of-4.safetensors) has of each parameter the values that one
// rank kept, as many tensors as a checkpoint of one file, flat; its metadata say which elements
// they are, "elements/NAME" (element_runs.h).
// Will not do: gather (rank_parts), decide which checkpoint is taken (checkpoint_folder), or know
// what a name in a checkpoint means (backend/train/checkpoint).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/checkpoint/element_runs.h"
#include "backend/formats/safetensors.h"
#include "sim/base/files.h"

namespace ballast {

struct Shard {
  std::string file;  // without its folder, which is the manifest's
  uint32_t checksum = 0;
};

// What tells the shards of a checkpoint from all others of that name: eight hexadecimal digits.
std::string new_shard_mark();
struct ShardName {
  int64_t next_step = 0;
  std::string mark;
  int rank = 0;
  int ranks = 1;
};
std::string shard_file(const ShardName& name);
// The step of a file that has such a name; nothing of any other.
std::optional<int64_t> step_of_shard(std::string_view file);

// Into a manifest's metadata and out of them; none of a checkpoint of one file. Throws Error where
// they are not whole.
void add_shards(std::span<const Shard> shards, StoredMetadata& metadata);
std::vector<Shard> shards_of(const StoredMetadata& metadata, const std::string& path);
std::string elements_key(const std::string& parameter);

// The shards of one checkpoint, open. Throws Error where one is missing, or is not the one that was
// written with the others.
class ShardReaders {
 public:
  // `manifest`: its path.
  ShardReaders(const std::string& manifest, std::span<const Shard> shards,
               Files& files = system_files());

  // Reads all. Throws Error where a byte is not as it was written.
  void verify() const;
  // The tensor `prefix` + `parameter`, in the order of its elements, as far as shards that have any
  // of `wanted` have it; zeros elsewhere. Throws Error where the shards do not have as many
  // elements as the parameter, others than it has, or a value that is not finite where `finite`.
  enum class Values : uint8_t { kFinite, kAny };
  std::vector<float> read(const std::string& prefix, const std::string& parameter, int64_t count,
                          std::span<const ElementRuns> wanted, Values values) const;

 private:
  struct One {
    SafetensorsReader file;
    std::map<std::string, std::vector<ElementRuns>, std::less<>> elements;  // by parameter
  };
  std::string manifest_;
  std::vector<One> shards_;
};

}  // namespace ballast
