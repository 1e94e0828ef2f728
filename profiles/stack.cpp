// Stack files, schema "ballast.stack/1": facts and constants of sim/spec/stack.h by name.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "profiles/json_reader.h"
#include "profiles/json_records.h"
#include "profiles/load.h"
#include "profiles/names/words.h"
#include "profiles/shipped.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

constexpr const char* kStackSchema = "ballast.stack/1";
constexpr WholeRange kFactBytes{0, 1 << 20};
constexpr WholeRange kFactPercent{0, 1000};
constexpr WholeRange kFactMultiprocessors{0, 1 << 10};
constexpr NumberRange kAnyConstant{0, 1000};
constexpr NumberRange kSpread{0, 10};  // of a logarithm

// An absent key leaves the default.
template <class Enum>
void read_choice(JsonReader& reader, const std::string& key, int count, Enum& value) {
  if (reader.has(key)) value = ballast::read_choice<Enum>(reader, key, count);
}

void read_flag(JsonReader& reader, const std::string& key, bool& value) {
  if (reader.has(key)) value = reader.boolean(key);
}

void read_whole(JsonReader& reader, const std::string& key, WholeRange range, int64_t& value) {
  if (reader.has(key)) value = reader.whole(key, range);
}

// "eager", or the kernel of an attention that stores no scores. Of kernels a stack has one.
void read_attention(JsonReader& reader, StackFacts& facts) {
  std::vector<std::string> known = names_of<AttentionKernel>(kAttentionKernels);
  known.insert(known.begin(), std::string(to_string(AttentionKind::kEager)));
  facts.attention.clear();
  for (const std::string& name : reader.texts("attention")) {
    const auto found = std::find(known.begin(), known.end(), name);
    if (found == known.end()) {
      reader.fail("attention", "holds " + in_quotes(name), suggestion(name, known));
    }
    const bool eager = found == known.begin();
    const AttentionKind kind = eager ? AttentionKind::kEager : AttentionKind::kFlash;
    if (std::find(facts.attention.begin(), facts.attention.end(), kind) != facts.attention.end()) {
      reader.fail("attention", "holds " + in_quotes(name) + " beside another of its kind",
                  "name one kernel, and others by generation in attention_on");
    }
    facts.attention.push_back(kind);
    if (!eager) facts.attention_kernel = static_cast<AttentionKernel>(found - known.begin() - 1);
  }
}

// The keys of an object that says something of generations of GPUs.
std::vector<std::string> generations_of(const JsonReader& reader) {
  const std::vector<std::string> known = shipped_names("kernels");
  for (const std::string& generation : reader.keys()) {
    if (std::find(known.begin(), known.end(), generation) == known.end()) {
      reader.fail(generation, "is no generation of GPUs", suggestion(generation, known));
    }
  }
  return reader.keys();
}

void read_attention_on(JsonReader reader, StackFacts& facts) {
  for (const std::string& generation : generations_of(reader)) {
    facts.attention_kernel_on[generation] = static_cast<AttentionKernel>(
        reader.choice(generation, names_of<AttentionKernel>(kAttentionKernels)));
  }
  reader.finish();
}

void read_overlaps(JsonReader& reader, StackFacts& facts) {
  read_choice(reader, "gradient_overlap", kOverlaps, facts.gradient_overlap);
  read_choice(reader, "weight_overlap", kOverlaps, facts.weight_overlap);
  read_choice(reader, "tensor_overlap", kOverlaps, facts.tensor_overlap);
  read_choice(reader, "pipeline_overlap", kOverlaps, facts.pipeline_overlap);
  read_choice(reader, "expert_overlap", kOverlaps, facts.expert_overlap);
}

