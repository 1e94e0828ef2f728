// A folder of checkpoints. It belongs to one run, whose id stands in every checkpoint, and one
// process at a time trains in it: a lock on its file "lock" is held as long as this lives, and ends
// with the process however that ends.
//
// Will not do: read or write a checkpoint's state (checkpoint), or decide when (trainer).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/train/checkpoint.h"
#include "sim/base/files.h"

namespace ballast {

// Of a run, the newest: what else it has left goes when one more is whole.
inline constexpr size_t kCheckpointsKept = 2;

class CheckpointFolder {
 public:
  // Creates the folder where there is none, removes what killed processes have left half written in
  // it (shards too that no checkpoint names), and tries to write a file there. Throws Error where
  // it cannot be written, or another process trains in it. `files` must outlive this object.
  explicit CheckpointFolder(std::string path, Files& files = system_files());
  CheckpointFolder(CheckpointFolder&& other) noexcept;
  CheckpointFolder& operator=(CheckpointFolder&&) = delete;
  ~CheckpointFolder();

  const std::string& path() const { return path_; }

  // The newest checkpoint that is whole, every byte as it was written, or nothing where there is
  // none at all. Newer ones that are not whole are set aside: they keep their content under a name
  // that ends in ".damaged", each of their files. Throws Error, and leaves all as it is, where none
  // is whole, one cannot be opened, or checkpoints of two runs lie there.
  struct ToResume {
    std::optional<std::string> checkpoint{};
    std::vector<std::string> notes{};  // what was set aside or cannot be checked, one line each
  };
  ToResume to_resume() const;
  // Throws Error where the disk has less room than the checkpoints of a run take that lie there at
  // a time, beside those that do already: of `coming` ones those that are kept, and one more until
  // it is whole. `bytes` is the state of one.
  void require_room(int64_t bytes, const std::string& run, int64_t coming) const;
  // Throws Error where there is a checkpoint: a run that begins would put its own among them.
  void require_empty() const;

  // The newest of a run.
  std::optional<std::string> newest_of(const std::string& run) const;
  // Removes all of a run but those that are kept, and shards that no checkpoint names. While no
  // rank writes one. Of each checkpoint the manifest goes before its shards, so that it is there
  // whole or not at all.
  void prune(const std::string& run) const;
  // Removes all but those of a run.
  void remove_others(const std::string& run) const;
  void remove(int64_t next_step) const;

 private:
  void lock();
  void remove_lone_shards() const;
  void set_aside(const std::string& checkpoint) const;

  Files* files_;
  std::string path_;
  int descriptor_ = -1;
};

// A name that no other run has.
std::string new_run_id();

// "FOLDER/step-00000120.safetensors".
std::string checkpoint_path(const std::string& folder, int64_t next_step);
// Throws Error where another rank than the first, which has opened the folder, does not see it.
void require_shared_folder(const std::string& folder, int rank, Files& files = system_files());
// The newest checkpoint of a folder, or nothing.
std::optional<std::string> newest_checkpoint(const std::string& folder);
// Of the newest whose header can be read: what was run last, whether or not the rest is whole.
std::optional<CheckpointHeader> newest_header(const std::string& folder);

}  // namespace ballast
