// Store: what was measured, verified and tuned, kept in one SQLite file; nothing is ever changed.
//
// Rows are only appended (the file itself refuses updates and deletions), and of several rows
// about the same thing the newest counts. Several programs may use one file at a time.
// Will not do: decide what a measurement is worth (autotune/calibrate, sim/engine/cost).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "profiles/corrections.h"
#include "sim/spec/machine.h"
#include "sim/spec/measurements.h"

struct sqlite3;

namespace ballast {

// $XDG_DATA_HOME/ballast/store.db, or ~/.local/share/ballast/store.db. Throws Error without both.
std::string default_store_path();
bool has_default_store_path();  // else it throws

// What a measurement holds for: another device or driver is another host.
struct Host {
  std::string machine;  // name of the machine
  std::string device;   // model of the GPU, or of the CPU that plays it
  std::string driver;   // version
  auto operator<=>(const Host&) const = default;
};

// Which program wrote a row.
struct Origin {
  std::string version;    // of Ballast
  std::string commit_id;  // of its sources; empty where unknown
};

// One run of `ballast verify`.
struct VerifyRecord {
  Host host;
  std::string plan_json;
  Duration predicted_step;
  Duration measured_step;
  std::string metrics_json;  // prediction and measurement of each operation kind and memory
  std::string created_utc;   // set by the store, ISO 8601
};

// One search of `ballast tune`.
struct TuneResult {
  std::string machine;
  std::string model;
  std::string plan_json;  // the best plan
  Duration predicted_step;
  std::string result_json;  // what else the search found
  std::string created_utc;  // set by the store
};

// FNV-1a of 64 bits (RFC 9923), in hex: tells long texts apart, but is no proof.
std::string digest_of(const std::string& text);

// One search that was finished, by everything that it depends on.
struct SearchRecord {
  std::string question;
  std::string answer_json;
};

// While another program writes to the store, every function waits, and throws Error after `most`.
// `waiting` is told so after `notice`, and again whenever so long has passed ten times.
struct Patience {
  std::chrono::milliseconds most{10'000};
  std::chrono::milliseconds notice{500};
  std::function<void(const std::string& path, std::chrono::milliseconds so_far)> waiting{};
};

// Move-only. Every function throws Error, naming the file, where the file is damaged, is not a
// store, was written by a newer version, or cannot be written.
class Store {
 public:
  // Opens the file for appending; makes it, and the folders above it, where there is none.
  Store(const std::string& path, Origin origin, Patience patience = {});
  // For reading only; nothing where there is no such file. Appending to it throws Error.
  static std::optional<Store> open_if_present(const std::string& path, Patience patience = {});

  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  // Throws Error where nothing could be appended: the file may not be written, or its disk not.
  void try_to_append();

  // All or none of them.
  void append(const Host& host, const Measurements& measurements);
  // The newest measurement of each operation on exactly this host, corrected.
  Measurements measurements(const Host& host) const;
  // The same as it was timed.
  Measurements timings(const Host& host) const;
  // Every host that anything was measured on, sorted.
  std::vector<Host> hosts() const;

  // All or none of them.
  void append(const Host& host, const Corrections& corrections);
  // The newest of each on this host since its machine was profiled: a new profile begins afresh.
  Corrections corrections(const Host& host) const;

  // The profile of a machine that was measured, under machine.name.
  void append(const Machine& machine);
  std::optional<Machine> newest_machine(const std::string& name) const;

  void append(const VerifyRecord& record);
  std::vector<VerifyRecord> verify_records() const;  // oldest first

  void append(const TuneResult& result);
  std::vector<TuneResult> tune_results() const;  // oldest first

  void append(const SearchRecord& record);
  // The newest answer to exactly this question.
  std::optional<std::string> search_answer(const std::string& question) const;

  // The algorithm of a matrix product, in its library's form; `key` names shape, GPU and library.
  using Algorithm = std::array<uint64_t, 8>;
  void append_algorithm(const std::string& key, const Algorithm& algorithm);
  // The oldest of this key, so that results do not change with what came later.
  std::optional<Algorithm> algorithm(const std::string& key) const;

  const std::string& path() const { return path_; }

 private:
  struct Closer {
    void operator()(sqlite3* database) const;
  };
  struct ReadOnly {};
  struct Wait;  // for another program's transaction
  Store(const std::string& path, ReadOnly, Patience patience);

  std::string path_;
  Origin origin_;
  std::unique_ptr<Wait> wait_;  // outlives the connection, which calls it
  std::unique_ptr<sqlite3, Closer> database_;
};

}  // namespace ballast
