#include "cli/flags/between_processes.h"

#include <string>
#include <string_view>

namespace ballast {

namespace {

constexpr std::string_view kBetweenProcesses = " between processes";

}  // namespace

Measurements named_between_processes(const Measurements& measurements) {
  Measurements named;
  for (const auto& [key, measurement] : measurements) {
    Measurement& one = named[key + std::string(kBetweenProcesses)];
    one = measurement;
    one.group += kBetweenProcesses;
  }
  return named;
}

Measurements between_processes(Measurements all) {
  Measurements own;
  for (const auto& [key, measurement] : all) {
    if (!measurement.group.ends_with(kBetweenProcesses)) continue;
    Measurement& one = own[key.substr(0, key.size() - kBetweenProcesses.size())];
    one = measurement;
    one.group.resize(one.group.size() - kBetweenProcesses.size());
  }
  for (const auto& measured : own) {
    const std::string& group = measured.second.group;
    std::erase_if(all, [&](const auto& one) { return one.second.group == group; });
  }
  all.merge(own);
  return all;
}

}  // namespace ballast
