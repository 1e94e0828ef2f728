#include "autotune/space/space.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <initializer_list>
#include <map>
#include <set>

#include "autotune/bounds/part_costs.h"
#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/passes/passes.h"
#include "sim/spec/keys_values.h"

namespace ballast {
namespace {

// More buckets than this cost more in hand-overs than their finer grain gains.
constexpr int64_t kMostBuckets = 1024;

// The choices that the table gives to a search.
template <class Enum>
std::vector<Enum> tried(KnobId id) {
  std::vector<Enum> choices;
  for (const int64_t value : knob_of(id).tried) choices.push_back(static_cast<Enum>(value));
  return choices;
}

std::vector<int64_t> divisors_of(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

void set_fate(ActivationPlan& plan, std::initializer_list<ModuleKind> kinds, ActivationFate fate) {
  for (const ModuleKind kind : kinds) plan.fate[static_cast<size_t>(kind)] = fate;
}

// Appends a plan that offloads, once for every distinct number of layers that the shares of the
// table come to. The last layer never leaves (sim/spec/plan.h).
void append_shares(std::vector<ActivationChoice>& choices, const std::string& name,
                   ActivationPlan plan, int64_t layers) {
  std::set<int64_t> seen = {0};
  for (const double share : knob_of(KnobId::kOffloadShare).tried_shares) {
    const auto asked = static_cast<int64_t>(std::ceil(share * static_cast<double>(layers)));
    const int64_t leaving = std::min(asked, layers - 1);
    if (!seen.insert(leaving).second) continue;
    plan.offload_share = share;
    choices.push_back({fmt::format("{} of {} layers", name, leaving), plan});
  }
}

// From nothing to everything. fc2's output is the next layer's input, which recompute starts from,
// so it is kept or offloaded.
std::vector<ActivationChoice> activation_choices(int64_t layers, const ActivationPlan& like) {
  using enum ModuleKind;
  ActivationPlan keep = like;
  keep.fate.fill(ActivationFate::kKeep);
  keep.offload_share = 1.0;
  ActivationPlan cheap = keep;
  set_fate(cheap, {kNorm1, kNorm2, kActivation}, ActivationFate::kRecompute);
  ActivationPlan selective = cheap;
  set_fate(selective, {kCoreAttention}, ActivationFate::kRecompute);
  ActivationPlan full = selective;
  set_fate(full, {kQkv, kAttentionOut, kFc1}, ActivationFate::kRecompute);
  std::vector<ActivationChoice> choices = {
      {"keep all", keep},
      {"recompute norms and activation", cheap},
      {"recompute norms, activation and core attention", selective},
      {"recompute all but layer inputs", full}};

  ActivationPlan inputs = full;
  set_fate(inputs, {kFc2}, ActivationFate::kOffload);
  append_shares(choices, "recompute all, offload inputs", inputs, layers);
  ActivationPlan wide = cheap;
  set_fate(wide, {kQkv, kFc1}, ActivationFate::kOffload);
  append_shares(choices, "recompute norms and activation, offload qkv and fc1", wide, layers);
  ActivationPlan rest = wide;
  set_fate(rest, {kCoreAttention, kAttentionOut, kFc2}, ActivationFate::kOffload);
  append_shares(choices, "recompute norms and activation, offload the rest", rest, layers);
  ActivationPlan all = rest;
  set_fate(all, {kNorm1, kNorm2, kActivation}, ActivationFate::kOffload);
  append_shares(choices, "offload all", all, layers);
  return choices;
}

// The sizes of the table that cut the model into at most kMostBuckets, each into another number of
// them; the largest one whatever it gives. With the last module of each bucket.
using LastModulesBySize = std::map<int64_t, std::vector<int32_t>>;
LastModulesBySize bucket_sizes(const std::vector<Module>& modules, Bytes base) {
  int64_t parameters = 0;
  for (const Module& module : modules) parameters += module.count;
  std::set<int64_t> sizes = {base.count};
  const auto tried_sizes = knob_of(KnobId::kBucketBytes).tried;
  sizes.insert(tried_sizes.begin(), tried_sizes.end());
  LastModulesBySize result;
  std::set<size_t> counts;
  for (const int64_t size : sizes) {
    const bool largest = size == tried_sizes.back();
    // No bucket but one of a single segment holds more than its size.
    const int64_t least = bytes_of(parameters, DType::kF32).count / size;
    if (least > kMostBuckets && size > kSegment * size_of(DType::kF32) && !largest) continue;
    std::vector<int32_t> buckets = last_modules_of_buckets(modules, {size});
    const bool sensible = buckets.size() <= static_cast<size_t>(kMostBuckets) || largest;
    if (sensible && counts.insert(buckets.size()).second) result[size] = std::move(buckets);
  }
  return result;
}

// 0, 1, 2, 3, 4, 6, 8, 12, ... and all.
std::vector<int64_t> gpu_bucket_values(int64_t count) {
  std::vector<int64_t> values = {0};
  for (int64_t power = 1; power < count; power *= 2) {
    values.push_back(power);
    if (power >= 2 && power / 2 * 3 < count) values.push_back(power / 2 * 3);
  }
  values.push_back(count);
  return values;
}

bool all_on_gpu(const Space& space, const Plan& base, const Choice& choice) {
  const BucketChoice& bucket = space.buckets[static_cast<size_t>(choice.bucket)];
  return base.optimizer.placement == OptimizerPlacement::kGpu ||
         bucket.gpu_buckets[static_cast<size_t>(choice.gpu_buckets)] >= bucket.count;
}

void fill_buckets(Space& space, const LastModulesBySize& buckets, const Plan& base,
                  const OpenKnobs& open) {
  const OptimizerPlan& optimizer = base.optimizer;
  for (const auto& [size, all] : buckets) {
    BucketChoice choice{{size}, static_cast<int64_t>(all.size()), {0}, {}};
    const bool fixed = optimizer.gpu_buckets && !open.has(KnobId::kGpuBuckets);
    if (fixed) choice.gpu_buckets = {*optimizer.gpu_buckets};
    if (!fixed && optimizer.placement == OptimizerPlacement::kCpu) {
      choice.gpu_buckets = gpu_bucket_values(choice.count);
    }
    space.buckets.push_back(std::move(choice));
  }
}

// The shares that make different modules flow where the GPU steps a part of all modules up to
// `last_on_gpu` (-1: of none), by the modules that flow for each share elsewhere.
std::vector<int16_t> distinct_shares(const std::vector<std::vector<bool>>& flowing,
                                     int32_t last_on_gpu) {
  std::set<std::vector<bool>> seen;
  std::vector<int16_t> shares;
  for (size_t i = 0; i < flowing.size(); ++i) {
    const auto first = flowing[i].begin() + last_on_gpu + 1;
    if (seen.emplace(first, flowing[i].end()).second) shares.push_back(static_cast<int16_t>(i));
  }
  return shares;
}

// The GPU steps the buckets that come last, which hold the modules that come first.
void fill_flow_shares(Space& space, const std::vector<Module>& modules,
                      const LastModulesBySize& buckets, const Plan& base, const OpenKnobs& open) {
  if (base.weights.flow_share && !open.has(KnobId::kFlowShare)) {
    space.flow_share = {*base.weights.flow_share};
  } else {
    const auto shares = knob_of(KnobId::kFlowShare).tried_shares;
    space.flow_share.assign(shares.begin(), shares.end());
  }
  std::vector<std::vector<bool>> flowing;
  for (const double share : space.flow_share) {
    flowing.push_back(modules_of_flowing_layers(modules, share));
  }
  const bool all_on_gpu = base.optimizer.placement == OptimizerPlacement::kGpu;
  std::map<int32_t, std::vector<int16_t>> shares;  // by the last module that the GPU steps
  for (BucketChoice& bucket : space.buckets) {
    const std::vector<int32_t>& last_modules = buckets.at(bucket.bytes.count);
    for (const int64_t gpu_buckets : bucket.gpu_buckets) {
      const int64_t border = all_on_gpu ? 0 : bucket.count - std::min(gpu_buckets, bucket.count);
      const int32_t last = border < bucket.count ? last_modules[static_cast<size_t>(border)] : -1;
      const auto [known, is_new] = shares.try_emplace(last);
      if (is_new) known->second = distinct_shares(flowing, last);
      bucket.flow_shares.push_back(known->second);
    }
  }
}

void fill_sync(Space& space, const Plan& base, const OpenKnobs& open) {
  std::vector<SyncMode> modes = {base.optimizer.sync};
  if (open.has(KnobId::kSync)) {
    modes = tried<SyncMode>(KnobId::kSync);
    if (open.delay || base.optimizer.sync == SyncMode::kDelay) modes.push_back(SyncMode::kDelay);
  }
  for (const SyncMode mode : modes) {
    space.sync.push_back({mode, base.optimizer.undo});
    if (mode != SyncMode::kSpeculate || !open.has(KnobId::kUndo)) continue;
    for (const UndoKind undo : tried<UndoKind>(KnobId::kUndo)) {
      if (undo != base.optimizer.undo) space.sync.push_back({mode, undo});
    }
  }
}

}  // namespace

OpenKnobs OpenKnobs::all() {
  OpenKnobs open;
  static_cast<KnobSet&>(open) = knobs_of(KnobSearch::kRank);
  return open;
}

std::string text_of(const OpenKnobs& open) {
  const std::string text = text_of(open & knobs_of(KnobSearch::kRank));
  return open.delay ? text + " with delay" : text;
}

std::vector<int64_t> micro_batches_of(const Plan& base, const OpenKnobs& open) {
  if (base.micro_batch && !open.has(KnobId::kMicroBatch)) return {*base.micro_batch};
  const int64_t local = div_exact(base.global_batch, base.data);
  if (base.multiplex) return {local};  // which all devices share
  // Interleaving takes micro-batches in rounds of as many as there are stages.
  const int64_t round = base.virtual_pipeline > 1 ? base.pipeline : 1;
  std::vector<int64_t> sizes = divisors_of(div_exact(local, round));
  std::erase_if(sizes, [&](int64_t size) { return local / size > kMostAccumulation; });
  return sizes;
}

Space space_of(const Model& model, const Plan& base, const OpenKnobs& asked) {
  check(base, model);
  OpenKnobs open = asked;
  if (base.pipeline > 1) {
    open.remove(KnobId::kBucketBytes)
        .remove(KnobId::kGpuBuckets)
        .remove(KnobId::kSync)
        .remove(KnobId::kUndo);
    open.remove(KnobId::kFlowShare);
  }
  Space space;
  space.micro_batch = micro_batches_of(base, open);
  const ActivationPlan like = base.activations.value_or(ActivationPlan{});
  if (base.activations && !open.has(KnobId::kActivations)) {
    space.activations = {{"as given", like}};
  } else {
    space.activations = activation_choices(model.layers, like);
    if (base.multiplex) {
      std::erase_if(space.activations,
                    [](const ActivationChoice& choice) { return !keys_values_stay(choice.plan); });
    }
  }
  const std::vector<Module> modules = modules_stepped(model, base);
  const Bytes given = base.optimizer.bucket_bytes;
  LastModulesBySize buckets;
  if (open.has(KnobId::kBucketBytes)) {
    buckets = bucket_sizes(modules, given);
  } else {
    buckets[given.count] = last_modules_of_buckets(modules, given);
  }
  fill_buckets(space, buckets, base, open);
  space.cast = {base.optimizer.cast};
  if (open.has(KnobId::kCast) && base.dtype != DType::kF32) {
    space.cast = tried<CastPlacement>(KnobId::kCast);
  }
  fill_sync(space, base, open);
  space.memory_reuse = {base.memory_reuse.value_or(MemoryReuse::kApart)};
  if (!base.memory_reuse && open.has(KnobId::kMemoryReuse)) {
    space.memory_reuse = tried<MemoryReuse>(KnobId::kMemoryReuse);
  }
  fill_flow_shares(space, modules, buckets, base, open);
  return space;
}

std::vector<Choice> choices_of(const Space& space, const Plan& base) {
  const auto size = [](const auto& list) { return static_cast<int16_t>(list.size()); };
  std::vector<Choice> choices;
  Choice c;
  const auto with_optimizer = [&] {
    const BucketChoice& bucket = space.buckets[static_cast<size_t>(c.bucket)];
    for (c.gpu_buckets = 0; c.gpu_buckets < size(bucket.gpu_buckets); ++c.gpu_buckets) {
      const int16_t casts = all_on_gpu(space, base, c) ? int16_t{1} : size(space.cast);
      for (c.cast = 0; c.cast < casts; ++c.cast) {
        for (c.sync = 0; c.sync < size(space.sync); ++c.sync) {
          for (const int16_t share : bucket.flow_shares[static_cast<size_t>(c.gpu_buckets)]) {
            c.flow_share = share;
            choices.push_back(c);
          }
        }
      }
    }
  };
  for (c.micro_batch = 0; c.micro_batch < size(space.micro_batch); ++c.micro_batch) {
    for (c.activations = 0; c.activations < size(space.activations); ++c.activations) {
      for (c.bucket = 0; c.bucket < size(space.buckets); ++c.bucket) with_optimizer();
    }
  }
  return choices;
}

std::vector<Choice> choices_of_cell(const Space& space, const Plan& base, const Choice& cell) {
  Space one = space;
  one.micro_batch.resize(1);
  one.activations.resize(1);
  std::vector<Choice> choices = choices_of(one, base);
  for (Choice& choice : choices) {
    choice.micro_batch = cell.micro_batch;
    choice.activations = cell.activations;
  }
  return choices;
}

Plan plan_of(const Space& space, const Plan& base, const Choice& choice) {
  const auto at = [](const auto& list, int16_t index) -> const auto& {
    return list[static_cast<size_t>(index)];
  };
  Plan plan = base;
  plan.micro_batch = at(space.micro_batch, choice.micro_batch);
  plan.activations = at(space.activations, choice.activations).plan;
  const BucketChoice& bucket = at(space.buckets, choice.bucket);
  plan.optimizer.bucket_bytes = bucket.bytes;
  plan.optimizer.gpu_buckets = at(bucket.gpu_buckets, choice.gpu_buckets);
  plan.optimizer.cast = at(space.cast, choice.cast);
  plan.optimizer.sync = at(space.sync, choice.sync).mode;
  plan.optimizer.undo = at(space.sync, choice.sync).undo;
  plan.weights.flow_share = at(space.flow_share, choice.flow_share);
  return plan;
}

int moving_parts(const Plan& plan) {
  int parts = 0;
  if (plan.micro_batch && plan.accumulation() > 1) ++parts;
  if (plan.activations) {
    const auto& fate = plan.activations->fate;
    const auto any = [&](ActivationFate f) {
      return std::find(fate.begin(), fate.end(), f) != fate.end();
    };
    if (any(ActivationFate::kRecompute)) ++parts;
    if (any(ActivationFate::kOffload)) ++parts;
    if (any(ActivationFate::kOffload) && plan.activations->offload_share < 1) ++parts;
  }
  if (plan.weights.flow_share.value_or(0) > 0) ++parts;
  if (plan.optimizer.gpu_buckets.value_or(0) > 0) ++parts;
  if (plan.optimizer.sync != SyncMode::kWait) ++parts;
  return parts;
}

}  // namespace ballast