void read_gradients(JsonReader& reader, StackFacts& facts) {
  read_choice(reader, "gradients", 2, facts.gradients);
  read_choice(reader, "reduction", 2, facts.reduction);
  read_flag(reader, "adds_gradients_apart", facts.adds_gradients_apart);
  read_whole(reader, "accumulate_bytes", kFactBytes, facts.accumulate_bytes);
  read_flag(reader, "sums_whole_gradients", facts.sums_whole_gradients);
  read_flag(reader, "reduces_whole", facts.reduces_whole);
  read_flag(reader, "copies_gathered_by_tensor", facts.copies_gathered_by_tensor);
  read_flag(reader, "broadcasts_shares", facts.broadcasts_shares);
  read_whole(reader, "reduce_buffer_elements", {0, int64_t{1} << 40}, facts.reduce_buffer_elements);
  read_whole(reader, "reduce_bytes", kFactBytes, facts.reduce_bytes);
  read_whole(reader, "wide_reduce_bytes", kFactBytes, facts.wide_reduce_bytes);
  read_whole(reader, "gather_bytes", kFactBytes, facts.gather_bytes);
  read_whole(reader, "step_bytes", kFactBytes, facts.step_bytes);
  read_whole(reader, "stage3_step_bytes", kFactBytes, facts.stage3_step_bytes);
  read_whole(reader, "overflow_bytes", kFactBytes, facts.overflow_bytes);
  read_whole(reader, "stage3_overflow_bytes", kFactBytes, facts.stage3_overflow_bytes);
  read_whole(reader, "live_elements", {0, int64_t{1} << 40}, facts.live_elements);
  read_flag(reader, "keeps_gradient_buffer", facts.keeps_gradient_buffer);
  read_flag(reader, "holds_sent_gradients", facts.holds_sent_gradients);
  read_flag(reader, "repeats_keys_values", facts.repeats_keys_values);
  read_whole(reader, "exchange_bytes", kFactBytes, facts.exchange_bytes);
  read_whole(reader, "return_bytes", kFactBytes, facts.return_bytes);
  read_whole(reader, "return_core_percent", {0, 100}, facts.return_core_percent);
  read_whole(reader, "step_copy_bytes", kFactBytes, facts.step_copy_bytes);
  read_flag(reader, "undoes_by_arithmetic", facts.undoes_by_arithmetic);
  read_flag(reader, "scatters_by_bucket", facts.scatters_by_bucket);
}

void read_passes_of_layers(JsonReader& reader, StackFacts& facts) {
  read_flag(reader, "joins_gate", facts.joins_gate);
  read_whole(reader, "norm_bytes", kFactBytes, facts.norm_bytes);
  read_whole(reader, "norm_backward_bytes", kFactBytes, facts.norm_backward_bytes);
  read_flag(reader, "repeats_norms", facts.repeats_norms);
  read_flag(reader, "multiplies_by_expert", facts.multiplies_by_expert);
  read_flag(reader, "sends_tokens_once", facts.sends_tokens_once);
  read_whole(reader, "once_multiprocessors", kFactMultiprocessors, facts.once_multiprocessors);
  read_flag(reader, "norms_find_largest", facts.norms_find_largest);
  read_flag(reader, "keeps_experts_whole", facts.keeps_experts_whole);
  read_flag(reader, "reads_routing", facts.reads_routing);
  read_whole(reader, "sort_bytes", kFactBytes, facts.sort_bytes);
  read_whole(reader, "padding_bytes", kFactBytes, facts.padding_bytes);
  read_whole(reader, "clamp_bytes", kFactBytes, facts.clamp_bytes);
  read_whole(reader, "clamp_backward_bytes", kFactBytes, facts.clamp_backward_bytes);
  read_whole(reader, "bias_epilogue_percent", kFactPercent, facts.bias_epilogue_percent);
  read_whole(reader, "expert_bias_bytes", kFactBytes, facts.expert_bias_bytes);
  read_whole(reader, "expert_bias_backward_bytes", kFactBytes, facts.expert_bias_backward_bytes);
  read_whole(reader, "query_bytes", kFactBytes, facts.query_bytes);
  read_whole(reader, "key_bytes", kFactBytes, facts.key_bytes);
  read_whole(reader, "query_backward_bytes", kFactBytes, facts.query_backward_bytes);
  read_whole(reader, "key_backward_bytes", kFactBytes, facts.key_backward_bytes);
}

void read_sending(JsonReader& reader, StackFacts& facts) {
  read_flag(reader, "sends_wide_gradients", facts.sends_wide_gradients);
  read_flag(reader, "stage3_returns_gradients", facts.stage3_returns_gradients);
  read_choice(reader, "stage3_sending", kStage3Sendings, facts.stage3_sending);
  read_choice(reader, "speculative_sending", kSpeculativeSendings, facts.speculative_sending);
  read_whole(reader, "sent_norm_bytes", kFactBytes, facts.sent_norm_bytes);
  read_whole(reader, "sent_overflow_bytes", kFactBytes, facts.sent_overflow_bytes);
  read_flag(reader, "casts_through_pageable", facts.casts_through_pageable);
  read_flag(reader, "stage3_copies_by_tensor", facts.stage3_copies_by_tensor);
  read_flag(reader, "accumulates_on_cpu", facts.accumulates_on_cpu);
}

