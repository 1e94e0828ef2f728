#include "backend/train/parameter_state.h"

#include <algorithm>
#include <array>

#include "backend/execute/operation_arguments.h"
#include "kernels/kernels.h"
#include "sim/graph/core/stages.h"

namespace ballast {

namespace {

// Where some of a module's values lie: on which rank, in a bucket how far from the start of what
// that rank's tensors hold of it, and how far from the start of the whole module.
struct Held {
  int rank = 0;
  int32_t bucket = 0;
  int64_t offset = 0;
  int64_t begin = 0;
  int64_t count = 0;
};

// The parts of elements `range` of a module, of all ranks that share them.
std::vector<Held> parts_of(const Graph& graph, const RankShares* shares, size_t module,
                           const ElementRange& range) {
  const bool split = shares != nullptr && shares->are_split();
  const auto is_of_module = [&](const Bucket::Piece& piece) {
    return static_cast<size_t>(piece.module) == module;
  };
  std::vector<Held> parts;
  for (size_t b = 0; b < graph.buckets.size(); ++b) {
    const auto bucket = static_cast<int32_t>(b);
    const std::vector<Bucket::Piece>& pieces = graph.bucket(bucket).pieces;
    if (std::none_of(pieces.begin(), pieces.end(), is_of_module)) continue;
    const Sort sort = sort_of(graph.modules[module]);
    for (int rank = 0; rank < (split ? shares->count(sort) : 1); ++rank) {
      for (const Bucket::Piece& piece :
           split ? shares->bucket_of(bucket, sort, rank).pieces : graph.bucket(bucket).pieces) {
        const ElementRange here = overlap({piece.begin, piece.count}, range);
        if (!is_of_module(piece) || here.count == 0) continue;
        parts.push_back(
            {rank, bucket, piece.offset + here.begin - piece.begin, here.begin, here.count});
      }
    }
  }
  return parts;
}

using HomeOf = std::function<StateHome(const Held& part)>;  // where what Held::offset counts begins

bool is_here(const TrainingDevice& device, Sort sort, const Held& part) {
  const RankShares* const shares = device.shares();
  return shares == nullptr || !shares->are_split() || part.rank == shares->rank(sort);
}

// Of `values`, which are those of a module from `begin` on, what this rank has. Where they are to
// be `seen` too, they are read in blocks that a cache still holds then.
void fill_kept(const Graph& graph, TrainingDevice& device, size_t module, int64_t begin,
               std::span<float> values, const HomeOf& home, const ReadBlock& seen = nullptr) {
  const Sort sort = sort_of(graph.modules[module]);
  for (const Held& part : parts_of(graph, device.shares(), module, {begin, std::ssize(values)})) {
    if (!is_here(device, sort, part)) continue;
    const StateHome from = home(part);
    const Bytes at_once = device.read_at_once(graph.tensor(from.tensor).place);
    const int64_t block = seen ? at_once.count / size_of(from.dtype) : part.count;
    for (int64_t done = 0; done < part.count; done += block) {
      const std::span<float> here =
          values.subspan(static_cast<size_t>(part.begin - begin + done),
                         static_cast<size_t>(std::min(block, part.count - done)));
      read_values(device, from, part.offset + done, here);
      if (seen) seen(here);
    }
  }
}

// Of several ranks all call, and each comes to know what the others have.
void read_range(const Graph& graph, TrainingDevice& device, size_t module, int64_t begin,
                std::span<float> values, const HomeOf& home) {
  const ElementRange range{begin, std::ssize(values)};
  const Sort sort = sort_of(graph.modules[module]);
  fill_kept(graph, device, module, begin, values, home);
  const RankShares* const shares = device.shares();
  if (shares == nullptr || !shares->are_split()) return;
  std::vector<GatheredPart> told;
  for (const Held& part : parts_of(graph, shares, module, range)) {
    auto* const bytes = reinterpret_cast<std::byte*>(values.data() + (part.begin - range.begin));
    told.push_back({part.rank, bytes, bytes, part.count * size_of(DType::kF32)});
  }
  shares->gather(sort, told);
}

// Each rank writes what it keeps.
void write_range(const Graph& graph, TrainingDevice& device, size_t module, int64_t begin,
                 std::span<const float> values, const HomeOf& home) {
  for (const Held& part : parts_of(graph, device.shares(), module, {begin, std::ssize(values)})) {
    if (!is_here(device, sort_of(graph.modules[module]), part)) continue;
    write_values(
        device, home(part), part.offset,
        values.subspan(static_cast<size_t>(part.begin - begin), static_cast<size_t>(part.count)));
  }
}

// Of ranks that split modules each has its part of a parameter, or none.
void read_whole(const Graph& graph, TrainingDevice& device, size_t module,
                const Parameter& parameter, std::span<float> values, const HomeOf& home) {
  const ParameterSlices* const slices = device.slices();
  if (slices == nullptr) return read_range(graph, device, module, parameter.offset, values, home);
  const Parameter* const own = slices->own(module, parameter);
  std::vector<float> part(static_cast<size_t>(own == nullptr ? 0 : own->count()));
  if (own != nullptr) read_range(graph, device, module, own->offset, part, home);
  const std::vector<float> whole = slices->join(module, parameter, part);
  std::copy(whole.begin(), whole.end(), values.begin());
}

void write_whole(const Graph& graph, TrainingDevice& device, size_t module,
                 const Parameter& parameter, std::span<const float> values, const HomeOf& home) {
  const ParameterSlices* const slices = device.slices();
  if (slices == nullptr) return write_range(graph, device, module, parameter.offset, values, home);
  const Parameter* const own = slices->own(module, parameter);
  if (own == nullptr) return;
  write_range(graph, device, module, own->offset, slices->cut(module, parameter, values), home);
}

HomeOf homes_of(const Graph& graph, StateArray array) {
  return [&graph, array](const Held& part) {
    return home_of(graph, graph.bucket(part.bucket), array);
  };
}

}  // namespace

const Parameter* own_part(const TrainingDevice& device, size_t module, const Parameter& parameter) {
  return device.slices() == nullptr ? &parameter : device.slices()->own(module, parameter);
}

std::vector<size_t> modules_that_hold(const Graph& graph, size_t module) {
  std::vector<size_t> all = {module};
  for (const int32_t copy : copies_of_module(graph, static_cast<int32_t>(module))) {
    all.push_back(static_cast<size_t>(copy));
  }
  return all;
}

std::vector<ElementRange> kept_ranges(const Graph& graph, const TrainingDevice& device,
                                      size_t module, const Parameter& own) {
  const Sort sort = sort_of(graph.modules[module]);
  std::vector<ElementRange> kept;
  for (const Held& part : parts_of(graph, device.shares(), module, {own.offset, own.count()})) {
    if (is_here(device, sort, part)) kept.push_back({part.begin - own.offset, part.count});
  }
  std::sort(kept.begin(), kept.end(), [](const ElementRange& one, const ElementRange& other) {
    return one.begin < other.begin;
  });
  return kept;
}

void read_kept(const Graph& graph, TrainingDevice& device, size_t module, const Parameter& own,
               int64_t begin, StateArray array, std::span<float> values, const ReadBlock& seen) {
  fill_kept(graph, device, module, own.offset + begin, values, homes_of(graph, array), seen);
}

void for_parameters(const Graph& graph, const TrainingDevice& device,
                    const std::function<void(size_t module, const Parameter&)>& visit) {
  for (const int32_t i : modules_in_order(graph)) {
    const auto module = static_cast<size_t>(i);
    const Module& whole =
        device.slices() != nullptr ? device.slices()->whole(module) : graph.module(i);
    for (const Parameter& parameter : whole.parameters) visit(module, parameter);
  }
}

std::vector<float> read_parameter(const Graph& graph, TrainingDevice& device, size_t module,
                                  const Parameter& parameter, StateArray array) {
  std::vector<float> values(static_cast<size_t>(parameter.count()));
  read_parameter(graph, device, module, parameter, array, values);
  return values;
}

void read_parameter(const Graph& graph, TrainingDevice& device, size_t module,
                    const Parameter& parameter, StateArray array, std::span<float> values) {
  read_whole(graph, device, module, parameter, values, homes_of(graph, array));
}

void write_parameter(const Graph& graph, TrainingDevice& device, size_t module,
                     const Parameter& parameter, StateArray array, std::span<const float> values) {
  for (const size_t copy : modules_that_hold(graph, module)) {
    write_whole(graph, device, copy, parameter, values, homes_of(graph, array));
  }
}

void write_masters(const Graph& graph, size_t module, int64_t begin, std::span<const float> values,
                   TrainingDevice& device) {
  write_range(graph, device, module, begin, values, homes_of(graph, StateArray::kMaster));
}

PendingGradients::PendingGradients(const Graph& graph, TrainingDevice& device)
    : graph_(graph), device_(device) {
  landed_.assign(graph.buckets.size(), -1);
  by_module_.assign(graph.modules.size(), -1);
  const StageModules modules(graph);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const auto id = static_cast<TensorId>(t);
    const bool reduced = tensor.kind == TensorKind::kReduced && tensor.label.bucket >= 0;
    if (tensor.kind == TensorKind::kBucketGradient || reduced) {
      landed_[static_cast<size_t>(tensor.label.bucket)] = id;
    }
    if (tensor.kind != TensorKind::kGradient) continue;
    if (const int32_t i = modules.of(tensor); i >= 0) by_module_[static_cast<size_t>(i)] = id;
  }
}

