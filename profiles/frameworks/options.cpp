#include "profiles/frameworks/options.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "profiles/json_records.h"
#include "profiles/names/words.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr int64_t kDefaultSequenceLength = 2048;
constexpr const char* kAuto = "auto";
// No framework has as many; a text that holds more is something else.
constexpr size_t kMostOptions = 2000;

void check_size(const OrderedJson& options, const std::string& source) {
  if (options.size() > kMostOptions) {
    throw Error(source, fmt::format("holds more than {} options", kMostOptions),
                "give the configuration of a training");
  }
}

// The keys of nested options joined by dots; empty objects vanish.
void flatten(const Json& value, const std::string& path, const std::string& source,
             OrderedJson& out) {
  for (const auto& item : value.items()) {
    const std::string name = path.empty() ? item.key() : path + "." + item.key();
    check_size(out, source);
    if (item.value().is_object()) {
      flatten(item.value(), name, source, out);
    } else if (!out.contains(name)) {
      out[name] = item.value();
    }
  }
}

// Words of a command line as a shell would see them, without expansions.
std::vector<std::string> words_of(std::string_view text, const std::string& source) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word += c;
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
      inside = true;
    } else if (c == '\\' && i + 1 < text.size()) {
      if (text[++i] != '\n') {
        word += text[i];
        inside = true;
      }
    } else if (c == '#' && !inside) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (!space) {
      word += c;
      inside = true;
    } else if (inside) {
      words.push_back(std::move(word));
      word.clear();
      inside = false;
    }
  }
  if (quote != 0) throw Error(source, "a quote is not closed", "close it");
  if (inside) words.push_back(std::move(word));
  return words;
}

// A number where the word is one, else the text.
OrderedJson word_value(const std::string& word) {
  const OrderedJson parsed = OrderedJson::parse(word, nullptr, false);
  return parsed.is_number() ? parsed : OrderedJson(word);
}

std::string flag_text(const OrderedJson& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Dashes in front do not make two flags alike.
std::string nearest_option(const std::string& name, const std::vector<std::string>& names) {
  if (!name.starts_with("--")) return nearest(name, names);
  std::vector<std::string> bare;
  for (const std::string& one : names) bare.push_back(one.substr(2));
  const std::string near = nearest(name.substr(2), bare);
  return near.empty() ? near : "--" + near;
}

bool is_flag(const std::string& word) { return word.size() > 2 && word.starts_with("--"); }

}  // namespace

// --- Reading options ------------------------------------------------------------------------

const OrderedJson* OptionReader::find(const std::string& name) {
  known_.insert(name);
  const auto found = options_.find(name);
  if (found == options_.end() || found->is_null()) return nullptr;
  if (*found == kAuto) {
    fail(name, "is \"auto\": a plan needs what a script fills in there", "write the value");
  }
  return &*found;
}

bool OptionReader::is_auto(const std::string& name) {
  known_.insert(name);
  const auto found = options_.find(name);
  return found != options_.end() && *found == kAuto;
}

void OptionReader::fail(const std::string& name, const std::string& what,
                        const std::string& remedy) const {
  throw Error(source_ + ": " + name, what, remedy);
}

bool OptionReader::has(const std::string& name) { return find(name) != nullptr; }

std::optional<int64_t> OptionReader::whole_if_present(const std::string& name, WholeRange range) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return std::nullopt;
  double number = NAN;
  if (value->is_number()) number = value->get<double>();
  // Every number of a range is exact as a double: the largest is 2^40.
  const bool fits = number >= static_cast<double>(range.least) &&
                    number <= static_cast<double>(range.most) && number == std::floor(number);
  if (!fits) {
    fail(name,
         in_quotes(value->dump(-1, ' ', false, OrderedJson::error_handler_t::replace)) +
             " is not possible",
         fmt::format("write a whole number from {} to {}", range.least, range.most));
  }
  return static_cast<int64_t>(number);
}

int64_t OptionReader::whole(const std::string& name, WholeRange range, int64_t otherwise) {
  return whole_if_present(name, range).value_or(otherwise);
}

double OptionReader::number(const std::string& name, NumberRange range, double otherwise) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= range.least && number <= range.most)) {
    fail(name,
         in_quotes(value->dump(-1, ' ', false, OrderedJson::error_handler_t::replace)) +
             " is not possible",
         fmt::format("write a number from {} to {}", range.least, range.most));
  }
  return number;
}

bool OptionReader::flag(const std::string& name) { return flag(name, false); }

bool OptionReader::flag(const std::string& name, bool otherwise) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) fail(name, "has a value that is neither true nor false", "correct it");
  return value->get<bool>();
}

std::string OptionReader::text(const std::string& name, const std::string& otherwise) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) fail(name, "must be a text", "correct it");
  return value->get<std::string>();
}

