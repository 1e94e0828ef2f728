#include "backend/host/bucket_updates.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/host/compute_threads.h"
#include "sim/graph/core/stages.h"
#include "sim/spec/stack.h"

namespace ballast {

namespace {

// What a part of a bucket has, of those that are divided over the threads lent to the caller.
constexpr int64_t kTilesOfPart = 16;
constexpr RangeCut kByTile{kTilesOfPart * kernels::kUndoTile, kernels::kUndoTile};
constexpr RangeCut kByByte{256 * 1024, 4096};

void cast_here(const kernels::Table& table, const CastRange& range) {
  for_ranges(range.count, kByTile, [&](int64_t begin, int64_t end) {
    table.cast(range.from + begin * kernels::bytes_of(range.from_format), range.from_format,
               range.to + begin * kernels::bytes_of(range.to_format), range.to_format, end - begin);
  });
}

}  // namespace

bool is_adam_of_another_program(std::string_view name) {
  constexpr std::array kOthers = {kTorchAdam, std::string_view("cpu-adam"),
                                  std::string_view("grace-adam")};
  return std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end();
}

const kernels::Table* adam_table(std::string_view name) {
  if (name == "best" || is_adam_of_another_program(name)) return &kernels::best();
  return kernels::find(name);
}

std::optional<kernels::AdamConstants> constants_of(const UpdateControl& control, int32_t step,
                                                   BucketUpdates::ProgramKind kind) {
  const bool repairs = kind == BucketUpdates::ProgramKind::kRepair;
  return repairs ? control.redo_constants() : control.constants(step);
}

std::vector<CastRange> weights_from_masters(const std::vector<StepRange>& steps) {
  std::vector<CastRange> ranges;
  for (const StepRange& range : steps) {
    const kernels::AdamArrays& arrays = range.arrays;
    if (arrays.weights == nullptr) continue;
    ranges.push_back({reinterpret_cast<const std::byte*>(arrays.master), kernels::Format::kF32,
                      static_cast<std::byte*>(arrays.weights), arrays.weights_format,
                      arrays.count});
  }
  return ranges;
}

BucketUpdates::BucketUpdates(const Setting& setting, std::vector<Place> undo_places, int threads)
    : at_(setting), table_(*adam_table(setting.plan.optimizer.adam)) {
  for (int device = 0; device < devices_of(at_.graph); ++device) {
    teams_.push_back(std::make_unique<Team>(threads));
  }
  find_partials();
  const bool exact = at_.plan.optimizer.undo == UndoKind::kExact;
  for (size_t t = 0; t < at_.graph.tensors.size(); ++t) {
    const Tensor& tensor = at_.graph.tensors[t];
    const bool kept =
        std::find(undo_places.begin(), undo_places.end(), tensor.place) != undo_places.end();
    if (tensor.kind == TensorKind::kUndoRecord && exact && kept) {
      find_undo_records(static_cast<TensorId>(t));
    }
  }
}

// One record a run, one after another in the bucket's tensor.
void BucketUpdates::find_undo_records(TensorId tensor) {
  const std::span<std::byte> raw = at_.arguments.bytes(tensor);
  const int32_t bucket = at_.graph.tensors[static_cast<size_t>(tensor)].label.bucket;
  undo_.resize(at_.graph.buckets.size());
  size_t begin = 0;
  for (const Run& run : at_.ranges.runs(bucket)) {
    const int64_t size = kernels::UndoRecord::fixed_bytes(run.count, kernels::UndoForm::kRecord);
    const auto planned = static_cast<size_t>(undo_record_bytes(run).count);
    CHECK(static_cast<size_t>(size) <= planned && begin + planned <= raw.size());
    undo_[static_cast<size_t>(bucket)].emplace_back(
        std::span(reinterpret_cast<uint8_t*>(raw.data() + begin), static_cast<size_t>(size)),
        run.count, kernels::UndoForm::kRecord);
    begin += planned;
  }
}

// A module's segments are the same whatever buckets cut it, so their sums in the order of the model
// are one sequence, of one stage or of many.
void BucketUpdates::find_partials() {
  std::vector<TensorId> of_bucket(at_.graph.buckets.size(), -1);
  for (size_t t = 0; t < at_.graph.tensors.size(); ++t) {
    const Tensor& tensor = at_.graph.tensors[t];
    if (tensor.kind == TensorKind::kNormPartials && tensor.place == Place::kDram) {
      of_bucket[static_cast<size_t>(tensor.label.bucket)] = static_cast<TensorId>(t);
    }
  }
  std::vector<std::vector<Partials>> of_module(at_.graph.modules.size());
  // The last bucket begins the flat space.
  for (size_t b = at_.graph.buckets.size(); b-- > 0;) {
    int64_t first = 0;
    for (const Bucket::Piece& piece : at_.graph.buckets[b].pieces) {
      const int64_t count = div_ceil(piece.count, kSegment);
      const bool of_experts = at_.graph.module(piece.module).expert_ranks > 1;
      of_module[static_cast<size_t>(piece.module)].push_back(
          {of_bucket[b], first, count, of_experts});
      first += count;
    }
  }
  for (const int32_t module : modules_in_order(at_.graph)) {
    const std::vector<Partials>& parts = of_module[static_cast<size_t>(module)];
    partials_.insert(partials_.end(), parts.begin(), parts.end());
  }
}

void BucketUpdates::cast(const Op& op, int32_t step, StepThreads threads) {
  const CastRange range = at_.ranges.cast(op, step);
  if (threads == StepThreads::kPool) {
    kernels::cast(workers_of(op), table_, range.from, range.from_format, range.to, range.to_format,
                  range.count);
  } else {
    cast_here(table_, range);
  }
}

void BucketUpdates::sum_into_both(const Argument& one, const Argument& other, int64_t count) {
  constexpr int64_t kTile = 4096;
  const kernels::Format format = format_of(one.tensor->dtype);
  std::array<float, kTile> sum;
  std::array<float, kTile> added;
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t size = std::min(kTile, count - at);
    table_.cast(element(one, at), format, sum.data(), kernels::Format::kF32, size);
    table_.cast(element(other, at), format, added.data(), kernels::Format::kF32, size);
    for (int64_t i = 0; i < size; ++i) {
      sum[static_cast<size_t>(i)] += added[static_cast<size_t>(i)];
    }
    for (const Argument* to : {&one, &other}) {
      table_.cast(sum.data(), kernels::Format::kF32, element(*to, at), format, size);
    }
  }
}

