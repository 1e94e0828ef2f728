#include "profiles/store.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <sqlite3.h>
#include <utility>

#include "profiles/load.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr int kSchemaVersion = 1;
constexpr int kApplication = 0x42414c53;  // "BALS" in the file's header
constexpr int kBusyMs = 10'000;           // how long to wait for another program's transaction

// Appending is enforced by triggers, added per table below.
constexpr const char* kTables = R"(
  CREATE TABLE measurements (
    id INTEGER PRIMARY KEY, machine TEXT NOT NULL, device TEXT NOT NULL, driver TEXT NOT NULL,
    operation TEXT NOT NULL, operation_group TEXT NOT NULL, flops REAL NOT NULL,
    bytes INTEGER NOT NULL, median_ns REAL NOT NULL, deviation_ns REAL NOT NULL,
    created_utc TEXT NOT NULL, commit_id TEXT NOT NULL, ballast_version TEXT NOT NULL);
  CREATE INDEX measurements_by_host ON measurements (machine, device, driver, operation);
  CREATE TABLE machine_facts (
    id INTEGER PRIMARY KEY, machine TEXT NOT NULL, profile_json TEXT NOT NULL,
    created_utc TEXT NOT NULL, commit_id TEXT NOT NULL, ballast_version TEXT NOT NULL);
  CREATE TABLE verify_records (
    id INTEGER PRIMARY KEY, machine TEXT NOT NULL, device TEXT NOT NULL, driver TEXT NOT NULL,
    plan_json TEXT NOT NULL, predicted_step_ns REAL NOT NULL, measured_step_ns REAL NOT NULL,
    metrics_json TEXT NOT NULL, created_utc TEXT NOT NULL, commit_id TEXT NOT NULL,
    ballast_version TEXT NOT NULL);
  CREATE TABLE tune_results (
    id INTEGER PRIMARY KEY, machine TEXT NOT NULL, model TEXT NOT NULL, plan_json TEXT NOT NULL,
    predicted_step_ns REAL NOT NULL, result_json TEXT NOT NULL, created_utc TEXT NOT NULL,
    commit_id TEXT NOT NULL, ballast_version TEXT NOT NULL);
)";
constexpr const char* kTableNames[] = {"measurements", "machine_facts", "verify_records",
                                       "tune_results"};
constexpr const char* kNow = "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')";

[[noreturn]] void fail(const std::string& path, int code, const std::string& message) {
  switch (code & 0xff) {
    case SQLITE_NOTADB:
      throw Error(path, "is not a store (not an SQLite file)", "give another --store, or move it");
    case SQLITE_CORRUPT:
      throw Error(path, "is damaged: " + message, "move it away; a new one is made in its place");
    case SQLITE_FULL:
      throw Error(path, "cannot grow: the disk is full", "free some space");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw Error(path, "is in use by another program", "wait for it to end, and run it again");
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      throw Error(path, "cannot be opened for this: " + message,
                  "check the permissions of the file and its folder, or give another --store");
    default:
      throw Error(path, "the store failed: " + message, "give another --store, or move it away");
  }
}

double to_ns(Duration time) { return static_cast<double>(time.ps) / 1000.0; }

// One prepared statement; reset is not needed, for each is used once or stepped to its end.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& path, const std::string& sql)
      : database_(database), path_(path) {
    sqlite3_stmt* raw = nullptr;
    const int code = sqlite3_prepare_v2(database, sql.c_str(), -1, &raw, nullptr);
    handle_.reset(raw);
    require(code == SQLITE_OK, code);
  }

  Statement& bind(const std::string& text) {
    const int code = sqlite3_bind_text(handle_.get(), ++bound_, text.data(),
                                       static_cast<int>(text.size()), SQLITE_TRANSIENT);
    require(code == SQLITE_OK, code);
    return *this;
  }
  Statement& bind(double value) {
    const int code = sqlite3_bind_double(handle_.get(), ++bound_, value);
    require(code == SQLITE_OK, code);
    return *this;
  }
  Statement& bind(int64_t value) {
    const int code = sqlite3_bind_int64(handle_.get(), ++bound_, value);
    require(code == SQLITE_OK, code);
    return *this;
  }
  Statement& bind(const Host& host) {
    return bind(host.machine).bind(host.device).bind(host.driver);
  }
  Statement& bind(const Origin& origin) { return bind(origin.commit_id).bind(origin.version); }

  // Goes to the next row; false at the end.
  bool next() {
    const int code = sqlite3_step(handle_.get());
    require(code == SQLITE_ROW || code == SQLITE_DONE, code);
    column_ = 0;
    return code == SQLITE_ROW;
  }
  // Runs it to its end and makes it ready for other values.
  void run() {
    while (next()) {
    }
    sqlite3_reset(handle_.get());
    bound_ = 0;
  }

  // The columns of the row, from left to right.
  std::string text() {
    const int column = column_++;
    const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
    const int size = sqlite3_column_bytes(handle_.get(), column);
    return data == nullptr ? std::string() : std::string(data, static_cast<size_t>(size));
  }
  double number() {
    const double value = sqlite3_column_double(handle_.get(), column_++);
    if (!std::isfinite(value)) fail(path_, SQLITE_CORRUPT, "a number is not finite");
    return value;
  }
  int64_t whole() { return sqlite3_column_int64(handle_.get(), column_++); }
  Duration time() {
    const double ns = number();
    if (!(ns >= 0 && ns < 9e15)) fail(path_, SQLITE_CORRUPT, "a time is out of range");
    return {std::llround(ns * 1000.0)};
  }
  Host host() {
    Host host;
    host.machine = text();
    host.device = text();
    host.driver = text();
    return host;
  }

 private:
  struct Finalizer {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };

  void require(bool fine, int code) const {
    if (!fine) fail(path_, code, sqlite3_errmsg(database_));
  }

  sqlite3* database_;
  const std::string& path_;
  std::unique_ptr<sqlite3_stmt, Finalizer> handle_;
  int bound_ = 0;
  int column_ = 0;
};

