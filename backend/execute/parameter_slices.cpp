#include "backend/execute/parameter_slices.h"

#include <algorithm>

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
    CHECK(found != all.end() && found->parameters.size() == own.parameters.size());
    modules_.push_back(*found);
  }
}

const Module& ParameterSlices::whole(size_t module) const { return modules_[module]; }

const Parameter& ParameterSlices::own(size_t module, const Parameter& whole) const {
  for (const Parameter& one : graph_.modules[module].parameters) {
    if (one.name == whole.name) return one;
  }
  CHECK(false && "a parameter of this module");
  return whole;
}

bool ParameterSlices::is_split(size_t module, const Parameter& whole) const {
  const Parameter& part = own(module, whole);
  return part.rows != whole.rows || part.columns != whole.columns;
}

std::vector<std::pair<int64_t, int64_t>> ParameterSlices::alike(size_t module) const {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Parameter& parameter : modules_[module].parameters) {
    if (is_split(module, parameter)) continue;
    const Parameter& part = own(module, parameter);
    ranges.emplace_back(part.offset, part.count());
  }
  return ranges;
}

// Along the dimension that is split. gpt2 keeps queries, keys and values side by side in one
// matrix, of each of which a rank has its heads.
std::vector<ParameterSlices::Section> ParameterSlices::sections_of(size_t module,
                                                                   const Parameter& whole) const {
  const Parameter& part = own(module, whole);
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
  const Parameter& part = own(module, whole);
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

std::vector<float> ParameterSlices::cut(size_t module, const Parameter& whole,
                                        std::span<const float> values) const {
  if (!is_split(module, whole)) return {values.begin(), values.end()};
  std::vector<float> part(static_cast<size_t>(own(module, whole).count()));
  for_runs(module, whole, place_of(plan_, ranks_.rank()).tensor,
           [&](int64_t from, int64_t to, int64_t count) {
             std::copy_n(values.begin() + from, count, part.begin() + to);
           });
  return part;
}

std::vector<float> ParameterSlices::join(size_t module, const Parameter& whole,
                                         std::span<const float> own_values) const {
  if (!is_split(module, whole)) return {own_values.begin(), own_values.end()};
  const auto size = static_cast<int64_t>(own_values.size());
  std::vector<float> parts(own_values.size() * static_cast<size_t>(plan_.tensor));
  std::vector<GatheredPart> told;
  for (int64_t rank = 0; rank < plan_.tensor; ++rank) {
    told.push_back({static_cast<int>(rank), reinterpret_cast<const std::byte*>(own_values.data()),
                    reinterpret_cast<std::byte*>(parts.data() + rank * size),
                    size * size_of(DType::kF32)});
  }
  ranks_.all_gather(Channel::kControl, tensor_group(plan_), told);
  std::vector<float> values(static_cast<size_t>(whole.count()));
  for (int64_t rank = 0; rank < plan_.tensor; ++rank) {
    for_runs(module, whole, rank, [&](int64_t from, int64_t to, int64_t count) {
      std::copy_n(parts.begin() + rank * size + to, count, values.begin() + from);
    });
  }
  return values;
}

}  // namespace ballast
