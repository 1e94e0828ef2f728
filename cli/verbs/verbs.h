// The verbs of the program: one function and one source file (NAME.cpp) each.
//
// A verb parses its own flags, prints to the standard output, and returns an exit code; bad input
// and failed environments leave it as Error, which main turns into one line and kBadInput.
// Will not do: compute anything about plans (sim, autotune) or run anything (backend).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ballast {

inline constexpr int kDone = 0;
inline constexpr int kInfeasible = 1;  // infeasible, or a check that failed
inline constexpr int kBadInput = 2;
inline constexpr int kUndecided = 3;  // stopped before an answer, or the last step of a training

// What follows the verb on the command line.
using Words = std::span<const std::string>;

int run_machines(Words words);
int run_models(Words words);
int run_strategies(Words words);
int run_knobs(Words words);
int run_profile(Words words);
int run_predict(Words words);
int run_compare(Words words);
int run_tune(Words words);
int run_train(Words words);
int run_verify(Words words);
int run_validate(Words words);
int run_calibrate(Words words);
int run_graph(Words words);
int run_report(Words words);
int run_export(Words words);
int run_import(Words words);

struct Verb {
  std::string_view name;
  std::string_view summary;
  int (*run)(Words words);
};
std::span<const Verb> verbs();

// The whole program without its name: finds the verb and runs it. Throws Error.
int run_program(const std::vector<std::string>& words);

// `text` with control characters, line breaks among them, as spaces.
std::string one_line(std::string_view text);

}  // namespace ballast
