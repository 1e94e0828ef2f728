// Knobs: the one table of what a Plan says. A row names a field of sim/spec/plan.h, and tells its
// type, unit, domain, default, when it matters, who may choose it, its flag and one line of help.
//
// Plan files, --set, strategies, flags and their help, the spaces of a search, studies of two
// plans, cache keys, exports and docs/knobs.md iterate this table; a field that has no row fails
// tests/spec/knobs_test.cpp. How to add one: docs/knobs.md.
// Will not do: read JSON (profiles/plan.cpp), or know what a graph makes of a knob.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// In the order of a plan file, which is that of the table.
enum class KnobId : uint8_t {
  kModel,
  kMachine,
  kStrategy,
  kDevices,
  kData,
  kTensor,
  kPipeline,
  kVirtualPipeline,
  kPipelineSchedule,
  kSequence,
  kContext,
  kContextBalance,
  kExpert,
  kTensorSequence,
  kNuma,
  kCudaGraphs,
  kZeroStage,
  kZeroGroup,
  kGlobalBatch,
  kMicroBatch,
  kSequenceLength,
  kSubsequences,
  kSubsequenceSplit,
  kMultiplex,
  kRoutingPercent,
  kDtype,
  kProducts,
  kGradients,
  kFlowShare,
  kWeightsLookAhead,
  kKeepCodes,
  kPlacement,
  kBucketBytes,
  kGpuBuckets,
  kCast,
  kSync,
  kUndo,
  kAdam,
  kStreamShare,
  kMoments,
  kTransfers,
  kFfnTiles,
  kLossChunks,
  kMemoryReuse,
  kActivations,
  kFates,
  kOffloadShare,
  kOffloadShareFall,
  kOffloadLeast,
  kOffloadInFlight,
  kOffloadPart,
  kOffloadPerMflop,
  kRecomputeShare,
  kRecomputeFc1Part,
  kActivationsLookAhead,
  kReload,
  kDispatched,
  kScores,
  kCheckpointPeriodSteps,
};
inline constexpr size_t kKnobs = static_cast<size_t>(KnobId::kCheckpointPeriodSteps) + 1;

// kGroup is an optional struct of other knobs: "auto", or its members have values.
// kFates is one choice for every module that saves its output (saving_kinds()).
enum class KnobType : uint8_t { kText, kBool, kWhole, kBytes, kShare, kChoice, kFates, kGroup };
enum class KnobGroup : uint8_t {
  kNames,
  kParallelism,
  kBatch,
  kFormats,
  kWeights,
  kOptimizer,
  kMemory,
  kActivations,
  kCheckpoint,
};
inline constexpr int kKnobGroups = static_cast<int>(KnobGroup::kCheckpoint) + 1;
std::string_view to_string(KnobType type);
std::string_view to_string(KnobGroup group);  // for people: "weights"

// Which search chooses it: the layouts of a plan (autotune/space/layout.h), what one rank does
// (autotune/space/space.h), or none.
enum class KnobSearch : uint8_t { kNone, kLayout, kRank };

using Fates = std::array<ActivationFate, kModuleKinds>;
// monostate is "auto", and a member of a group that is. A choice is the number of its enumerator; a
// group that has a value is true.
using KnobValue = std::variant<std::monostate, bool, int64_t, double, std::string, Fates>;

// A flag of the verbs that take a plan.
struct KnobFlag {
  std::string_view name;  // "--zero-stage"; empty: none but --set
  std::string_view help;
  std::string_view unit;     // what --help calls its value: "COUNT"
  bool one_of_many = false;  // several may be named where plans are compared (inputs.h)
};

struct Knob {
  KnobId id{};
  std::string_view path;  // of a plan file, dotted: "optimizer.cast"
  KnobType type{};
  KnobGroup group{};
  std::string_view unit{};  // of a number: "sequences"

  // Legal values of a plan file, inclusive; of shares 0 and 1. Model and machine narrow them:
  // check() in sim/spec/plan.h.
  int64_t least = 0;
  int64_t most = 0;
  std::span<const int64_t> choices{};  // enumerators, in the order of messages
  bool may_be_auto = false;
  // Plan files that are older than the knob do not have it: it has its default.
  bool may_be_absent = false;