void BucketUpdates::casts(const std::vector<CastRange>& ranges) {
  for (const CastRange& range : ranges) cast_here(table_, range);
}

void BucketUpdates::sums(const Op& op, int32_t step) {
  for (const SumRange& range : at_.ranges.sums(op, step)) {
    for_ranges(range.count, {kSegment, kSegment}, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kSegment) {
        range.sums[at / kSegment] =
            table_.sum_of_squares(range.values + at * kernels::bytes_of(range.format), range.format,
                                  std::min(kSegment, end - at));
      }
    });
  }
}

NormSums BucketUpdates::sum_of_partials() const {
  NormSums sums;
  for (const Partials& part : partials_) {
    const auto* values =
        reinterpret_cast<const double*>(at_.arguments.bytes(part.tensor).data()) + part.first;
    for (int64_t i = 0; i < part.count; ++i) {
      sums.all += values[i];
      if (part.of_experts) sums.of_experts += values[i];
    }
  }
  return sums;
}

void BucketUpdates::snapshot(const Op& op, int32_t step, StepThreads threads) {
  for (const CopyRange& range : at_.ranges.snapshot(op, step)) {
    if (threads == StepThreads::kPool) {
      kernels::copy_streaming(workers_of(op), table_, range.from, range.to, range.bytes);
    } else {
      for_ranges(range.bytes, kByByte, [&](int64_t begin, int64_t end) {
        std::memcpy(range.to + begin, range.from + begin, static_cast<size_t>(end - begin));
      });
    }
  }
}

void BucketUpdates::adam(const Op& op, int32_t step, ProgramKind kind, StepThreads threads) {
  const std::optional<kernels::AdamConstants> decided = constants_of(at_.control, step, kind);
  if (!decided) return restore_weights(op, step);
  const bool records = at_.arguments.find(op, Role::kUndoRecord, step).tensor != nullptr;
  const std::vector<StepRange> ranges = at_.ranges.steps(op, step);
  for (size_t i = 0; i < ranges.size(); ++i) {
    const kernels::AdamArrays& arrays = ranges[i].arrays;
    kernels::AdamConstants constants = *decided;
    if (!ranges[i].decays) constants.weight_decay = 0;
    const bool alone = threads == StepThreads::kCaller;
    if (ranges[i].bf16_moments.moment1 != nullptr) {
      CHECK(!records);
      step_bf16(op, ranges[i], constants, threads);
      continue;
    }
    if (!records) {
      if (alone) {
        for_ranges(arrays.count, kByTile, [&](int64_t begin, int64_t end) {
          table_.adam_step(kernels::slice(arrays, begin, end - begin), constants);
        });
      } else {
        kernels::adam_step(workers_of(op), table_, arrays, constants);
      }
      continue;
    }
    kernels::UndoRecord& record = undo_[static_cast<size_t>(op.label.bucket)][i];
    if (!alone) {
      kernels::adam_step_with_undo(workers_of(op), table_, arrays, constants, record);
      continue;
    }
    for_ranges(record.tiles(), {kTilesOfPart, 1}, [&](int64_t begin, int64_t end) {
      record.step_tiles(table_, arrays, constants, begin, end);
    });
  }
}

void BucketUpdates::step_bf16(const Op& op, const StepRange& range,
                              const kernels::AdamConstants& constants, StepThreads threads) {
  if (threads == StepThreads::kCaller) {
    for_ranges(range.arrays.count, kByTile, [&](int64_t begin, int64_t end) {
      kernels::adam_step_bf16_moments(
          table_, kernels::slice_without_moments(range.arrays, begin, end - begin),
          {range.bf16_moments.moment1 + begin, range.bf16_moments.moment2 + begin}, constants);
    });
  } else {
    kernels::adam_step_bf16_moments(workers_of(op), table_, range.arrays, range.bf16_moments,
                                    constants);
  }
}

void BucketUpdates::restore_weights(const Op& op, int32_t step) const {
  for (const CastRange& range : weights_from_masters(at_.ranges.steps(op, step))) {
    cast_here(table_, range);
  }
}

void BucketUpdates::exact_undo(const Op& op, int32_t step, StepThreads threads) {
  const std::vector<StepRange> ranges = at_.ranges.steps(op, step);
  for (size_t i = 0; i < ranges.size(); ++i) {
    kernels::AdamConstants constants = at_.control.undone_constants();
    if (!ranges[i].decays) constants.weight_decay = 0;
    const kernels::UndoRecord& record = undo_[static_cast<size_t>(op.label.bucket)][i];
    if (threads == StepThreads::kPool) {
      kernels::adam_undo(workers_of(op), table_, ranges[i].arrays, constants, record);
      continue;
    }
    for_ranges(record.tiles(), {kTilesOfPart, 1}, [&](int64_t begin, int64_t end) {
      record.undo_tiles(table_, ranges[i].arrays, constants, begin, end);
    });
  }
}

}  // namespace ballast
