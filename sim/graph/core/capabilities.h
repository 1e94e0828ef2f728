// The capability contract: what a device carries out, declared in one table beside its switch, and
// what a graph, its model and its plan ask for. first_missing() holds the one against the other.
//
// A declaration names kinds of operations; of each the roles of the tensors it takes, the types it
// takes them in, and the variants of its work beyond the plain one. What is not declared is not
// carried out, so a plan that asks for it is refused by name before anything runs, and the
// device's switch fails CHECK on it.
// Will not do: carry anything out (backend), or know a duration.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "sim/base/error.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

// Forms of work that a device may do without although it carries out the plain kind.
enum class WorkVariant : uint8_t {
  kEagerAttention,   // scores that are stored
  kFp8Product,       // operands rounded to 8 bits
  kExactUndo,        // an Adam that records what an undo needs, and that undo
  kStateStream,      // master and moments copied between where they rest and where they are stepped
  kRestingRollback,  // a commit that may have to step a state again which rests elsewhere
  kExactRestingUndo,  // the same from a record of what rounding lost
  kExactNarrowUndo,   // a record of moments that are stored in fewer than 32 bits
  kPageableCopy,      // through the driver's buffers
  kCopyInPieces,      // as several calls
  kNoMaster,          // a step of 16-bit weights that have no 32-bit master
  kSeveralRanks,      // a collective over more than one rank
  kBetweenStages,     // a collective between stages of a pipeline, which has the tensors of all
  kDirectAccess,      // a kernel of the GPU that reads or writes CPU memory
};
inline constexpr int kWorkVariants = 13;

// What a model may have beyond a dense decoder with plain causal attention.
enum class ModelFeature : uint8_t {
  kQkNorm,
  kExperts,
  kLatentAttention,
  kAttentionSinks,
  kSlidingWindow,
  kScaledRope,
  kSigmoidRouter,
  kClampedSwiGlu,
  kBalanceOverStages,  // a loss that counts tokens over the layers of all stages of a pipeline
  // Over tensor-parallel ranks: experts, latents; heads of keys and values that do not divide over
  // those and the ranks that share sequences.
  kTensorExperts,
  kTensorLatents,
  kSharedKeyHeads,
  // Over ranks that share sequences: sinks of heads, and a loss that balances experts.
  kSequenceSinks,
  kSequenceBalance,
  kContextLatents,
};
inline constexpr int kModelFeatures = 15;

// What a plan may ask for that no operation of its graph shows.
enum class PlanFeature : uint8_t {
  // Degrees above one. Ranks that do the same on other data or another share are one in a graph;
  // stages of a pipeline are a device of it each.
  kDataRanks,
  kTensorRanks,
  kSequenceRanks,
  kContextRanks,
  kExpertRanks,
  kPipeline,
  kRemoteMemory,  // threads that use the memory of another chip
  kSubsequences,  // sequences that pass the layers in parts
  // Of ranks of data parallelism: beside stages, weights that are split over them or flow in from
  // where optimizer state is split (ZeRO 1, 2) or weights are (3), shares that several groups of
  // them have, and state that streams in.
  kRanksOfPipelines,
  kSplitWeights,
  kFlowOfShares,
  kFlowOfSplitWeights,
  kCopiesOfShares,
  kStreamsOfShares,
  kSequenceParts,       // parts of sequences that ranks share
  kUnevenRows,          // tokens that do not divide over tensor-parallel ranks that share norms
  kHelpedRings,         // whose ranks attend for one another
  kLongRings,           // of more than two ranks, or beside others that share sequences
  kExpertsOfSequences,  // expert ranks beside those that share sequences
  kFp8OfTensorRanks,    // scales of factors of which tensor-parallel ranks have parts
};
inline constexpr int kPlanFeatures = 20;

// A set of values of an enumeration.
template <class Enum>
class SetOf {
 public:
  constexpr SetOf() = default;
  constexpr SetOf(std::initializer_list<Enum> values) {
    for (const Enum value : values) bits_ |= bit(value);
  }
  constexpr bool has(Enum value) const { return (bits_ & bit(value)) != 0; }
  constexpr SetOf operator|(SetOf other) const {
    SetOf all = *this;
    all.bits_ |= other.bits_;
    return all;
  }
  constexpr SetOf without(Enum value) const {
    SetOf fewer = *this;
    fewer.bits_ &= ~bit(value);
    return fewer;
  }
  static constexpr SetOf all(int count) {
    SetOf every;
    every.bits_ = (uint32_t{1} << count) - 1;
    return every;
  }

