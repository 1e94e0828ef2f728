#include "profiles/store.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <iterator>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "profiles/load.h"
#include "profiles/store_sqlite.h"
#include "sim/base/error.h"
#include "sim/base/files.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr int kSchemaVersion = 1;
constexpr int kApplication = 0x42414c53;               // "BALS" in the file's header
constexpr auto kPoll = std::chrono::milliseconds(20);  // between two looks at a store in use
constexpr int kNoticeEvery = 10;                       // times Patience::notice

// Rows that are only appended, which triggers see to. Each ends with when it was written and by
// whom, and with a digest of all that is in it (row_digest of profiles/store_sqlite.h).
struct Column {
  std::string_view name, type;
  std::string_view value = "?";  // what is inserted
};
struct Table {
  std::string_view name;
  std::span<const Column> columns;
  std::string_view found_by = {};  // columns of its index
};

constexpr std::string_view kText = "TEXT NOT NULL", kReal = "REAL NOT NULL",
                           kWhole = "INTEGER NOT NULL";
constexpr std::string_view kDigest = "row_digest";
constexpr std::string_view kNewestProfile =
    "(SELECT coalesce(max(id), 0) FROM machine_facts WHERE machine = ?)";

constexpr Column kMeasurementColumns[] = {
    {"machine", kText},   {"device", kText},          {"driver", kText},
    {"operation", kText}, {"operation_group", kText}, {"flops", kReal},
    {"bytes", kWhole},    {"median_ns", kReal},       {"deviation_ns", kReal}};
constexpr Column kMachineColumns[] = {{"machine", kText}, {"profile_json", kText}};
constexpr Column kVerifyColumns[] = {{"machine", kText},
                                     {"device", kText},
                                     {"driver", kText},
                                     {"plan_json", kText},
                                     {"predicted_step_ns", kReal},
                                     {"measured_step_ns", kReal},
                                     {"metrics_json", kText}};
constexpr Column kTuneColumns[] = {{"machine", kText},
                                   {"model", kText},
                                   {"plan_json", kText},
                                   {"predicted_step_ns", kReal},
                                   {"result_json", kText}};
// Eight words in hex.
constexpr Column kAlgorithmColumns[] = {{"key", kText}, {"words", kText}};
// `scope` is operation or group, `name` a cost key or a cost group; `profile` is the newest profile
// of the machine (an id of machine_facts) at that time, or 0.
constexpr Column kCorrectionColumns[] = {{"machine", kText},
                                         {"device", kText},
                                         {"driver", kText},
                                         {"scope", kText},
                                         {"name", kText},
                                         {"factor", kReal},
                                         {"profile", kWhole, kNewestProfile}};
// `digest` finds a question, which is long; the text decides.
constexpr Column kSearchColumns[] = {
    {"digest", kText}, {"question", kText}, {"answer_json", kText}};
constexpr Column kEveryRow[] = {{"created_utc", kText, "strftime('%Y-%m-%dT%H:%M:%SZ', 'now')"},
                                {"commit_id", kText},
                                {"ballast_version", kText}};

constexpr Table kMeasurementTable{"measurements", kMeasurementColumns,
                                  "machine, device, driver, operation"};
constexpr Table kMachineTable{"machine_facts", kMachineColumns};
constexpr Table kVerifyTable{"verify_records", kVerifyColumns};
constexpr Table kTuneTable{"tune_results", kTuneColumns};
// Those from here on came later: made when first written to, and empty where they are not there.
constexpr Table kAlgorithmTable{"gemm_algorithms", kAlgorithmColumns, "key"};
constexpr Table kCorrectionTable{"corrections", kCorrectionColumns,
                                 "machine, device, driver, scope, name"};
constexpr Table kSearchTable{"searches", kSearchColumns, "digest"};
constexpr const Table* kTables[] = {&kMeasurementTable, &kMachineTable,   &kVerifyTable,
                                    &kTuneTable,        &kAlgorithmTable, &kCorrectionTable,
                                    &kSearchTable};
constexpr size_t kFirstTables = 4;  // of them, which every store has

double to_ns(Duration time) { return static_cast<double>(time.ps) / 1000.0; }

std::vector<Column> columns_of(const Table& table) {
  std::vector<Column> all(table.columns.begin(), table.columns.end());
  all.insert(all.end(), std::begin(kEveryRow), std::end(kEveryRow));
  return all;
}

std::string names_of(const std::vector<Column>& columns) {
  std::string names;
  for (const Column& column : columns) {
    names += (names.empty() ? "" : ", ") + std::string(column.name);
  }
  return names;
}

