#include "tests/faults/simulated_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <utility>

namespace ballast::tests {
namespace {

constexpr int kFirstDescriptor = 1000;  // none of the system's

int fail_with(int code) {
  errno = code;
  return -1;
}

// As a disk of 4,096 bytes a block asks for.
bool is_aligned(std::span<const std::byte> data, int64_t first_byte) {
  const auto memory = reinterpret_cast<uintptr_t>(data.data());
  return (memory | data.size() | static_cast<uintptr_t>(first_byte)) % 4096 == 0;
}

}  // namespace

SimulatedDisk::SimulatedDisk(uint64_t seed) : random_(seed), folders_{"/", "."} {}

int64_t SimulatedDisk::draw(int64_t below) {
  return std::uniform_int_distribution<int64_t>(0, below - 1)(random_);
}

void SimulatedDisk::expect(const Incident& incident) {
  const std::scoped_lock lock(mutex_);
  incident_ = incident;
  calls_ = 0;
  room_base_ = used();
}

bool SimulatedDisk::is_down() const {
  const std::scoped_lock lock(mutex_);
  return down_.has_value();
}

int64_t SimulatedDisk::calls() const {
  const std::scoped_lock lock(mutex_);
  return calls_;
}

void SimulatedDisk::restart() {
  const std::scoped_lock lock(mutex_);
  const bool lost_power = down_ == Incident::Kind::kPowerCut;
  down_.reset();
  incident_ = {};
  openings_.clear();
  descriptors_.clear();
  for (auto& [id, node] : nodes_) node.locked_by = 0;
  if (!lost_power) return;
  const int64_t kept = draw(std::ssize(unsynced_names_) + 1);
  for (int64_t i = 0; i < kept; ++i) apply(durable_names_, unsynced_names_[static_cast<size_t>(i)]);
  unsynced_names_.clear();
  names_ = durable_names_;
  for (auto& [id, node] : nodes_) lose_unsynced(node);
}

// Any sectors of any writes, in any order; a cut may be lost, and with it nothing else.
void SimulatedDisk::lose_unsynced(Node& node) {
  std::vector<Change> parts;
  for (const Change& change : node.unsynced) {
    if (change.is_cut) {
      parts.push_back(change);
      continue;
    }
    for (int64_t at = 0; at < std::ssize(change.bytes);) {
      const int64_t place = change.first_byte + at;
      const int64_t size = std::min(kSector - place % kSector, std::ssize(change.bytes) - at);
      parts.push_back(
          {place, change.bytes.substr(static_cast<size_t>(at), static_cast<size_t>(size)), false});
      at += size;
    }
  }
  std::shuffle(parts.begin(), parts.end(), random_);
  const int64_t share = draw(5);  // of four: none, some or all of them
  for (const Change& part : parts) {
    if (draw(4) < share) apply(node.durable, part);
  }
  node.unsynced.clear();
  node.content = node.durable;
}

void SimulatedDisk::apply(std::string& content, const Change& change) const {
  if (change.is_cut) {
    content.resize(static_cast<size_t>(change.first_byte));
    return;
  }
  const size_t end = static_cast<size_t>(change.first_byte) + change.bytes.size();
  if (content.size() < end) content.resize(end);
  content.replace(static_cast<size_t>(change.first_byte), change.bytes.size(), change.bytes);
}

void SimulatedDisk::apply(std::map<std::string, NodeId>& names, const NameChange& change) {
  if (!change.removed.empty()) names.erase(change.removed);
  if (!change.made.empty()) names[change.made] = change.node;
}

void SimulatedDisk::change_name(NameChange change) {
  if (const auto found = names_.find(change.removed); found != names_.end()) {
    --nodes_[found->second].links;
  }
  if (const auto found = names_.find(change.made); found != names_.end()) {
    --nodes_[found->second].links;
  }
  if (!change.made.empty()) ++nodes_[change.node].links;
  apply(names_, change);
  unsynced_names_.push_back(std::move(change));
}

std::optional<std::string> SimulatedDisk::content(const std::string& path) const {
  const std::scoped_lock lock(mutex_);
  const auto found = names_.find(path);
  if (found == names_.end()) return std::nullopt;
  return nodes_.at(found->second).content;
}

void SimulatedDisk::put(const std::string& path, const std::string& content) {
  const std::scoped_lock lock(mutex_);
  const NodeId id = next_node_++;
  nodes_[id].content = nodes_[id].durable = content;
  nodes_[id].links = 1;
  names_[path] = durable_names_[path] = id;
}

bool SimulatedDisk::is_durable(const std::string& path) const {
  const std::scoped_lock lock(mutex_);
  const auto found = names_.find(path);
  const auto kept = durable_names_.find(path);
  if (found == names_.end() || kept == durable_names_.end() || found->second != kept->second) {
    return false;
  }
  return nodes_.at(found->second).unsynced.empty();
}

int64_t SimulatedDisk::used() const {
  int64_t bytes = 0;
  for (const auto& [path, id] : names_) bytes += std::ssize(nodes_.at(id).content);
  return bytes;
}

void SimulatedDisk::die(Incident::Kind how) { down_ = how; }

int SimulatedDisk::down() const { return down_ ? fail_with(EIO) : 0; }

SimulatedDisk::Fate SimulatedDisk::fate_of_change() {
  if (down_) {
    errno = EIO;
    return Fate::kFails;
  }
  ++calls_;
  if (clock_ != nullptr) clock_->pass(a_change_);
  const bool meets =
      incident_.at > 0 && (calls_ == incident_.at || (incident_.stays && calls_ > incident_.at));
  if (!meets) return Fate::kRuns;
  switch (incident_.kind) {
    case Incident::Kind::kNone:
      return Fate::kRuns;
    case Incident::Kind::kFailure:
      errno = incident_.code;
      return Fate::kFails;
    case Incident::Kind::kKill:
    case Incident::Kind::kPowerCut:
      die(incident_.kind);
      errno = EIO;
      return Fate::kDies;
  }
  return Fate::kRuns;
}

SimulatedDisk::Opening* SimulatedDisk::opening(int descriptor) {
  const auto found = descriptors_.find(descriptor);
  if (found == descriptors_.end()) {
    errno = EBADF;
    return nullptr;
  }
  return &openings_.at(found->second);
}

SimulatedDisk::Node* SimulatedDisk::file(int descriptor) {
  const Opening* const of = opening(descriptor);
  if (of != nullptr && of->node != 0) return &nodes_.at(of->node);
  if (of != nullptr) errno = EISDIR;
  return nullptr;
}

int SimulatedDisk::open(const std::string& path, int flags, mode_t mode) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  const bool is_folder = folders_.contains(path);
  const auto found = names_.find(path);
  if ((flags & O_DIRECTORY) != 0 && !is_folder) return fail_with(ENOTDIR);
  if (!is_folder && found == names_.end() && (flags & O_CREAT) == 0) return fail_with(ENOENT);
  if (found != names_.end() && (flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) {
    return fail_with(EEXIST);
  }
  Opening made;
  if (is_folder) {
    made.folder = path;
  } else if (found != names_.end()) {
    made.node = found->second;
    if ((flags & O_TRUNC) != 0) {
      if (fate_of_change() != Fate::kRuns) return -1;
      cut(nodes_.at(made.node), 0);
    }
  } else {
    if (!folders_.contains(folder_of(path))) return fail_with(ENOENT);
    if (fate_of_change() != Fate::kRuns) return -1;
    made.node = next_node_++;
    nodes_[made.node].mode = mode;
    change_name({"", path, made.node});
  }
  made.appends = (flags & O_APPEND) != 0;
  openings_[next_opening_] = made;
  int descriptor = kFirstDescriptor;
  while (descriptors_.contains(descriptor)) ++descriptor;
  descriptors_[descriptor] = next_opening_++;
  return descriptor;
}

int SimulatedDisk::duplicate(int descriptor) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  Opening* const of = opening(descriptor);
  if (of == nullptr) return -1;
  ++of->copies;
  int copy = kFirstDescriptor;
  while (descriptors_.contains(copy)) ++copy;
  descriptors_[copy] = descriptors_.at(descriptor);
  return copy;
}