// In a module's own gradient values lie where they would, did what the bucket's tensors hold begin
// there. Of shares of buckets it is whole, and each rank has the sums of its own.
StateHome PendingGradients::home(int32_t bucket, size_t module, int64_t offset,
                                 int64_t begin) const {
  const TensorId landed = landed_[static_cast<size_t>(bucket)];
  if (landed >= 0) return {landed, 0, graph_.tensor(landed).dtype};
  const TensorId own = by_module_[module];
  const DType dtype = graph_.tensor(own).dtype;
  const RankShares* const shares = device_.shares();
  const int64_t before =
      shares == nullptr ? 0 : shares->own_of_module(static_cast<int32_t>(module)).begin;
  return {own, (begin - before - offset) * size_of(dtype), dtype};
}

std::vector<float> PendingGradients::read(size_t module, const Parameter& parameter) const {
  std::vector<float> values(static_cast<size_t>(parameter.count()));
  read(module, parameter, values);
  return values;
}

void PendingGradients::read(size_t module, const Parameter& parameter,
                            std::span<float> values) const {
  read_whole(graph_, device_, module, parameter, values,
             [&](const Held& part) { return home(part.bucket, module, part.offset, part.begin); });
}

void PendingGradients::read_kept(size_t module, const Parameter& own, int64_t begin,
                                 std::span<float> values) const {
  fill_kept(graph_, device_, module, own.offset + begin, values,
            [&](const Held& part) { return home(part.bucket, module, part.offset, part.begin); });
}

