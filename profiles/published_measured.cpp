// What a source measured, and how it counted FLOPs.
#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "profiles/published_reader.h"

namespace ballast {
namespace {

constexpr NumberRange kMeasuredRange{0, 1e12, true};

bool holds(const std::string& text, std::string_view word) {
  return text.find(word) != std::string::npos;
}

// The number after `word`: 989 of "peak 989 TFLOP/s". Zero where there is none.
double number_after(const std::string& text, std::string_view word) {
  size_t at = text.find(word);
  if (at == std::string::npos) return 0;
  at += word.size();
  while (at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) == 0) {
    // A word between the two belongs to another statement.
    if (std::isalpha(static_cast<unsigned char>(text[at])) != 0) return 0;
    ++at;
  }
  return at < text.size() ? std::strtod(text.c_str() + at, nullptr) : 0;
}

std::optional<bool> counts_half_of_attention(const std::string& text) {
  if (holds(text, "non-causal") || holds(text, "full attention") || holds(text, "full square") ||
      holds(text, "12lhs") || holds(text, "12 l")) {
    return false;
  }
  if (holds(text, "causal") || holds(text, "half") || holds(text, "6lhs")) return true;
  return std::nullopt;
}

std::optional<bool> counts_attention(const std::string& text) {
  if (holds(text, "no attention") || holds(text, "without attention")) return false;
  if (holds(text, "6nd") || holds(text, "6n ") || text.ends_with("6n")) {
    return holds(text, "attention") || holds(text, "12");
  }
  if (holds(text, "attention") || holds(text, "causal")) return true;
  return std::nullopt;
}

std::optional<bool> counts_logits(const std::string& text) {
  if (holds(text, "no logits") || holds(text, "without logits") || holds(text, "excl. logits") ||
      holds(text, "without embedding")) {
    return false;
  }
  // By parameters: the head is one of them.
  if (holds(text, "logits") || holds(text, "6n")) return true;
  return std::nullopt;
}

std::vector<bool> either(const std::optional<bool>& known, bool likely) {
  return known ? std::vector{*known} : std::vector{likely, !likely};
}

}  // namespace

std::vector<FlopsConvention> conventions_of(const std::string& formula) {
  std::string text = formula;
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const double peak = number_after(text, "peak");
  const std::optional<bool> attention = counts_attention(text);
  std::vector<FlopsConvention> list;
  for (const bool scores : either(text.empty() ? true : attention, true)) {
    // Which half is counted matters only where any of it is.
    const std::vector<bool> halves =
        scores ? either(counts_half_of_attention(text), false) : std::vector{false};
    for (const bool half : halves) {
      for (const bool logits : either(text.empty() ? true : counts_logits(text), true)) {
        list.push_back({scores, half, logits, peak});
      }
    }
  }
  return list;
}

void read_measured(JsonReader reader, PublishedCase& published) {
  for (int i = 0; i < kMetrics; ++i) {
    const auto metric = static_cast<Metric>(i);
    const std::string key(metric_name(metric));
    if (!reader.has(key)) continue;
    const double value = metric == Metric::kFits ? static_cast<double>(reader.boolean(key))
                                                 : reader.number(key, kMeasuredRange);
    published.measured.push_back({metric, value});
  }
  const bool tflops = reader.has(std::string(metric_name(Metric::kTflopsPerDevice)));
  if (reader.has("tflops_counts_recompute") || tflops) {
    published.tflops_count_recompute = reader.boolean("tflops_counts_recompute");
  }
  if (reader.has("step_time_p10"))
    published.step_time_p10 = reader.number("step_time_p10", kMeasuredRange);
  if (reader.has("step_time_p90"))
    published.step_time_p90 = reader.number("step_time_p90", kMeasuredRange);
  if (reader.has("mfu_formula")) published.mfu_formula = reader.text("mfu_formula");
  reader.finish();
  if (published.measured.empty()) {
    reader.fail("", "names nothing that was measured", "add one, such as step_time_s");
  }
}

std::string_view metric_name(Metric metric) {
  static constexpr std::array<std::string_view, kMetrics> kNames = {"step_time_s",
                                                                    "tokens_per_s",
                                                                    "tokens_per_s_per_device",
                                                                    "tflops_per_device",
                                                                    "mfu_percent",
                                                                    "hfu_percent",
                                                                    "peak_memory_gb",
                                                                    "memory_share_percent",
                                                                    "states_gib",
                                                                    "activations_gib",
                                                                    "fits"};
  return kNames.at(static_cast<size_t>(metric));
}

bool is_time(Metric metric) { return metric <= Metric::kHfu; }

bool is_rate(Metric metric) { return is_time(metric) && metric != Metric::kStepTime; }

}  // namespace ballast