// A close that fails has closed all the same.
int SimulatedDisk::close(int descriptor) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  Opening* const of = opening(descriptor);
  if (of == nullptr) return -1;
  const int64_t id = descriptors_.at(descriptor);
  const bool changes = of->node != 0;
  descriptors_.erase(descriptor);
  if (--of->copies == 0) {
    if (of->node != 0 && nodes_.at(of->node).locked_by == id) nodes_.at(of->node).locked_by = 0;
    openings_.erase(id);
  }
  return !changes || fate_of_change() == Fate::kRuns ? 0 : -1;
}

ssize_t SimulatedDisk::put_bytes(int descriptor, int64_t first_byte,
                                 std::span<const std::byte> data) {
  Node* const node = file(descriptor);
  if (node == nullptr) return -1;
  if (opening(descriptor)->is_direct && !is_aligned(data, first_byte)) return fail_with(EINVAL);
  if (!down_ && one_in_ > 0 && draw(one_in_) == 0) {
    if (draw(2) == 0) return fail_with(EINTR);
    data = data.first(static_cast<size_t>(1 + draw(std::max<int64_t>(std::ssize(data), 1))));
  }
  const Fate fate = fate_of_change();
  if (fate == Fate::kFails) return -1;
  if (fate == Fate::kDies) data = data.first(static_cast<size_t>(draw(std::ssize(data) + 1)));
  if (incident_.room >= 0) {
    const int64_t left = std::max<int64_t>(room_base_ + incident_.room - used(), 0);
    const int64_t beyond = first_byte + std::ssize(data) - std::ssize(node->content);
    if (beyond > left) {
      const int64_t fits = std::ssize(data) - (beyond - left);
      if (fits <= 0) return fail_with(ENOSPC);
      data = data.first(static_cast<size_t>(fits));
    }
  }
  Change change{first_byte, std::string(reinterpret_cast<const char*>(data.data()), data.size()),
                false};
  apply(node->content, change);
  node->unsynced.push_back(std::move(change));
  return fate == Fate::kDies ? fail_with(EIO) : std::ssize(data);
}

