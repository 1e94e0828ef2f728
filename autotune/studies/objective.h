// Objective: what a search is for, beyond the shortest step of one number of devices: the most
// tokens a device, the cheapest token, the fewest devices for a deadline, the longest sequence, the
// largest model; under limits of memory, devices and energy.
//
// For a given number of devices and a given batch the shortest step is the best by every objective
// of throughput, so each is a choice among searches, and exact where they are.
// Will not do: search (it asks), or print (cli).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/search/search_question.h"
#include "autotune/studies/capacity.h"

namespace ballast {

enum class Objective : uint8_t {
  kStepTime,            // seconds of a step; of several devices the fastest
  kTokensPerDevice,     // tokens a second and device
  kCostPerToken,        // price of a million tokens
  kDevicesForDeadline,  // the fewest that train so many tokens in so many days
  kLongestSequence,     // tokens of a sequence
  kLargestModel,        // parameters
};
inline constexpr int kObjectives = 6;
std::string_view to_string(Objective value);       // "step-time", "tokens-per-device", ...
std::string_view unit_of(Objective value);         // "s", "tokens/s", ...
std::vector<std::string> objective_names();        // in the order above
Objective parse_objective(std::string_view name);  // Throws Error for others

// What a device costs, where that is known.
struct DeviceRates {
  std::optional<double> price_per_hour;  // in any currency
  std::optional<double> watts;           // drawn, its share of the node included
};

// A training run: so many tokens in so many days.
struct Job {
  double tokens = 0;
  double days = 0;
};

struct ObjectiveRequest {
  Objective objective = Objective::kStepTime;
  DeviceRates rates;
  std::optional<Job> job;                       // required by kDevicesForDeadline
  std::optional<double> most_joules_per_token;  // requires rates.watts
};

struct Economy {
  double tokens_per_s = 0;
  double tokens_per_s_per_device = 0;
  std::optional<double> cost_per_million_tokens;  // price * devices * time
  std::optional<double> joules_per_token;         // watts * devices * time
};
Economy economy_of(const Candidate& candidate, const DeviceRates& rates);
// Days that the job takes with this plan.
double days_of(const Job& job, const Candidate& candidate);

// One number of devices and one batch; a value without a question is illegal, and says why.
struct ObjectivePoint {
  int64_t devices = 0;
  int64_t global_batch = 0;
  std::optional<SearchQuestion> question;
  std::string refusal;
  std::optional<SearchResult> found;    // nothing: not asked
  SearchStop stop = SearchStop::kNone;  // of its search, or what kept it from being asked
};

// Asks the questions in their order (fewest devices first) until one is interrupted; for
// kDevicesForDeadline until the deadline is met.
void ask_points(std::vector<ObjectivePoint>& points, const ObjectiveRequest& request,
                const Ask& ask);

// What the objective counts, in unit_of(). Requires one of throughput, and what it needs.
double value_of(const Candidate& candidate, const ObjectiveRequest& request);
// Whether the plan stays below most_joules_per_token and meets the deadline.
bool is_allowed(const Candidate& candidate, const ObjectiveRequest& request);
// Whether it is known that the point has an allowed plan or that it has none: a search that was
// stopped decides only by the plan that it found, or by how far that can be from the optimum.
bool is_decided(const ObjectivePoint& point, const ObjectiveRequest& request);
// The best of the points that are allowed, of equals the first; nothing where none is.
std::optional<size_t> best_point(const std::vector<ObjectivePoint>& points,
                                 const ObjectiveRequest& request);

// --- Sizes: how long a sequence, how large a model --------------------------------------------

// The question for a size (1, 2, ...), or nothing where no plan of it is legal.
using SizedQuestion = std::function<std::optional<SearchQuestion>(int64_t size)>;

struct LargestSize {
  int64_t size = 0;                            // the largest known to fit; 0: none is
  std::optional<SearchResult> found;           // with the fastest plan of `size`
  int64_t next = 0;                            // the next size; 0: all that were allowed fit
  std::vector<InfeasibleReason> next_reasons;  // why it does not fit; none: no legal plan
  // Unless kNone, whether `next` fits is not decided, for this stopped its search.
  SearchStop next_stop = SearchStop::kNone;
  int64_t searches = 0;
};
// Assumes that of two sizes the larger needs more; ends at a neighbouring pair. Of a size that is
// not decided smaller ones are tried.
struct SizeSearch {
  SizedQuestion question;
  int64_t most = 0;  // the largest size
};
LargestSize largest_size(const SizeSearch& sizes, const Ask& ask);

// The shapes of a family in ascending order of parameters, layers in multiples of `grain`.
std::vector<Shape> shapes_of(const Family& family, int64_t grain);

// --- Limits -----------------------------------------------------------------------------------

// The machine with less memory for tensors on every GPU.
Machine with_headroom(const Machine& machine, Bytes headroom);
// The machine with so much memory in this place (kHbm or kDram), all told.
Machine with_memory(const Machine& machine, Place place, Bytes memory);

// More memory than so many times the machine's is not asked about.
inline constexpr int64_t kMostMemoryFactor = 64;

// The least memory of this place, within 1 %, that makes any plan of the question fit; nothing
// where kMostMemoryFactor times as much does not, or the search was stopped.
std::optional<Bytes> least_memory_of(const SearchQuestion& question, Place place, const Ask& ask);

}  // namespace ballast
