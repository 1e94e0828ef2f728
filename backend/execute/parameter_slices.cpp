#include "backend/execute/parameter_slices.h"

#include <algorithm>
#include <functional>

#include "sim/base/error.h"
#include "sim/spec/model_family.h"

namespace ballast {

ParameterSlices::ParameterSlices(const Graph& graph, const Model& model, const Plan& plan,
                                 Communicator& ranks)
    : graph_(graph), plan_(plan), model_(model), ranks_(ranks) {
  const std::vector<Module> all = modules_of(model);
  for (const Module& own : graph.modules) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Module& one) {
      return one.kind == own.kind && one.layer == own.layer;
    });
    CHECK(found != all.end() && found->parameters.size() >= own.parameters.size());
    modules_.push_back(*found);
  }
}

const Module& ParameterSlices::whole(size_t module) const { return modules_[module]; }

int64_t ParameterSlices::self() const {
  const RankPlace place = place_of(plan_, ranks_.rank());
  return splits_experts() ? place.expert : place.tensor;
}

size_t ParameterSlices::index_of(size_t module, const Parameter& whole) const {
  const ParameterTable& all = modules_[module].parameters;
  const std::less<> before;
  if (!before(&whole, all.begin()) && before(&whole, all.end())) {
    return static_cast<size_t>(&whole - all.begin());
  }
  const auto* const found = std::find_if(
      all.begin(), all.end(), [&](const Parameter& one) { return one.name == whole.name; });
  CHECK(found != all.end() && "a parameter of this module");
  return static_cast<size_t>(found - all.begin());
}

// Experts that are parameters of their own come first in their module, as many of each.
int64_t ParameterSlices::holder_of(size_t module, const Parameter& whole) const {
  const ParameterTable& all = modules_[module].parameters;
  const ParameterTable& own = graph_.modules[module].parameters;
  if (all.size() == own.size()) return -1;
  const auto lacking = static_cast<int64_t>(all.size() - own.size());
  const int64_t of_rank = div_exact(lacking, plan_.expert - 1);
  const auto index = static_cast<int64_t>(index_of(module, whole));
  return index < of_rank * plan_.expert ? index / of_rank : -1;
}

size_t ParameterSlices::own_index(size_t module, const Parameter& whole) const {
  const ParameterTable& all = modules_[module].parameters;
  const size_t lacking = all.size() - graph_.modules[module].parameters.size();
  const size_t index = index_of(module, whole);
  if (lacking == 0) return index;
  const int64_t holder = holder_of(module, whole);
  if (holder < 0) return index - lacking;
  const size_t of_rank = lacking / static_cast<size_t>(plan_.expert - 1);
  return index - of_rank * static_cast<size_t>(holder);
}

const Parameter* ParameterSlices::own(size_t module, const Parameter& whole) const {
  const int64_t holder = holder_of(module, whole);
  if (holder >= 0 && holder != self()) return nullptr;
  return &graph_.modules[module].parameters[own_index(module, whole)];
}

bool ParameterSlices::is_split(size_t module, const Parameter& whole) const {
  return graph_.modules[module].parameters[own_index(module, whole)].count() != whole.count();
}

std::vector<std::pair<int64_t, int64_t>> ParameterSlices::alike(size_t module) const {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Parameter& parameter : modules_[module].parameters) {
    if (holder_of(module, parameter) >= 0 || is_split(module, parameter)) continue;
    const Parameter* const part = own(module, parameter);
    ranges.emplace_back(part->offset, part->count());
  }
  return ranges;
}

// Along the dimension that is split. gpt2 keeps queries, keys and values side by side in one
// matrix, of each of which a rank has its heads.
std::vector<ParameterSlices::Section> ParameterSlices::sections_of(size_t module,
                                                                   const Parameter& whole) const {
  const Parameter& part = graph_.modules[module].parameters[own_index(module, whole)];
  const bool by_rows = part.rows != whole.rows;
  std::vector<int64_t> widths = {by_rows ? whole.rows : whole.columns};
  const bool fused = model_family(model_.architecture).gpt2_names;
  if (fused && modules_[module].kind == ModuleKind::kQkv) {
    const int64_t keys = model_.kv_heads * model_.head_size;
    widths = {model_.heads * model_.head_size, keys, keys};
  }
  std::vector<Section> sections;
  Section next;
  for (const int64_t width : widths) {
    next.width = width;
    next.own_width = div_ceil(width, plan_.tensor);
    sections.push_back(next);
    next.begin += next.width;
    next.own_begin += next.own_width;
  }
  CHECK(next.own_begin == (by_rows ? part.rows : part.columns));
  return sections;
}

