// Figures: what published cases say of the constants of their frameworks, linearised where those
// stand now.
//
// A case gives log(predicted / published) for its time (several times of one run are one
// observation) and for its memory, and the derivative of each by every constant of its framework.
// Verdicts and the memory of layers alone depend on no constant, or say too little of one.
// Will not do: fit (hierarchy), or leave anything out (protocol).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autotune/calibrate/hierarchy.h"
#include "autotune/calibrate/published_cases.h"

namespace ballast {

struct SourcedCase {
  CaseSetup setup;
  std::string source;  // source_key(): cases of the same one are not independent
  std::string file;    // name of its file, without folder and ".json"
};

// The publication that a file's `source` text names: "arXiv 2509.21271" or "owner/repository",
// without tables, figures and commits.
std::string source_key(const std::string& source);

struct Refusal {
  std::string file;
  std::string id;
  std::string why;
};

// The cases of these files with what they name. `stacks` stand in for shipped ones of their name.
// Cases that cannot be read, or that name what is not there, are refused.
struct LoadedCases {
  std::vector<SourcedCase> cases;
  std::vector<Refusal> refused;
};
LoadedCases load_published_cases(const std::vector<PublishedFile>& files,
                                 const std::vector<Stack>& stacks);

bool is_fitted_to(Metric metric);

// One published number of one case, and where it stands among all.
struct Figure {
  size_t case_index = 0;
  Metric metric{};
  double published = 0;
  LinearFigure linear;  // at the constants of the last linearisation
};

// Of a rate a larger prediction is a shorter time: all figures of time are told as times.
double log_error_of(Metric metric, double predicted, double published);

// Where it stands what no constant explains of figures of this kind.
double StackUncertainty::*rest_of(FigureKind kind);

class Figures {
 public:
  // `cases` must outlive this object. Frameworks and sources are counted in the order of their
  // first case. Cases that cannot be predicted are left out, with the reason.
  explicit Figures(const std::vector<SourcedCase>& cases);

  const std::vector<std::string>& frameworks() const { return frameworks_; }
  const std::vector<std::string>& sources() const { return sources_; }
  // Of GPUs, that have device tables.
  const std::vector<std::string>& generations() const { return generations_; }
  const std::vector<Figure>& all() const { return figures_; }
  // By case: why it gives no figure; empty where it does or has none to give.
  const std::vector<std::string>& refusals() const { return refusals_; }
  size_t framework_of(size_t index) const { return framework_of_[index]; }
  size_t source_of(size_t index) const { return source_of_[index]; }

  // Chooses the open knobs of every case at these constants, by framework, and linearises there.
  // `progress`: the share that is done.
  void linearise(const std::vector<StackConstants>& constants,
                 const std::function<void(double)>& progress);

 private:
  std::vector<Figure> linearised(size_t index, const StackConstants& constants) const;

  const std::vector<SourcedCase>& cases_;
  std::vector<std::string> frameworks_;
  std::vector<std::string> sources_;
  std::vector<std::string> generations_;
  std::vector<size_t> framework_of_;  // by case
  std::vector<size_t> source_of_;     // by case
  std::vector<Figure> figures_;
  std::vector<std::string> refusals_;
};

// Logarithms of what these constants say of generations of GPUs (StackConstants::sustained_gemm).
Eigen::VectorXd effects_of(const StackConstants& constants,
                           const std::vector<std::string>& generations);

}  // namespace ballast
