// Protocol: how far predictions are off where nobody fitted them.
//
// Every case is predicted three times: with constants fitted without its source (the publication
// it stands in), as the typical framework fitted without its framework, and with the constants
// that ship. The first is what a user of a known framework can expect, the second what somebody
// can whose framework is not here; the third is the fit's own error, which promises nothing.
// Will not do: read files (profiles/published.h), or print (cli/text/validation).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "autotune/calibrate/calibrate.h"

namespace ballast {

enum class LeftOut : uint8_t { kSource, kFramework, kNothing };
inline constexpr int kLeftOuts = 3;
std::string_view to_string(LeftOut value);  // "source", "framework", "nothing"

struct JudgedPrediction {
  std::optional<double> value;  // absent where nothing fits, or the case is refused
  // Eight of ten such predictions should have what was published between these. Of a verdict both
  // are the probability that the case fits. Zero where nothing is known.
  double low = 0;
  double high = 0;
};

struct JudgedFigure {
  size_t case_index = 0;
  Metric metric{};
  double published = 0;
  std::array<JudgedPrediction, kLeftOuts> predicted;
  std::string error;  // why there is no prediction; else empty
  size_t source = 0;  // counted from zero; figures of the same one are not independent

  bool covered(LeftOut left_out) const;
};

// Requires calibrated stacks. Rows are in the order of the cases and of their metrics.
std::vector<JudgedFigure> judge(const std::vector<SourcedCase>& cases, const Stack& typical,
                                const CalibrationProgress& progress);

// Of the rows that have a number in one of the three ways. Figures of one run's speed (tokens per
// second and MFU, say) count as one, as the fit weighs them: they are the same measurement.
struct ErrorSummary {
  size_t figures = 0;
  size_t failed = 0;  // refused or without a number: they count as failed, not as left out
  double mean = 0;    // of absolute errors, percent
  double bias = 0;    // mean of signed errors, percent; above zero: too much was promised
  double median = 0;
  double worst = 0;  // signed
  size_t worst_of = 0;
  double coverage = 0;  // share of figures inside their interval
  // The same, each source counting as one: rows of a table are inside or outside together.
  double coverage_by_source = 0;
};
enum class FigureClass : uint8_t { kSpeed, kMemory, kLayerMemory, kVerdict };
FigureClass class_of(Metric metric);
// Error of one prediction: a rate as it is, a time turned round, so that above zero is always too
// fast, or too much memory.
double signed_error_percent(Metric metric, double predicted, double published);
ErrorSummary summarise(const std::vector<JudgedFigure>& figures, FigureClass figure_class,
                       LeftOut left_out);

}  // namespace ballast
