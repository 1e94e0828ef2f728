// Which records are possible models: the checks behind check(const Model&).
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <optional>

#include "sim/spec/model.h"
#include "sim/spec/model_family.h"

namespace ballast {
namespace {

[[noreturn]] void refuse(const Model& model, const std::string& what, const std::string& remedy) {
  throw Error("model " + model.name, what, remedy);
}

void require_positive(const Model& model, const char* field, int64_t value) {
  if (value <= 0) {
    refuse(model, fmt::format("{} is {}", field, value), "it must be a positive whole number");
  }
}

void require_at_least(const Model& model, const char* field, int64_t value, int64_t least) {
  if (value < least) {
    refuse(model, fmt::format("{} is {}", field, value), fmt::format("use at least {}", least));
  }
}

// "deepseek_v3": the families that this holds of.
std::string names_of(bool ModelFamily::*trait) {
  std::vector<std::string_view> names;
  for (const ModelFamily& family : model_families()) {
    if (family.*trait) names.push_back(family.name);
  }
  return fmt::format("{}", fmt::join(names, " and "));
}

void check_sizes(const Model& model) {
  require_positive(model, "layers", model.layers);
  require_positive(model, "hidden", model.hidden);
  require_positive(model, "heads", model.heads);
  require_positive(model, "kv_heads", model.kv_heads);
  require_positive(model, "head_size", model.head_size);
  require_positive(model, "ffn", model.ffn);
  require_positive(model, "vocab", model.vocab);
  require_positive(model, "max_positions", model.max_positions);
  require_positive(model, "sparse_step", model.sparse_step);
  const std::pair<const char*, int64_t> counts[] = {
      {"experts", model.experts},
      {"experts_per_token", model.experts_per_token},
      {"expert_ffn", model.expert_ffn},
      {"shared_experts", model.shared_experts},
      {"first_dense_layers", model.first_dense_layers},
      {"query_rank", model.query_rank},
      {"kv_rank", model.kv_rank},
      {"rope_size", model.rope_size},
      {"value_size", model.value_size},
      {"sliding_window", model.sliding_window},
      {"full_attention_period", model.full_attention_period}};
  for (const auto& [field, value] : counts) require_at_least(model, field, value, 0);
  // Products of these sizes must fit 64 bits wherever bytes and FLOPs are counted.
  constexpr int64_t kLargest = int64_t{1} << 26;
  for (const int64_t value :
       {model.layers, model.hidden, model.heads, model.head_size, model.ffn, model.vocab,
        model.max_positions, model.experts_per_token, model.expert_ffn, model.shared_experts,
        model.query_rank, model.kv_rank, model.rope_size, model.value_size}) {
    if (value > kLargest) {
      refuse(model, fmt::format("a size of {} is out of range", value), "use at most 2^26");
    }
  }
}

void check_what_is_not_followed(const Model& model) {
  if (!(model.dropout >= 0 && model.dropout < 1)) {
    refuse(model, fmt::format("dropout is {:g}", model.dropout), "use a share from 0 to below 1");
  }
  if (model.quantization.empty()) {
    refuse(model, "quantization is empty", "name the method, or none");
  }
}

void check_attention(const Model& model) {
  if (model.heads % model.kv_heads != 0) {
    refuse(model, fmt::format("{} heads cannot share {} kv_heads", model.heads, model.kv_heads),
           "heads must be a multiple of kv_heads");
  }
  if (model.position == PositionKind::kRope && model.head_size % 2 != 0 && !model.is_latent()) {
    refuse(model, fmt::format("head_size {} is odd", model.head_size),
           "rotary positions need it even");
  }
  if (model.is_latent() != model_family(model.architecture).latent_attention) {
    refuse(model, fmt::format("kv_rank is {}", model.kv_rank),
           names_of(&ModelFamily::latent_attention) + " needs one above 0, all others 0");
  }
  if (!model.is_latent()) {
    if (model.query_rank > 0 || model.rope_size > 0 || model.value_size > 0) {
      refuse(model, "query_rank, rope_size or value_size is set without kv_rank",
             "they belong to latent attention; set them to 0");
    }
    return;
  }
  require_positive(model, "rope_size", model.rope_size);
  require_positive(model, "value_size", model.value_size);
  if (model.kv_heads != model.heads) {
    refuse(model, fmt::format("kv_heads is {} with {} heads", model.kv_heads, model.heads),
           "latent attention expands keys and values to every head; make them equal");
  }
  if (model.rope_size % 2 != 0) {
    refuse(model, fmt::format("rope_size {} is odd", model.rope_size),
           "rotary positions need it even");
  }
  if (model.rope_size >= model.head_size) {
    refuse(model, fmt::format("rope_size {} fills head_size {}", model.rope_size, model.head_size),
           "the latent part of a head needs columns too");
  }
}

void check_router(const Model& model) {
  require_positive(model, "expert_groups", model.expert_groups);
  require_positive(model, "chosen_groups", model.chosen_groups);
  if (model.experts % model.expert_groups != 0) {
    refuse(model,
           fmt::format("{} expert_groups do not divide {} experts", model.expert_groups,
                       model.experts),
           "correct one of the two");
  }
  if (model.chosen_groups > model.expert_groups) {
    refuse(model,
           fmt::format("chosen_groups is {} of {}", model.chosen_groups, model.expert_groups),
           "it can be at most as many");
  }
  const int64_t reachable = model.experts / model.expert_groups * model.chosen_groups;
  if (model.router == RouterKind::kSigmoid && model.experts_per_token > reachable) {
    refuse(model,
           fmt::format("experts_per_token is {}, and {} experts are in the chosen groups",
                       model.experts_per_token, reachable),
           "choose fewer experts, or more groups");
  }
  if (!(model.routed_scale > 0 && std::isfinite(model.routed_scale))) {
    refuse(model, "routed_scale is not a positive number", "use for example 1");
  }
  if (!(model.balance_loss >= 0 && std::isfinite(model.balance_loss))) {
    refuse(model, "balance_loss is not a number of 0 or more", "use for example 0.001");
  }
  if (model.balance_loss > 0 && model.router == RouterKind::kSigmoid) {
    refuse(model,
           fmt::format("balance_loss is {:g}, and its router has sigmoids", model.balance_loss),
           "it belongs to routers with a softmax; set it to 0");
  }
}

void check_experts(const Model& model) {
  const ModelFamily& family = model_family(model.architecture);
  const bool in_every_layer = family.has_experts_everywhere();
  if (model.experts == 0) {
    if (in_every_layer) refuse(model, "experts is 0", model.architecture + " needs at least 1");
    return;
  }
  if (family.expert_keys == ExpertKeys::kNone) {
    refuse(model,
           fmt::format("{} has no experts, and experts is {}", model.architecture, model.experts),
           "set it to 0");
  }
  require_positive(model, "experts_per_token", model.experts_per_token);
  require_positive(model, "expert_ffn", model.expert_ffn);
  if (model.experts_per_token > model.experts) {
    refuse(model,
           fmt::format("experts_per_token is {} of {} experts", model.experts_per_token,
                       model.experts),
           "it can be at most as many");
  }
  // A row a matrix and expert stands in the module table: ten times the largest model announced.
  constexpr int64_t kMostExperts = 1 << 17;
  if (model.experts > kMostExperts / model.layers) {
    refuse(model,
           fmt::format("{} experts in {} layers are out of range", model.experts, model.layers),
           fmt::format("use at most {} in all", kMostExperts));
  }
  if (in_every_layer &&
      (model.first_dense_layers > 0 || model.sparse_step > 1 || !model.dense_layers.empty())) {
    refuse(model, "first_dense_layers, sparse_step or dense_layers is set",
           model.architecture + " has experts in every layer; set them to 0, 1 and []");
  }
  check_router(model);
  if (model.shared_experts > 0 && !family.shared_experts) {
    refuse(model, fmt::format("shared_experts is {}", model.shared_experts),
           "only " + names_of(&ModelFamily::shared_experts) + " has them; set it to 0");
  }
}

double all_weights(const Model& model, int64_t layer) {
  double sum = 0;
  for (const ModuleKind kind : {ModuleKind::kQkv, ModuleKind::kAttentionOut, ModuleKind::kRouter,
                                ModuleKind::kFc1, ModuleKind::kFc2}) {
    for (const Product& product : products_of(model, kind, layer)) {
      sum += static_cast<double>(product.in) * static_cast<double>(product.out) *
             static_cast<double>(product.copies);
    }
  }
  return sum;
}

// Ten times the largest model ever announced; beyond it counts of bytes leave 64 bits.
void check_total(const Model& model) {
  constexpr double kMostParameters = 1e14;
  std::array<std::optional<double>, 2> of_layer;  // dense, with experts
  double parameters = static_cast<double>(model.hidden) *
                      static_cast<double>(2 * model.vocab + model.max_positions);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    auto& weights = of_layer[model.has_experts(layer) ? 1 : 0];
    if (!weights) weights = all_weights(model, layer);
    parameters += *weights;
  }
  if (parameters > kMostParameters) {
    refuse(model, fmt::format("describes about {:.0e} parameters", parameters),
           fmt::format("stay below {:.0e}", kMostParameters));
  }
}

}  // namespace

void check(const Model& model) {
  check_sizes(model);
  constexpr int64_t kMostLayers = 1 << 14;
  if (model.layers > kMostLayers) {
    refuse(model, fmt::format("layers is {}", model.layers),
           fmt::format("use at most {}", kMostLayers));
  }
  check_attention(model);
  check_what_is_not_followed(model);
  if (!std::is_sorted(model.dense_layers.begin(), model.dense_layers.end())) {
    refuse(model, "dense_layers is not in order", "list them ascending");
  }
  check_experts(model);
  if (!(model.norm_epsilon > 0 && std::isfinite(model.norm_epsilon))) {
    refuse(model, "the norm's epsilon is not a positive number", "use for example 1e-5");
  }
  if (!(model.rope_theta > 0 && std::isfinite(model.rope_theta))) {
    refuse(model, "rope_theta is not a positive number", "use for example 10000");
  }
  check_total(model);
}

}  // namespace ballast
