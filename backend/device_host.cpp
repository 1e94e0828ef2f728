#include "backend/device_host.h"

#include <fmt/format.h>

#include "sim/graph/memory.h"

namespace ballast {

namespace {

const kernels::Table& table_named(const std::string& name) {
  if (name == "best") return kernels::best();
  const kernels::Table* table = kernels::find(name);
  if (table == nullptr) {
    std::string known;
    for (const kernels::Table* t : kernels::available()) known += fmt::format(" {}", t->name);
    throw Error("optimizer.adam", fmt::format("'{}' does not run on this processor", name),
                "use best or one of:" + known);
  }
  return *table;
}

void refuse_what_cannot_run(const Model& model) {
  const std::pair<bool, const char*> reasons[] = {
      {model.qk_norm, "its heads normalise q and k (qwen3)"},
      {model.experts > 0, "it routes tokens to experts"},
      {model.is_latent(), "its attention is latent (deepseek_v3)"},
      {model.attention_sinks, "its attention has sinks (gpt_oss)"},
      {model.sliding_window > 0, "some of its layers see a window only"},
      {model.scaled_rope, "its rotary positions are scaled (rope_scaling)"}};
  for (const auto& [applies, reason] : reasons) {
    if (!applies) continue;
    throw Error("model " + model.name, fmt::format("{}, which the host device cannot run", reason),
                "predict it, or train a model without");
  }
}

}  // namespace

kernels::Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return kernels::Format::kBf16;
    case DType::kF16:
      return kernels::Format::kF16;
    default:
      CHECK(dtype == DType::kF32);
      return kernels::Format::kF32;
  }
}

HostDevice::HostDevice(const Model& model, const Plan& plan, const Graph& graph,
                       const TokenSource& data, const HostOptions& options,
                       const ControlState& state)
    : model_(model),
      plan_(plan),
      graph_(graph),
      data_(data),
      options_(options),
      table_(table_named(options.adam)),
      workers_(options.optimizer_threads, kernels::Pinning::kNone),
      control_(plan.optimizer.sync, plan.dtype, plan.accumulation(), options.optimizer, state,
               [this] { return sum_of_partials(); }) {
  refuse_what_cannot_run(model);
  if (plan.devices > 1) {
    throw Error("plan, devices", fmt::format("{} devices, and the host is one", plan.devices),
                "set devices to 1 to run it here");
  }
  for (size_t place = 0; place < kPlaces; ++place) {
    arenas_[place] = std::make_unique<Arena>(std::string(to_string(static_cast<Place>(place))),
                                             graph.arenas.size[place]);
  }
  for (const Bucket& bucket : graph.buckets) runs_.push_back(runs_of(graph.modules, bucket));
  find_tensors();
}

// A module's weights are stationary if its kWeight tensor carries its value from step to step; the
// copies that flow in have a life of their own.
void HostDevice::find_tensors() {
  partials_.assign(graph_.buckets.size(), -1);
  stationary_weight_.assign(graph_.modules.size(), -1);
  const std::vector<Life> lives = lives_of(graph_);
  for (size_t t = 0; t < graph_.tensors.size(); ++t) {
    const Tensor& tensor = graph_.tensors[t];
    if (tensor.kind == TensorKind::kNormPartials && tensor.place == Place::kDram) {
      partials_[static_cast<size_t>(tensor.label.bucket)] = static_cast<TensorId>(t);
    }
    if (tensor.kind == TensorKind::kUndoRecord && plan_.optimizer.undo == UndoKind::kExact) {
      find_undo_records(static_cast<TensorId>(t));
    }
    if (tensor.kind != TensorKind::kWeight || !lives[t].carried) continue;
    for (size_t i = 0; i < graph_.modules.size(); ++i) {
      const Module& module = graph_.modules[i];
      if (module.kind == tensor.label.module && module.layer == tensor.label.layer) {
        stationary_weight_[i] = static_cast<TensorId>(t);
      }
    }
  }
}