// Of the values of a row, by their columns. With the id, which says what is newest.
std::string digest_sql(const Table& table) {
  return fmt::format("row_digest('{}', id, {})", table.name, names_of(columns_of(table)));
}

std::string insert_sql(const Table& table) {
  const std::vector<Column> columns = columns_of(table);
  std::string values = fmt::format("(SELECT coalesce(max(id), 0) + 1 FROM {}) AS id", table.name);
  for (const Column& column : columns) {
    values += fmt::format(", {} AS {}", column.value, column.name);
  }
  return fmt::format("INSERT INTO {} (id, {}, {}) SELECT *, {} FROM (SELECT {})", table.name,
                     names_of(columns), kDigest, digest_sql(table), values);
}

void forbid_changes(sqlite3* database, const std::string& path, const Table& table) {
  for (const char* change : {"UPDATE", "DELETE"}) {
    execute(database, path,
            fmt::format("CREATE TRIGGER {0}_keeps_on_{1} BEFORE {1} ON {0} "
                        "BEGIN SELECT RAISE(ABORT, 'rows are only appended'); END",
                        table.name, change));
  }
}

// Of a table that is older than the digests: it gets the column, and its rows have none.
void add_digests(sqlite3* database, const std::string& path, const Table& table) {
  if (has_column(database, path, table.name, kDigest)) return;
  execute(database, path, fmt::format("ALTER TABLE {} ADD COLUMN {} TEXT", table.name, kDigest));
}

void add_table(sqlite3* database, const std::string& path, const Table& table) {
  if (has_table(database, path, table.name)) return add_digests(database, path, table);
  std::string columns = "id INTEGER PRIMARY KEY";
  for (const Column& column : columns_of(table)) {
    columns += fmt::format(", {} {}", column.name, column.type);
  }
  execute(database, path,
          fmt::format("CREATE TABLE {} ({}, {} TEXT)", table.name, columns, kDigest));
  if (!table.found_by.empty()) {
    execute(database, path,
            fmt::format("CREATE INDEX {0}_index ON {0} ({1})", table.name, table.found_by));
  }
  forbid_changes(database, path, table);
}

void create_tables(sqlite3* database, const std::string& path) {
  for (const Table* table : std::span(kTables).first(kFirstTables)) {
    add_table(database, path, *table);
  }
  execute(database, path, fmt::format("PRAGMA application_id = {}", kApplication));
  execute(database, path, fmt::format("PRAGMA user_version = {}", kSchemaVersion));
}

// SQLite sees to its pages and its indices, and does not know what a row said. A row without a
// digest is one of an older program, or one whose columns have moved by one: then none of them is a
// date where a date should be.
void check_rows(sqlite3* database, const std::string& path) {
  for (const Table* table : kTables) {
    if (!has_table(database, path, table->name)) continue;
    const bool has_digests = has_column(database, path, table->name, kDigest);
    const std::string digest =
        has_digests ? fmt::format("{} <> {}", kDigest, digest_sql(*table)) : "0";
    Statement wrong(database, path,
                    fmt::format("SELECT id FROM {} WHERE CASE WHEN {} IS NULL THEN created_utc NOT "
                                "GLOB '[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]T*Z' ELSE {} END "
                                "LIMIT 1",
                                table->name, has_digests ? kDigest : "NULL", digest));
    if (!wrong.next()) continue;
    fail_as_damaged(
        path, fmt::format("row {} of {} is not what was written", wrong.whole(), table->name));
  }
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
  Statement sound(database, path, "PRAGMA integrity_check(1)");
  const std::string verdict = sound.next() ? sound.text() : "no answer";
  if (verdict != "ok") fail_as_damaged(path, verdict);
  check_rows(database, path);
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

std::string digest_of(const std::string& text) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const char letter : text) {
    digest = (digest ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  return fmt::format("{:016x}", digest);
}

bool has_default_store_path() {
  const char* data = std::getenv("XDG_DATA_HOME");
  const char* home = std::getenv("HOME");
  return (data != nullptr && data[0] == '/') || (home != nullptr && *home != '\0');
}

std::string default_store_path() {
  if (!has_default_store_path()) {
    throw Error("store", "neither HOME nor XDG_DATA_HOME is set", "give a file with --store");
  }
  const char* data = std::getenv("XDG_DATA_HOME");
  if (data != nullptr && data[0] == '/') return std::string(data) + "/ballast/store.db";
  return std::string(std::getenv("HOME")) + "/.local/share/ballast/store.db";
}

struct Store::Wait {
  using Clock = std::chrono::steady_clock;
  std::string path;
  Patience patience;
  Clock::time_point begin{};
  std::chrono::milliseconds next{};

  // SQLite's busy handler: 0 gives up.
  static int again(void* self, int times) {
    auto& wait = *static_cast<Wait*>(self);
    if (times == 0) {
      wait.begin = Clock::now();
      wait.next = wait.patience.notice;
    }
    const auto so_far =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - wait.begin);
    if (so_far >= wait.patience.most) return 0;
    if (so_far >= wait.next && wait.patience.waiting) {
      wait.patience.waiting(wait.path, so_far);
      wait.next = so_far + kNoticeEvery * wait.patience.notice;
    }
    std::this_thread::sleep_for(kPoll);
    return 1;
  }
};

