#include "backend/execute/bucket_ranges.h"

#include "sim/graph/report/memory.h"

namespace ballast {

namespace {

// `count` values from element `from_index` on, to element `to_index` on.
CastRange cast_range(const Argument& from, int64_t from_index, const Argument& to, int64_t to_index,
                     int64_t count) {
  return {element(from, from_index), format_of(from.tensor->dtype), element(to, to_index),
          format_of(to.tensor->dtype), count};
}

// What a copy does of them, which keeps the type.
std::vector<CopyRange> copied(const std::vector<CastRange>& ranges) {
  std::vector<CopyRange> copies;
  for (const CastRange& range : ranges) {
    CHECK(range.from_format == range.to_format);
    copies.push_back({range.from, range.to, range.count * kernels::bytes_of(range.from_format)});
  }
  return copies;
}

CastRange whole_range(const Argument& from, const Argument& to) {
  return cast_range(from, 0, to, 0, from.tensor->elements);
}

std::vector<CastRange> marked(std::vector<CastRange> ranges, const Op& op) {
  const bool crosses = crosses_link(std::get<BucketWork>(op.work));
  for (CastRange& range : ranges) range.crosses_link = crosses;
  return ranges;
}

bool is_of_module(const Argument& argument) {
  const TensorKind kind = argument.tensor->kind;
  return kind == TensorKind::kWeight || kind == TensorKind::kGradient;
}

}  // namespace

BucketRanges::BucketRanges(const Graph& graph, const OperationArguments& arguments,
                           const RankShares* shares)
    : graph_(graph), arguments_(arguments), shares_(shares), modules_(graph) {
  for (size_t i = 0; i < graph.buckets.size(); ++i) {
    const auto bucket = static_cast<int32_t>(i);
    own_.push_back(shares == nullptr ? graph.bucket(bucket) : shares->own_bucket(bucket));
    runs_.push_back(runs_of(graph.modules, own_.back()));
    for (Run& run : runs_.back()) run.module_begin -= kept_before(run.module);
  }
  find_stationary_weights();
}

// A module's weights are stationary if its kWeight tensor carries its value from step to step; the
// copies that flow in have a life of their own.
void BucketRanges::find_stationary_weights() {
  stationary_weight_.assign(graph_.modules.size(), -1);
  const std::vector<Life> lives = lives_of(graph_);
  for (size_t t = 0; t < graph_.tensors.size(); ++t) {
    const Tensor& tensor = graph_.tensors[t];
    if (tensor.kind != TensorKind::kWeight || !lives[t].carried) continue;
    const int32_t module = modules_.of(tensor);
    if (module >= 0) stationary_weight_[static_cast<size_t>(module)] = static_cast<TensorId>(t);
  }
}

const Bucket& BucketRanges::bucket_of(const Op& op) const {
  CHECK(op.label.bucket >= 0);
  return graph_.buckets[static_cast<size_t>(op.label.bucket)];
}

const Bucket& BucketRanges::own_bucket_of(const Op& op) const {
  CHECK(op.label.bucket >= 0);
  return own_[static_cast<size_t>(op.label.bucket)];
}

// The piece of the bucket that belongs to the module of this weight or gradient.
const Bucket::Piece& BucketRanges::piece_of(const Bucket& bucket,
                                            const Tensor& module_tensor) const {
  const int32_t module = modules_.of(module_tensor);
  for (const Bucket::Piece& piece : bucket.pieces) {
    if (piece.module == module) return piece;
  }
  CHECK(false && "the bucket has no piece of this module");
  return bucket.pieces.front();
}

std::vector<CastRange> BucketRanges::pack(const Op& op, int32_t step) const {
  return marked(packed(op, step), op);
}

std::vector<CastRange> BucketRanges::unpack(const Op& op, int32_t step) const {
  const bool direct = std::get<BucketWork>(op.work).from_host.count > 0;
  return marked(direct ? brought(op, step) : unpacked(op, step), op);
}

std::vector<CastRange> BucketRanges::packed(const Op& op, int32_t step) const {
  const Bucket& bucket = bucket_of(op);
  const Argument packed = arguments_.find(op, Role::kDestination, step);
  std::vector<CastRange> ranges;
  for (const Argument& gradient : arguments_.all(op, Role::kSource, step)) {
    if (!is_of_module(gradient)) return {whole_range(gradient, packed)};
    const Bucket::Piece& piece = piece_of(bucket, *gradient.tensor);
    ranges.push_back(cast_range(gradient, piece.begin, packed, piece.offset, piece.count));
  }
  return ranges;
}

std::vector<CastRange> BucketRanges::unpacked(const Op& op, int32_t step) const {
  const Argument source = arguments_.find(op, Role::kSource, step);
  const std::vector<Argument> destinations = arguments_.all(op, Role::kDestination, step);
  if (op.phase == Phase::kFetch) {
    const Argument& weight = destinations.front();
    return {cast_range(source, 0, weight, 0, weight.tensor->elements)};
  }
  const Bucket& bucket = bucket_of(op);
  std::vector<CastRange> ranges;
  int64_t begin = 0;  // stationary pieces lie one after another in what arrived
  for (const Argument& weight : destinations) {
    const Bucket::Piece& piece = piece_of(bucket, *weight.tensor);
    ranges.push_back(cast_range(source, begin, weight, piece.begin, piece.count));
    begin += piece.count;
  }
  return ranges;
}

CastRange BucketRanges::cast(const Op& op, int32_t step) const {
  const Argument source = arguments_.find(op, Role::kSource, step);
  const Argument destination = arguments_.find(op, Role::kDestination, step);
  return cast_range(source, 0, destination, 0, destination.tensor->elements);
}

std::vector<SumRange> BucketRanges::sums(const Op& op, int32_t step) const {
  auto* sums = reinterpret_cast<double*>(arguments_.find(op, Role::kNormPartials, step).data);
  if (is_split()) return sums_of_share(op, step, sums);
  const Bucket& bucket = bucket_of(op);
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  const bool packed = sources.front().tensor->label.bucket >= 0;
  std::vector<SumRange> ranges;
  int64_t segment = 0;
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Bucket::Piece& piece = bucket.pieces[i];
    const Argument& source = packed ? sources.front() : sources[i];
    ranges.push_back({element(source, packed ? piece.offset : piece.begin),
                      format_of(source.tensor->dtype), piece.count, sums + segment});
    segment += div_ceil(piece.count, kSegment);
  }
  CHECK(segment == bucket.segments);
  return ranges;
}

