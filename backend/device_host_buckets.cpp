// What happens to buckets: packing, casts, norms, snapshots, steps, and copies across the "link".
#include <algorithm>
#include <cstring>

#include "backend/device_host.h"
#include "sim/graph/rewrite.h"

namespace ballast {

namespace {

size_t byte_count(int64_t elements, DType dtype) {
  return static_cast<size_t>(elements * size_of(dtype));
}

// Elements `begin` of a tensor.
template <class Argument>
std::byte* element(const Argument& argument, int64_t begin) {
  return argument.data + begin * size_of(argument.tensor->dtype);
}

}  // namespace

const Bucket& HostDevice::bucket_of(const Op& op) const {
  CHECK(op.label.bucket >= 0);
  return graph_.buckets[static_cast<size_t>(op.label.bucket)];
}

// The piece of the bucket that belongs to the module of this weight or gradient.
const Bucket::Piece& HostDevice::piece_of(const Bucket& bucket, const Tensor& module_tensor) const {
  for (const Bucket::Piece& piece : bucket.pieces) {
    const Module& module = graph_.modules[static_cast<size_t>(piece.module)];
    if (module.kind == module_tensor.label.module && module.layer == module_tensor.label.layer) {
      return piece;
    }
  }
  CHECK(false && "the bucket has no piece of this module");
  return bucket.pieces.front();
}

void HostDevice::pack(const Op& op, int32_t step) {
  const Bucket& bucket = bucket_of(op);
  const Argument packed = find(op, Role::kDestination, step);
  for (const Argument& gradient : all(op, Role::kSource, step)) {
    const Bucket::Piece& piece = piece_of(bucket, *gradient.tensor);
    table_.cast(element(gradient, piece.begin), format_of(gradient.tensor->dtype),
                element(packed, piece.offset), format_of(packed.tensor->dtype), piece.count);
  }
}

void HostDevice::unpack(const Op& op, int32_t step) {
  const Argument source = find(op, Role::kSource, step);
  const std::vector<Argument> destinations = all(op, Role::kDestination, step);
  if (op.phase == Phase::kFetch) {
    const Argument& weight = destinations.front();
    table_.cast(source.data, format_of(source.tensor->dtype), weight.data,
                format_of(weight.tensor->dtype), weight.tensor->elements);
    return;
  }
  const Bucket& bucket = bucket_of(op);
  int64_t begin = 0;  // stationary pieces lie one after another in what arrived
  for (const Argument& weight : destinations) {
    const Bucket::Piece& piece = piece_of(bucket, *weight.tensor);
    table_.cast(element(source, begin), format_of(source.tensor->dtype),
                element(weight, piece.begin), format_of(weight.tensor->dtype), piece.count);
    begin += piece.count;
  }
}

void HostDevice::cast(const Op& op, int32_t step) {
  const Argument source = find(op, Role::kSource, step);
  const Argument destination = find(op, Role::kDestination, step);
  kernels::cast(workers_, table_, source.data, format_of(source.tensor->dtype), destination.data,
                format_of(destination.tensor->dtype), destination.tensor->elements);
}

// One partial sum a segment, in the order of the bucket; see kSegment.
void HostDevice::sum_of_squares(const Op& op, int32_t step) {
  const Bucket& bucket = bucket_of(op);
  const Argument partials = find(op, Role::kNormPartials, step);
  auto* sums = reinterpret_cast<double*>(partials.data);
  const std::vector<Argument> sources = all(op, Role::kSource, step);
  const bool packed = sources.front().tensor->label.bucket >= 0;
  int64_t segment = 0;
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Bucket::Piece& piece = bucket.pieces[i];
    const Argument& source = packed ? sources.front() : sources[i];
    const int64_t begin = packed ? piece.offset : piece.begin;
    for (int64_t done = 0; done < piece.count; done += kSegment) {
      const int64_t count = std::min(kSegment, piece.count - done);
      sums[segment++] = table_.sum_of_squares(element(source, begin + done),
                                              format_of(source.tensor->dtype), count);
    }
  }
  CHECK(segment == bucket.segments);
}

double HostDevice::sum_of_partials() const {
  double sum = 0;
  for (size_t b = graph_.buckets.size(); b-- > 0;) {  // the last bucket begins the flat space
    const int64_t offset = graph_.arenas.offset[static_cast<size_t>(partials_[b])];
    const auto* values =
        reinterpret_cast<const double*>(arenas_[static_cast<size_t>(Place::kDram)]->at(offset));
    for (int64_t i = 0; i < graph_.buckets[b].segments; ++i) sum += values[i];
  }
  return sum;
}

