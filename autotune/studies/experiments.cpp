#include "autotune/studies/experiments.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

namespace ballast {
namespace {

using Values = std::array<int16_t, 7>;
Values values_of(const Choice& choice) {
  return {choice.micro_batch, choice.activations, choice.bucket,    choice.gpu_buckets,
          choice.cast,        choice.sync,        choice.flow_share};
}

// Choices such that every value of every knob is in at least one of them.
std::vector<Choice> covering(const std::vector<Choice>& all) {
  std::set<std::pair<int, int16_t>> seen;
  std::vector<Choice> chosen;
  // Neighbours in the list differ in their last knobs only; a long stride changes them all.
  const size_t stride = all.size() * 5 / 8 | 1;
  const size_t step = std::gcd(stride, all.size()) == 1 ? stride : 1;
  for (size_t i = 0; i < all.size(); ++i) {
    const Choice& choice = all[i * step % all.size()];
    const Values values = values_of(choice);
    bool is_new = false;
    for (size_t knob = 0; knob < values.size(); ++knob) {
      is_new = seen.emplace(static_cast<int>(knob), values[knob]).second || is_new;
    }
    if (is_new) chosen.push_back(choice);
  }
  return chosen;
}

// Choices that differ from the one of this plan in one knob; none where it is not of the space.
std::vector<Choice> neighbours_of(Plan plan, const Space& space, const Plan& base) {
  plan.memory_reuse = base.memory_reuse;
  const std::vector<Choice> all = choices_of(space, base);
  const auto same = [&](const Choice& choice) { return plan_of(space, base, choice) == plan; };
  const auto found = std::find_if(all.begin(), all.end(), same);
  std::vector<Choice> neighbours;
  if (found == all.end()) return neighbours;
  const Values here = values_of(*found);
  for (const Choice& choice : all) {
    const Values there = values_of(choice);
    int differing = 0;
    for (size_t knob = 0; knob < here.size(); ++knob) differing += here[knob] != there[knob];
    if (differing == 1) neighbours.push_back(choice);
  }
  return neighbours;
}

std::vector<Plan> plans_of(const std::vector<Choice>& choices, const Space& space,
                           const Plan& base) {
  std::vector<Plan> plans;
  for (const Choice& choice : choices) plans.push_back(plan_of(space, base, choice));
  return plans;
}

}  // namespace

std::vector<Plan> covering_plans(const Space& space, const Plan& base) {
  return plans_of(covering(choices_of(space, base)), space, base);
}

std::vector<Plan> rival_plans(const Plan& best, const Space& space, const Plan& base) {
  std::vector<Choice> choices = neighbours_of(best, space, base);
  for (const Choice& choice : covering(choices_of(space, base))) choices.push_back(choice);
  return plans_of(choices, space, base);
}

}  // namespace ballast
