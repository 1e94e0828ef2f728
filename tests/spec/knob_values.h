// Values of every knob other than its default, for tests of what each knob does.
#pragma once

#include <vector>

#include "sim/spec/knobs.h"

namespace ballast::knob_tests {

// Every choice of an enumeration or a short range but the default and `now`; of anything else two
// legal values or more ("auto" is not among them). Legal for a plan file; a model and the other
// knobs may still refuse one.
inline std::vector<KnobValue> other_values(const Knob& knob, const KnobValue& now = {}) {
  constexpr int64_t kShortRange = 8;
  const KnobValue usual = default_of(knob);
  std::vector<KnobValue> values;
  const auto add = [&](const KnobValue& value) {
    if (value != usual && value != now) values.push_back(value);
  };
  switch (knob.type) {
    case KnobType::kText:
      add(std::string("one"));
      add(std::string("another"));
      break;
    case KnobType::kBool:
      add(true);
      add(false);
      break;
    case KnobType::kBytes:  // a few bytes would be legal, and hold no element
      add(int64_t{1} << 20);
      add(int64_t{1} << 21);
      break;
    case KnobType::kWhole:
      if (knob.most - knob.least <= kShortRange) {
        for (int64_t value = knob.least; value <= knob.most; ++value) add(value);
        break;
      }
      // Least, the next, and powers of two, which divide what degrees are to divide.
      add(knob.least);
      for (int64_t value = knob.least + 1; value <= knob.most && values.size() < 2; value *= 2) {
        add(value);
      }
      break;
    case KnobType::kShare:
      add(0.5);
      add(0.0);
      add(1.0);
      break;
    case KnobType::kChoice:
      for (const int64_t choice : knob.choices) add(choice);
      break;
    case KnobType::kFates:
      for (const int64_t choice : knob.choices) {
        Fates fates{};
        for (const ModuleKind kind : saving_kinds()) {
          fates[static_cast<size_t>(kind)] = static_cast<ActivationFate>(choice);
        }
        add(fates);
      }
      break;
    case KnobType::kGroup:
      add(true);
      break;
  }
  return values;
}

// A plan in which every knob has a value, each its default where it has one.
inline Plan with_values() {
  Plan plan;
  plan.activations.emplace();
  for (const Knob& knob : knobs()) {
    if (knob.may_be_auto && knob.type != KnobType::kGroup) {
      knob.set(plan, other_values(knob).front());
    }
  }
  return plan;
}

}  // namespace ballast::knob_tests
