// Pass `accumulate`: gradients of a step's micro-batches that add up in CPU memory (ZeRO-Offload,
// arXiv 2101.06840; DeepSpeed, runtime/zero/stage_1_and_2.py,
// async_accumulate_grad_in_cpu_via_gpu). What the CPU steps then needs room on the GPU for the
// gradients on their way only.
//
//   first micro-batch    pack -> copy out -> sum
//   those between        sum -> copy in -> pack (adds) -> copy out -> sum
//   last                 sum -> copy in -> pack (adds) -> as without this pass
//
// The sum has the type of the weights, or 32 bits where the plan asks for that, and adds up on the
// GPU: only copies touch CPU memory. Where stage 3 keeps a sum in CPU memory anyway
// (StackFacts::stage3_returns_gradients) it is that one; what a rank scatters is its share of it.
#include <algorithm>
#include <vector>

#include "sim/graph/build.h"
#include "sim/graph/core/edit.h"
#include "sim/graph/core/module_index.h"

namespace ballast {

namespace {

class Accumulate {
 public:
  Accumulate(Graph& graph, const Plan& plan, const StackFacts& facts)
      : graph_(graph),
        plan_(plan),
        returns_(returns_gradients(graph, facts)),
        last_(static_cast<int16_t>(plan.accumulation() - 1)) {}

  void run() {
    find_gradients();
    std::vector<std::vector<size_t>> of_micro_batch(static_cast<size_t>(last_) + 1);
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      const Op& op = graph_.step.ops[i];
      CHECK(op.label.micro_batch <= last_);
      if (op.kind == OpKind::kCollective && op.label.micro_batch < 0) add_scattered(i);
      if (op.label.micro_batch < 0 || op.kind == OpKind::kPack) continue;
      of_micro_batch[static_cast<size_t>(op.label.micro_batch)].push_back(i);
    }
    for (int16_t m = 0; m <= last_; ++m) separate(m, of_micro_batch[static_cast<size_t>(m)]);
    for (size_t i = 0; i < graph_.step.ops.size(); ++i) {
      const Op& op = graph_.step.ops[i];
      if (op.kind == OpKind::kPack && op.label.bucket >= 0) extend(i);
    }
    graph_.step.ops = insertions_.apply(std::move(graph_.step.ops));
  }

 private:
  struct Part {
    TensorId tensor = -1;
    size_t last = 0;  // operation that writes it
  };

  // Gradients of modules that the CPU steps whole. A module that is cut between CPU and GPU adds up
  // on the GPU, where its parts are stepped together. (Where all gradients leave and return, all of
  // them.)
  void find_gradients() {
    std::vector<bool> on_cpu(graph_.modules.size(), true);
    for (const Bucket& bucket : graph_.buckets) {
      if (bucket.site == Site::kCpu || returns_) continue;
      for (const Bucket::Piece& piece : bucket.pieces) {
        on_cpu[static_cast<size_t>(piece.module)] = false;
      }
    }
    const ModuleIndex modules(graph_.modules);
    gradient_of_.assign(graph_.tensors.size(), -1);
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      if (tensor.kind != TensorKind::kGradient) continue;
      const int32_t module = modules.of(tensor.label);
      if (module < 0 || !on_cpu[static_cast<size_t>(module)]) continue;
      gradient_of_[t] = std::ssize(parts_);
      parts_.emplace_back();
    }
  }

  // Of a gradient that adds up, those of the micro-batches so far; null of other tensors.
  std::vector<Part>* parts_of(TensorId gradient) {
    const auto id = static_cast<size_t>(gradient);
    if (id >= gradient_of_.size() || gradient_of_[id] < 0) return nullptr;
    return &parts_[static_cast<size_t>(gradient_of_[id])];
  }

  // A micro-batch's own gradients: written anew by its first operation, and but for the last
  // micro-batch in tensors of their own. `operations`: the micro-batch's, in order.
  void separate(int16_t micro_batch, const std::vector<size_t>& operations) {
    for (const size_t i : operations) {
      Op& op = graph_.step.ops[i];
      for (Access& access : op.accesses) {
        std::vector<Part>* const parts = parts_of(access.tensor);
        if (parts == nullptr || access.role != Role::kParameterGradient) continue;
        const bool is_first = parts->size() <= static_cast<size_t>(micro_batch);
        write_part(access, *parts, is_first, i);
        auto* const gemm = std::get_if<GemmWork>(&op.work);
        if (is_first && gemm != nullptr) gemm->accumulate = false;
      }
    }
  }

  // Stage 3: ranks reduce a gradient of every micro-batch once, in their order, and those that
  // hold the same share then add theirs up. (What stages of a pipeline sum at the end of a step was
  // not scattered.)
  void add_scattered(size_t operation) {
    Op& op = graph_.step.ops[operation];
    const bool begins = std::get<CollectiveWork>(op.work).kind == CollectiveKind::kReduceScatter;
    for (Access& access : op.accesses) {
      std::vector<Part>* const parts = parts_of(access.tensor);
      if (parts == nullptr || access.role != Role::kParameterGradient) continue;
      if (begins || !parts->empty()) write_part(access, *parts, begins, operation);
    }
  }

