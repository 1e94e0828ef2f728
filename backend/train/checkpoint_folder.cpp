#include "backend/train/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <random>
#include <sys/file.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "backend/train/checkpoint.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

constexpr const char* kLockFile = "lock";

bool is_checkpoint(const std::string& name) {
  return name.starts_with("step-") && name.ends_with(".safetensors");
}

// What AtomicFile writes before it renames.
bool is_unfinished(const std::string& name) {
  return name.starts_with("step-") && name.find(".safetensors.part-") != std::string::npos;
}

// Oldest first.
std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    if (is_checkpoint(entry.path().filename().string())) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void remove_file(const std::string& path) {
  std::error_code failure;
  std::filesystem::remove(path, failure);
  if (failure) {
    throw Error(path, "cannot remove an old checkpoint: " + failure.message(),
                "check the folder's permissions");
  }
}

// Empty where the file is damaged.
std::optional<CheckpointHeader> header_of(const std::string& path) {
  try {
    return load_checkpoint_header(path);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool belongs_to(const std::string& path, const std::string& run) {
  const std::optional<CheckpointHeader> header = header_of(path);
  return header && header->run == run;
}

}  // namespace

CheckpointFolder::CheckpointFolder(std::string path) : path_(std::move(path)) {
  std::error_code failure;
  std::filesystem::create_directories(path_, failure);
  if (failure) {
    throw Error("--checkpoint " + path_, "the folder cannot be made: " + failure.message(),
                "name a folder that can be written");
  }
  lock();
  // Whoever wrote those is gone, for the lock is ours.
  for (const auto& entry : std::filesystem::directory_iterator(path_, failure)) {
    if (is_unfinished(entry.path().filename().string())) remove_file(entry.path().string());
  }
}

void CheckpointFolder::lock() {
  const std::string file = path_ + "/" + kLockFile;
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw Error("--checkpoint " + path_,
                std::string("nothing can be written there: ") + std::strerror(errno),
                "name a folder that can be written");
  }
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  ::close(std::exchange(descriptor_, -1));
  if (reason == EWOULDBLOCK) {
    throw Error("--checkpoint " + path_, "another process trains in this folder now",
                "wait for its end, or name another folder");
  }
  throw Error("--checkpoint " + path_,
              std::string("the folder cannot be locked: ") + std::strerror(reason),
              "name a folder on a file system that has locks");
}

CheckpointFolder::CheckpointFolder(CheckpointFolder&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

CheckpointFolder::~CheckpointFolder() {
  if (descriptor_ >= 0) ::close(descriptor_);  // and with it the lock
}

std::optional<std::string> CheckpointFolder::to_resume() const {
  const std::vector<std::string> paths = checkpoints_in(path_);
  if (paths.empty()) return std::nullopt;
  std::optional<CheckpointHeader> newest;
  try {
    newest = load_checkpoint_header(paths.back());
  } catch (const Error& damage) {
    const auto whole = std::find_if(paths.rbegin() + 1, paths.rend(),
                                    [](const std::string& path) { return header_of(path); });
    if (whole == paths.rend()) throw;
    throw Error(damage.what(), *whole + " is whole",
                "move the damaged one away and --resume goes on from that");
  }
  for (const std::string& path : paths) {
    const std::optional<CheckpointHeader> other = header_of(path);
    if (!other || other->run == newest->run) continue;
    throw Error("--resume",
                "checkpoints of two runs lie in one folder, " + path + " and " + paths.back(),
                "move those of the run that is not to go on to another folder");
  }
  return paths.back();
}

void CheckpointFolder::require_empty() const {
  const std::vector<std::string> paths = checkpoints_in(path_);
  if (paths.empty()) return;
  throw Error("--checkpoint " + path_,
              "it holds checkpoints of another run, " +
                  std::filesystem::path(paths.back()).filename().string() + " the newest",
              "add --resume to go on with that run, --replace-checkpoints to put this one in its "
              "place, or name another folder");
}

std::optional<std::string> CheckpointFolder::newest_of(const std::string& run) const {
  const std::vector<std::string> paths = checkpoints_in(path_);
  const auto found = std::find_if(paths.rbegin(), paths.rend(),
                                  [&](const std::string& path) { return belongs_to(path, run); });
  if (found == paths.rend()) return std::nullopt;
  return *found;
}

void CheckpointFolder::prune(const std::string& run, size_t kept) const {
  std::vector<std::string> own = checkpoints_in(path_);
  std::erase_if(own, [&](const std::string& path) { return !belongs_to(path, run); });
  for (size_t i = 0; i + kept < own.size(); ++i) remove_file(own[i]);
}

void CheckpointFolder::remove_others(const std::string& run) const {
  for (const std::string& path : checkpoints_in(path_)) {
    if (!belongs_to(path, run)) remove_file(path);
  }
}

void CheckpointFolder::remove(int64_t next_step) const {
  remove_file(checkpoint_path(path_, next_step));
}

std::string new_run_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

std::string checkpoint_path(const std::string& folder, int64_t next_step) {
  return fmt::format("{}/step-{:08}.safetensors", folder, next_step);
}

std::optional<std::string> newest_checkpoint(const std::string& folder) {
  const std::vector<std::string> paths = checkpoints_in(folder);
  if (paths.empty()) return std::nullopt;
  return paths.back();
}

}  // namespace ballast
