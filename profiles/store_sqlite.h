// SQLite as the store uses it: statements, transactions and errors with names that say what to do.
//
// Every function throws Error, naming the file. Faults are told apart, for advice that does not fit
// loses data: only a file whose content contradicts itself is called damaged.
// Will not do: know a table (profiles/store.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "profiles/store.h"

struct sqlite3;
struct sqlite3_stmt;

namespace ballast {

// `code` is SQLite's, basic or extended.
[[noreturn]] void fail(const std::string& path, int code, const std::string& message);
// What the file holds contradicts itself.
[[noreturn]] void fail_as_damaged(const std::string& path, const std::string& message);

// One prepared statement; each is used once or stepped to its end, so that it needs no reset.
class Statement {
 public:
  Statement(sqlite3* database, const std::string& path, const std::string& sql);

  // Values for the statement's question marks, from left to right.
  Statement& bind(const std::string& text);
  Statement& bind(double value);
  Statement& bind(int64_t value);
  Statement& bind(const Host& host);
  Statement& bind(const Origin& origin);

  // Goes to the next row; false at the end.
  bool next();
  // Runs it to its end and makes it ready for other values.
  void run();

  // The columns of the row, from left to right. A number is finite, and not a text that SQLite
  // would read as one; a time is not below 0.
  std::string text();
  double number();
  int64_t whole();
  Duration time();
  Duration time_above_0();  // of which rates are made: work over it
  Host host();

 private:
  struct Finalizer {
    void operator()(sqlite3_stmt* statement) const;
  };
  void require(bool fine, int code) const;
  int next_column(bool is_number);

  sqlite3* database_;
  const std::string& path_;
  std::unique_ptr<sqlite3_stmt, Finalizer> handle_;
  int bound_ = 0;
  int column_ = 0;
};

void execute(sqlite3* database, const std::string& path, const std::string& sql);

// Undone, unless committed.
class Transaction {
 public:
  Transaction(sqlite3* database, const std::string& path);
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  ~Transaction();
  void commit();

 private:
  sqlite3* database_;
  const std::string& path_;
  bool committed_ = false;
};

int64_t pragma(sqlite3* database, const std::string& path, const std::string& name);
bool has_tables(sqlite3* database, const std::string& path);
bool has_table(sqlite3* database, const std::string& path, std::string_view table);
bool has_column(sqlite3* database, const std::string& path, std::string_view table,
                std::string_view column);

// What is asked, and how often it was before, while another program has the file; 0 gives up.
using BusyHandler = int (*)(void* context, int times);
struct Waiting {
  BusyHandler handler;
  void* context;
};

// Statements of an opened file have one function more: row_digest(values...), 64 bits in hex over
// what a row holds, with which a value that has changed since does not agree.
//
// Opened for reading and writing, and made where there is no such file.
sqlite3* open_to_append(const std::string& path, const Waiting& waiting);
// Opened for reading. Where a program died in the middle of a change, that change is taken back
// first, as SQLite asks of whoever comes next; that alone is written.
sqlite3* open_to_read(const std::string& path, const Waiting& waiting);
void close_database(sqlite3* database);

}  // namespace ballast