StackFacts read_facts(JsonReader reader) {
  StackFacts facts;
  facts.attention_kernel = AttentionKernel::kFlash2;
  facts.logits_multiple = 1;
  if (reader.has("attention")) read_attention(reader, facts);
  if (reader.has("attention_on")) read_attention_on(reader.object("attention_on"), facts);
  read_flag(reader, "dropout", facts.dropout);
  read_choice(reader, "fusion", kFusions, facts.fusion);
  read_whole(reader, "rotary_bytes", kFactBytes, facts.rotary_bytes);
  read_whole(reader, "rotary_backward_bytes", kFactBytes, facts.rotary_backward_bytes);
  read_whole(reader, "score_bytes", kFactBytes, facts.score_bytes);
  read_whole(reader, "yarn_bytes", kFactBytes, facts.yarn_bytes);
  read_whole(reader, "yarn_backward_bytes", kFactBytes, facts.yarn_backward_bytes);
  read_whole(reader, "activation_bytes", kFactBytes, facts.activation_bytes);
  read_whole(reader, "activation_backward_bytes", kFactBytes, facts.activation_backward_bytes);
  read_flag(reader, "keeps_gate", facts.keeps_gate);
  read_flag(reader, "keeps_wide_norms", facts.keeps_wide_norms);
  read_flag(reader, "keeps_repeated_heads", facts.keeps_repeated_heads);
  read_passes_of_layers(reader, facts);
  read_flag(reader, "recomputes_whole_layer", facts.recomputes_whole_layer);
  read_choice(reader, "loss", kLossPrecisions, facts.loss);
  read_whole(reader, "loss_chunks", {1, 1 << 20}, facts.loss_chunks);
  read_whole(reader, "logits_multiple", {1, 1 << 20}, facts.logits_multiple);
  read_whole(reader, "loss_bytes", kFactBytes, facts.loss_bytes);
  read_flag(reader, "gathers_logits", facts.gathers_logits);
  read_flag(reader, "widens_gradients", facts.widens_gradients);
  read_flag(reader, "returns_weights_whole", facts.returns_weights_whole);
  read_flag(reader, "recomputes_by_module", facts.recomputes_by_module);
  read_sending(reader, facts);
  read_whole(reader, "torch_adam_threads", {0, 1 << 20}, facts.torch_adam_threads);
  read_flag(reader, "splits_norms_by_token", facts.splits_norms_by_token);
  read_flag(reader, "separate_unscale", facts.separate_unscale);
  read_flag(reader, "pinned_power_of_two", facts.pinned_power_of_two);
  read_flag(reader, "copies_gradients_to_buckets", facts.copies_gradients_to_buckets);
  read_flag(reader, "buckets_at_stage_0_alone", facts.buckets_at_stage_0_alone);
  read_flag(reader, "pure_16_bit", facts.pure_16_bit);
  read_gradients(reader, facts);
  read_overlaps(reader, facts);
  read_flag(reader, "interleaves", facts.interleaves);
  read_flag(reader, "balances_stages", facts.balances_stages);
  read_whole(reader, "least_zero_stage", {0, 3}, facts.least_zero_stage);
  read_whole(reader, "most_zero_stage", {0, 3}, facts.most_zero_stage);
  read_flag(reader, "speculates_in_stage3", facts.speculates_in_stage3);
  read_choice(reader, "fp8_scaling", kScalings8, facts.fp8_scaling);
  read_choice(reader, "fp8_weights", kWeights8, facts.fp8_weights);
  read_flag(reader, "fp8_saves_codes", facts.fp8_saves_codes);
  read_flag(reader, "steps_offloaded_state_on_cpu", facts.steps_offloaded_state_on_cpu);
  read_flag(reader, "may_stream_state", facts.may_stream_state);
  read_flag(reader, "offloads_activations", facts.offloads_activations);
  read_flag(reader, "loads_whole_model", facts.loads_whole_model);
  read_flag(reader, "prints_allocated", facts.prints_allocated);
  read_flag(reader, "prints_gib", facts.prints_gib);
  reader.finish();
  return facts;
}