void HostDevice::restore_partials(int32_t step) {
  for (const Op& op : graph_.step.ops) {
    const bool norm = op.kind == OpKind::kSumOfSquares;
    const bool home = op.kind == OpKind::kCopy &&
                      find(op, Role::kSource, step).tensor->kind == TensorKind::kNormPartials;
    if (norm) sum_of_squares(op, step);
    if (home) copy(op, step);
  }
}

void HostDevice::snapshot(const Op& op, int32_t step) {
  std::byte* record = find(op, Role::kUndoRecord, step).data;
  for (const Role role : {Role::kMaster, Role::kMoment1, Role::kMoment2}) {
    const Argument state = find(op, role, step);
    const auto size = static_cast<size_t>(state.tensor->bytes().count);
    std::memcpy(record, state.data, size);
    record += size;
  }
}

void HostDevice::undo(const Op& op, int32_t step) {
  if (std::get<BucketWork>(op.work).exact_undo) return exact_undo(op, step);
  const std::byte* record = find(op, Role::kUndoRecord, step).data;
  for (const Role role : {Role::kMaster, Role::kMoment1, Role::kMoment2}) {
    const Argument state = find(op, role, step);
    const auto size = static_cast<size_t>(state.tensor->bytes().count);
    std::memcpy(state.data, record, size);
    record += size;
  }
}

HostDevice::BucketArguments HostDevice::bucket_arguments(const Op& op, int32_t step) const {
  return {find(op, Role::kMaster, step),  find(op, Role::kMoment1, step),
          find(op, Role::kMoment2, step), find(op, Role::kUndoRecord, step),
          all(op, Role::kGradient, step), all(op, Role::kDestination, step)};
}

kernels::AdamArrays HostDevice::arrays_of(const BucketArguments& arguments, const Run& run) const {
  kernels::AdamArrays arrays;
  arrays.master = reinterpret_cast<float*>(element(arguments.master, run.bucket_begin));
  arrays.moment1 = reinterpret_cast<float*>(element(arguments.moment1, run.bucket_begin));
  arrays.moment2 = reinterpret_cast<float*>(element(arguments.moment2, run.bucket_begin));
  // Gradients come as one landed bucket, or as those of the modules themselves.
  const auto piece = static_cast<size_t>(run.piece);
  const bool packed = arguments.gradients.front().tensor->label.bucket >= 0;
  const Argument& gradient = packed ? arguments.gradients.front() : arguments.gradients[piece];
  arrays.gradient = element(gradient, packed ? run.bucket_begin : run.module_begin);
  arrays.gradient_format = format_of(gradient.tensor->dtype);
  if (!arguments.weights.empty()) {
    arrays.weights = element(arguments.weights[piece], run.module_begin);
    arrays.weights_format = format_of(arguments.weights[piece].tensor->dtype);
  }
  arrays.count = run.count;
  return arrays;
}

void HostDevice::adam(const Op& op, int32_t step, bool redo) {
  const std::optional<kernels::AdamConstants> decided =
      redo ? control_.redo_constants() : control_.constants(step);
  if (!decided) return restore_weights(op, step);
  const BucketArguments arguments = bucket_arguments(op, step);
  const auto bucket = static_cast<size_t>(op.label.bucket);
  const bool on_gpu = bucket_of(op).site == Site::kGpu;
  for (size_t i = 0; i < runs_[bucket].size(); ++i) {
    const Run& run = runs_[bucket][i];
    const kernels::AdamArrays arrays = arrays_of(arguments, run);
    kernels::AdamConstants constants = *decided;
    if (!run.decays) constants.weight_decay = 0;
    if (arguments.undo.tensor == nullptr) {
      if (on_gpu) {
        table_.adam_step(arrays, constants);
      } else {
        kernels::adam_step(workers_, table_, arrays, constants);
      }
    } else if (on_gpu) {  // the lane's own thread, as every kernel of the "GPU"
      kernels::UndoRecord& record = undo_[bucket][i];
      for (int64_t tile = 0; tile < record.tiles(); ++tile) {
        record.step_tile(table_, arrays, constants, tile);
      }
    } else {
      kernels::adam_step_with_undo(workers_, table_, arrays, constants, undo_[bucket][i]);
    }
  }
}

