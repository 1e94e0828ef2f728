#include "cli/verbs/verbs.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fmt/format.h>
#include <system_error>

#include "cli/flags/arguments.h"
#include "cli/flags/memory_limit.h"
#include "cli/terminal/interrupt.h"
#include "profiles/json_reader.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr auto kVerbs = std::to_array<Verb>({
    {"machines", "machines that predictions can be made for: list, or show one", run_machines},
    {"models", "models that are shipped: list, or show one", run_models},
    {"strategies", "strategies that are shipped: list, or show one", run_strategies},
    {"knobs", "what a plan says: list its knobs, or show one", run_knobs},
    {"profile", "measure this machine and remember it", run_profile},
    {"predict", "will it fit, how fast will it train, and what limits it", run_predict},
    {"compare", "plans, machines, models and sweeps side by side", run_compare},
    {"tune", "find the fastest plan and write it", run_tune},
    {"train", "train a model by a plan on this machine", run_train},
    {"verify", "run a plan and compare it with its prediction", run_verify},
    {"validate", "published measurements against their predictions", run_validate},
    {"calibrate", "fit a stack's constants to published measurements", run_calibrate},
    {"graph", "the operations of one step, with costs and order", run_graph},
    {"report", "a page of HTML: prediction, measurement, loss", run_report},
    {"export", "a plan as DeepSpeed, Megatron-LM or torchtitan configure it", run_export},
    {"import", "a configuration of DeepSpeed or Megatron-LM as a plan", run_import},
});

void print_help() {
  fmt::print(
      "Ballast predicts, tunes and runs the training of language models that do not fit the GPU.\n"
      "\nUsage: ballast VERB [flags]\n\n");
  for (const Verb& verb : kVerbs) fmt::print("  {:<12}{}\n", verb.name, verb.summary);
  fmt::print(
      "\nballast VERB --help lists its flags with units and defaults.\n"
      "Exit code: 0 done, 1 infeasible or a failed check, 2 bad input, 3 stopped before it was "
      "done.\n");
}

const Verb& find_verb(const std::string& name) {
  const auto found = std::find_if(kVerbs.begin(), kVerbs.end(),
                                  [&](const Verb& verb) { return verb.name == name; });
  if (found != kVerbs.end()) return *found;
  throw Error("'" + name + "'", "is not a verb", "ballast --help lists them");
}

// Output that did not reach its destination (a full disk) is a failure like any other.
void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Error("standard output", std::string("cannot be written: ") + std::strerror(errno),
                "free some space, or write elsewhere");
  }
}

}  // namespace

std::span<const Verb> verbs() { return kVerbs; }

std::string one_line(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

int run_program(const std::vector<std::string>& words) {
  ignore_file_size_limit();
  end_where_memory_ends();
  for (const std::string& word : words) {
    if (!has_control_characters(word)) continue;
    throw Error("'" + one_line(word) + "'",
                "holds a control character, which could draw on a terminal", "take it out");
  }
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_help();
    flush_output();
    return words.empty() ? kBadInput : kDone;
  }
  if (words[0] == "--version") {
    fmt::print("ballast {} {}\n", program_version(), program_commit());
    flush_output();
    return kDone;
  }
  const Verb& verb = find_verb(words[0]);
  // What trains has planned its memory, and is refused where that is more than there is.
  const bool trains = words[0] == "train" || words[0] == "verify" || words[0] == "profile";
  if (!trains) limit_memory_by_default();
  int code = kDone;
  try {
    code = verb.run(Words(words).subspan(1));
  } catch (const std::system_error&) {
    flush_output();  // says so if it was the printing that failed
    throw;
  }
  flush_output();
  return code;
}

}  // namespace ballast
