#include "profiles/store_sqlite.h"

#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <sqlite3.h>

#include "sim/base/error.h"
#include "sim/base/fault.h"

namespace ballast {

namespace {

// With the name of the system's fault, where it was one: SQLite calls a used-up quota a failed
// disk, and every file that it may not open the same.
std::string message_of(sqlite3* database) {
  std::string message = sqlite3_errmsg(database);
  const int primary = sqlite3_errcode(database) & 0xff;
  const int code = sqlite3_system_errno(database);
  if (code != 0 && (primary == SQLITE_IOERR || primary == SQLITE_CANTOPEN))
    message += " (" + fault_name(code) + ")";
  return message;
}

}  // namespace

[[noreturn]] void fail(const std::string& path, int code, const std::string& message) {
  if (code == SQLITE_READONLY_ROLLBACK) {
    throw Error(path, "the program that wrote to it last died, and what it began cannot be undone",
                "allow writing to the file and its folder once, or give another --store");
  }
  switch (code & 0xff) {
    case SQLITE_NOTADB:
      throw Error(path, "is not a store (not an SQLite file)", "give another --store, or move it");
    case SQLITE_CORRUPT:
      fail_as_damaged(path, message);
    case SQLITE_FULL:
      throw Error(path, "cannot grow: the disk is full", "free some space");
    case SQLITE_IOERR:
      throw Error(path, "the disk failed: " + message,
                  "see whether the disk is well and run this again; the store is kept as it is");
    case SQLITE_NOMEM:
      throw Error(path, "there is not enough memory to read it", "free some and run this again");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw Error(path, "the store is in use: another program has been writing to it all the while",
                  "wait for that program to end and run this again, or give another --store");
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      throw Error(path, "cannot be opened for this: " + message,
                  "check the permissions of the file and its folder, or give another --store");
    default:
      throw Error(path, "the store failed: " + message, "run this again, or give another --store");
  }
}

[[noreturn]] void fail_as_damaged(const std::string& path, const std::string& message) {
  throw Error(path, "is damaged: " + message, "move it away; a new one is made in its place");
}

Statement::Statement(sqlite3* database, const std::string& path, const std::string& sql)
    : database_(database), path_(path) {
  sqlite3_stmt* raw = nullptr;
  const int code = sqlite3_prepare_v2(database, sql.c_str(), -1, &raw, nullptr);
  handle_.reset(raw);
  require(code == SQLITE_OK, code);
}

void Statement::Finalizer::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

void Statement::require(bool fine, int code) const {
  if (!fine) fail(path_, code, message_of(database_));
}

Statement& Statement::bind(const std::string& text) {
  const int code = sqlite3_bind_text(handle_.get(), ++bound_, text.data(),
                                     static_cast<int>(text.size()), SQLITE_TRANSIENT);
  require(code == SQLITE_OK, code);
  return *this;
}

Statement& Statement::bind(double value) {
  // A column of numbers keeps no -0, and a row would not be what its digest is of.
  const int code = sqlite3_bind_double(handle_.get(), ++bound_, value + 0.0);
  require(code == SQLITE_OK, code);
  return *this;
}

Statement& Statement::bind(int64_t value) {
  const int code = sqlite3_bind_int64(handle_.get(), ++bound_, value);
  require(code == SQLITE_OK, code);
  return *this;
}

Statement& Statement::bind(const Host& host) {
  return bind(host.machine).bind(host.device).bind(host.driver);
}

Statement& Statement::bind(const Origin& origin) {
  return bind(origin.commit_id).bind(origin.version);
}

bool Statement::next() {
  const int code = sqlite3_step(handle_.get());
  require(code == SQLITE_ROW || code == SQLITE_DONE, code);
  column_ = 0;
  return code == SQLITE_ROW;
}

void Statement::run() {
  while (next()) {
  }
  sqlite3_reset(handle_.get());
  bound_ = 0;
}

int Statement::next_column(bool is_number) {
  const int column = column_++;
  const int type = sqlite3_column_type(handle_.get(), column);
  if (is_number && type != SQLITE_INTEGER && type != SQLITE_FLOAT) {
    fail_as_damaged(path_, "a text stands where a number should");
  }
  return column;
}

std::string Statement::text() {
  const int column = next_column(false);
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
  const int size = sqlite3_column_bytes(handle_.get(), column);
  return data == nullptr ? std::string() : std::string(data, static_cast<size_t>(size));
}

double Statement::number() {
  const double value = sqlite3_column_double(handle_.get(), next_column(true));
  if (!std::isfinite(value)) fail_as_damaged(path_, "a number is not finite");
  return value;
}

int64_t Statement::whole() { return sqlite3_column_int64(handle_.get(), next_column(true)); }

Duration Statement::time() {
  const double ns = number();
  if (!(ns >= 0 && ns < 9e15)) fail_as_damaged(path_, "a time is out of range");
  return {std::llround(ns * 1000.0)};
}

Duration Statement::time_above_0() {
  const Duration found = time();
  if (found.ps == 0) fail_as_damaged(path_, "a time is 0");
  return found;
}

Host Statement::host() {
  Host host;
  host.machine = text();
  host.device = text();
  host.driver = text();
  return host;
}

void execute(sqlite3* database, const std::string& path, const std::string& sql) {
  const int code = sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(path, code, message_of(database));
}

Transaction::Transaction(sqlite3* database, const std::string& path)
    : database_(database), path_(path) {
  execute(database, path, "BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (!committed_) sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
}

void Transaction::commit() {
  execute(database_, path_, "COMMIT");
  committed_ = true;
}

int64_t pragma(sqlite3* database, const std::string& path, const std::string& name) {
  Statement statement(database, path, "PRAGMA " + name);
  return statement.next() ? statement.whole() : 0;
}

bool has_tables(sqlite3* database, const std::string& path) {
  Statement statement(database, path, "SELECT count(*) FROM sqlite_master");
  return statement.next() && statement.whole() > 0;
}

// By the schema as it was read, for the list of tables is a table itself: where only that list has
// another name, nothing else says so.
bool has_table(sqlite3* database, const std::string& path, std::string_view table) {
  Statement statement(database, path, "SELECT count(*) FROM pragma_table_info(?)");
  statement.bind(std::string(table));
  return statement.next() && statement.whole() > 0;
}

bool has_column(sqlite3* database, const std::string& path, std::string_view table,
                std::string_view column) {
  Statement statement(database, path, "SELECT count(*) FROM pragma_table_info(?) WHERE name = ?");
  statement.bind(std::string(table)).bind(std::string(column));
  return statement.next() && statement.whole() > 0;
}

namespace {

struct Closer {
  void operator()(sqlite3* database) const { close_database(database); }
};
using Database = std::unique_ptr<sqlite3, Closer>;

// With the type and the size of each value, so that no two rows read alike.
std::string text_of_row(sqlite3_value** values, int count) {
  std::string row;
  for (int i = 0; i < count; ++i) {
    sqlite3_value* const value = values[i];
    const int type = sqlite3_value_type(value);
    switch (type) {
      case SQLITE_INTEGER:
        row += fmt::format("i{:016x}", static_cast<uint64_t>(sqlite3_value_int64(value)));
        break;
      case SQLITE_FLOAT:
        row += fmt::format("f{:016x}", std::bit_cast<uint64_t>(sqlite3_value_double(value)));
        break;
      default: {
        const int size = sqlite3_value_bytes(value);
        const auto* const bytes = static_cast<const char*>(sqlite3_value_blob(value));
        row += fmt::format("{}{:x}:", type == SQLITE_TEXT ? 't' : 'b', size);
        if (bytes != nullptr) row.append(bytes, static_cast<size_t>(size));
      }
    }
  }
  return row;
}

void row_digest(sqlite3_context* context, int count, sqlite3_value** values) {
  try {
    const std::string digest = digest_of(text_of_row(values, count));
    const int size = static_cast<int>(digest.size());
    sqlite3_result_text(context, digest.data(), size, SQLITE_TRANSIENT);
  } catch (...) {
    sqlite3_result_error_nomem(context);  // SQLite is C: nothing may be thrown through it
  }
}

Database open_database(const std::string& path, int flags, const Waiting& waiting) {
  sqlite3* raw = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &raw, flags, nullptr);
  Database database(raw);
  if (code != SQLITE_OK) {
    fail(path, code, raw != nullptr ? message_of(raw) : "out of memory");
  }
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_handler(raw, waiting.handler, waiting.context);
  const int made =
      sqlite3_create_function(raw, "row_digest", -1, SQLITE_UTF8 | SQLITE_DETERMINISTIC, nullptr,
                              row_digest, nullptr, nullptr);
  if (made != SQLITE_OK) fail(path, made, message_of(raw));
  return database;
}

// SQLite's code of a first look at the file.
int first_look(sqlite3* database) {
  return sqlite3_exec(database, "PRAGMA schema_version", nullptr, nullptr, nullptr);
}

}  // namespace

void close_database(sqlite3* database) { sqlite3_close(database); }

sqlite3* open_to_append(const std::string& path, const Waiting& waiting) {
  Database database = open_database(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, waiting);
  // By itself SQLite removes a journal without synchronising the folder: after a power cut it may
  // be there again, and takes back what was committed.
  execute(database.get(), path, "PRAGMA synchronous = EXTRA");
  return database.release();
}

sqlite3* open_to_read(const std::string& path, const Waiting& waiting) {
  Database database = open_database(path, SQLITE_OPEN_READONLY, waiting);
  int code = first_look(database.get());
  if (code == SQLITE_READONLY_ROLLBACK) {
    // Only a connection that may write can take an unfinished change back; looking is enough.
    const Database repairing = open_database(path, SQLITE_OPEN_READWRITE, waiting);
    code = first_look(repairing.get());
    if (code != SQLITE_OK) fail(path, SQLITE_READONLY_ROLLBACK, "");
    database = open_database(path, SQLITE_OPEN_READONLY, waiting);
  } else if (code != SQLITE_OK) {
    fail(path, code, message_of(database.get()));
  }
  return database.release();
}

}  // namespace ballast
