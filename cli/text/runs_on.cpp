#include "cli/text/runs_on.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "backend/train/make_device.h"

namespace ballast {

std::vector<DeviceVerdict> runs_on(const Model& model, const Plan& plan, const Stack& stack) {
  std::vector<DeviceVerdict> verdicts = which_run(model, plan);
  // What is assumed where no stack is named, and the roofline, say nothing against our own backend.
  if (stack.memory_is_planned() || stack.name == kTypicalStack) return verdicts;
  for (DeviceVerdict& verdict : verdicts) {
    verdict.missing = Missing{"stack " + stack.name + " is predicted, not run", "stack",
                              "name --stack ballast to predict the plan as Ballast runs it"};
  }
  return verdicts;
}

nlohmann::ordered_json runs_on_json(const std::vector<DeviceVerdict>& verdicts) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const DeviceVerdict& verdict : verdicts) {
    const std::optional<Missing>& missing = verdict.missing;
    const auto said = [&](const std::string Missing::*part) {
      return missing ? nlohmann::ordered_json((*missing).*part) : nlohmann::ordered_json(nullptr);
    };
    list.push_back({{"device", verdict.device},
                    {"runs", !missing},
                    {"missing", said(&Missing::what)},
                    {"knob", said(&Missing::knob)},
                    {"remedy", said(&Missing::remedy)}});
  }
  return list;
}

std::string runs_on_text(const std::vector<DeviceVerdict>& verdicts) {
  std::vector<std::string> running;
  std::vector<std::string> others;
  for (const DeviceVerdict& verdict : verdicts) {
    if (!verdict.missing) {
      running.push_back(verdict.device);
    } else {
      others.push_back(fmt::format("not on {}: {} ({})", verdict.device, verdict.missing->what,
                                   verdict.missing->knob));
    }
  }
  if (!running.empty()) {
    others.insert(others.begin(),
                  fmt::format("this build runs it on {}", fmt::join(running, " and ")));
  }
  return fmt::format("{}", fmt::join(others, "; "));
}

std::string runs_on_cell(const std::vector<DeviceVerdict>& verdicts) {
  std::vector<std::string> running;
  for (const DeviceVerdict& verdict : verdicts) {
    if (!verdict.missing) running.push_back(verdict.device);
  }
  if (!running.empty()) return fmt::format("{}", fmt::join(running, ", "));
  return verdicts.empty() ? "" : "no: " + verdicts.front().missing->knob;
}

}  // namespace ballast
