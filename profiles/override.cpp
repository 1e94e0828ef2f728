// `--set key=value`: a change by dotted path, made in the JSON of a record and read back, so that
// an override passes the same checks as a file.
#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "profiles/json_depth.h"
#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/load.h"
#include "profiles/names/words.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// Not a key of a machine's file: it stands for three of them (set_link_rate).
constexpr const char* kLinkRate = "link.gb_per_s";
constexpr const char* kNetworkShare = "link.network_share";

std::vector<std::string> split(const std::string& path) {
  std::vector<std::string> words;
  size_t begin = 0;
  while (true) {
    const size_t dot = path.find('.', begin);
    words.push_back(path.substr(begin, dot - begin));
    if (dot == std::string::npos) return words;
    begin = dot + 1;
  }
}

Json value_of(const std::string& text) {
  check_depth(text, "--set");
  const Json parsed = Json::parse(text, nullptr, false);
  // Anything that is not JSON is a text; so is a number too large for JSON's reader.
  return parsed.is_discarded() ? Json(text) : parsed;
}

std::string flag(const std::string& record, const Override& change) {
  return fmt::format("--set {}.{}", record, change.key);
}

// The value at a path that exists. Throws Error with the nearest key at the first word unknown.
Json& find(Json& document, const std::string& path, const std::string& source) {
  Json* at = &document;
  std::string walked;
  for (const std::string& word : split(path)) {
    if (!at->is_object()) {
      throw Error(source, fmt::format("{} holds no keys here", in_quotes(walked)),
                  "set it as a whole, or name another key");
    }
    const auto found = at->find(word);
    if (found == at->end()) {
      std::vector<std::string> known;
      for (const auto& item : at->items()) known.push_back(item.key());
      throw Error(source, fmt::format("key {} is unknown", in_quotes(word)),
                  suggestion(word, known));
    }
    at = &*found;
    walked += (walked.empty() ? "" : ".") + word;
  }
  return *at;
}

constexpr std::array kRateKeys = {"gb_per_s", "parameters_per_s", "elements_per_s"};

// The list of a curve's rates, or null.
Json* rates_of(Json& value) {
  for (const char* key : kRateKeys) {
    if (value.is_object() && value.contains(key)) return &value[key];
  }
  return nullptr;
}

// What stands at a path, or null.
const Json* look_up(const Json& document, const std::string& path) {
  const Json* at = &document;
  for (const std::string& word : split(path)) {
    if (!at->is_object() || !at->contains(word)) return nullptr;
    at = &(*at)[word];
  }
  return at;
}

// The path of a curve that was named with the unit of its rates ("link.host_to_device_gb_per_s"),
// as the other keys of a machine are; any other path as it is.
std::string curve_path(const Json& machine, const std::string& path) {
  for (const std::string rate : kRateKeys) {
    const std::string ending = "_" + rate;
    if (!path.ends_with(ending)) continue;
    const std::string stem = path.substr(0, path.size() - ending.size());
    const Json* curve = look_up(machine, stem);
    if (curve != nullptr && curve->is_object() && curve->contains(rate)) return stem;
  }
  return path;
}

void set_machine_value(Json& target, const Json& value, const std::string& source) {
  Json* rates = rates_of(target);
  const bool is_sourced = target.is_object() && target.contains("value");
  if ((is_sourced || rates != nullptr) && !value.is_structured() && !value.is_number()) {
    throw Error(source, "must be a number, and is " + in_quotes(value.dump()),
                "write it in the key's unit, as in machine.gpu.memory_gb=80");
  }
  if (!value.is_number() || (!is_sourced && rates == nullptr)) {
    target = value;
    return;
  }
  if (is_sourced) {
    target["value"] = value;
  } else {
    const double scale = value.get<double>() / rates->back().get<double>();
    for (Json& rate : *rates) rate = rounded(rate.get<double>() * scale);
  }
  target["source"] = source;
  target["measured"] = false;
}

// A direction of a link gets another plateau. Its points are times of whole copies with their
// start (50 GB/s at 1 MiB is 18 us of it): a slower wire makes the bytes slower and not the start.
void set_copy_rate(Json& curve, const Json& value, const std::string& source) {
  Json* rates = rates_of(curve);
  if (!value.is_number() || value.get<double>() <= 0 || !curve.contains("bytes")) {
    set_machine_value(curve, value, source);
    return;
  }
  const double before = rates->back().get<double>();
  const double more = 1 / value.get<double>() - 1 / before;  // time of a byte
  for (size_t i = 0; i < rates->size(); ++i) {
    // Where a point lies above the plateau, it is scaled with it.
    const double rate = std::min((*rates)[i].get<double>(), before);
    const double above = (*rates)[i].get<double>() / rate;
    (*rates)[i] = rounded(above / (1 / rate + more));
  }
  curve["source"] = source;
  curve["measured"] = false;
}