std::vector<SumRange> BucketRanges::sums_of_share(const Op& op, int32_t step, double* sums) const {
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  const kernels::Format format = format_of(sources.front().tensor->dtype);
  std::vector<SumRange> ranges;
  for (const SegmentRange& segment : shares_->own_segments(op.label.bucket)) {
    if (!segment.whole()) continue;
    ranges.push_back({values_at(sources, segment), format, segment.all.count, sums++});
  }
  return ranges;
}

std::vector<BucketRanges::OwnSegment> BucketRanges::own_segments(const Op& op, int32_t step) const {
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  std::vector<OwnSegment> own;
  for (const SegmentRange& segment : shares_->own_segments(op.label.bucket)) {
    own.push_back({segment, values_at(sources, segment)});
  }
  return own;
}

std::vector<CutRange> BucketRanges::cuts(const Op& op, int32_t step) const {
  std::vector<CutRange> ranges;
  if (!is_split()) return ranges;
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  for (const SegmentRange& segment : shares_->own_segments(op.label.bucket)) {
    if (segment.whole()) continue;
    ranges.push_back({values_at(sources, segment), segment.here.count});
  }
  return ranges;
}

bool BucketRanges::is_split() const { return shares_ != nullptr && shares_->are_split(); }

int64_t BucketRanges::kept_before(int32_t module) const {
  return shares_ == nullptr ? 0 : shares_->own_of_module(module).begin;
}

std::byte* BucketRanges::values_at(const std::vector<Argument>& sources,
                                   const SegmentRange& segment) const {
  if (!is_of_module(sources.front())) return element(sources.front(), segment.offset);
  return element(sources[static_cast<size_t>(segment.piece)],
                 segment.here.begin - kept_before(segment.module));
}

std::byte* BucketRanges::part_at(const Bucket& bucket, const std::vector<Argument>& arguments,
                                 const SharePart& part, Of owner) {
  if (!is_of_module(arguments.front())) {
    return element(arguments.front(), owner == Of::kShare ? part.in_share : part.range.begin);
  }
  for (size_t i = 0; i < bucket.pieces.size(); ++i) {
    const Bucket::Piece& piece = bucket.pieces[i];
    const int64_t at = part.range.begin - piece.offset;
    if (at >= 0 && at < piece.count) return element(arguments[i], piece.begin + at);
  }
  CHECK(false && "outside of the bucket");
  return nullptr;
}