void Store::Closer::operator()(sqlite3* database) const { close_database(database); }
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

Store::Store(const std::string& path, Origin origin, Patience patience)
    : path_(path),
      origin_(std::move(origin)),
      wait_(std::make_unique<Wait>(Wait{path, std::move(patience)})) {
  make_folder_of(path_);
  database_.reset(open_to_append(path_, {&Wait::again, wait_.get()}));
  // Inside one transaction, so that two programs that start together make it once.
  Transaction transaction(database_.get(), path_);
  if (!has_tables(database_.get(), path_)) create_tables(database_.get(), path_);
  check_is_store(database_.get(), path_);
  for (const Table* table : kTables) {
    const bool is_there = has_table(database_.get(), path_, table->name);
    if (is_there) add_digests(database_.get(), path_, *table);
  }
  transaction.commit();
}

Store::Store(const std::string& path, ReadOnly, Patience patience)
    : path_(path), wait_(std::make_unique<Wait>(Wait{path, std::move(patience)})) {
  database_.reset(open_to_read(path_, {&Wait::again, wait_.get()}));
  if (has_tables(database_.get(), path_)) check_is_store(database_.get(), path_);
}

std::optional<Store> Store::open_if_present(const std::string& path, Patience patience) {
  refuse_named_pipe(path);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  Store store(path, ReadOnly{}, std::move(patience));
  // A file that was made and not written to holds nothing yet, which is no store either.
  if (!has_tables(store.database_.get(), path)) return std::nullopt;
  return store;
}

// What is written is what is there already; it goes through the journal like everything else.
void Store::try_to_append() {
  Transaction transaction(database_.get(), path_);
  execute(database_.get(), path_, fmt::format("PRAGMA user_version = {}", kSchemaVersion));
  transaction.commit();
}

void Store::append(const Host& host, const Measurements& measurements) {
  Transaction transaction(database_.get(), path_);
  Statement insert(database_.get(), path_, insert_sql(kMeasurementTable));
  for (const auto& [operation, measured] : measurements) {
    CHECK(measured.median.ps >= 0 && measured.deviation.ps >= 0);
    // What was too short for the clock took some time all the same: rates are work over it.
    const Duration median{std::max<int64_t>(1, measured.median.ps)};
    insert.bind(host).bind(operation).bind(measured.group).bind(measured.flops.count);
    insert.bind(measured.bytes.count).bind(to_ns(median)).bind(to_ns(measured.deviation));
    insert.bind(origin_).run();
  }
  transaction.commit();
}

Measurements Store::measurements(const Host& host) const {
  return corrected(timings(host), corrections(host));
}

Measurements Store::timings(const Host& host) const {
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
    measured.median = select.time_above_0();
    measured.deviation = select.time();
    if (measured.flops.count < 0 || measured.bytes.count < 0) {
      fail_as_damaged(path_, "the work of " + operation + " is below 0");
    }
    result.emplace(operation, measured);
  }
  return result;
}

void Store::append(const Host& host, const Corrections& corrections) {
  Transaction transaction(database_.get(), path_);
  add_table(database_.get(), path_, kCorrectionTable);
  Statement insert(database_.get(), path_, insert_sql(kCorrectionTable));
  const auto add = [&](const char* scope, const std::map<std::string, double>& factors) {
    for (const auto& [name, factor] : factors) {
      CHECK(factor > 0 && std::isfinite(factor));
      insert.bind(host).bind(std::string(scope)).bind(name).bind(factor);
      insert.bind(host.machine).bind(origin_).run();
    }
  };
  add("operation", corrections.operations);
  add("group", corrections.groups);
  transaction.commit();
}