// An update that is left out still owes the GPU's weights: those of a speculative step that was
// taken back, or the second copy of a delayed one.
void HostDevice::restore_weights(const Op& op, int32_t step) {
  const BucketArguments arguments = bucket_arguments(op, step);
  if (arguments.weights.empty()) return;
  for (const Run& run : runs_[static_cast<size_t>(op.label.bucket)]) {
    const kernels::AdamArrays arrays = arrays_of(arguments, run);
    table_.cast(arrays.master, kernels::Format::kF32, arrays.weights, arrays.weights_format,
                arrays.count);
  }
}

void HostDevice::exact_undo(const Op& op, int32_t step) {
  const BucketArguments arguments = bucket_arguments(op, step);
  const auto bucket = static_cast<size_t>(op.label.bucket);
  const bool on_gpu = bucket_of(op).site == Site::kGpu;
  for (size_t i = 0; i < runs_[bucket].size(); ++i) {
    const Run& run = runs_[bucket][i];
    kernels::AdamConstants constants = control_.undone_constants();
    if (!run.decays) constants.weight_decay = 0;
    const kernels::AdamArrays arrays = arrays_of(arguments, run);
    const kernels::UndoRecord& record = undo_[bucket][i];
    if (on_gpu) {
      for (int64_t tile = 0; tile < record.tiles(); ++tile) {
        record.undo_tile(table_, arrays, constants, tile);
      }
    } else {
      kernels::adam_undo(workers_, table_, arrays, constants, record);
    }
  }
}

void HostDevice::copy(const Op& op, int32_t step) {
  const std::vector<Argument> sources = all(op, Role::kSource, step);
  const std::vector<Argument> destinations = all(op, Role::kDestination, step);
  if (op.phase == Phase::kFetch) return fetch(sources, destinations.front());
  const bool home = kind_of(op.lane) == LaneKind::kUpload;
  if (home) return copy_stationary(op, sources.front(), destinations);
  std::memcpy(destinations.front().data, sources.front().data,
              static_cast<size_t>(sources.front().tensor->bytes().count));
}

// A flowing module, gathered from the buckets that hold it.
void HostDevice::fetch(const std::vector<Argument>& sources, const Argument& destination) {
  for (const Argument& source : sources) {
    const Bucket& bucket = graph_.buckets[static_cast<size_t>(source.tensor->label.bucket)];
    const Bucket::Piece& piece = piece_of(bucket, *destination.tensor);
    CHECK(source.tensor->dtype == destination.tensor->dtype);
    std::memcpy(element(destination, piece.begin), element(source, piece.offset),
                byte_count(piece.count, source.tensor->dtype));
  }
}

// Stepped weights of a bucket, those that flow left out: into the staging area one after another,
// or straight to where each module keeps them.
void HostDevice::copy_stationary(const Op& op, const Argument& source,
                                 const std::vector<Argument>& destinations) {
  const Bucket& bucket = bucket_of(op);
  if (destinations.front().tensor->kind == TensorKind::kWeight) {
    for (const Argument& weight : destinations) {
      const Bucket::Piece& piece = piece_of(bucket, *weight.tensor);
      std::memcpy(element(weight, piece.begin), element(source, piece.offset),
                  byte_count(piece.count, source.tensor->dtype));
    }
    return;
  }
  int64_t begin = 0;
  for (const Bucket::Piece& piece : bucket.pieces) {
    if (stationary_weight_[static_cast<size_t>(piece.module)] < 0) continue;
    std::memcpy(element(destinations.front(), begin), element(source, piece.offset),
                byte_count(piece.count, source.tensor->dtype));
    begin += piece.count;
  }
}

void HostDevice::spread_weights() {
  for (const Bucket& bucket : graph_.buckets) {
    const std::span<std::byte> master = bytes(bucket.master);
    if (bucket.weights >= 0) {
      table_.cast(master.data(), kernels::Format::kF32, bytes(bucket.weights).data(),
                  format_of(plan_.dtype), bucket.count);
    }
    for (const Bucket::Piece& piece : bucket.pieces) {
      const TensorId weight = stationary_weight_[static_cast<size_t>(piece.module)];
      if (weight < 0) continue;
      for (int copy = 0; copy < graph_.tensors[static_cast<size_t>(weight)].copies; ++copy) {
        table_.cast(master.data() + piece.offset * size_of(DType::kF32), kernels::Format::kF32,
                    bytes(weight, copy).data() + piece.begin * size_of(plan_.dtype),
                    format_of(plan_.dtype), piece.count);
      }
    }
  }
}

}  // namespace ballast
