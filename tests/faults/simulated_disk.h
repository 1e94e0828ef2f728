// SimulatedDisk: files in memory that know what of them would survive, for tests of faults.
//
// What is written lies in a cache until its file is synchronised, and a name that is made, changed
// or removed until its folder is. A kill ends the process and leaves the cache. A power cut keeps
// what was synchronised; of writes that were not, any part of 512 bytes may have reached the disk,
// in any order; of names the first few changes. A call that fails may be one of them, or all from
// there on; a disk may be full; a write may take a part only, or be interrupted.
//
// Everything that is drawn follows from the seed. After a crash every call fails until restart().
// From any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sim/base/files.h"
#include "tests/faults/simulated_clock.h"

namespace ballast::tests {

constexpr int kSector = 512;  // bytes that the disk writes whole or not at all

// What happens, at the `at`th call from now on that changes anything (from 1; 0: never).
struct Incident {
  enum class Kind : uint8_t { kNone, kKill, kPowerCut, kFailure };
  Kind kind = Kind::kNone;
  int64_t at = 0;
  int code = 0;        // of a failure: errno
  bool stays = false;  // all later calls fail too
  int64_t room = -1;   // bytes that the disk takes beyond what it holds; below 0: any
};

class SimulatedDisk : public Files {
 public:
  explicit SimulatedDisk(uint64_t seed);

  void expect(const Incident& incident);
  bool is_down() const;
  int64_t calls() const;  // that changed anything, since expect()
  // The process and, after a power cut, the disk begin anew; nothing is expected.
  void restart();
  // Writes take a part, or are interrupted, one time in `one_in`; 0: never.
  void set_interruptions(int one_in) { one_in_ = one_in; }
  // Whether what a failing synchronise() did not put down is dropped from the cache, so that the
  // next one says that all is well, as Linux does. Else it stays to be put down.
  void set_forgetful(bool forgets) { forgets_ = forgets; }

  // Every call that changes anything takes so long by this clock, which must outlive the disk.
  void take_time(SimulatedClock& clock, std::chrono::nanoseconds a_change) {
    clock_ = &clock;
    a_change_ = a_change;
  }

  // What a reader would find now.
  std::optional<std::string> content(const std::string& path) const;
  void put(const std::string& path, const std::string& content);  // on the disk at once
  // Whether the name and all bytes of the file would survive a power cut.
  bool is_durable(const std::string& path) const;

  int open(const std::string& path, int flags, mode_t mode) override;
  int duplicate(int descriptor) override;
  int close(int descriptor) override;
  ssize_t write(int descriptor, std::span<const std::byte> data) override;
  ssize_t write_at(int descriptor, int64_t first_byte, std::span<const std::byte> data) override;
  ssize_t read_at(int descriptor, int64_t first_byte, std::span<std::byte> out) override;
  int set_direct(int descriptor, bool direct) override;
  int truncate(int descriptor, int64_t bytes) override;
  int synchronise(int descriptor) override;
  int lock(int descriptor) override;
  int set_mode(int descriptor, mode_t mode) override;
  int status(int descriptor, struct stat& found) override;
  int status(const std::string& path, struct stat& found) override;
  int rename(const std::string& from, const std::string& to) override;
  int remove(const std::string& path) override;
  int make_folder(const std::string& path) override;
  std::string resolved(const std::string& path) override { return path; }
  std::vector<std::string> names_in(const std::string& folder) override;
  std::optional<double> free_bytes(const std::string& folder) override;

 private:
  using NodeId = int64_t;
  // Of a file: bytes at a place, or, without any, a cut to a length.
  struct Change {
    int64_t first_byte = 0;
    std::string bytes;
    bool is_cut = false;
  };
  struct Node {
    std::string content;           // with the cache
    std::string durable;           // without
    std::vector<Change> unsynced;  // from durable to content
    mode_t mode = 0644;
    int links = 0;
    int64_t locked_by = 0;  // an opening; 0: nobody
  };
  struct NameChange {
    std::string removed;  // empty: none
    std::string made;     // empty: none
    NodeId node = 0;
  };
  struct Opening {  // shared by copies of a descriptor
    NodeId node = 0;
    std::string folder;  // of one that is a folder
    int64_t position = 0;
    bool appends = false;
    bool is_direct = false;
    int copies = 1;
  };

  // -1 with errno where the call fails or the process is gone; counts it where it changes anything.
  enum class Fate : uint8_t { kRuns, kFails, kDies };
  Fate fate_of_change();
  int down() const;
  void die(Incident::Kind how);
  Opening* opening(int descriptor);
  Node* file(int descriptor);
  int64_t used() const;
  ssize_t put_bytes(int descriptor, int64_t first_byte, std::span<const std::byte> data);
  void apply(std::string& content, const Change& change) const;
  void cut(Node& node, int64_t bytes) const;
  void lose_unsynced(Node& node);
  void change_name(NameChange change);
  static void apply(std::map<std::string, NodeId>& names, const NameChange& change);
  int64_t draw(int64_t below);

  mutable std::mutex mutex_;  // guards all below
  std::mt19937_64 random_;
  SimulatedClock* clock_ = nullptr;
  std::chrono::nanoseconds a_change_{};
  int one_in_ = 0;
  bool forgets_ = true;
  Incident incident_;
  int64_t calls_ = 0;
  int64_t room_base_ = 0;
  std::optional<Incident::Kind> down_;
  std::map<NodeId, Node> nodes_;
  NodeId next_node_ = 1;
  std::set<std::string> folders_;
  std::map<std::string, NodeId> names_, durable_names_;
  std::vector<NameChange> unsynced_names_;  // from durable_names_ to names_
  std::map<int64_t, Opening> openings_;
  std::map<int, int64_t> descriptors_;  // to openings
  int64_t next_opening_ = 1;
};

}  // namespace ballast::tests
