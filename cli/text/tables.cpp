#include "cli/text/tables.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace ballast {
namespace {

// Three digits that mean something: 1.23, 12.3, 123.
std::string three_digits(double value) {
  const double size = std::abs(value);
  if (size >= 99.95) return fmt::format("{:.0f}", value);
  return size >= 9.995 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

}  // namespace

std::string show(Duration time) {
  const double seconds = time.seconds();
  const double size = std::abs(seconds);
  if (size >= 0.9995) return three_digits(seconds) + " s";
  if (size >= 0.9995e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds * 1e6) + " us";
}

std::string show(Bytes bytes) {
  const auto count = static_cast<double>(bytes.count);
  const double size = std::abs(count);
  if (size >= 0x1p30) return three_digits(count * 0x1p-30) + " GiB";
  if (size >= 0x1p20) return three_digits(count * 0x1p-20) + " MiB";
  if (size >= 0x1p10) return three_digits(count * 0x1p-10) + " KiB";
  return fmt::format("{} bytes", bytes.count);
}

std::string show(FlopRate rate) {
  return rate.tflops() >= 0.9995 ? three_digits(rate.tflops()) + " TFLOP/s"
                                 : three_digits(rate.flops_per_s * 1e-9) + " GFLOP/s";
}

std::string show_count(double count) {
  if (std::abs(count) < 99.95) return fmt::format("{:.1f}", count);
  const std::string digits = fmt::format("{:.0f}", std::abs(count));
  std::string text(count < 0 ? 1 : 0, '-');
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string show_percent(double percent) { return fmt::format("{:.1f} %", percent); }

std::string show_signed_percent(double percent) {
  // Nothing is not off in either direction.
  if (std::abs(percent) < 0.05) return "0.0 %";
  return fmt::format("{:+.1f} %", percent);
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.title.size());
  for (const auto& row : rows_) {
    // The last cell of a short row runs on, so it does not widen its column.
    const size_t aligned = row.size() < columns_.size() ? row.size() - 1 : row.size();
    for (size_t c = 0; c < aligned; ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of, size_t cells) {
    std::string line;
    for (size_t c = 0; c < cells; ++c) {
      const std::string& cell = cell_of(c);
      const bool runs_on = c + 1 == cells && cells < columns_.size();
      const bool left = c == 0 || columns_[c].left || runs_on;
      line +=
          left ? fmt::format("{:<{}}", cell, widths[c]) : fmt::format("{:>{}}", cell, widths[c]);
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t c) -> const std::string& { return columns_[c].title; }, columns_.size());
  for (const auto& row : rows_) {
    add_line([&](size_t c) -> const std::string& { return row[c]; }, row.size());
  }
  return text;
}

}  // namespace ballast