// One record a run, one after another in the bucket's tensor.
void HostDevice::find_undo_records(TensorId tensor) {
  const std::span<std::byte> raw = bytes(tensor);
  const auto bucket = static_cast<size_t>(graph_.tensors[static_cast<size_t>(tensor)].label.bucket);
  undo_.resize(graph_.buckets.size());
  size_t begin = 0;
  for (const Run& run : runs_[bucket]) {
    const int64_t size = kernels::UndoRecord::fixed_bytes(run.count, kernels::UndoForm::kRecord);
    const auto planned = static_cast<size_t>(undo_record_bytes(run).count);
    CHECK(static_cast<size_t>(size) <= planned && begin + planned <= raw.size());
    undo_[bucket].emplace_back(
        std::span(reinterpret_cast<uint8_t*>(raw.data() + begin), static_cast<size_t>(size)),
        run.count, kernels::UndoForm::kRecord);
    begin += planned;
  }
}

HostDevice::Argument HostDevice::argument(const Access& access, int32_t step) const {
  const Tensor& tensor = graph_.tensors[static_cast<size_t>(access.tensor)];
  const int64_t offset = graph_.arenas.offset[static_cast<size_t>(access.tensor)];
  CHECK(offset >= 0);
  const int64_t copy = (step + access.step_offset) % tensor.copies;
  std::byte* data =
      arenas_[static_cast<size_t>(tensor.place)]->at(offset + copy * tensor.bytes().count);
  return {data, &tensor, access.mode == AccessMode::kReadWrite};
}

HostDevice::Argument HostDevice::find(const Op& op, Role role, int32_t step) const {
  for (const Access& access : op.accesses) {
    if (access.role == role) return argument(access, step);
  }
  return {};
}

std::vector<HostDevice::Argument> HostDevice::all(const Op& op, Role role, int32_t step) const {
  std::vector<Argument> arguments;
  for (const Access& access : op.accesses) {
    if (access.role == role) arguments.push_back(argument(access, step));
  }
  return arguments;
}

std::span<std::byte> HostDevice::bytes(TensorId tensor, int copy) {
  const Tensor& t = graph_.tensors[static_cast<size_t>(tensor)];
  const int64_t offset = graph_.arenas.offset[static_cast<size_t>(tensor)];
  CHECK(offset >= 0 && copy < t.copies);
  return {arenas_[static_cast<size_t>(t.place)]->at(offset + copy * t.bytes().count),
          static_cast<size_t>(t.bytes().count)};
}

void HostDevice::execute(const Sequence& sequence, OpId id, int32_t step) {
  const Op& op = sequence.ops[static_cast<size_t>(id)];
  switch (op.kind) {
    case OpKind::kLoadBatch:
      return load_batch(op, step);
    case OpKind::kEmbedding:
      return embedding(op, step);
    case OpKind::kNorm:
      return norm(op, step);
    case OpKind::kGemm:
      return gemm(op, step);
    case OpKind::kAttention:
      return attention(op, step);
    case OpKind::kActivation:
      return activation(op, step);
    case OpKind::kLoss:
      return loss(op, step);
    case OpKind::kPack:
      return pack(op, step);
    case OpKind::kUnpack:
      return unpack(op, step);
    case OpKind::kCast:
      return cast(op, step);
    case OpKind::kSumOfSquares:
      return sum_of_squares(op, step);
    case OpKind::kDecide:
      return control_.decide(step);
    case OpKind::kSnapshot:
      return snapshot(op, step);
    case OpKind::kAdam:
      return adam(op, step, &sequence == &graph_.repair);
    case OpKind::kUndo:
      return undo(op, step);
    case OpKind::kCopy:
      return copy(op, step);
    case OpKind::kCommit:
    case OpKind::kCollective:
    case OpKind::kIo:
    case OpKind::kScale:
    case OpKind::kBlock:
      break;
  }
  CHECK(false && "not an operation of one host device");
}

double HostDevice::evaluate(int64_t batch, int32_t step) {
  split_ = Split::kValidation;
  const std::vector<Op>& ops = graph_.step.ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    const bool forward = ops[i].phase == Phase::kForward || ops[i].phase == Phase::kFetch;
    if (!forward || ops[i].label.micro_batch > 0) continue;
    if (ops[i].kind == OpKind::kLoadBatch) {
      load_batch(ops[i], static_cast<int32_t>(batch));
    } else {
      execute(graph_.step, static_cast<OpId>(i), step);
    }
  }
  split_ = Split::kTraining;
  return evaluated_loss_;
}

}  // namespace ballast