  KnobSearch search = KnobSearch::kNone;
  // What a search tries, least first: choices, shares, or where they follow from model and plan, in
  // words.
  std::span<const int64_t> tried{};
  std::span<const double> tried_shares{};
  std::string_view tried_text{};
  // A strategy that is named says where things are and when they move, not how much at once: this
  // one is searched even then.
  bool tuned_under_strategy = false;
  // The step of an ablation in which it changes: "layout", or the path of another knob; empty: its
  // own, if it is searched, else none.
  std::string_view studied_with{};
  // With the others that are, the product of the ranks: `data` follows from it.
  bool is_degree = false;

  // What a device would have to do for it, where none does and no operation of a graph shows it:
  // a plan that gives it another value than its default is predicted, and refused where it would be
  // run. Empty: the capability contract knows better (sim/graph/core/capabilities).
  std::string_view only_predicted{};

  std::string_view help{};                         // one line, no full stop
  std::string_view matters{};                      // when; empty: always
  bool (*matters_in)(const Plan& plan) = nullptr;  // null: always
  KnobFlag flag{};

  // Made from the field. set() of a member of a group that is "auto" gives the group its defaults
  // first. A value of another type fails a CHECK.
  KnobValue (*get)(const Plan& plan) = nullptr;
  void (*set)(Plan& plan, const KnobValue& value) = nullptr;
  bool (*same)(const Plan& a, const Plan& b) = nullptr;
  void (*append_key)(std::string& key, const Plan& plan) = nullptr;
  std::string_view (*name_of)(int64_t choice) = nullptr;  // of a choice, and of a fate

  // "optimizer" of "optimizer.cast", empty of "devices"; and "cast".
  constexpr std::string_view object() const {
    const size_t dot = path.find('.');
    return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
  constexpr std::string_view key() const {
    const size_t dot = path.find('.');
    return dot == std::string_view::npos ? path : path.substr(dot + 1);
  }
  bool matters_to(const Plan& plan) const { return matters_in == nullptr || matters_in(plan); }
};

// Every knob, in the order of KnobId.
std::span<const Knob> knobs();
const Knob& knob_of(KnobId id);
// Null for a path that is none; the fate of one kind of module is that of all.
const Knob* find_knob(std::string_view path);
// Of a plan that says nothing; of a member of a group, once the group has a value.
KnobValue default_of(const Knob& knob);
// "auto", "true", "8", "0.25", "cpu"; fates as "norm1 keep, qkv offload, ...".
std::string text_of(const Knob& knob, const KnobValue& value);

// Kinds of modules whose fate a plan names, in order: those of saves_output().
const std::vector<ModuleKind>& saving_kinds();

// A set of knobs.
class KnobSet {
 public:
  KnobSet() = default;
  KnobSet(std::initializer_list<KnobId> ids) {
    for (const KnobId id : ids) add(id);
  }
  bool has(KnobId id) const { return bits_[static_cast<size_t>(id)]; }
  KnobSet& add(KnobId id) { return set(id, true); }
  KnobSet& remove(KnobId id) { return set(id, false); }
  KnobSet& set(KnobId id, bool is_in) {
    bits_[static_cast<size_t>(id)] = is_in;
    return *this;
  }
  bool empty() const { return bits_.none(); }
  KnobSet operator&(const KnobSet& other) const {
    KnobSet both = *this;
    both.bits_ &= other.bits_;
    return both;
  }
  bool operator==(const KnobSet&) const = default;

 private:
  std::bitset<kKnobs> bits_;
};
// Those that this search chooses.
KnobSet knobs_of(KnobSearch search);
// Their paths with commas between.
std::string text_of(const KnobSet& set);

// Bytes that are the same for two plans exactly where every knob but those of `apart` is. Keys of
// caches are made by it: leave out what provably does not matter, so that a new knob is in.
std::string plan_key(const Plan& plan, const KnobSet& apart = {});

// Gives `to` the values that these knobs have in `from`.
void copy_knobs(Plan& to, const Plan& from, const KnobSet& set);

// Those in which two plans differ, in order; of a group only its members, unless one is "auto".
std::vector<const Knob*> differing(const Plan& a, const Plan& b);

}  // namespace ballast