// In the order of a stack's file, behind what facts_json() begins with.
void add_gradients_and_later(const StackFacts& facts, OrderedJson& json) {
  json["adds_gradients_apart"] = facts.adds_gradients_apart;
  json["accumulate_bytes"] = facts.accumulate_bytes;
  json["sums_whole_gradients"] = facts.sums_whole_gradients;
  json["reduces_whole"] = facts.reduces_whole;
  json["copies_gathered_by_tensor"] = facts.copies_gathered_by_tensor;
  json["broadcasts_shares"] = facts.broadcasts_shares;
  json["reduce_buffer_elements"] = facts.reduce_buffer_elements;
  json["reduce_bytes"] = facts.reduce_bytes;
  json["wide_reduce_bytes"] = facts.wide_reduce_bytes;
  json["gather_bytes"] = facts.gather_bytes;
  json["step_bytes"] = facts.step_bytes;
  json["stage3_step_bytes"] = facts.stage3_step_bytes;
  json["overflow_bytes"] = facts.overflow_bytes;
  json["stage3_overflow_bytes"] = facts.stage3_overflow_bytes;
  json["live_elements"] = facts.live_elements;
  json["keeps_gradient_buffer"] = facts.keeps_gradient_buffer;
  json["holds_sent_gradients"] = facts.holds_sent_gradients;
  json["repeats_keys_values"] = facts.repeats_keys_values;
  json["exchange_bytes"] = facts.exchange_bytes;
  json["return_bytes"] = facts.return_bytes;
  json["return_core_percent"] = facts.return_core_percent;
  json["step_copy_bytes"] = facts.step_copy_bytes;
  json["undoes_by_arithmetic"] = facts.undoes_by_arithmetic;
  json["scatters_by_bucket"] = facts.scatters_by_bucket;
  json["gradients"] = to_string(facts.gradients);
  json["reduction"] = to_string(facts.reduction);
  json["gradient_overlap"] = to_string(facts.gradient_overlap);
  json["weight_overlap"] = to_string(facts.weight_overlap);
  json["tensor_overlap"] = to_string(facts.tensor_overlap);
  json["pipeline_overlap"] = to_string(facts.pipeline_overlap);
  json["interleaves"] = facts.interleaves;
  json["balances_stages"] = facts.balances_stages;
  json["least_zero_stage"] = facts.least_zero_stage;
  json["most_zero_stage"] = facts.most_zero_stage;
  json["speculates_in_stage3"] = facts.speculates_in_stage3;
  json["expert_overlap"] = to_string(facts.expert_overlap);
  json["sends_tokens_once"] = facts.sends_tokens_once;
  json["once_multiprocessors"] = facts.once_multiprocessors;
  json["keeps_experts_whole"] = facts.keeps_experts_whole;
  json["reads_routing"] = facts.reads_routing;
  json["fp8_scaling"] = to_string(facts.fp8_scaling);
  json["norms_find_largest"] = facts.norms_find_largest;
  json["fp8_weights"] = to_string(facts.fp8_weights);
  json["fp8_saves_codes"] = facts.fp8_saves_codes;
  json["steps_offloaded_state_on_cpu"] = facts.steps_offloaded_state_on_cpu;
  json["may_stream_state"] = facts.may_stream_state;
  json["offloads_activations"] = facts.offloads_activations;
  json["loads_whole_model"] = facts.loads_whole_model;
  json["prints_allocated"] = facts.prints_allocated;
  json["prints_gib"] = facts.prints_gib;
  json["logits_multiple"] = facts.logits_multiple;
}

void add_sending_and_later(const StackFacts& facts, OrderedJson& json) {
  json["sends_wide_gradients"] = facts.sends_wide_gradients;
  json["stage3_returns_gradients"] = facts.stage3_returns_gradients;
  json["stage3_sending"] = to_string(facts.stage3_sending);
  json["speculative_sending"] = to_string(facts.speculative_sending);
  json["sent_norm_bytes"] = facts.sent_norm_bytes;
  json["sent_overflow_bytes"] = facts.sent_overflow_bytes;
  json["casts_through_pageable"] = facts.casts_through_pageable;
  json["stage3_copies_by_tensor"] = facts.stage3_copies_by_tensor;
  json["accumulates_on_cpu"] = facts.accumulates_on_cpu;
  json["torch_adam_threads"] = facts.torch_adam_threads;
  json["splits_norms_by_token"] = facts.splits_norms_by_token;
  json["separate_unscale"] = facts.separate_unscale;
  json["pinned_power_of_two"] = facts.pinned_power_of_two;
  json["copies_gradients_to_buckets"] = facts.copies_gradients_to_buckets;
  json["buckets_at_stage_0_alone"] = facts.buckets_at_stage_0_alone;
  json["pure_16_bit"] = facts.pure_16_bit;
  add_gradients_and_later(facts, json);
}