// One link faster or slower as a whole: the plateau to the device becomes `value`, the way back
// and what both carry together keep their proportion to it.
void set_link_rate(Json& link, const Json& value, const std::string& source) {
  if (!value.is_number() || value.get<double>() <= 0) {
    throw Error(source, "must be a number above 0", "write machine.link.gb_per_s=400");
  }
  const double before = rates_of(link["host_to_device"])->back().get<double>();
  const auto scaled = [&](const Json& rate) {
    return Json(rounded(rate.get<double>() * value.get<double>() / before));
  };
  const Json back = scaled(rates_of(link["device_to_host"])->back());
  const Json both = scaled(link["both_total_gb_per_s"]["value"]);
  set_copy_rate(link["host_to_device"], value, source);
  set_copy_rate(link["device_to_host"], back, source);
  set_machine_value(link["both_total_gb_per_s"], both, source);
  for (const char* const of_kernels : {"kernel_reads", "kernel_writes"}) {
    if (!link.contains(of_kernels)) continue;
    set_copy_rate(link[of_kernels], scaled(rates_of(link[of_kernels])->back()), source);
  }
}

}  // namespace

Overrides parse_overrides(const std::vector<std::string>& arguments) {
  Overrides result;
  for (const std::string& argument : arguments) {
    const std::string where = "--set " + in_quotes(argument);
    const size_t equals = argument.find('=');
    const size_t dot = argument.find('.');
    if (equals == std::string::npos) {
      throw Error(where, "has no '='", "write --set plan.optimizer.cast=cpu");
    }
    if (dot == std::string::npos || dot > equals) {
      throw Error(where, "does not say whose key it is", "begin it with machine., model. or plan.");
    }
    const std::string record = argument.substr(0, dot);
    Override change{argument.substr(dot + 1, equals - dot - 1), argument.substr(equals + 1)};
    if (record == "machine") {
      result.machine.push_back(std::move(change));
    } else if (record == "model") {
      result.model.push_back(std::move(change));
    } else if (record == "plan") {
      result.plan.push_back(std::move(change));
    } else {
      throw Error(where, in_quotes(record) + " has no keys to set",
                  suggestion(record, {"machine", "model", "plan"}));
    }
  }
  return result;
}

Machine apply_override(const Machine& machine, const Override& change) {
  const std::string source = flag("machine", change);
  Json document = to_json(machine);
  if (change.key == kLinkRate) {
    set_link_rate(document["link"], value_of(change.value), source);
    return machine_from_json(document, source);
  }
  // A machine whose network has wires of its own leaves it out.
  if (change.key == kNetworkShare && !machine.link.network_share) {
    document["link"]["network_share"] = {{"value", 1}, {"source", source}, {"measured", false}};
  }
  const std::string path = curve_path(document, change.key);
  const bool of_link =
      path.starts_with("link.") && rates_of(find(document, path, source)) != nullptr;
  if (of_link) {
    set_copy_rate(find(document, path, source), value_of(change.value), source);
  } else {
    set_machine_value(find(document, path, source), value_of(change.value), source);
  }
  return machine_from_json(document, source);
}

Model apply_override(const Model& model, const Override& change) {
  const std::string source = flag("model", change);
  Json document = to_json(model);
  find(document, change.key, source) = value_of(change.value);
  // Latent attention expands keys and values to every head.
  if (change.key == "heads" && model.is_latent()) document["kv_heads"] = document["heads"];
  const bool resized = change.key == "hidden" || change.key == "heads";
  if (resized && model.heads * model.head_size == model.hidden) {
    JsonReader reader(document, source, "model");
    const int64_t hidden = reader.whole("hidden", {1, INT64_MAX});
    const int64_t heads = reader.whole("heads", {1, INT64_MAX});
    if (hidden % heads != 0) {
      reader.fail(change.key, fmt::format("{} heads do not divide a width of {}", heads, hidden),
                  "choose one that does");
    }
    document["head_size"] = hidden / heads;
    if (model.kv_heads == model.heads) document["kv_heads"] = heads;
  }
  return model_from_json(document, source);
}

Plan apply_override(const Plan& plan, const Override& change) {
  const std::string source = flag("plan", change);
  Json changes = value_of(change.value);
  const std::vector<std::string> words = split(change.key);
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    changes = Json{{*word, std::move(changes)}};
  }
  Json document = to_json(plan);
  merge_plan(document, changes, source);
  return plan_from_json(document, source);
}

}  // namespace ballast