void execute(sqlite3* database, const std::string& path, const std::string& sql) {
  const int code = sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(path, code, sqlite3_errmsg(database));
}

// Undone, unless committed.
class Transaction {
 public:
  Transaction(sqlite3* database, const std::string& path) : database_(database), path_(path) {
    execute(database, path, "BEGIN IMMEDIATE");
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction() {
    if (!committed_) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
  void commit() {
    execute(database_, path_, "COMMIT");
    committed_ = true;
  }

 private:
  sqlite3* database_;
  const std::string& path_;
  bool committed_ = false;
};

int64_t pragma(sqlite3* database, const std::string& path, const std::string& name) {
  Statement statement(database, path, "PRAGMA " + name);
  return statement.next() ? statement.whole() : 0;
}

bool has_tables(sqlite3* database, const std::string& path) {
  Statement statement(database, path, "SELECT count(*) FROM sqlite_master");
  return statement.next() && statement.whole() > 0;
}

void create_tables(sqlite3* database, const std::string& path) {
  execute(database, path, kTables);
  for (const char* table : kTableNames) {
    for (const char* change : {"UPDATE", "DELETE"}) {
      execute(database, path,
              fmt::format("CREATE TRIGGER {0}_keeps_on_{1} BEFORE {1} ON {0} "
                          "BEGIN SELECT RAISE(ABORT, 'rows are only appended'); END",
                          table, change));
    }
  }
  execute(database, path, fmt::format("PRAGMA application_id = {}", kApplication));
  execute(database, path, fmt::format("PRAGMA user_version = {}", kSchemaVersion));
}

void check_is_store(sqlite3* database, const std::string& path) {
  if (pragma(database, path, "application_id") != kApplication) {
    throw Error(path, "is an SQLite file of another program", "give another --store");
  }
  const int64_t version = pragma(database, path, "user_version");
  if (version > kSchemaVersion) {
    throw Error(path,
                fmt::format("was written by a newer Ballast (schema {}, known is {})", version,
                            kSchemaVersion),
                "use that version, or give another --store");
  }
  Statement sound(database, path, "PRAGMA quick_check(1)");
  const std::string verdict = sound.next() ? sound.text() : "no answer";
  if (verdict != "ok") fail(path, SQLITE_CORRUPT, verdict);
}

sqlite3* open_database(const std::string& path, int flags) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
  if (code != SQLITE_OK) {
    const std::string message = raw != nullptr ? sqlite3_errmsg(raw) : "out of memory";
    sqlite3_close(raw);
    fail(path, code, message);
  }
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, kBusyMs);
  return raw;
}

void make_folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code code;
  if (!folder.empty()) fs::create_directories(folder, code);
  if (code) {
    throw Error(folder.string(), "cannot be created: " + code.message(),
                "give another --store, or set XDG_DATA_HOME");
  }
}

}  // namespace

std::string default_store_path() {
  const char* data = std::getenv("XDG_DATA_HOME");
  if (data != nullptr && data[0] == '/') return std::string(data) + "/ballast/store.db";
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    throw Error("store", "neither HOME nor XDG_DATA_HOME is set", "give a file with --store");
  }
  return std::string(home) + "/.local/share/ballast/store.db";
}

void Store::Closer::operator()(sqlite3* database) const { sqlite3_close(database); }