OrderedJson facts_json(const StackFacts& facts) {
  OrderedJson attention = OrderedJson::array();
  for (const AttentionKind kind : facts.attention) {
    const bool eager = kind == AttentionKind::kEager;
    attention.push_back(eager ? to_string(kind) : to_string(facts.attention_kernel));
  }
  OrderedJson on = OrderedJson::object();
  for (const auto& [generation, kernel] : facts.attention_kernel_on) {
    on[generation] = to_string(kernel);
  }
  OrderedJson json = {{"attention", attention},
                      {"attention_on", on},
                      {"dropout", facts.dropout},
                      {"fusion", to_string(facts.fusion)},
                      {"rotary_bytes", facts.rotary_bytes},
                      {"rotary_backward_bytes", facts.rotary_backward_bytes},
                      {"score_bytes", facts.score_bytes},
                      {"yarn_bytes", facts.yarn_bytes},
                      {"yarn_backward_bytes", facts.yarn_backward_bytes},
                      {"activation_bytes", facts.activation_bytes},
                      {"activation_backward_bytes", facts.activation_backward_bytes},
                      {"keeps_gate", facts.keeps_gate},
                      {"keeps_wide_norms", facts.keeps_wide_norms},
                      {"keeps_repeated_heads", facts.keeps_repeated_heads},
                      {"joins_gate", facts.joins_gate},
                      {"norm_bytes", facts.norm_bytes},
                      {"norm_backward_bytes", facts.norm_backward_bytes},
                      {"repeats_norms", facts.repeats_norms},
                      {"multiplies_by_expert", facts.multiplies_by_expert},
                      {"sort_bytes", facts.sort_bytes},
                      {"padding_bytes", facts.padding_bytes},
                      {"clamp_bytes", facts.clamp_bytes},
                      {"clamp_backward_bytes", facts.clamp_backward_bytes},
                      {"bias_epilogue_percent", facts.bias_epilogue_percent},
                      {"expert_bias_bytes", facts.expert_bias_bytes},
                      {"expert_bias_backward_bytes", facts.expert_bias_backward_bytes},
                      {"query_bytes", facts.query_bytes},
                      {"key_bytes", facts.key_bytes},
                      {"query_backward_bytes", facts.query_backward_bytes},
                      {"key_backward_bytes", facts.key_backward_bytes},
                      {"recomputes_whole_layer", facts.recomputes_whole_layer},
                      {"loss", to_string(facts.loss)},
                      {"loss_chunks", facts.loss_chunks},
                      {"loss_bytes", facts.loss_bytes},
                      {"gathers_logits", facts.gathers_logits},
                      {"widens_gradients", facts.widens_gradients},
                      {"returns_weights_whole", facts.returns_weights_whole},
                      {"recomputes_by_module", facts.recomputes_by_module}};
  add_sending_and_later(facts, json);
  return json;
}

StackConstants read_constants(JsonReader reader) {
  StackConstants constants;
  for (int i = 0; i < kStackConstants; ++i) {
    set_constant(constants, i, reader.number(std::string(constant_name(i)), kAnyConstant));
  }
  reader.finish();
  return constants;
}

std::map<std::string, double> read_sustained_gemm(JsonReader reader) {
  std::map<std::string, double> shares;
  for (const std::string& generation : generations_of(reader)) {
    shares[generation] = reader.number(generation, kAnyConstant);
  }
  reader.finish();
  return shares;
}

StackUncertainty read_uncertainty(JsonReader reader) {
  StackUncertainty uncertainty;
  uncertainty.time = reader.number("time", kSpread);
  uncertainty.memory = reader.number("memory", kSpread);
  // Files of before say nothing of networks with experts.
  uncertainty.expert_time =
      reader.has("expert_time") ? reader.number("expert_time", kSpread) : uncertainty.time;
  const Json& rows = reader.raw("covariance");
  const auto refuse = [&] {
    reader.fail("covariance", "must be a square table of numbers, a row for each constant",
                "write it as [[1, 0], [0, 1]]");
  };
  if (!rows.is_array() || rows.size() != static_cast<size_t>(kStackConstants)) refuse();
  for (const Json& row : rows) {
    if (!row.is_array() || row.size() != rows.size()) refuse();
    for (const Json& one : row) {
      if (!one.is_number()) refuse();
      uncertainty.covariance.push_back(one.get<double>());
    }
  }
  reader.finish();
  return uncertainty;
}

