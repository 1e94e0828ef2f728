#include "backend/checkpoint/rank_parts.h"

#include <algorithm>

namespace ballast {

namespace {

using Runs = RankPart::Runs;

// Of values that several ranks keep alike each writes a part of so many at least, or none: many
// tensors of a few values would be slower to write than one.
constexpr int64_t kLeastWritten = 256;

// Adds `count` elements that lie side by side both in the whole parameter and in this rank's part,
// to the last runs where they go on with them.
void add(std::vector<Runs>& all, int64_t whole, int64_t own, int64_t count) {
  if (!all.empty()) {
    Runs& last = all.back();
    ElementRuns& elements = last.whole;
    if (elements.runs == 1 && elements.end() == whole && last.own + elements.run == own) {
      elements.run += count;
      return;
    }
    if (elements.runs == 1 && elements.run == count && whole >= elements.end() && own > last.own) {
      elements.stride = whole - elements.first;
      last.own_stride = own - last.own;
      elements.runs = 2;
      return;
    }
    if (elements.runs > 1 && elements.run == count &&
        whole == elements.first + elements.runs * elements.stride &&
        own == last.own + elements.runs * last.own_stride) {
      ++elements.runs;
      return;
    }
  }
  all.push_back({{whole, count, 0, 1}, own, 0});
}

// What this rank keeps of a parameter that module `module` holds.
std::vector<Runs> kept_runs(const Graph& graph, const TrainingDevice& device, size_t module,
                            const Parameter& parameter) {
  const ParameterSlices* const slices = device.slices();
  const Parameter* const own = own_part(device, module, parameter);
  if (own == nullptr) return {};
  std::vector<ParameterSlices::Run> split = {{0, 0, parameter.count()}};
  if (slices != nullptr) split = slices->own_runs(module, parameter);
  const std::vector<ElementRange> kept = kept_ranges(graph, device, module, *own);
  std::vector<Runs> all;
  for (const ParameterSlices::Run& run : split) {
    const ElementRange range{run.own, run.count};
    for (const ElementRange& one : kept) {
      const ElementRange here = overlap(range, one);
      if (here.count > 0) add(all, run.whole + here.begin - run.own, here.begin, here.count);
    }
  }
  return all;
}

int64_t count_of_runs(const std::vector<Runs>& all) {
  int64_t count = 0;
  for (const Runs& one : all) count += one.whole.count();
  return count;
}

// Elements [begin, end) of those that the runs have, one after another.
void add_cut(const Runs& from, int64_t begin, int64_t end, std::vector<Runs>& to) {
  const ElementRuns& whole = from.whole;
  while (begin < end) {
    const int64_t row = begin / whole.run;
    const int64_t at = begin % whole.run;
    Runs cut{{whole.first + row * whole.stride + at, whole.run, 0, 1},
             from.own + row * from.own_stride + at,
             0};
    if (at == 0 && end - begin >= whole.run) {
      cut.whole.runs = (end - begin) / whole.run;
      if (cut.whole.runs > 1) {
        cut.whole.stride = whole.stride;
        cut.own_stride = from.own_stride;
      }
    } else {
      cut.whole.run = std::min(whole.run - at, end - begin);
    }
    begin += cut.whole.count();
    to.push_back(cut);
  }
}

// The same of all runs.
std::vector<Runs> cut_runs(const std::vector<Runs>& all, int64_t begin, int64_t end) {
  std::vector<Runs> cut;
  int64_t before = 0;
  for (const Runs& one : all) {
    const int64_t count = one.whole.count();
    const int64_t first = std::clamp<int64_t>(begin - before, 0, count);
    const int64_t last = std::clamp<int64_t>(end - before, 0, count);
    add_cut(one, first, last, cut);
    before += count;
  }
  return cut;
}

// What of values that `copies.count` ranks keep alike the one of them with this index writes.
std::vector<Runs> written_of(const std::vector<Runs>& kept, const RankCopies& copies) {
  if (copies.count == 1) return kept;
  const int64_t all = count_of_runs(kept);
  const int64_t share = round_up(div_ceil(all, copies.count), kLeastWritten);
  const int64_t begin = std::min(all, share * copies.index);
  return cut_runs(kept, begin, std::min(all, begin + share));
}

// Ranks with the same shares of what ranks split alike.
RankCopies copies_of(const Graph& graph, const TrainingDevice& device, size_t module,
                     const Parameter& parameter) {
  if (device.shares() == nullptr) return {};
  const RankCopies of_shares = device.shares()->copies(sort_of(graph.modules[module]));
  if (device.slices() == nullptr) return of_shares;
  const RankCopies of_slices = device.slices()->copies(module, parameter);
  return {of_shares.index + of_shares.count * of_slices.index, of_shares.count * of_slices.count};
}

}  // namespace

std::vector<RankPart> parts_to_write(const Graph& graph, const TrainingDevice& device) {
  std::vector<RankPart> parts;
  for_parameters(graph, device, [&](size_t module, const Parameter& parameter) {
    RankPart part{module, &parameter, {}, 0};
    part.runs = written_of(kept_runs(graph, device, module, parameter),
                           copies_of(graph, device, module, parameter));
    part.count = count_of_runs(part.runs);
    if (part.count > 0) parts.push_back(std::move(part));
  });
  return parts;
}

RankPart piece_of(const RankPart& part, int64_t begin, int64_t count) {
  return {part.module, part.parameter, cut_runs(part.runs, begin, begin + count), count};
}

std::vector<ElementRuns> kept_elements(const Graph& graph, const TrainingDevice& device,
                                       size_t module, const Parameter& parameter) {
  std::vector<ElementRuns> elements;
  for (const size_t copy : modules_that_hold(graph, module)) {
    for (const Runs& runs : kept_runs(graph, device, copy, parameter)) {
      elements.push_back(runs.whole);
    }
  }
  return elements;
}

void read_part(const RankPart& part,
               const std::function<void(int64_t begin, std::span<float> values)>& read,
               std::span<float> values) {
  CHECK(std::ssize(values) == part.count);
  std::vector<float> rows;
  for (const Runs& one : part.runs) {
    const std::span<float> to = values.first(static_cast<size_t>(one.whole.count()));
    values = values.subspan(to.size());
    if (one.whole.runs == 1) {
      read(one.own, to);
      continue;
    }
    rows.resize(static_cast<size_t>((one.whole.runs - 1) * one.own_stride + one.whole.run));
    read(one.own, rows);
    for (int64_t i = 0; i < one.whole.runs; ++i) {
      std::copy_n(rows.begin() + i * one.own_stride, one.whole.run, to.begin() + i * one.whole.run);
    }
  }
}

}  // namespace ballast
