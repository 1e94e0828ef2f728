#include <fmt/format.h>

#include "sim/graph/core/edit.h"
#include "sim/graph/core/graph.h"

namespace ballast {

namespace {

// The name of an enumeration's value, from the names of all in their order. With a name too few or
// too many it does not compile.
template <int kValues, class Enum, size_t kNames>
std::string_view name_in(const std::array<std::string_view, kNames>& names, Enum value) {
  static_assert(kNames == static_cast<size_t>(kValues), "one name for every value");
  const auto index = static_cast<size_t>(value);
  CHECK(index < kNames);
  return names[index];
}

template <class... Text>
constexpr std::array<std::string_view, sizeof...(Text)> names_of(const Text&... names) {
  return {names...};
}

std::string describe(const Label& label) {
  std::string text;
  if (label.bucket >= 0) return fmt::format(" bucket {}", label.bucket);
  if (label.layer >= 0) text += fmt::format(" layer {}", label.layer);
  text += fmt::format(" {}", to_string(label.module));
  constexpr std::array<std::string_view, 5> kParts = {"", " query down", " query up", " key down",
                                                      " key up"};
  text += kParts.at(static_cast<size_t>(label.part));
  if (label.micro_batch >= 0) text += fmt::format(" micro-batch {}", label.micro_batch);
  if (label.subsequence >= 0) text += fmt::format(" subsequence {}", label.subsequence);
  if (label.loss_chunk >= 0) text += fmt::format(" loss chunk {}", label.loss_chunk);
  return text;
}

struct KeyOfWork {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(const GemmWork& w) const {
    std::string text = fmt::format(" m={} n={} k={} {}{}", w.m, w.n, w.k, to_string(w.dtype),
                                   w.accumulate ? " accumulate" : "");
    if (w.experts > 0) {
      text += fmt::format(" {}={}", w.by_expert ? "experts, one by one" : "experts", w.experts);
    }
    if (w.wide_output) text += " to fp32";
    if (w.sums_bias) text += " summing the bias gradient";
    if (w.format != ProductFormat::kFp8) return text;
    text += " in fp8";
    // Keys of what Ballast rounds itself are those of measurements in stores.
    if (w.rounding != Rounding::kJustInTime)
      text += fmt::format(" rounding {}", to_string(w.rounding));
    return text.append(to_string(w.weight_codes));
  }
  std::string operator()(const AttentionWork& w) const {
    std::string text =
        fmt::format(" sequences={} length={} heads={} kv_heads={} head_size={} {}{}", w.sequences,
                    w.length, w.heads, w.kv_heads, w.head_size, to_string(w.dtype),
                    w.kind == AttentionKind::kEager ? " eager" : "");
    if (w.tokens_before > 0) text += fmt::format(" after={}", w.tokens_before);
    if (w.window > 0) text += fmt::format(" window={}", w.window);
    if (w.is_helped) text += " helped";
    return text;
  }
  std::string operator()(const RowWork& w) const {
    return fmt::format(" rows={} columns={} {}", w.rows, w.columns, to_string(w.dtype));
  }
  std::string operator()(const BucketWork& w) const {
    return fmt::format(" elements={} {} to {} on {}{}{}", w.elements, to_string(w.from),
                       to_string(w.to), w.site == Site::kGpu ? "gpu" : "cpu",
                       w.exact_undo ? " exact undo" : "", across_link(w));
  }
  std::string operator()(const CopyWork& w) const {
    std::string text = fmt::format(
        " bytes={} {}", w.bytes.count,
        w.direction == CopyDirection::kHostToDevice ? "host to device" : "device to host");
    // Keys of pinned copies in one call are those of measurements in stores.
    if (w.host == HostMemory::kPageable) text += " pageable";
    if (w.calls > 1) text += fmt::format(" calls={}", w.calls);
    return text;
  }
  std::string operator()(const CollectiveWork& w) const {
    std::string text = fmt::format(" {} bytes={} ranks={} stride={}", to_string(w.kind),
                                   w.bytes.count, w.ranks, w.stride);
    if (w.once.experts > 0) {
      text += fmt::format(" once of {} in {}", w.once.per_token, w.once.experts);
    }
    if (w.multiprocessors > 0) text += fmt::format(" multiprocessors={}", w.multiprocessors);
    return text;
  }
  std::string operator()(const IoWork& w) const {
    return fmt::format(" bytes={} {}", w.bytes.count,
                       w.direction == IoDirection::kRead ? "read" : "write");
  }
  std::string operator()(const BlockWork& w) const {
    return fmt::format(" block={}{}", w.block, w.is_shared ? " shared" : "");
  }
};

}  // namespace

bool crosses_link(const BucketWork& work) { return work.from_host.count + work.to_host.count > 0; }

std::string_view across_link(const BucketWork& work) {
  if (work.from_host.count > 0) return work.to_host.count > 0 ? " from and to host" : " from host";
  return work.to_host.count > 0 ? " to host" : "";
}

std::string_view to_string(LaneKind kind) {
  static constexpr auto names =
      names_of("compute", "copy-in", "copy-out", "upload", "cpu", "check", "tensor-network",
               "sequence-network", "expert-network", "data-network", "pipeline-network",
               "nvme-read", "nvme-write");
  return name_in<kLaneKinds>(names, kind);
}

std::string_view to_string(Place place) {
  static constexpr auto names = names_of("hbm", "dram", "nvme");
  return name_in<kPlaces>(names, place);
}

std::string_view to_string(Category category) {
  static constexpr auto names = names_of("weights", "gradients", "master", "moments", "activations",
                                         "workspace", "staging", "snapshot", "data");
  return name_in<kCategories>(names, category);
}

std::string_view to_string(OpKind kind) {
  static constexpr auto names =
      names_of("load_batch", "embedding", "norm", "gemm", "attention", "activation", "loss", "pack",
               "unpack", "cast", "sum_of_squares", "decide", "commit", "snapshot", "adam", "undo",
               "copy", "collective", "io", "scale", "block", "permute", "combine");
  return name_in<kOpKinds>(names, kind);
}

std::string_view to_string(CollectiveKind kind) {
  static constexpr auto names = names_of("all-reduce", "reduce-scatter", "all-gather", "all-to-all",
                                         "broadcast", "send-receive");
  return name_in<kCollectiveKinds>(names, kind);
}

std::string_view to_string(Phase phase) {
  static constexpr auto names =
      names_of("forward", "recompute", "backward", "backward_input", "backward_weight", "optimizer",
               "fetch", "offload", "reload");
  return name_in<kPhases>(names, phase);
}

std::string_view to_string(TensorKind kind) {
  static constexpr auto names = names_of(
      "tokens", "weight", "gradient", "output", "norm statistics", "log-sum-exp", "output gradient",
      "host output", "packed gradient", "arriving weights", "bucket gradient",
      "bucket gradient fp32", "bucket weights", "master", "moment1", "moment2", "undo record",
      "norm partials", "decision", "repair staging", "scores", "mask", "gathered", "partial sum",
      "full gradient", "reduced gradient", "state", "saved", "codes", "routing", "balance",
      "keys and values", "gradient of keys and values");
  return name_in<kTensorKinds>(names, kind);
}

std::string describe(const Op& op) {
  return fmt::format("{} {}{}", to_string(op.kind), to_string(op.phase), describe(op.label));
}

std::string describe(const Tensor& tensor) {
  // A token holds no value, of a sum or else; one that two operations hand on is of no module.
  const bool token = tensor.kind == TensorKind::kPartial && tensor.elements == 1;
  const std::string_view kind = token ? "order token" : to_string(tensor.kind);
  return fmt::format("{}{} [{} {}] in {}", kind, is_token(tensor) ? "" : describe(tensor.label),
                     tensor.elements, to_string(tensor.dtype), to_string(tensor.place));
}

std::string_view cost_phase(const Op& op) {
  // What ranks exchange costs the same whenever they do.
  if (std::holds_alternative<CollectiveWork>(op.work)) return "";
  switch (op.phase) {
    case Phase::kForward:
    case Phase::kRecompute:
      return " forward";
    case Phase::kBackward:
      return " backward";
    case Phase::kBackwardInput:
      return " backward_input";
    case Phase::kBackwardWeight:
      return " backward_weight";
    default:
      return "";
  }
}

std::string cost_key(const Op& op) {
  return fmt::format("{}{}{}", to_string(op.kind), cost_phase(op),
                     std::visit(KeyOfWork{}, op.work));
}

Flops flops_of(const Work& work) {
  if (const auto* gemm = std::get_if<GemmWork>(&work)) {
    return {2.0 * static_cast<double>(gemm->m) * static_cast<double>(gemm->n) *
            static_cast<double>(gemm->k)};
  }
  if (const auto* attention = std::get_if<AttentionWork>(&work)) return attention->flops;
  if (const auto* row = std::get_if<RowWork>(&work)) return row->flops;
  return {0};
}

Bytes product_bytes(const GemmWork& work) {
  const DType factors = work.format == ProductFormat::kFp8 ? DType::kE4m3 : work.dtype;
  const DType output = work.wide_output ? DType::kF32 : work.dtype;
  return bytes_of((work.m + work.n) * work.k, factors) + bytes_of(work.m * work.n, output);
}

Bytes rounding_bytes(const GemmWork& work, int64_t layouts) {
  if (work.format != ProductFormat::kFp8) return {};
  const int64_t first = work.m * work.k;
  const int64_t second = work.n * work.k;
  // One pass reads values and writes their codes row by row and, where needed, column by column.
  const auto in_layouts = [&](int64_t elements) {
    return bytes_of(elements, work.dtype) + bytes_of(elements, DType::kE4m3) * layouts;
  };
  const auto just_in_time = [&](int64_t elements) {
    return bytes_of(elements, work.dtype) * 2 + bytes_of(elements, DType::kE4m3);
  };
  const auto of_second = [&]() -> Bytes {
    if (work.weight_codes == WeightCodes::kTakes) return {};
    if (work.weight_codes == WeightCodes::kOwn) return just_in_time(second);
    // In both orders, whichever the GPU's products want.
    return bytes_of(second, work.dtype) * 2 + bytes_of(second, DType::kE4m3) * 2;
  };
  switch (work.rounding) {
    case Rounding::kJustInTime:
      return just_in_time(first) + of_second();
    case Rounding::kCurrent:
      return bytes_of(first, work.dtype) + in_layouts(first);
    case Rounding::kFirst:
      return in_layouts(first);
    case Rounding::kBoth:
      return in_layouts(first + second);
    case Rounding::kForNext:
      return bytes_of(first, work.dtype) + in_layouts(first) + of_second();
    case Rounding::kSecond:
      return of_second();
    case Rounding::kTransposed:
      return layouts == 1 ? Bytes{} : bytes_of(second, DType::kE4m3) * 2;
    case Rounding::kNone:
      return {};
  }
  CHECK(false);
}

int64_t rounding_passes(const GemmWork& work, int64_t layouts) {
  if (work.format != ProductFormat::kFp8) return 0;
  if (work.rounding == Rounding::kTransposed && layouts == 1) return 0;
  // In the order of Rounding. Between the pass for the largest value and that for the codes one
  // kernel makes the scale.
  constexpr std::array<int64_t, 8> kPasses = {4, 3, 1, 2, 4, 2, 1, 0};
  const int64_t of_second = work.weight_codes == WeightCodes::kTakes ? 2 : 0;
  return kPasses.at(static_cast<size_t>(work.rounding)) - of_second;
}

std::string_view to_string(Rounding rounding) {
  constexpr std::array<std::string_view, 8> kNames = {
      "just in time", "current", "first", "both", "for the next", "second", "transposed", "none"};
  return kNames.at(static_cast<size_t>(rounding));
}

std::string_view to_string(WeightCodes codes) {
  switch (codes) {
    case WeightCodes::kOwn:
      return "";
    case WeightCodes::kMakes:
      return " making codes of the weight";
    case WeightCodes::kTakes:
      return " taking codes of the weight";
  }
  CHECK(false);
}

Bytes bytes_of(const Work& work) {
  if (const auto* gemm = std::get_if<GemmWork>(&work)) {
    return product_bytes(*gemm) + rounding_bytes(*gemm);
  }
  if (const auto* attention = std::get_if<AttentionWork>(&work)) {
    return attention->moved + attention->passed;
  }
  if (const auto* row = std::get_if<RowWork>(&work)) return row->moved;
  if (const auto* bucket = std::get_if<BucketWork>(&work)) return bucket->moved;
  if (const auto* copy = std::get_if<CopyWork>(&work)) return copy->bytes;
  if (const auto* collective = std::get_if<CollectiveWork>(&work)) return collective->bytes;
  if (const auto* io = std::get_if<IoWork>(&work)) return io->bytes;
  return {0};
}

}  // namespace ballast