OrderedJson uncertainty_json(const StackUncertainty& uncertainty) {
  OrderedJson rows = OrderedJson::array();
  for (size_t i = 0; i < uncertainty.covariance.size(); ++i) {
    if (i % kStackConstants == 0) rows.push_back(OrderedJson::array());
    rows.back().push_back(rounded(uncertainty.covariance[i]));
  }
  return {{"time", rounded(uncertainty.time)},
          {"memory", rounded(uncertainty.memory)},
          {"expert_time", rounded(uncertainty.expert_time)},
          {"covariance", rows}};
}

std::vector<std::string> read_fitted(JsonReader& reader) {
  std::vector<std::string> known;
  for (int i = 0; i < kStackConstants; ++i) known.emplace_back(constant_name(i));
  std::vector<std::string> fitted = reader.texts("fitted");
  for (const std::string& name : fitted) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      reader.fail("fitted", "holds " + in_quotes(name), suggestion(name, known));
    }
  }
  return fitted;
}

}  // namespace

Stack parse_stack(std::string_view text, const std::string& file, const std::string& name) {
  const Json document = parse_json(text, file);
  JsonReader reader(document, file, "");
  reader.choice("schema", {kStackSchema});
  Stack stack;
  stack.name = name;
  stack.description = reader.text("description");
  stack.source = reader.text("source");
  if (reader.has("family")) stack.family = reader.text("family");
  if (reader.has("known_as")) stack.known_as = reader.texts("known_as");
  stack.facts = read_facts(reader.object("facts"));
  if (reader.has("facts_where_offloaded")) {
    stack.facts.where_offloaded.facts =
        std::make_shared<const StackFacts>(read_facts(reader.object("facts_where_offloaded")));
  }
  stack.constants = read_constants(reader.object("constants"));
  if (reader.has("sustained_gemm")) {
    stack.constants.sustained_gemm = read_sustained_gemm(reader.object("sustained_gemm"));
  }
  stack.fitted = read_fitted(reader);
  stack.fitted_on = reader.texts("fitted_on");
  if (reader.has("uncertainty")) {
    stack.uncertainty = read_uncertainty(reader.object("uncertainty"));
  }
  if (reader.has("name")) reader.text("name");  // as stack_json writes it; the file's name counts
  reader.finish();
  check(stack);
  return stack;
}

Stack load_stack(const std::string& name_or_path) {
  const Found found = find_file(name_or_path, "stacks");
  return parse_stack(read_text_file(found.path), found.path, found.name);
}

std::string stack_json(const Stack& stack) {
  OrderedJson constants = OrderedJson::object();
  for (int i = 0; i < kStackConstants; ++i) {
    constants[std::string(constant_name(i))] = rounded(constant(stack.constants, i));
  }
  OrderedJson json = {{"schema", kStackSchema},
                      {"name", stack.name},
                      {"description", stack.description},
                      {"source", stack.source}};
  if (!stack.family.empty()) json["family"] = stack.family;
  if (!stack.known_as.empty()) json["known_as"] = stack.known_as;
  json["facts"] = facts_json(stack.facts);
  if (stack.facts.where_offloaded.facts) {
    json["facts_where_offloaded"] = facts_json(*stack.facts.where_offloaded.facts);
  }
  json["constants"] = constants;
  for (const auto& [generation, share] : stack.constants.sustained_gemm) {
    json["sustained_gemm"][generation] = rounded(share);
  }
  json["fitted"] = stack.fitted;
  json["fitted_on"] = stack.fitted_on;
  if (stack.uncertainty) json["uncertainty"] = uncertainty_json(*stack.uncertainty);
  return to_text(json);
}

void save_stack(const Stack& stack, const std::string& path) {
  atomic_write(path, stack_json(stack) + "\n");
}

std::string framework_of(const std::string& named, const std::string& source) {
  for (const std::string& name : shipped_names("stacks")) {
    const Stack stack = load_stack(name);
    if (stack.family != named) continue;
    for (const std::string& word : stack.known_as) {
      if (source.find(word) != std::string::npos) return name;
    }
  }
  return named;
}

std::vector<Shipped> shipped_stacks() {
  std::vector<Shipped> list;
  for (const std::string& name : shipped_names("stacks")) {
    list.push_back({name, load_stack(name).description});
  }
  return list;
}

}  // namespace ballast
