// Text for people: quantities with three digits and a unit, and tables in columns.
#pragma once

#include <string>
#include <vector>

#include "sim/base/units.h"

namespace ballast {

std::string show(Duration time);                  // "3.21 s", "45.6 ms", "7.89 us"
std::string show(Bytes bytes);                    // "12.3 GiB", "456 MiB", "78 bytes"
std::string show(FlopRate rate);                  // "123 TFLOP/s", "45.6 GFLOP/s"
std::string show_count(double count);             // "12,345"; below 100 with one decimal
std::string show_percent(double percent);         // "12.3 %"
std::string show_signed_percent(double percent);  // "+12.3 %"

// Columns as wide as their widest cell, two spaces apart; the first column and those named are
// flushed left, the others right.
class Table {
 public:
  struct Column {
    std::string title;
    bool left = false;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as columns, or fewer: the last one then runs on to the right unaligned.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ballast
