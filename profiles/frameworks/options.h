// What the three frameworks' readers and writers share: options as a flat object from name to
// value, and a reader of it that remembers what was asked for.
//
// Only sources of this folder include this header.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "profiles/frameworks/frameworks.h"
#include "profiles/json_reader.h"

namespace ballast {

// Reads options by name; one that is null counts as absent. "auto" is what a script fills in: no
// value, so that reading one throws. Ask is_auto() first where it is known what scripts do.
// Holds references: the options must outlive it.
class OptionReader {
 public:
  // `source` names the text in messages.
  OptionReader(const OrderedJson& options, std::string source)
      : options_(options), source_(std::move(source)) {}

  bool has(const std::string& name);
  bool is_auto(const std::string& name);
  // Each throws Error where the value is of another type or out of range. A whole number may be
  // written as 5e8.
  int64_t whole(const std::string& name, WholeRange range, int64_t otherwise);
  std::optional<int64_t> whole_if_present(const std::string& name, WholeRange range);
  double number(const std::string& name, NumberRange range, double otherwise);
  bool flag(const std::string& name);
  bool flag(const std::string& name, bool otherwise);
  std::string text(const std::string& name, const std::string& otherwise);
  std::vector<std::string> list(const std::string& name);
  // One of `names`; its index.
  size_t choice(const std::string& name, const std::vector<std::string>& names, size_t otherwise);

  // Options that every prediction takes for granted, whatever their values.
  void accept(const std::vector<std::string>& names);
  // An option that was read but is not obeyed as it stands.
  void ignore(const std::string& name, const std::string& reason);
  // An option that is "auto", taken for `value` (as JSON).
  void assume(const std::string& name, const std::string& value, const std::string& reason);
  const std::vector<AssumedOption>& assumed() const { return assumed_; }
  // Everything that was ignored, and everything that nobody asked for.
  std::vector<IgnoredOption> ignored(const FrameworkFacts& facts) const;

  [[noreturn]] void fail(const std::string& name, const std::string& what,
                         const std::string& remedy) const;

 private:
  const OrderedJson* find(const std::string& name);

  const OrderedJson& options_;
  std::string source_;
  std::set<std::string> known_;
  std::vector<AssumedOption> assumed_;
  std::vector<IgnoredOption> ignored_;
};

inline constexpr WholeRange kOptionCount{1, 1 << 20};
// Elements of 4 bytes: a plan's buckets hold at most 2^40 bytes.
inline constexpr WholeRange kOptionElements{1, int64_t{1} << 38};
inline constexpr int64_t kOptionElementBytes = 4;
// Those of a bucket of the plan. Throws Error for one that holds none: no framework has such.
int64_t elements_of_bucket(const Plan& plan);

// A plan with the request's names and sizes, data not yet known.
Plan plan_of_request(const ImportRequest& request, const Model& model, Framework framework);
// Throws where an option and a flag both say a size, and not the same; `flag` is the flag's name.
void check_said_once(const OptionReader& reader, const std::string& option, int64_t value,
                     const std::string& flag, std::optional<int64_t> said);
// Sets data = devices / the other degrees; `fail` names the option in the message.
void set_data_ranks(Plan& plan, const OptionReader& reader, const std::string& option);

// Buckets of 32-bit values of one rank, on average over pipeline stages.
int64_t buckets_of_rank(const Plan& plan, const Model& model);
// Share of a rank's buckets whose optimizer is in CPU memory, and back.
double offloaded_share(const Plan& plan, const Model& model);
int64_t gpu_buckets_of(const Plan& plan, const Model& model, double offloaded);

// Whether every module but the layer's output has this fate, and that one is kept.
ActivationPlan all_recomputed();
bool same_fates(const ActivationPlan& a, const ActivationPlan& b);
ActivationPlan all_offloaded();
ActivationFate fate_of(const ActivationPlan& plan, ModuleKind kind);
void set_fate(ActivationPlan& plan, ModuleKind kind, ActivationFate fate);

// One pair for each framework; a writer writes what its reader understands. A reader may be given
// back what the request says only where the configuration cannot say it.
OrderedJson write_deepspeed(const Plan& plan, const Model& model);
Plan read_deepspeed(OptionReader& reader, const Model& model, const ImportRequest& request);
OrderedJson write_megatron(const Plan& plan, const Model& model);
Plan read_megatron(OptionReader& reader, const Model& model, const ImportRequest& request);
OrderedJson write_torchtitan(const Plan& plan, const Model& model);
Plan read_torchtitan(OptionReader& reader, const Model& model, const ImportRequest& request);

// Flat options to the text of each framework.
std::string deepspeed_text(const OrderedJson& options);
std::string megatron_text(const OrderedJson& options);
std::string torchtitan_text(const OrderedJson& options);
// And from it. Throw Error on what is no such text.
OrderedJson deepspeed_options(std::string_view text, const std::string& source);
OrderedJson megatron_options(std::string_view text, const std::string& source);

}  // namespace ballast