// A contribution is of the whole bucket, a sum of a share where it has a tensor of its own.
std::vector<SummedPart> BucketRanges::summed(const Op& op, int32_t step, Sort sort) const {
  if (shares_->are_of_modules()) return summed_modules(op, step, sort);
  const Bucket& bucket = bucket_of(op);
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  const std::vector<Argument> sums = arguments_.all(op, Role::kDestination, step);
  std::vector<SummedPart> parts;
  for (const SharePart& part : shares_->parts_of(op.label.bucket)) {
    if (part.sort != sort) continue;
    std::byte* const from = part_at(bucket, sources, part, Of::kBucket);
    std::byte* const to =
        is_own(part) && !sums.empty() ? part_at(bucket, sums, part, Of::kShare) : from;
    parts.push_back({part.owner, from, to, part.range.count});
  }
  return parts;
}

// A source is of a share; where there is none, each rank's lies where it goes.
std::vector<GatheredPart> BucketRanges::gathered(const Op& op, int32_t step, Sort sort) const {
  if (shares_->are_of_modules()) return gathered_modules(op, step, sort);
  const Bucket& bucket = bucket_of(op);
  const bool in_place = op.kind == OpKind::kCollective &&
                        std::get<CollectiveWork>(op.work).kind == CollectiveKind::kAllReduce;
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  const std::vector<Argument> destinations =
      in_place ? sources : arguments_.all(op, Role::kDestination, step);
  const int64_t size = size_of(destinations.front().tensor->dtype);
  std::vector<GatheredPart> parts;
  for (const SharePart& part : shares_->parts_of(op.label.bucket)) {
    if (part.sort != sort) continue;
    std::byte* const to = part_at(bucket, destinations, part, Of::kBucket);
    const bool staged = is_own(part) && !in_place && !sources.empty();
    std::byte* const from = staged ? part_at(bucket, sources, part, Of::kShare) : to;
    parts.push_back({part.owner, from, to, part.range.count * size});
  }
  return parts;
}

std::vector<BucketRanges::ShareRange> BucketRanges::shared_by_groups(const Op& op,
                                                                     int32_t step) const {
  std::vector<ShareRange> ranges;
  if (shares_->are_of_modules()) {
    for (const Argument& own : arguments_.all(op, Role::kParameterGradient, step)) {
      const ElementRange share = shares_->own_of_module(modules_.of(*own.tensor));
      if (share.count > 0) ranges.push_back({own.data, share.count});
    }
    return ranges;
  }
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  for (const SharePart& part : shares_->parts_of(op.label.bucket)) {
    if (!is_own(part)) continue;
    ranges.push_back({part_at(bucket_of(op), sources, part, Of::kShare), part.range.count});
  }
  return ranges;
}

// Whole gradients of modules, and in the same order this rank's shares of their sums.
std::vector<SummedPart> BucketRanges::summed_modules(const Op& op, int32_t step, Sort sort) const {
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  const std::vector<Argument> sums = arguments_.all(op, Role::kParameterGradient, step);
  CHECK(sources.size() == sums.size());
  std::vector<SummedPart> parts;
  for (size_t i = 0; i < sources.size(); ++i) {
    const int32_t module = modules_.of(*sums[i].tensor);
    if (shares_->sort(module) != sort) continue;
    for (int rank = 0; rank < shares_->count(sort); ++rank) {
      const ElementRange share = shares_->of_module(module, rank);
      if (share.count == 0) continue;
      parts.push_back(
          {rank, element(sources[i], share.begin), sums[i].data, share.count, sums[i].adds});
    }
  }
  return parts;
}

std::vector<GatheredPart> BucketRanges::gathered_modules(const Op& op, int32_t step,
                                                         Sort sort) const {
  const std::vector<Argument> shares = arguments_.all(op, Role::kWeight, step);
  const std::vector<Argument> whole = arguments_.all(op, Role::kDestination, step);
  CHECK(shares.size() == whole.size());
  std::vector<GatheredPart> parts;
  for (size_t i = 0; i < shares.size(); ++i) {
    const int32_t module = modules_.of(*shares[i].tensor);
    if (shares_->sort(module) != sort) continue;
    for (int rank = 0; rank < shares_->count(sort); ++rank) {
      const ElementRange share = shares_->of_module(module, rank);
      if (share.count == 0) continue;
      parts.push_back({rank, shares[i].data, element(whole[i], share.begin),
                       share.count * size_of(whole[i].tensor->dtype)});
    }
  }
  return parts;
}