Corrections Store::corrections(const Host& host) const {
  Corrections result;
  if (!has_table(database_.get(), path_, kCorrectionTable.name)) return result;
  Statement select(database_.get(), path_,
                   fmt::format("SELECT scope, name, factor FROM corrections WHERE id IN (SELECT "
                               "max(id) FROM corrections WHERE machine = ? AND device = ? AND "
                               "driver = ? AND profile = {} GROUP BY scope, name)",
                               kNewestProfile));
  select.bind(host).bind(host.machine);
  while (select.next()) {
    const std::string scope = select.text();
    const std::string name = select.text();
    const double factor = select.number();
    if (!(factor > 0)) fail_as_damaged(path_, "a correction is no positive factor");
    (scope == "group" ? result.groups : result.operations)[name] = factor;
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
  Statement insert(database_.get(), path_, insert_sql(kMachineTable));
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
  Statement insert(database_.get(), path_, insert_sql(kVerifyTable));
  insert.bind(record.host).bind(record.plan_json).bind(to_ns(record.predicted_step));
  insert.bind(to_ns(record.measured_step)).bind(record.metrics_json).bind(origin_).run();
}

std::vector<VerifyRecord> Store::verify_records() const {
  Statement select(database_.get(), path_,
                   "SELECT machine, device, driver, plan_json, predicted_step_ns, "
                   "measured_step_ns, metrics_json, created_utc FROM verify_records ORDER BY id");
  std::vector<VerifyRecord> result;
  while (select.next()) {
    result.push_back({select.host(), select.text(), select.time_above_0(), select.time_above_0(),
                      select.text(), select.text()});
  }
  return result;
}

void Store::append(const TuneResult& result) {
  Statement insert(database_.get(), path_, insert_sql(kTuneTable));
  insert.bind(result.machine).bind(result.model).bind(result.plan_json);
  insert.bind(to_ns(result.predicted_step)).bind(result.result_json).bind(origin_).run();
}

std::vector<TuneResult> Store::tune_results() const {
  Statement select(database_.get(), path_,
                   "SELECT machine, model, plan_json, predicted_step_ns, result_json, "
                   "created_utc FROM tune_results ORDER BY id");
  std::vector<TuneResult> result;
  while (select.next()) {
    result.push_back({select.text(), select.text(), select.text(), select.time_above_0(),
                      select.text(), select.text()});
  }
  return result;
}

void Store::append(const SearchRecord& record) {
  Transaction transaction(database_.get(), path_);
  add_table(database_.get(), path_, kSearchTable);
  Statement insert(database_.get(), path_, insert_sql(kSearchTable));
  insert.bind(digest_of(record.question)).bind(record.question).bind(record.answer_json);
  insert.bind(origin_).run();
  transaction.commit();
}

std::optional<std::string> Store::search_answer(const std::string& question) const {
  if (!has_table(database_.get(), path_, kSearchTable.name)) return std::nullopt;
  Statement select(database_.get(), path_,
                   "SELECT answer_json FROM searches WHERE digest = ? AND question = ? "
                   "ORDER BY id DESC LIMIT 1");
  select.bind(digest_of(question)).bind(question);
  if (!select.next()) return std::nullopt;
  return select.text();
}

void Store::append_algorithm(const std::string& key, const Algorithm& algorithm) {
  Transaction transaction(database_.get(), path_);
  add_table(database_.get(), path_, kAlgorithmTable);
  std::string words;
  for (const uint64_t word : algorithm) words += fmt::format("{:016x}", word);
  Statement insert(database_.get(), path_, insert_sql(kAlgorithmTable));
  insert.bind(key).bind(words).bind(origin_).run();
  transaction.commit();
}

std::optional<Store::Algorithm> Store::algorithm(const std::string& key) const {
  if (!has_table(database_.get(), path_, kAlgorithmTable.name)) return std::nullopt;
  Statement select(database_.get(), path_,
                   "SELECT words FROM gemm_algorithms WHERE key = ? ORDER BY id LIMIT 1");
  select.bind(key);
  if (!select.next()) return std::nullopt;
  const std::string words = select.text();
  constexpr size_t kDigits = 16;
  Algorithm algorithm{};
  for (size_t i = 0; i < algorithm.size(); ++i) {
    const char* const begin = words.data() + std::min(words.size(), i * kDigits);
    const char* const end = words.data() + std::min(words.size(), (i + 1) * kDigits);
    const auto [at, code] = std::from_chars(begin, end, algorithm[i], 16);
    const bool whole = end - begin == kDigits && code == std::errc() && at == end;
    if (!whole) fail_as_damaged(path_, "an algorithm is no eight words");
  }
  return algorithm;
}

}  // namespace ballast