std::vector<std::string> OptionReader::list(const std::string& name) {
  const OrderedJson* value = find(name);
  if (value == nullptr) return {};
  std::vector<std::string> words;
  if (!value->is_array()) return {flag_text(*value)};
  for (const OrderedJson& one : *value) words.push_back(flag_text(one));
  return words;
}

size_t OptionReader::choice(const std::string& name, const std::vector<std::string>& names,
                            size_t otherwise) {
  if (!has(name)) return otherwise;
  const std::string word = text(name, "");
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end()) fail(name, in_quotes(word) + " is not known", suggestion(word, names));
  return static_cast<size_t>(found - names.begin());
}

void OptionReader::accept(const std::vector<std::string>& names) {
  known_.insert(names.begin(), names.end());
}

void OptionReader::ignore(const std::string& name, const std::string& reason) {
  known_.insert(name);
  const auto found = options_.find(name);
  const OrderedJson value = found == options_.end() ? OrderedJson() : *found;
  ignored_.push_back(
      {name, value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace), reason});
}

void OptionReader::assume(const std::string& name, const std::string& value,
                          const std::string& reason) {
  known_.insert(name);
  assumed_.push_back({name, value, reason});
}

std::vector<IgnoredOption> OptionReader::ignored(const FrameworkFacts& facts) const {
  std::vector<std::string> names;
  for (const FrameworkOption& option : facts.options) names.push_back(option.name);
  std::vector<IgnoredOption> list = ignored_;
  for (const auto& item : options_.items()) {
    if (known_.contains(item.key())) continue;
    const bool real = std::find(names.begin(), names.end(), item.key()) != names.end();
    std::string reason = "a plan has no such knob";
    if (!real) {
      const std::string near = nearest_option(item.key(), names);
      reason = fmt::format("not known as an option of {} {}{}", facts.name, facts.version,
                           near.empty() ? "" : "; did you mean " + near + "?");
    }
    list.push_back({item.key(),
                    item.value().dump(-1, ' ', false, OrderedJson::error_handler_t::replace),
                    reason});
  }
  return list;
}

// --- Knobs that several frameworks say in the same way ----------------------------------------

Plan plan_of_request(const ImportRequest& request, const Model& model, Framework framework) {
  Plan plan;
  plan.model = request.model;
  plan.machine = request.machine;
  plan.strategy = std::string(to_string(framework));
  plan.devices = request.devices;
  const int64_t most = model.max_positions > 0 ? model.max_positions : kDefaultSequenceLength;
  plan.sequence_length = request.sequence_length.value_or(std::min(kDefaultSequenceLength, most));
  plan.global_batch = request.global_batch.value_or(0);
  plan.micro_batch = request.micro_batch;
  plan.pipeline = request.pipeline.value_or(1);
  plan.context = request.context.value_or(1);
  plan.expert = request.expert.value_or(1);
  plan.zero_stage = 0;
  plan.weights.flow_share = 0;
  plan.optimizer.placement = OptimizerPlacement::kGpu;
  plan.optimizer.gpu_buckets = 0;
  plan.optimizer.sync = SyncMode::kWait;
  plan.activations = ActivationPlan{};
  return plan;
}

void check_said_once(const OptionReader& reader, const std::string& option, int64_t value,
                     const std::string& flag, std::optional<int64_t> said) {
  if (!said || *said == value) return;
  reader.fail(option, fmt::format("{} is not the {} of {}", value, *said, flag),
              "leave out " + flag + ", or correct the option");
}

void set_data_ranks(Plan& plan, const OptionReader& reader, const std::string& option) {
  // Degrees may be large and many; a product of doubles does not wrap around.
  const double others = static_cast<double>(plan.tensor) * static_cast<double>(plan.pipeline) *
                        static_cast<double>(plan.sequence) * static_cast<double>(plan.context);
  const double data = static_cast<double>(plan.devices) / others;
  if (data < 1 || data != std::floor(data)) {
    reader.fail(option,
                fmt::format("{} devices do not divide by tensor {} x pipeline {} x sequence {} x "
                            "context {}",
                            plan.devices, plan.tensor, plan.pipeline, plan.sequence, plan.context),
                "give --devices a multiple of their product");
  }
  plan.data = static_cast<int64_t>(data);
}

int64_t elements_of_bucket(const Plan& plan) {
  const int64_t bytes = plan.optimizer.bucket_bytes.count;
  if (bytes < kOptionElementBytes) {
    throw Error("plan.optimizer.bucket_bytes",
                fmt::format("{} bytes hold no element, by which frameworks size buckets", bytes),
                fmt::format("use at least {}", kOptionElementBytes));
  }
  return bytes / kOptionElementBytes;
}