std::vector<CopyRange> BucketRanges::copies(const Op& op, int32_t step) const {
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  const std::vector<Argument> destinations = arguments_.all(op, Role::kDestination, step);
  const auto rests = [](const Argument& one) { return one.tensor->kind == TensorKind::kState; };
  if (rests(sources.front()) || rests(destinations.front())) return moves_of_state(op, step);
  const bool brings = op.phase == Phase::kFetch || kind_of(op.lane) == LaneKind::kUpload;
  if (brings) return copied(brought(op, step));
  const Argument& source = sources.front();
  return {{source.data, destinations.front().data, source.tensor->bytes().count}};
}

std::vector<CastRange> BucketRanges::brought(const Op& op, int32_t step) const {
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  const std::vector<Argument> destinations = arguments_.all(op, Role::kDestination, step);
  if (sources.front().tensor->kind == TensorKind::kBucketGradient) {
    return gradients_of(op, sources.front(), destinations);
  }
  if (op.phase == Phase::kFetch) return fetches(sources, destinations.front());
  if (shares_ != nullptr && shares_->are_of_buckets()) {
    return homecoming_of_share(op, sources.front(), destinations);
  }
  return homecoming(op, sources.front(), destinations);
}

// What pack() took there.
std::vector<CastRange> BucketRanges::gradients_of(const Op& op, const Argument& landed,
                                                  const std::vector<Argument>& gradients) const {
  std::vector<CastRange> ranges;
  for (const Argument& gradient : gradients) {
    if (!is_of_module(gradient)) return {whole_range(landed, gradient)};
    const Bucket::Piece& piece = piece_of(bucket_of(op), *gradient.tensor);
    ranges.push_back(cast_range(landed, piece.offset, gradient, piece.begin, piece.count));
  }
  return ranges;
}

// A flowing module, gathered from the buckets that hold it.
std::vector<CastRange> BucketRanges::fetches(const std::vector<Argument>& sources,
                                             const Argument& destination) const {
  std::vector<CastRange> ranges;
  for (const Argument& source : sources) {
    const Bucket& bucket = graph_.buckets[static_cast<size_t>(source.tensor->label.bucket)];
    const Bucket::Piece& piece = piece_of(bucket, *destination.tensor);
    ranges.push_back(cast_range(source, piece.offset, destination, piece.begin, piece.count));
  }
  return ranges;
}

// Stepped weights of a bucket, those that flow left out: into the staging area one after another,
// or straight to where each module keeps them.
std::vector<CastRange> BucketRanges::homecoming(const Op& op, const Argument& source,
                                                const std::vector<Argument>& destinations) const {
  const Bucket& bucket = bucket_of(op);
  std::vector<CastRange> ranges;
  if (destinations.front().tensor->kind == TensorKind::kWeight) {
    for (const Argument& weight : destinations) {
      const Bucket::Piece& piece = piece_of(bucket, *weight.tensor);
      ranges.push_back(cast_range(source, piece.offset, weight, piece.begin, piece.count));
    }
    return ranges;
  }
  int64_t begin = 0;
  for (const Bucket::Piece& piece : bucket.pieces) {
    if (stationary_weight_[static_cast<size_t>(piece.module)] < 0) continue;
    ranges.push_back(cast_range(source, piece.offset, destinations.front(), begin, piece.count));
    begin += piece.count;
  }
  return ranges;
}

// Of a share, which is gathered then: into staging of its own, or among those of the other ranks.
std::vector<CastRange> BucketRanges::homecoming_of_share(
    const Op& op, const Argument& source, const std::vector<Argument>& destinations) const {
  const TensorKind kind = destinations.front().tensor->kind;
  const Of to = kind == TensorKind::kArriving ? Of::kShare : Of::kBucket;
  const Bucket& bucket = bucket_of(op);
  std::vector<CastRange> ranges;
  for (const SharePart& part : shares_->parts_of(op.label.bucket)) {
    if (!is_own(part)) continue;
    ranges.push_back({element(source, part.in_share), format_of(source.tensor->dtype),
                      part_at(bucket, destinations, part, to),
                      format_of(destinations.front().tensor->dtype), part.range.count});
  }
  return ranges;
}

