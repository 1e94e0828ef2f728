// The flags that verbs share, and the parsing of a verb's words; the only user of CLI11 besides
// the verbs themselves.
//
// Will not do: read the files that flags name (cli/flags/inputs.h).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/verbs/verbs.h"
#include "profiles/load.h"

namespace ballast {

// Checks of a flag's number, whose messages say what is wrong (CLI11's own name the largest
// double). Not a number and infinity do not pass.
CLI::Validator above_zero();
CLI::Validator zero_or_more();
CLI::Validator whole_number();  // of 64 bits
// From 0 to below 1, also as a float, in which a number near 1 may be 1.
CLI::Validator share_below_one();

std::string program_version();
std::string program_commit();  // of the sources; empty where unknown

// The name that load_model() and the others take for what somebody wrote; where that is another,
// the error output says which file was taken. kind: "models" or "machines".
std::string name_meant(const std::string& flag, const std::string& text, const std::string& kind);

struct OutputFlags {
  bool json = false;
  std::optional<std::string> out;  // a file for the JSON
};

// What a plan is made of (PlanRequest in profiles/load.h); lists where a verb compares.
struct PlanFlags {
  std::vector<std::string> models;
  std::vector<std::string> machines;
  std::vector<std::string> strategies;
  std::vector<int64_t> devices;
  GivenKnobs knobs;  // of the flags that name one value
  std::optional<std::string> plan_file;
  std::vector<std::string> set;
};

struct StoreFlag {
  std::optional<std::string> path;
};

// Whose habits a prediction assumes: a name of profiles/stacks or a file.
struct StackFlag {
  std::optional<std::string> name;
};

// What else is to be known of a file that a verb writes.
struct Written {
  std::string otherwise{};  // the file where the flag is not given
  std::string replaces{};   // a flag of a file that it may replace: a plan, with a better one
  bool makes_folder = false;
  bool may_be_folder = false;  // then the files in it are written
};

// A verb's parser, with --help. `name` and `summary` are those of verbs().
class VerbParser {
 public:
  explicit VerbParser(const std::string& name);

  CLI::App& app() { return app_; }
  void add(OutputFlags& flags, const std::string& out_help);
  // Whether a flag may name several things, with commas.
  enum class Lists { kNo, kYes };
  void add(PlanFlags& flags, Lists lists);
  void add(StoreFlag& flag);
  // `otherwise`: whose habits are assumed where the flag is not given.
  void add(StackFlag& flag,
           const std::string& otherwise = "typical; ballast on the machine that was measured");

  // Marks a flag as that of a file which the verb writes, or reads (a model, machine or strategy
  // may be a name instead). A file to be written twice, or read and then written, would be lost
  // without a word, and one that cannot be written after all the work: parse() refuses them, and
  // tries to write each (atomic_file.h) but folders and the store.
  CLI::Option* writes(CLI::Option* option, Written how = {});
  CLI::Option* reads(CLI::Option* option);

  // False where --help was asked for, and printed. Throws Error for words that are not flags.
  bool parse(Words words);

 private:
  struct Output {
    CLI::Option* option = nullptr;
    Written how;
  };
  void add(PlanFlags& flags, const Knob& knob, Lists lists);
  void check_files() const;
  void try_files() const;

  std::string name_;
  CLI::App app_;
  std::vector<Output> outputs_;
  std::vector<CLI::Option*> inputs_;
  std::vector<PlanFlags*> plans_;
};

}  // namespace ballast
