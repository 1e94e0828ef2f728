// Offers as a command line writes them, and what would change their order.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <optional>

#include "autotune/studies/whatif.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kOfferForm =
    "write MACHINE xGPUS @ PRICE, for example dgx-h100-80gb x8 @ 2.40, with commas between offers";

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

template <class Number>
std::optional<Number> whole_text_as(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

double price_of_offer(std::string text, const std::string& where) {
  for (const char* unit : {"/GPU-h", "/gpu-h"}) {
    if (text.ends_with(unit))
      text = trimmed(text.substr(0, text.size() - std::string(unit).size()));
  }
  const auto price = whole_text_as<double>(text);
  if (!price || !(*price > 0) || !std::isfinite(*price)) {
    throw Error(where, "'" + text + "' is not a price above 0", kOfferForm);
  }
  return *price;
}

Offer parse_offer(const std::string& text) {
  const std::string where = "--offer '" + text + "'";
  const size_t at = text.find('@');
  Offer offer;
  if (at != std::string::npos) {
    offer.price_per_device_hour = price_of_offer(trimmed(text.substr(at + 1)), where);
  }
  const std::string left = trimmed(text.substr(0, at));
  const size_t gap = left.find_last_of(" \t");
  if (gap == std::string::npos || left[gap + 1] != 'x') {
    throw Error(where, "does not say how many GPUs", kOfferForm);
  }
  const std::string count = left.substr(gap + 2);
  const auto devices = whole_text_as<int64_t>(count);
  if (!devices || *devices < 1) {
    throw Error(where, "'" + count + "' is not a number of GPUs", kOfferForm);
  }
  offer.machine = trimmed(left.substr(0, gap));
  offer.devices = *devices;
  if (offer.machine.empty()) throw Error(where, "names no machine", kOfferForm);
  return offer;
}

}  // namespace

std::string Offer::name() const {
  std::string text = fmt::format("{} x{}", machine, devices);
  if (price_per_device_hour == 0) return text;
  // As prices are written, unless that would be another price.
  const std::string price = fmt::format("{:.2f}", price_per_device_hour);
  const bool same = whole_text_as<double>(price) == price_per_device_hour;
  return text + " @ " + (same ? price : fmt::format("{}", price_per_device_hour));
}

std::vector<Offer> parse_offers(const std::string& text) {
  std::vector<Offer> offers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const Offer offer = parse_offer(trimmed(text.substr(begin, end - begin)));
    for (const Offer& other : offers) {
      if (other.name() == offer.name()) {
        throw Error("--offer '" + text + "'", "holds " + offer.name() + " twice", "name it once");
      }
    }
    offers.push_back(offer);
    begin = end + 1;
  }
  return offers;
}

double parse_tokens(const std::string& text) {
  constexpr auto kUnits =
      std::to_array<std::pair<char, double>>({{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}});
  std::string number = text;
  double unit = 1;
  for (const auto& [letter, size] : kUnits) {
    if (number.empty() || number.back() != letter) continue;
    number.pop_back();
    unit = size;
    break;
  }
  const auto value = whole_text_as<double>(number);
  if (!value || !(*value * unit >= 1) || !std::isfinite(*value * unit)) {
    throw Error("--tokens '" + text + "'", "is not a number of tokens", "write 15T, 300B or 500M");
  }
  return *value * unit;
}

std::vector<std::optional<Standing>> standings(const Grid& grid,
                                               const std::vector<CellResult>& cells) {
  CHECK(cells.size() == grid.cells());
  std::vector<std::optional<Standing>> result(grid.cells());
  for (size_t row = 0; row < grid.rows(); ++row) {
    const auto cell = [&](size_t column) -> const CellResult& {
      return cells[grid.cell(row, column)];
    };
    std::vector<std::pair<double, size_t>> priced;  // by what a token costs
    for (size_t column = 0; column < grid.columns(); ++column) {
      const CellResult& one = cell(column);
      if (!one.fits || one.price_per_device_hour == 0) continue;
      priced.emplace_back(one.cost_per_million_tokens(), column);
    }
    std::sort(priced.begin(), priced.end());
    if (priced.empty()) continue;
    const size_t cheapest = priced.front().second;
    for (size_t column = 0; column < grid.columns(); ++column) {
      const CellResult& one = cell(column);
      if (!one.fits || (column == cheapest && priced.size() == 1)) continue;
      Standing standing;
      standing.cheapest = column == cheapest;
      standing.rival = standing.cheapest ? priced[1].second : cheapest;
      const CellResult& rival = cell(standing.rival);
      // Equal prices of a token: each price over the rate that it buys.
      standing.level_price =
          rival.price_per_device_hour / rival.tokens_per_s_per_device * one.tokens_per_s_per_device;
      standing.told_apart =
          one.price_per_device_hour == 0 || !are_alike(one, rival, Criterion::kCostPerToken);
      result[grid.cell(row, column)] = standing;
    }
  }
  return result;
}

}  // namespace ballast