void PendingGradients::write(size_t module, const Parameter& parameter,
                             std::span<const float> values) {
  for (const size_t copy : modules_that_hold(graph_, module)) {
    write_whole(graph_, device_, copy, parameter, values,
                [&](const Held& part) { return home(part.bucket, copy, part.offset, part.begin); });
  }
}

void apply_pending_gradients(const Graph& graph, TrainingDevice& device,
                             const kernels::AdamConstants& constants) {
  const PendingGradients gradients(graph, device);
  for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
    std::array<std::vector<float>, kStateArrays.size()> state;
    for (size_t i = 0; i < state.size(); ++i) {
      state[i] = read_parameter(graph, device, module, parameter, kStateArrays[i]);
    }
    const std::vector<float> gradient = gradients.read(module, parameter);
    kernels::AdamConstants of_this = constants;
    if (!parameter.is_matrix) of_this.weight_decay = 0;
    kernels::AdamArrays arrays;
    arrays.master = state[0].data();
    arrays.moment1 = state[1].data();
    arrays.moment2 = state[2].data();
    arrays.gradient = gradient.data();
    arrays.count = parameter.count();
    kernels::best().adam_step(arrays, of_this);
    for (size_t i = 0; i < state.size(); ++i) {
      write_parameter(graph, device, module, parameter, kStateArrays[i], state[i]);
    }
  });
}

}  // namespace ballast
