// Validation: what the published cases say against what is predicted, as records, JSON and text.
//
// Will not do: parse flags (verb_validate.cpp), or predict a case
// (autotune/calibrate/published_cases).
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "autotune/calibrate/protocol.h"
#include "autotune/calibrate/published_cases.h"
#include "profiles/published.h"

namespace ballast {

// One published quantity of one case.
struct ValidationRow {
  std::string file;  // its name without folders and ".json"
  std::string id;
  std::string machine;
  std::string stack;
  MetricPrediction metric;
  std::string error;  // why there is no prediction; else empty
};

struct Validation {
  std::vector<ValidationRow> rows;
  std::vector<Stack> stacks;  // that the cases name, by name
};

// Runs every case of the files, on all cores. Cases that cannot be run become rows with an error
// (a case that could not even be read has one row, of metric kStepTime and published 0).
// `progress`: after each case, the share that is done and the id.
Validation validate(const std::vector<PublishedFile>& files,
                    const std::function<void(double share, const std::string& id)>& progress);

// The protocol (autotune/calibrate/protocol.h) over the cases of the files.
struct LeftOutValidation {
  std::vector<SourcedCase> cases;
  std::vector<Refusal> refused;  // could not be read: they count as failed
  std::vector<JudgedFigure> figures;
};
LeftOutValidation validate_left_out(const std::vector<PublishedFile>& files,
                                    const CalibrationProgress& progress);
nlohmann::ordered_json left_out_json(const LeftOutValidation& validation);
std::string left_out_text(const LeftOutValidation& validation);

// Rows of one file and of one kind of quantity.
struct ValidationSummary {
  std::string file;
  size_t cases = 0;   // rows with a number or a verdict
  size_t failed = 0;  // rows without
  size_t fits = 0;    // verdicts on kFits
  size_t right = 0;   // of them
  // Of the absolute errors, percent; zero where there are none.
  double mean = 0;
  double median = 0;
  double worst = 0;
  std::string worst_id;
};
std::vector<ValidationSummary> summaries_of(const Validation& validation);
bool any_failed(const Validation& validation);

// Keys: schema, cases, summary (as the design says), overall, stacks.
nlohmann::ordered_json validation_json(const Validation& validation);
std::string validation_text(const Validation& validation);

}  // namespace ballast