int64_t buckets_of_rank(const Plan& plan, const Model& model) {
  double ranks = static_cast<double>(plan.tensor) * static_cast<double>(plan.pipeline);
  if (plan.zero_stage == 3) ranks *= static_cast<double>(plan.replicas());
  const double bytes = 4 * static_cast<double>(parameter_count(model)) / ranks;
  return std::max<int64_t>(
      1, std::llround(std::ceil(bytes / static_cast<double>(plan.optimizer.bucket_bytes.count))));
}

double offloaded_share(const Plan& plan, const Model& model) {
  const double all = static_cast<double>(buckets_of_rank(plan, model));
  const double on_gpu = static_cast<double>(plan.optimizer.gpu_buckets.value_or(0));
  return std::max(0.0, 1 - on_gpu / all);
}

int64_t gpu_buckets_of(const Plan& plan, const Model& model, double offloaded) {
  return std::llround((1 - offloaded) * static_cast<double>(buckets_of_rank(plan, model)));
}

ActivationFate fate_of(const ActivationPlan& plan, ModuleKind kind) {
  return plan.fate[static_cast<size_t>(kind)];
}

void set_fate(ActivationPlan& plan, ModuleKind kind, ActivationFate fate) {
  plan.fate[static_cast<size_t>(kind)] = fate;
}

ActivationPlan all_recomputed() {
  ActivationPlan plan;
  for (const ModuleKind kind : saving_kinds()) set_fate(plan, kind, ActivationFate::kRecompute);
  // The layer's input is what recomputing it starts from.
  set_fate(plan, ModuleKind::kFc2, ActivationFate::kKeep);
  return plan;
}

ActivationPlan all_offloaded() {
  ActivationPlan plan;
  for (const ModuleKind kind : saving_kinds()) set_fate(plan, kind, ActivationFate::kOffload);
  return plan;
}

bool same_fates(const ActivationPlan& a, const ActivationPlan& b) {
  const std::vector<ModuleKind> kinds = saving_kinds();
  return std::all_of(kinds.begin(), kinds.end(),
                     [&](ModuleKind kind) { return fate_of(a, kind) == fate_of(b, kind); });
}

// --- Texts ----------------------------------------------------------------------------------

std::string deepspeed_text(const OrderedJson& options) {
  OrderedJson document = OrderedJson::object();
  for (const auto& item : options.items()) {
    OrderedJson* at = &document;
    std::string rest = item.key();
    for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
      at = &(*at)[rest.substr(0, dot)];
      rest = rest.substr(dot + 1);
    }
    (*at)[rest] = item.value();
  }
  return document.dump(2) + "\n";
}

OrderedJson deepspeed_options(std::string_view text, const std::string& source) {
  OrderedJson options = OrderedJson::object();
  flatten(parse_json(text, source), "", source, options);
  return options;
}

std::string megatron_text(const OrderedJson& options) {
  std::string text;
  for (const auto& item : options.items()) {
    text += item.key();
    if (item.value().is_array()) {
      for (const OrderedJson& one : item.value()) text += fmt::format(" {}", flag_text(one));
    } else if (!item.value().is_boolean()) {
      text += fmt::format(" {}", flag_text(item.value()));
    }
    text += "\n";
  }
  return text;
}

OrderedJson megatron_options(std::string_view text, const std::string& source) {
  OrderedJson options = OrderedJson::object();
  std::string flag;
  const auto finish = [&](OrderedJson values) {
    if (flag.empty()) return;
    OrderedJson value = values.empty()       ? OrderedJson(true)
                        : values.size() == 1 ? values[0]
                                             : std::move(values);
    const auto old = options.find(flag);
    if (old != options.end() && *old != value) {
      throw Error(source + ": " + flag, "is given twice, with different values",
                  "remove one of them");
    }
    options[flag] = std::move(value);
    check_size(options, source);
  };
  OrderedJson values = OrderedJson::array();
  for (const std::string& word : words_of(text, source)) {
    if (!is_flag(word)) {
      values.push_back(word_value(word));
      continue;
    }
    finish(std::move(values));
    values = OrderedJson::array();
    const size_t equals = word.find('=');
    flag = word.substr(0, equals);
    if (equals != std::string::npos) values.push_back(word_value(word.substr(equals + 1)));
  }
  finish(std::move(values));
  if (options.empty()) {
    throw Error(source, "holds no flags",
                "give Megatron-LM's command line, as in "
                "\"--micro-batch-size 1 --seq-length 2048\"");
  }
  return options;
}

std::string torchtitan_text(const OrderedJson& options) {
  std::string text;
  std::string section;
  for (const auto& item : options.items()) {
    const size_t dot = item.key().find('.');
    const std::string owner = item.key().substr(0, dot);
    if (owner != section) text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", owner);
    section = owner;
    text += fmt::format("{} = {}\n", item.key().substr(dot + 1), item.value().dump());
  }
  return text;
}

}  // namespace ballast