  // Makes `access` of a whole gradient that of its newest part, or of a new one.
  void write_part(Access& access, std::vector<Part>& parts, bool is_new, size_t operation) {
    if (is_new) {
      const bool is_last = std::ssize(parts) == last_;
      parts.push_back({is_last ? access.tensor : copy_of(access.tensor), operation});
      access.mode = AccessMode::kWrite;
    }
    parts.back().last = operation;
    access.tensor = parts.back().tensor;
  }

  TensorId copy_of(TensorId gradient) { return add_tensor(graph_, graph_.tensor(gradient)); }

  // The chains of the earlier micro-batches of one bucket, from its pack of the last one.
  void extend(size_t pack) {
    const Op original = graph_.step.ops[pack];
    const auto copy = std::find_if(
        graph_.step.ops.begin() + static_cast<std::ptrdiff_t>(pack), graph_.step.ops.end(),
        [&](const Op& op) { return op.kind == OpKind::kCopy && op.label == original.label; });
    const bool adds_up =
        std::all_of(original.accesses.begin(), original.accesses.end(), [&](const Access& access) {
          return access.role != Role::kSource || parts_of(access.tensor) != nullptr;
        });
    if (copy == graph_.step.ops.end() || !adds_up) return;
    const TensorId sum = sum_of(original.label.bucket, *copy);
    for (int16_t m = 0; m < last_; ++m) {
      size_t position = 0;
      Op packed = original;
      for (Access& access : packed.accesses) {
        if (access.role != Role::kSource) continue;
        const Part& part = parts_of(access.tensor)->at(static_cast<size_t>(m));
        access.tensor = part.tensor;
        position = std::max(position, part.last + 1);
      }
      const TensorId staging = leaving_of(original.label.bucket);
      for (Access& access : packed.accesses) {
        if (access.role == Role::kDestination) access.tensor = staging;
      }
      // Sums keep their type until the last micro-batch.
      BucketWork& work = std::get<BucketWork>(packed.work);
      work = elementwise(work.elements, work.from, sum_type(), Site::kGpu);
      if (m > 0) insertions_.before(position, bring(sum, packed));
      insertions_.before(position, packed);
      Op out = *copy;
      std::get<CopyWork>(out.work).bytes = bytes_of(work.elements, sum_type());
      out.accesses = {read(staging, Role::kSource),
                      returns_ ? update(sum, Role::kDestination) : write(sum, Role::kDestination)};
      insertions_.before(position, std::move(out));
    }
    Op in = bring(sum, graph_.step.ops[pack]);
    insertions_.before(pack, std::move(in));
  }

  // The copy of the sum to the GPU, which `pack` then reads as well.
  Op bring(TensorId sum, Op& pack) {
    const TensorId arriving = arriving_of(pack.label.bucket);
    Op in = pack;
    in.kind = OpKind::kCopy;
    in.lane = lane_of(0, LaneKind::kCopyIn);
    in.work = CopyWork{graph_.tensor(arriving).bytes(), CopyDirection::kHostToDevice};
    in.accesses = {read(sum, Role::kSource), write(arriving, Role::kDestination)};
    pack.accesses.push_back(read(arriving, Role::kScratch));
    std::get<BucketWork>(pack.work).moved += graph_.tensor(arriving).bytes();
    return in;
  }

  DType sum_type() const { return gradient_dtype(plan_, {}); }
  // Of one bucket, in the type of the sum. The whole of it leaves; `shard` divides the sum.
  Tensor part_of(int32_t bucket) const {
    Tensor tensor;
    tensor.dtype = sum_type();
    tensor.label.bucket = bucket;
    tensor.elements = graph_.bucket(bucket).count;
    return tensor;
  }
  TensorId leaving_of(int32_t bucket) {
    Tensor tensor = part_of(bucket);
    tensor.kind = TensorKind::kPacked;
    tensor.category = Category::kStaging;
    return add_tensor(graph_, tensor);
  }
  // What comes back is this rank's share.
  TensorId arriving_of(int32_t bucket) {
    const bool shared = plan_.zero_stage == 1 || plan_.zero_stage == 2;
    Tensor tensor = part_of(bucket);
    tensor.kind = TensorKind::kArriving;
    tensor.category = Category::kStaging;
    if (shared) tensor.elements = share_of_bucket(graph_, bucket, tensor.elements, plan_.sharing());
    return add_tensor(graph_, tensor);
  }
  TensorId sum_of(int32_t bucket, const Op& copy) {
    if (returns_) {
      const auto destination =
          std::find_if(copy.accesses.begin(), copy.accesses.end(),
                       [](const Access& access) { return access.role == Role::kDestination; });
      return destination->tensor;
    }
    Tensor tensor = part_of(bucket);
    tensor.kind = TensorKind::kBucketGradient;
    tensor.category = Category::kGradients;
    tensor.place = Place::kDram;
    return add_tensor(graph_, tensor);
  }

  Graph& graph_;
  const Plan& plan_;
  const bool returns_;
  int16_t last_;
  std::vector<int64_t> gradient_of_;      // by tensor: its place in parts_, or -1
  std::vector<std::vector<Part>> parts_;  // by gradient, of every micro-batch
  Insertions insertions_;
};

}  // namespace

Graph accumulate_pass(Graph graph, const Plan& plan, const StackFacts& facts) {
  Accumulate(graph, plan, facts).run();
  return graph;
}

}  // namespace ballast