 private:
  static constexpr uint32_t bit(Enum value) { return uint32_t{1} << static_cast<uint32_t>(value); }
  uint32_t bits_ = 0;
};

using DTypes = SetOf<DType>;
using WorkVariants = SetOf<WorkVariant>;

inline constexpr int kRoles = static_cast<int>(Role::kKeyGradient) + 1;
inline constexpr int kDTypes = static_cast<int>(DType::kE5m2) + 1;

std::string_view to_string(Role role);

// The roles that share a set of types.
struct RoleTypes {
  std::initializer_list<Role> roles;
  DTypes types;
};

class Capabilities {
 public:
  // device: "host", "cuda", ..., as people name it; described: more of it, for messages.
  explicit Capabilities(std::string device, std::string described = "")
      : device_(std::move(device)), described_(std::move(described)) {}

  // Declarations, one a line of a device's table. Of one kind the last one counts, to which also()
  // adds roles, types and variants.
  Capabilities& carries_out(OpKind kind, std::initializer_list<RoleTypes> takes = {},
                            WorkVariants variants = {});
  Capabilities& also(OpKind kind, std::initializer_list<RoleTypes> takes,
                     WorkVariants variants = {});
  // Takes a variant back of every kind.
  Capabilities& does_without(WorkVariant variant);
  Capabilities& has(SetOf<ModelFeature> features);
  Capabilities& has(SetOf<PlanFeature> features);
  // Every kind with every role, type, variant and feature: of a device that computes nothing.
  Capabilities& carries_out_everything();
  // An Adam's name (OptimizerPlan::adam) is known where this says so; null: every name is.
  Capabilities& knows_adams(bool (*knows)(std::string_view name));

  const std::string& device() const { return device_; }
  // "the host device", or as described.
  std::string in_words() const;
  bool declares(OpKind kind) const { return of(kind).declared; }
  bool declares(OpKind kind, WorkVariant variant) const { return of(kind).variants.has(variant); }
  bool declares(OpKind kind, Role role, DType type) const {
    return of(kind).types[static_cast<size_t>(role)].has(type);
  }
  bool declares(OpKind kind, Role role) const;
  bool declares(ModelFeature feature) const { return model_features_.has(feature); }
  bool declares(PlanFeature feature) const { return plan_features_.has(feature); }
  // Whether it takes plans whose knobs are only predicted (Knob::only_predicted).
  bool takes_what_is_predicted() const { return takes_what_is_predicted_; }
  bool knows_adam(std::string_view name) const { return knows_ == nullptr || knows_(name); }

  // Whether an operation is carried out with all that it touches: what a switch checks.
  bool carry_out(const Op& op, const Graph& graph) const;

 private:
  struct Operation {
    bool declared = false;
    WorkVariants variants;
    std::array<DTypes, kRoles> types{};
  };
  const Operation& of(OpKind kind) const { return operations_[static_cast<size_t>(kind)]; }

  std::string device_;
  std::string described_;
  std::array<Operation, kOpKinds> operations_{};
  SetOf<ModelFeature> model_features_;
  SetOf<PlanFeature> plan_features_;
  bool takes_what_is_predicted_ = false;
  bool (*knows_)(std::string_view) = nullptr;
};

// The variants of an operation's work.
WorkVariants variants_of(const Op& op, const Graph& graph);

// What a device lacks, which knob asked for it, and what to do about it.
struct Missing {
  std::string what;    // "the host device has no experts"
  std::string knob;    // "model", "plan.optimizer.undo", "stack"
  std::string remedy;  // "set plan.products=as-stored"
  Error error() const { return Error(knob, what, remedy); }
};

// Whether a device runs a plan: it does if nothing is missing.
struct DeviceVerdict {
  std::string device;
  std::optional<Missing> missing;
};

// The first thing that model or plan ask for and that the device does not have; or that an
// operation of the graph asks for, of its step or its repair, in program order. None: the device
// carries the graph out. Edges and addresses do not matter.
std::optional<Missing> first_missing(const Model& model, const Plan& plan,
                                     const Capabilities& capabilities);
std::optional<Missing> first_missing(const Graph& graph, const Model& model, const Plan& plan,
                                     const Capabilities& capabilities);

}  // namespace ballast