Store::Store(const std::string& path, Origin origin) : path_(path), origin_(std::move(origin)) {
  make_folder_of(path_);
  database_.reset(open_database(path_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
  // Inside one transaction, so that two programs that start together make it once.
  Transaction transaction(database_.get(), path_);
  if (!has_tables(database_.get(), path_)) create_tables(database_.get(), path_);
  check_is_store(database_.get(), path_);
  transaction.commit();
}

Store::Store(const std::string& path, ReadOnly) : path_(path) {
  database_.reset(open_database(path_, SQLITE_OPEN_READONLY));
  check_is_store(database_.get(), path_);
}

std::optional<Store> Store::open_if_present(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  return Store(path, ReadOnly{});
}

void Store::append(const Host& host, const Measurements& measurements) {
  Transaction transaction(database_.get(), path_);
  Statement insert(database_.get(), path_,
                   fmt::format("INSERT INTO measurements (machine, device, driver, operation, "
                               "operation_group, flops, bytes, median_ns, deviation_ns, commit_id, "
                               "ballast_version, created_utc) "
                               "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {})",
                               kNow));
  for (const auto& [operation, measured] : measurements) {
    CHECK(measured.median.ps >= 0 && measured.deviation.ps >= 0);
    insert.bind(host).bind(operation).bind(measured.group).bind(measured.flops.count);
    insert.bind(measured.bytes.count).bind(to_ns(measured.median)).bind(to_ns(measured.deviation));
    insert.bind(origin_).run();
  }
  transaction.commit();
}

Measurements Store::measurements(const Host& host) const {
  Statement select(database_.get(), path_,
                   "SELECT operation, operation_group, flops, bytes, median_ns, deviation_ns "
                   "FROM measurements WHERE id IN (SELECT max(id) FROM measurements "
                   "WHERE machine = ? AND device = ? AND driver = ? GROUP BY operation)");
  select.bind(host);
  Measurements result;
  while (select.next()) {
    const std::string operation = select.text();
    Measurement measured;
    measured.group = select.text();
    measured.flops = {select.number()};
    measured.bytes = {select.whole()};
    measured.median = select.time();
    measured.deviation = select.time();
    result.emplace(operation, measured);
  }
  return result;
}

std::vector<Host> Store::hosts() const {
  Statement select(database_.get(), path_,
                   "SELECT DISTINCT machine, device, driver FROM measurements ORDER BY 1, 2, 3");
  std::vector<Host> result;
  while (select.next()) result.push_back(select.host());
  return result;
}

void Store::append(const Machine& machine) {
  check(machine);
  Statement insert(database_.get(), path_,
                   fmt::format("INSERT INTO machine_facts (machine, profile_json, commit_id, "
                               "ballast_version, created_utc) VALUES (?, ?, ?, ?, {})",
                               kNow));
  insert.bind(machine.name).bind(machine_json(machine)).bind(origin_).run();
}

std::optional<Machine> Store::newest_machine(const std::string& name) const {
  Statement select(database_.get(), path_,
                   "SELECT profile_json FROM machine_facts WHERE machine = ? "
                   "ORDER BY id DESC LIMIT 1");
  select.bind(name);
  if (!select.next()) return std::nullopt;
  return parse_machine(select.text(), path_ + ", machine " + name);
}

void Store::append(const VerifyRecord& record) {
  Statement insert(
      database_.get(), path_,
      fmt::format("INSERT INTO verify_records (machine, device, driver, plan_json, "
                  "predicted_step_ns, measured_step_ns, metrics_json, commit_id, "
                  "ballast_version, created_utc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, {})",
                  kNow));
  insert.bind(record.host).bind(record.plan_json).bind(to_ns(record.predicted_step));
  insert.bind(to_ns(record.measured_step)).bind(record.metrics_json).bind(origin_).run();
}

std::vector<VerifyRecord> Store::verify_records() const {
  Statement select(database_.get(), path_,
                   "SELECT machine, device, driver, plan_json, predicted_step_ns, "
                   "measured_step_ns, metrics_json, created_utc FROM verify_records ORDER BY id");
  std::vector<VerifyRecord> result;
  while (select.next()) {
    VerifyRecord& record = result.emplace_back();
    record.host = select.host();
    record.plan_json = select.text();
    record.predicted_step = select.time();
    record.measured_step = select.time();
    record.metrics_json = select.text();
    record.created_utc = select.text();
  }
  return result;
}

void Store::append(const TuneResult& result) {
  Statement insert(database_.get(), path_,
                   fmt::format("INSERT INTO tune_results (machine, model, plan_json, "
                               "predicted_step_ns, result_json, commit_id, ballast_version, "
                               "created_utc) VALUES (?, ?, ?, ?, ?, ?, ?, {})",
                               kNow));
  insert.bind(result.machine).bind(result.model).bind(result.plan_json);
  insert.bind(to_ns(result.predicted_step)).bind(result.result_json).bind(origin_).run();
}

std::vector<TuneResult> Store::tune_results() const {
  Statement select(database_.get(), path_,
                   "SELECT machine, model, plan_json, predicted_step_ns, result_json, "
                   "created_utc FROM tune_results ORDER BY id");
  std::vector<TuneResult> result;
  while (select.next()) {
    TuneResult& one = result.emplace_back();
    one.machine = select.text();
    one.model = select.text();
    one.plan_json = select.text();
    one.predicted_step = select.time();
    one.result_json = select.text();
    one.created_utc = select.text();
  }
  return result;
}

}  // namespace ballast
