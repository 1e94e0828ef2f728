// How a row of the table of knobs (sim/spec/knobs.cpp) reaches the field that it stands for: typed
// get, set, comparison and cache key, made from a pointer to the field.
//
// Only the rows in sim/spec/knobs/ include this header.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include "sim/base/error.h"
#include "sim/spec/knobs.h"

namespace ballast::knob_access {

// --- Access to a field by its pointer -------------------------------------------------------

template <class Owner, class Value>
Owner owner_type(Value Owner::*);
template <class Owner, class Value>
Value value_type(Value Owner::*);
template <auto kField>
using OwnerOf = decltype(owner_type(kField));
template <auto kField>
using ValueOf = decltype(value_type(kField));

template <class Value>
struct Unwrapped {
  using type = Value;
  static constexpr bool kOptional = false;
};
template <class Value>
struct Unwrapped<std::optional<Value>> {
  using type = Value;
  static constexpr bool kOptional = true;
};
template <auto kField>
using PlainOf = typename Unwrapped<ValueOf<kField>>::type;

// The struct that holds a field; null where its group is "auto".
template <class Owner>
const Owner* part_of(const Plan& plan) {
  if constexpr (std::is_same_v<Owner, Plan>) {
    return &plan;
  } else if constexpr (std::is_same_v<Owner, WeightsPlan>) {
    return &plan.weights;
  } else if constexpr (std::is_same_v<Owner, OptimizerPlan>) {
    return &plan.optimizer;
  } else {
    static_assert(std::is_same_v<Owner, ActivationPlan>);
    return plan.activations ? &*plan.activations : nullptr;
  }
}
template <class Owner>
Owner& part_to_set(Plan& plan) {
  if constexpr (std::is_same_v<Owner, ActivationPlan>) {
    if (!plan.activations) plan.activations = ActivationPlan{};
  }
  return const_cast<Owner&>(*part_of<Owner>(plan));
}

// --- Values ---------------------------------------------------------------------------------

template <class Value>
KnobValue value_of(const Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    return static_cast<int64_t>(value);
  } else if constexpr (std::is_same_v<Value, Bytes>) {
    return value.count;
  } else if constexpr (std::is_same_v<Value, ActivationPlan>) {
    return true;
  } else {
    return value;
  }
}

// Sets a field to a value of its own type.
template <class Value>
void assign(Value& field, const KnobValue& value) {
  using Held =
      std::conditional_t<std::is_enum_v<Value> || std::is_same_v<Value, Bytes>, int64_t, Value>;
  const Held* held = std::get_if<Held>(&value);
  CHECK(held != nullptr);
  if constexpr (std::is_same_v<Value, Bytes>) {
    field = Bytes{*held};
  } else {
    field = static_cast<Value>(*held);
  }
}

template <class Value>
void append(std::string& key, const Value& value) {
  if constexpr (std::is_same_v<Value, std::string>) {
    append(key, static_cast<int64_t>(value.size()));
    key += value;
  } else if constexpr (std::is_same_v<Value, ActivationPlan>) {
    key += '!';  // its members follow with keys of their own
  } else if constexpr (std::is_same_v<Value, Fates>) {
    for (const ActivationFate fate : value) key += static_cast<char>(fate);
  } else {
    static_assert(std::is_trivially_copyable_v<Value>);
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
}

template <auto kField>
struct Access {
  using Owner = OwnerOf<kField>;
  using Plain = PlainOf<kField>;
  static constexpr bool kOptional = Unwrapped<ValueOf<kField>>::kOptional;

  static KnobValue get(const Plan& plan) {
    const Owner* owner = part_of<Owner>(plan);
    if (owner == nullptr) return {};
    if constexpr (kOptional) {
      const auto& field = owner->*kField;
      return field ? value_of<Plain>(*field) : KnobValue{};
    } else {
      return value_of<Plain>(owner->*kField);
    }
  }

  static void set(Plan& plan, const KnobValue& value) {
    auto& field = part_to_set<Owner>(plan).*kField;
    if constexpr (std::is_same_v<Plain, ActivationPlan>) {
      if (std::holds_alternative<std::monostate>(value)) {
        field.reset();
      } else if (!field) {
        field.emplace();
      }
    } else if constexpr (kOptional) {
      if (std::holds_alternative<std::monostate>(value)) return field.reset();
      assign<Plain>(field.emplace(), value);
    } else {
      assign<Plain>(field, value);
    }
  }

  static bool same(const Plan& a, const Plan& b) {
    if constexpr (std::is_same_v<Plain, ActivationPlan>) {
      return a.activations.has_value() == b.activations.has_value();
    } else {
      const Owner* mine = part_of<Owner>(a);
      const Owner* its = part_of<Owner>(b);
      if (mine == nullptr || its == nullptr) return mine == its;
      return mine->*kField == its->*kField;
    }
  }

  static void append_key(std::string& key, const Plan& plan) {
    const Owner* owner = part_of<Owner>(plan);
    if (owner == nullptr) return;  // its group's key says so
    if constexpr (kOptional) {
      const auto& field = owner->*kField;
      key += field ? '+' : '-';
      if (field) append<Plain>(key, *field);
    } else {
      append<Plain>(key, owner->*kField);
    }
  }
};

template <class Plain>
constexpr KnobType type_of() {
  if constexpr (std::is_same_v<Plain, std::string>) return KnobType::kText;
  if constexpr (std::is_same_v<Plain, bool>) return KnobType::kBool;
  if constexpr (std::is_same_v<Plain, int64_t>) return KnobType::kWhole;
  if constexpr (std::is_same_v<Plain, Bytes>) return KnobType::kBytes;
  if constexpr (std::is_same_v<Plain, double>) return KnobType::kShare;
  if constexpr (std::is_same_v<Plain, Fates>) return KnobType::kFates;
  if constexpr (std::is_same_v<Plain, ActivationPlan>) return KnobType::kGroup;
  return KnobType::kChoice;
}

template <class Enum>
std::string_view name_of_choice(int64_t choice) {
  return to_string(static_cast<Enum>(choice));
}

// A row, with what its field tells filled in.
template <auto kField>
constexpr Knob knob(Knob row) {
  using Plain = PlainOf<kField>;
  row.type = type_of<Plain>();
  row.may_be_auto = Unwrapped<ValueOf<kField>>::kOptional;
  row.get = &Access<kField>::get;
  row.set = &Access<kField>::set;
  row.same = &Access<kField>::same;
  row.append_key = &Access<kField>::append_key;
  if constexpr (std::is_enum_v<Plain>) row.name_of = &name_of_choice<Plain>;
  if constexpr (std::is_same_v<Plain, Fates>) row.name_of = &name_of_choice<ActivationFate>;
  return row;
}

}  // namespace ballast::knob_access