template <class Visit>
void ParameterSlices::for_runs(size_t module, const Parameter& whole, int64_t rank,
                               const Visit& visit) const {
  const Parameter& part = graph_.modules[module].parameters[own_index(module, whole)];
  // All experts lie one after another.
  if (splits_experts()) return visit(rank * part.count(), int64_t{0}, part.count());
  CHECK(whole.depth == part.depth && whole.depth == 0);
  const bool by_rows = part.rows != whole.rows;
  const int64_t unit = by_rows ? whole.columns : 1;
  const int64_t outer = by_rows ? 1 : whole.rows;
  const int64_t stride = by_rows ? 0 : whole.columns;
  const int64_t own_stride = by_rows ? 0 : part.columns;
  for (const Section& section : sections_of(module, whole)) {
    const int64_t begin = std::min(rank * section.own_width, section.width);
    const int64_t count = std::min(section.own_width, section.width - begin);
    for (int64_t i = 0; i < outer && count > 0; ++i) {
      visit(i * stride + (section.begin + begin) * unit, i * own_stride + section.own_begin * unit,
            count * unit);
    }
  }
}

std::vector<ParameterSlices::Run> ParameterSlices::own_runs(size_t module,
                                                            const Parameter& whole) const {
  const Parameter* const own_part = own(module, whole);
  if (own_part == nullptr) return {};
  if (own_part->count() == whole.count()) return {{0, 0, whole.count()}};
  std::vector<Run> runs;
  for_runs(module, whole, self(),
           [&](int64_t from, int64_t to, int64_t count) { runs.push_back({from, to, count}); });
  return runs;
}

// Dense modules of ranks that share experts are alike among all ranks of data parallelism, which
// RankShares counts.
RankCopies ParameterSlices::copies(size_t module, const Parameter& whole) const {
  const bool dense = splits_experts() && graph_.modules[module].expert_ranks <= 1;
  if (dense || holder_of(module, whole) >= 0 || is_split(module, whole)) return {};
  return {self(), group().ranks};
}

std::vector<float> ParameterSlices::cut(size_t module, const Parameter& whole,
                                        std::span<const float> values) const {
  const Parameter* const own_part = own(module, whole);
  if (own_part == nullptr) return {};
  std::vector<float> part(static_cast<size_t>(own_part->count()));
  for (const Run& run : own_runs(module, whole)) {
    std::copy_n(values.begin() + run.whole, run.count, part.begin() + run.own);
  }
  return part;
}

std::vector<float> ParameterSlices::join(size_t module, const Parameter& whole,
                                         std::span<const float> own_values) const {
  std::vector<float> values(static_cast<size_t>(whole.count()));
  const auto bytes_of = [](const float* at) { return reinterpret_cast<const std::byte*>(at); };
  if (const int64_t holder = holder_of(module, whole); holder >= 0) {
    auto* const to = reinterpret_cast<std::byte*>(values.data());
    const GatheredPart part{static_cast<int>(holder), bytes_of(own_values.data()), to,
                            whole.count() * size_of(DType::kF32)};
    ranks_.all_gather(Channel::kControl, group(), {&part, 1});
    return values;
  }
  if (!is_split(module, whole)) return {own_values.begin(), own_values.end()};
  const auto size = static_cast<int64_t>(own_values.size());
  const int64_t ranks = group().ranks;
  std::vector<float> parts(own_values.size() * static_cast<size_t>(ranks));
  std::vector<GatheredPart> told;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    told.push_back({static_cast<int>(rank), bytes_of(own_values.data()),
                    reinterpret_cast<std::byte*>(parts.data() + rank * size),
                    size * size_of(DType::kF32)});
  }
  ranks_.all_gather(Channel::kControl, group(), told);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for_runs(module, whole, rank, [&](int64_t from, int64_t to, int64_t count) {
      std::copy_n(parts.begin() + rank * size + to, count, values.begin() + from);
    });
  }
  return values;
}

}  // namespace ballast