// What rests holds the arrays one after another, in the order of their accesses (home_of).
std::vector<CopyRange> BucketRanges::moves_of_state(const Op& op, int32_t step) const {
  const std::vector<Argument> sources = arguments_.all(op, Role::kSource, step);
  const std::vector<Argument> destinations = arguments_.all(op, Role::kDestination, step);
  const bool in = sources.front().tensor->kind == TensorKind::kState;
  const Argument& rest = in ? sources.front() : destinations.front();
  CHECK(rest.tensor->kind == TensorKind::kState);
  std::vector<CopyRange> ranges;
  int64_t begin = 0;
  for (const Argument& array : in ? destinations : sources) {
    const int64_t bytes = array.tensor->bytes().count;
    std::byte* const resting = rest.data + begin;
    ranges.push_back(in ? CopyRange{resting, array.data, bytes}
                        : CopyRange{array.data, resting, bytes});
    begin += bytes;
  }
  CHECK(begin <= rest.tensor->bytes().count);
  return ranges;
}

std::vector<CopyRange> BucketRanges::snapshot(const Op& op, int32_t step) const {
  std::byte* record = arguments_.find(op, Role::kUndoRecord, step).data;
  std::vector<CopyRange> ranges;
  for (const Role role : {Role::kMaster, Role::kMoment1, Role::kMoment2}) {
    const Argument state = arguments_.find(op, role, step);
    const int64_t bytes = state.tensor->bytes().count;
    if (op.kind == OpKind::kUndo) {
      ranges.push_back({record, state.data, bytes});
    } else {
      ranges.push_back({state.data, record, bytes});
    }
    record += bytes;
  }
  return ranges;
}

std::vector<StepRange> BucketRanges::steps(const Op& op, int32_t step) const {
  const Argument master = arguments_.find(op, Role::kMaster, step);
  const Argument moment1 = arguments_.find(op, Role::kMoment1, step);
  const Argument moment2 = arguments_.find(op, Role::kMoment2, step);
  const std::vector<Argument> gradients = arguments_.all(op, Role::kGradient, step);
  const std::vector<Argument> weights = arguments_.all(op, Role::kDestination, step);
  // Gradients come as one landed bucket, or as those of the modules themselves.
  const bool packed = gradients.front().tensor->label.bucket >= 0;
  const bool bf16 = moment1.tensor->dtype == DType::kBf16;
  CHECK(moment1.tensor->dtype == moment2.tensor->dtype);
  CHECK(bf16 || moment1.tensor->dtype == DType::kF32);
  std::vector<StepRange> ranges;
  for (const Run& run : runs(op.label.bucket)) {
    const auto piece = static_cast<size_t>(run.piece);
    const Argument& gradient = packed ? gradients.front() : gradients[piece];
    kernels::AdamArrays arrays;
    arrays.master = reinterpret_cast<float*>(element(master, run.bucket_begin));
    kernels::Bf16Moments narrow;
    std::byte* const first = element(moment1, run.bucket_begin);
    std::byte* const second = element(moment2, run.bucket_begin);
    if (bf16) {
      narrow = {reinterpret_cast<uint16_t*>(first), reinterpret_cast<uint16_t*>(second)};
    } else {
      arrays.moment1 = reinterpret_cast<float*>(first);
      arrays.moment2 = reinterpret_cast<float*>(second);
    }
    arrays.gradient = element(gradient, packed ? run.bucket_begin : run.module_begin);
    arrays.gradient_format = format_of(gradient.tensor->dtype);
    if (!weights.empty()) {
      arrays.weights = element(weights[piece], run.module_begin);
      arrays.weights_format = format_of(weights[piece].tensor->dtype);
    }
    arrays.count = run.count;
    ranges.push_back({arrays, narrow, run.decays});
  }
  return ranges;
}

std::vector<BucketRanges::SpreadPiece> BucketRanges::spread(const Bucket& bucket) const {
  std::vector<SpreadPiece> pieces;
  for (const Bucket::Piece& piece : bucket.pieces) {
    const TensorId weight = stationary_weight_[static_cast<size_t>(piece.module)];
    if (weight >= 0) pieces.push_back({piece.offset, piece.count, weight, piece.begin});
  }
  return pieces;
}

}  // namespace ballast