ssize_t SimulatedDisk::write(int descriptor, std::span<const std::byte> data) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  Opening* const of = opening(descriptor);
  if (of == nullptr) return -1;
  const Node* const node = of->appends ? file(descriptor) : nullptr;
  if (node != nullptr) of->position = std::ssize(node->content);
  const ssize_t written = put_bytes(descriptor, of->position, data);
  if (written > 0) of->position += written;
  return written;
}

ssize_t SimulatedDisk::write_at(int descriptor, int64_t first_byte,
                                std::span<const std::byte> data) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  return put_bytes(descriptor, first_byte, data);
}

ssize_t SimulatedDisk::read_at(int descriptor, int64_t first_byte, std::span<std::byte> out) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  const Node* const node = file(descriptor);
  if (node == nullptr) return -1;
  const int64_t left = std::max<int64_t>(std::ssize(node->content) - first_byte, 0);
  const auto size = static_cast<size_t>(std::min<int64_t>(left, std::ssize(out)));
  if (size > 0) std::memcpy(out.data(), node->content.data() + first_byte, size);
  return static_cast<ssize_t>(size);
}

// Refused one time in `one_in`, as by a file system that does not know it.
int SimulatedDisk::set_direct(int descriptor, bool direct) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  Opening* const of = opening(descriptor);
  if (of == nullptr) return -1;
  if (direct && one_in_ > 0 && draw(one_in_) == 0) return fail_with(EINVAL);
  of->is_direct = direct;
  return 0;
}

int SimulatedDisk::truncate(int descriptor, int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  Node* const node = file(descriptor);
  if (node == nullptr || fate_of_change() != Fate::kRuns) return -1;
  cut(*node, bytes);
  return 0;
}

