#include "backend/train/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "backend/checkpoint/shards.h"
#include "backend/train/checkpoint.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "sim/base/fault.h"
#include "sim/base/files.h"
#include "sim/base/units.h"

namespace ballast {

namespace {

constexpr const char* kLockFile = "lock";
constexpr const char* kDamaged = ".damaged";

bool is_checkpoint(const std::string& name) {
  return name.starts_with("step-") && name.ends_with(".safetensors");
}

// What AtomicFile writes before it renames.
bool is_unfinished(const std::string& name) {
  const size_t end = name.rfind(".part-");
  if (end == std::string::npos) return false;
  const std::string target = name.substr(0, end);
  return (is_checkpoint(target) || step_of_shard(target)) && is_part_of(name, target);
}

int64_t step_of_checkpoint(const std::string& path) {
  return std::stoll(std::filesystem::path(path).stem().string().substr(5));
}

// Oldest first.
std::vector<std::string> checkpoints_in(Files& files, const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string& name : files.names_in(folder)) {
    if (is_checkpoint(name)) paths.push_back((std::filesystem::path(folder) / name).string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// One that is gone is fine.
void remove_file(Files& files, const std::string& path) {
  if (files.remove(path) == 0 || errno == ENOENT) return;
  const int code = errno;
  throw Error(path, "cannot remove an old checkpoint: " + fault_name(code), fault_remedy(code));
}

// Empty where the file is damaged.
std::optional<CheckpointHeader> header_of(Files& files, const std::string& path) {
  try {
    return load_checkpoint_header(path, files);
  } catch (const Error&) {
    return std::nullopt;
  }
}

struct Damage {
  std::string path;
  std::string what;
};

// A file that is whole and may not be read is no reason to go on from an older one, nor is a link
// to a disk that is not there now.
void require_readable(Files& files, const std::string& path) {
  const int descriptor = files.open(path, O_RDONLY | O_NONBLOCK, 0);
  const int code = errno;
  if (descriptor >= 0) {
    files.close(descriptor);
  } else if (code == ENOENT) {
    throw Error(path, "is a link to a file that is not there",
                "bring that file there, or remove the link to go on from the checkpoint before");
  } else if (code != EIO) {
    throw Error(path, "cannot be opened: " + fault_name(code), fault_remedy(code));
  }
}

// Of its shards, as far as they are known: one that is missing is no whole checkpoint.
void require_readable_shards(Files& files, const std::string& checkpoint) {
  std::vector<std::string> shards;
  try {
    shards = shards_of_checkpoint(checkpoint, files);
  } catch (const Error&) {
    return;  // damaged, as whoever verifies it will find
  }
  struct stat found{};
  for (const std::string& shard : shards) {
    if (files.status(shard, found) == 0) require_readable(files, shard);
  }
}

void require_one_run(Files& files, const std::vector<std::string>& paths,
                     const std::string& newest) {
  const std::string run = load_checkpoint_header(newest, files).run;
  for (const std::string& path : paths) {
    const std::optional<CheckpointHeader> other = header_of(files, path);
    if (!other || other->run == run) continue;
    throw Error("--resume", "checkpoints of two runs lie in one folder, " + path + " and " + newest,
                "move those of the run that is not to go on to another folder");
  }
}

bool belongs_to(Files& files, const std::string& path, const std::string& run) {
  const std::optional<CheckpointHeader> header = header_of(files, path);
  return header && header->run == run;
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string path, Files& files)
    : files_(&files), path_(std::move(path)) {
  if (files.make_folder(path_) != 0) {
    const int code = errno;
    throw Error("--checkpoint " + path_, "the folder cannot be made: " + fault_name(code),
                fault_remedy(code));
  }
  lock();
  // Whoever wrote those is gone, for the lock is ours.
  for (const std::string& name : files.names_in(path_)) {
    if (is_unfinished(name)) remove_file(files, (std::filesystem::path(path_) / name).string());
  }
  remove_lone_shards();
  try_to_write(checkpoint_path(path_, 0), "--checkpoint " + path_, files);
}

// Shards whose manifest was never written, was replaced by another of its name, or has just been
// removed. Those of one that cannot be read may be its: they stay.
void CheckpointFolder::remove_lone_shards() const {
  std::set<std::string> named;
  std::set<int64_t> not_known;  // steps
  for (const std::string& checkpoint : checkpoints_in(*files_, path_)) {
    try {
      for (const std::string& shard : shards_of_checkpoint(checkpoint, *files_)) {
        named.insert(std::filesystem::path(shard).filename().string());
      }
    } catch (const Error&) {
      not_known.insert(step_of_checkpoint(checkpoint));
    }
  }
  for (const std::string& name : files_->names_in(path_)) {
    const std::optional<int64_t> step = step_of_shard(name);
    if (!step || named.contains(name) || not_known.contains(*step)) continue;
    remove_file(*files_, (std::filesystem::path(path_) / name).string());
  }
}

// The manifest last: as long as it is there the shards are not taken for ones that nobody names.
void CheckpointFolder::set_aside(const std::string& checkpoint) const {
  const auto rename = [&](const std::string& path) {
    if (files_->rename(path, path + kDamaged) == 0) return;
    const int code = errno;
    throw Error(path, "is damaged and cannot be set aside: " + fault_name(code),
                fault_remedy(code));
  };
  const int64_t step = step_of_checkpoint(checkpoint);
  for (const std::string& name : files_->names_in(path_)) {
    if (step_of_shard(name) == step) rename((std::filesystem::path(path_) / name).string());
  }
  rename(checkpoint);
}

void CheckpointFolder::lock() {
  const std::string file = path_ + "/" + kLockFile;
  descriptor_ = files_->open(file, O_RDWR | O_CREAT, 0666);
  if (descriptor_ < 0) {
    const int code = errno;
    throw Error("--checkpoint " + path_, "nothing can be written there: " + fault_name(code),
                fault_remedy(code));
  }
  if (files_->lock(descriptor_) == 0) return;
  const int reason = errno;
  files_->close(std::exchange(descriptor_, -1));
  if (reason == EWOULDBLOCK) {
    throw Error("--checkpoint " + path_, "another process trains in this folder now",
                "wait for its end, or name another folder");
  }
  throw Error("--checkpoint " + path_, "the folder cannot be locked: " + fault_name(reason),
              "name a folder on a file system that has locks");
}

CheckpointFolder::CheckpointFolder(CheckpointFolder&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

CheckpointFolder::~CheckpointFolder() {
  if (descriptor_ >= 0) files_->close(descriptor_);  // and with it the lock
}

CheckpointFolder::ToResume CheckpointFolder::to_resume() const {
  const std::vector<std::string> paths = checkpoints_in(*files_, path_);
  ToResume found;
  std::vector<Damage> damaged;
  for (auto path = paths.rbegin(); path != paths.rend() && !found.checkpoint; ++path) {
    require_readable(*files_, *path);
    require_readable_shards(*files_, *path);
    try {
      if (!verify_checkpoint(*path, *files_)) {
        found.notes.push_back(*path +
                              " was written without checksums: nobody can tell whether it "
                              "still is what was written");
      }
      found.checkpoint = *path;
    } catch (const Error& error) {
      damaged.push_back({*path, error.what()});
    }
  }
  if (!found.checkpoint && !damaged.empty()) {
    throw Error(
        "--resume",
        fmt::format("no checkpoint in {} is whole; of the newest: {}", path_, damaged.front().what),
        "nothing was removed; bring a copy of one there, or begin in another folder");
  }
  if (!found.checkpoint) return found;
  require_one_run(*files_, paths, *found.checkpoint);
  for (const Damage& one : damaged) {
    set_aside(one.path);
    found.notes.push_back(
        fmt::format("training goes on from {}: {} is not whole ({}) and is kept as {}{}",
                    *found.checkpoint, one.path, one.what, one.path, kDamaged));
  }
  return found;
}

void CheckpointFolder::require_room(int64_t bytes, const std::string& run, int64_t coming) const {
  const std::vector<std::string> all = checkpoints_in(*files_, path_);
  const int64_t there = std::count_if(all.begin(), all.end(), [&](const std::string& path) {
    return belongs_to(*files_, path, run);
  });
  const auto most = static_cast<int64_t>(kCheckpointsKept) + 1;
  const int64_t more = std::min(coming, std::max<int64_t>(most - there, 1));
  const double each = static_cast<double>(bytes);
  const std::string size = bytes_text({bytes});
  const std::string needed =
      more == 1 ? "a checkpoint takes " + size
                : fmt::format("{} checkpoints of {} will lie there at a time", more, size);
  ballast::require_room(*files_, path_, static_cast<double>(more) * each, "--checkpoint " + path_,
                        needed);
}

void CheckpointFolder::require_empty() const {
  const std::vector<std::string> paths = checkpoints_in(*files_, path_);
  if (paths.empty()) return;
  throw Error("--checkpoint " + path_,
              "it holds checkpoints of another run, " +
                  std::filesystem::path(paths.back()).filename().string() + " the newest",
              "add --resume to go on with that run, --replace-checkpoints to put this one in its "
              "place, or name another folder");
}

std::optional<std::string> CheckpointFolder::newest_of(const std::string& run) const {
  const std::vector<std::string> paths = checkpoints_in(*files_, path_);
  const auto found = std::find_if(paths.rbegin(), paths.rend(), [&](const std::string& path) {
    return belongs_to(*files_, path, run);
  });
  if (found == paths.rend()) return std::nullopt;
  return *found;
}

void CheckpointFolder::prune(const std::string& run) const {
  std::vector<std::string> own = checkpoints_in(*files_, path_);
  std::erase_if(own, [&](const std::string& path) { return !belongs_to(*files_, path, run); });
  for (size_t i = 0; i + kCheckpointsKept < own.size(); ++i) remove_file(*files_, own[i]);
  remove_lone_shards();
}

void CheckpointFolder::remove_others(const std::string& run) const {
  for (const std::string& path : checkpoints_in(*files_, path_)) {
    if (!belongs_to(*files_, path, run)) remove_file(*files_, path);
  }
  remove_lone_shards();
}

void CheckpointFolder::remove(int64_t next_step) const {
  remove_file(*files_, checkpoint_path(path_, next_step));
  remove_lone_shards();
}

void require_shared_folder(const std::string& folder, int rank, Files& files) {
  struct stat found{};
  if (files.status(folder + "/" + kLockFile, found) == 0) return;
  const int code = errno;
  throw Error("--checkpoint " + folder,
              fmt::format("rank {} does not see the folder that the first one has opened: {}", rank,
                          fault_name(code)),
              "name a folder that all ranks share");
}

std::string new_run_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string checkpoint_path(const std::string& folder, int64_t next_step) {
  return fmt::format("{}/step-{:08}.safetensors", folder, next_step);
}

std::optional<std::string> newest_checkpoint(const std::string& folder) {
  const std::vector<std::string> paths = checkpoints_in(system_files(), folder);
  if (paths.empty()) return std::nullopt;
  return paths.back();
}

std::optional<CheckpointHeader> newest_header(const std::string& folder) {
  const std::vector<std::string> paths = checkpoints_in(system_files(), folder);
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    if (std::optional<CheckpointHeader> header = header_of(system_files(), *path)) return header;
  }
  return std::nullopt;
}

}  // namespace ballast