void SimulatedDisk::cut(Node& node, int64_t bytes) const {
  const Change change{bytes, "", true};
  apply(node.content, change);
  node.unsynced.push_back(change);
}

int SimulatedDisk::synchronise(int descriptor) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  Opening* const of = opening(descriptor);
  if (of == nullptr) return -1;
  const Fate fate = fate_of_change();
  if (fate == Fate::kFails && of->node != 0 && forgets_) {
    Node& node = nodes_.at(of->node);
    const std::string seen = node.content;
    lose_unsynced(node);
    node.content = seen;
  }
  if (fate != Fate::kRuns) return -1;
  if (of->node != 0) {
    Node& node = nodes_.at(of->node);
    // Not the whole content: what a failed call has dropped stays lost.
    for (const Change& change : node.unsynced) apply(node.durable, change);
    node.unsynced.clear();
    return 0;
  }
  std::vector<NameChange> others;
  for (NameChange& change : unsynced_names_) {
    const std::string& name = change.made.empty() ? change.removed : change.made;
    if (folder_of(name) == of->folder) {
      apply(durable_names_, change);
    } else {
      others.push_back(std::move(change));
    }
  }
  unsynced_names_ = std::move(others);
  return 0;
}

int SimulatedDisk::lock(int descriptor) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  Node* const node = file(descriptor);
  if (node == nullptr) return -1;
  const int64_t self = descriptors_.at(descriptor);
  if (node->locked_by != 0 && node->locked_by != self) return fail_with(EWOULDBLOCK);
  node->locked_by = self;
  return 0;
}

int SimulatedDisk::set_mode(int descriptor, mode_t mode) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  Node* const node = file(descriptor);
  if (node == nullptr || fate_of_change() != Fate::kRuns) return -1;
  node->mode = mode;
  return 0;
}

int SimulatedDisk::status(int descriptor, struct stat& found) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  const Opening* const of = opening(descriptor);
  if (of == nullptr) return -1;
  found = {};
  found.st_mode = S_IFDIR | 0755;
  if (of->node == 0) return 0;
  const Node& node = nodes_.at(of->node);
  found.st_mode = S_IFREG | node.mode;
  found.st_size = std::ssize(node.content);
  found.st_nlink = static_cast<nlink_t>(node.links);
  return 0;
}

int SimulatedDisk::status(const std::string& path, struct stat& found) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  found = {};
  found.st_mode = S_IFDIR | 0755;
  if (folders_.contains(path)) return 0;
  const auto named = names_.find(path);
  if (named == names_.end()) return fail_with(ENOENT);
  const Node& node = nodes_.at(named->second);
  found.st_mode = S_IFREG | node.mode;
  found.st_size = std::ssize(node.content);
  found.st_nlink = static_cast<nlink_t>(node.links);
  return 0;
}

int SimulatedDisk::rename(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  const auto found = names_.find(from);
  if (found == names_.end()) return fail_with(ENOENT);
  if (fate_of_change() != Fate::kRuns) return -1;
  change_name({from, to, found->second});
  return 0;
}

int SimulatedDisk::remove(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  if (!names_.contains(path)) return fail_with(ENOENT);
  if (fate_of_change() != Fate::kRuns) return -1;
  change_name({path, "", 0});
  return 0;
}

// Folders are there at once: no test is of those.
int SimulatedDisk::make_folder(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  if (down_) return down();
  for (std::string folder = path; folders_.insert(folder).second;) folder = folder_of(folder);
  return 0;
}

std::vector<std::string> SimulatedDisk::names_in(const std::string& folder) {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> names;
  if (down_) return names;
  for (const auto& [path, id] : names_) {
    if (folder_of(path) == folder) names.push_back(path.substr(path.rfind('/') + 1));
  }
  return names;
}

std::optional<double> SimulatedDisk::free_bytes(const std::string&) { return std::nullopt; }

}  // namespace ballast::tests
