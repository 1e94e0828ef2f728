#include "backend/cuda/libraries/cuda_attention.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "backend/cuda/cuda_launch.h"

namespace ballast {

namespace {

namespace cuda = kernels::cuda;

constexpr const char* kWorkspaceName = "the workspace of attention";

constexpr uintptr_t kRowAlignment = 16;  // of every row that a library reads

bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kRowAlignment == 0;
}

// Heads of a multiple of 16 bytes, so that all rows are aligned if the first is. One token attends
// to itself alone, which libraries leave out.
bool is_for_libraries(const cuda::AttentionShape& shape, kernels::Format format) {
  return format != kernels::Format::kF32 && shape.head_size % 8 == 0 && shape.length > 1 &&
         shape.sequences > 0;
}

bool reads_aligned(const cuda::AttentionForward& task) {
  return is_aligned(task.qkv.data) && is_aligned(task.out.data);
}
bool reads_aligned(const cuda::AttentionBackward& task) {
  return is_aligned(task.qkv.data) && is_aligned(task.out.data) && is_aligned(task.dout.data) &&
         is_aligned(task.dqkv.data);
}

constexpr AttentionDirection direction_of(const cuda::AttentionForward&) {
  return AttentionDirection::kForward;
}
constexpr AttentionDirection direction_of(const cuda::AttentionBackward&) {
  return AttentionDirection::kBackward;
}

int64_t rotated_width(const cuda::AttentionShape& shape) {
  return (shape.heads + shape.kv_heads) * shape.head_size;
}

template <class Task>
AttentionPass pass_of(const Task& task) {
  AttentionPass pass;
  pass.direction = direction_of(task);
  pass.shape = task.shape;
  pass.format = task.qkv.format;
  pass.query_stride = task.rope == nullptr ? task.shape.width() : rotated_width(task.shape);
  return pass;
}

template <class Pointer>
Pointer moved(Pointer base, int64_t values, kernels::Format format) {
  using Byte = std::conditional_t<std::is_same_v<Pointer, const void*>, const std::byte, std::byte>;
  if (base == nullptr) return nullptr;
  return static_cast<Byte*>(base) + values * bytes_of(format);
}

// Where a slice of a pass begins.
struct SliceStart {
  int64_t sequence = 0;
  int64_t kv_head = 0;
};

// Of the whole batch's arrays, those of a slice.
AttentionArrays arrays_at(const AttentionArrays& all, const AttentionPass& pass, SliceStart start) {
  const cuda::AttentionShape& shape = pass.shape;
  const int64_t token = start.sequence * shape.length;
  const int64_t kv = start.kv_head * shape.head_size;
  const int64_t head = kv * pass.group();
  AttentionArrays slice = all;
  slice.q = moved(all.q, token * pass.query_stride + head, pass.format);
  slice.k = moved(all.k, token * pass.query_stride + kv, pass.format);
  slice.v = moved(all.v, token * shape.width() + kv, pass.format);
  slice.out = moved(all.out, token * shape.heads * shape.head_size + head, pass.format);
  slice.dout = moved(all.dout, token * shape.heads * shape.head_size + head, pass.format);
  slice.dq = moved(all.dq, token * shape.width() + head, pass.format);
  slice.dk = moved(all.dk, token * shape.width() + kv, pass.format);
  slice.dv = moved(all.dv, token * shape.width() + kv, pass.format);
  slice.log_sum_exp = all.log_sum_exp +
                      (start.sequence * shape.heads + start.kv_head * pass.group()) * shape.length;
  return slice;
}

// q, k and v of packed rows; q and k from `rotated`, if not null.
template <class Task>
AttentionArrays inputs_of(const Task& task, const void* rotated) {
  const cuda::AttentionShape& shape = task.shape;
  const kernels::Format format = task.qkv.format;
  const void* base = rotated == nullptr ? task.qkv.data : rotated;
  AttentionArrays arrays;
  arrays.q = base;
  arrays.k = moved(base, shape.heads * shape.head_size, format);
  arrays.v = moved(task.qkv.data, rotated_width(shape), format);
  return arrays;
}

void run_slices(AttentionLibrary& library, const AttentionPass& pass, const AttentionArrays& all,
                CudaStream stream) {
  for (int64_t sequence = 0; sequence < pass.shape.sequences; sequence += pass.sequences) {
    for (int64_t head = 0; head < pass.shape.kv_heads; head += pass.kv_heads) {
      library.run(pass, arrays_at(all, pass, {sequence, head}), stream);
    }
  }
}

// q and k turned by their positions, in the task's scratch; null where nothing is to turn. Our own
// kernels keep at least as much there.
template <class Task>
const void* rotated(const Task& task, CudaStream stream) {
  if (task.rope == nullptr) return nullptr;
  cuda::Rotation rotation;
  rotation.shape = task.shape;
  rotation.qkv = task.qkv;
  rotation.rope = task.rope;
  rotation.rope_positions = task.rope_positions;
  rotation.to = task.scratch;
  check_launch(cuda::rotate(rotation, native_stream(stream)), stream);
  return task.scratch;
}

}  // namespace

CudaAttention::CudaAttention(CudaRuntime& runtime, OpenedAttention opened, AttentionMemory memory)
    : runtime_(runtime),
      library_(std::move(opened.library)),
      least_(memory.workspace),
      most_(std::max(memory.most, memory.workspace)) {
  if (!opened.why_not.empty()) notes_.push_back("attention by our kernels: " + opened.why_not);
  const Bytes bytes = library_ ? memory.workspace : Bytes{};
  workspace_.emplace(runtime, CudaMemoryKind::kDevice, bytes, kWorkspaceName);
}

// False where the GPU has not got it; the workspace is as it was, then.
bool CudaAttention::grow(Bytes needed) {
  const Bytes before = workspace_->bytes();
  workspace_.reset();  // first, so that both need not fit
  try {
    workspace_.emplace(runtime_, CudaMemoryKind::kDevice, needed, kWorkspaceName);
    return true;
  } catch (const Error&) {
    workspace_.emplace(runtime_, CudaMemoryKind::kDevice, before, kWorkspaceName);
    return false;
  }
}

void CudaAttention::note(const AttentionPass& pass, const std::string& why) {
  notes_.push_back(fmt::format(
      "attention {} of {} tokens, {} heads ({} kv) of {} by our kernels: {}",
      pass.direction == AttentionDirection::kForward ? "forward" : "backward", pass.shape.length,
      pass.shape.heads, pass.shape.kv_heads, pass.shape.head_size, why));
}

// All at once, else as many whole sequences as fit, else as many heads of one; where not even the
// least of that fits, a larger workspace for it. A workspace grows
// with sequences and heads, and never faster than they do: what by that is too large needs no
// asking, as an answer takes the library a second or two.
std::optional<AttentionPass> CudaAttention::found(AttentionPass pass) {
  if (!library_ || !is_for_libraries(pass.shape, pass.format)) return {};
  double least_of_one = 0;  // bytes, of one head of one sequence
  std::optional<Bytes> needed;
  const auto fits = [&](int64_t sequences, int64_t kv_heads, Bytes most) {
    pass.sequences = sequences;
    pass.kv_heads = kv_heads;
    const auto slice = static_cast<double>(sequences * kv_heads);
    if (slice * least_of_one > static_cast<double>(most.count)) return false;
    needed = library_->workspace(pass);
    if (needed) least_of_one = static_cast<double>(needed->count) / slice;
    return needed && *needed <= most;
  };
  const Bytes here = workspace_->bytes();
  for (int64_t sequences = pass.shape.sequences; sequences > 0; --sequences) {
    if (pass.shape.sequences % sequences != 0) continue;
    if (fits(sequences, pass.shape.kv_heads, here)) return pass;
  }
  for (int64_t kv_heads = pass.shape.kv_heads - 1; kv_heads > 0; --kv_heads) {
    if (pass.shape.kv_heads % kv_heads == 0 && fits(1, kv_heads, here)) return pass;
  }
  if (most_ > here && fits(1, 1, most_) && grow(*needed)) return pass;
  if (least_of_one == 0) {
    note(pass, library_->refusal(pass));
  } else {
    note(pass, fmt::format("{} needs at least {:.6g} MB of workspace a head with its queries, and "
                           "has {:.6g} MB",
                           library_->name(), least_of_one / 1e6,
                           static_cast<double>(workspace_->bytes().count) / 1e6));
  }
  return {};
}

std::optional<AttentionPass> CudaAttention::slice_of(const AttentionPass& pass) {
  const auto at = std::find_if(known_.begin(), known_.end(),
                               [&](const auto& entry) { return entry.first == pass; });
  if (at != known_.end()) return at->second;
  return known_.emplace_back(pass, found(pass)).second;
}

template <class Task>
std::optional<AttentionPass> CudaAttention::slice_for(const Task& task) {
  if (task.path != cuda::AttentionPath::kFastest || !reads_aligned(task)) return {};
  return slice_of(pass_of(task));
}

Bytes CudaAttention::scratch_of(const cuda::AttentionForward& forward) {
  static_cast<void>(slice_of(pass_of(forward)));
  return {cuda::attention_forward_scratch_bytes(forward)};
}

Bytes CudaAttention::scratch_of(const cuda::AttentionBackward& backward) {
  static_cast<void>(slice_of(pass_of(backward)));
  return {cuda::attention_backward_scratch_bytes(backward)};
}

void CudaAttention::run(const cuda::AttentionForward& forward, CudaStream stream) {
  const std::optional<AttentionPass> slice = slice_for(forward);
  if (!slice) {
    return check_launch(cuda::attention_forward(forward, native_stream(stream)), stream);
  }
  AttentionArrays arrays = inputs_of(forward, rotated(forward, stream));
  arrays.out = forward.out.data;
  arrays.log_sum_exp = forward.log_sum_exp;
  arrays.workspace = workspace_->data();
  run_slices(*library_, *slice, arrays, stream);
}

void CudaAttention::run(const cuda::AttentionBackward& backward, CudaStream stream) {
  const std::optional<AttentionPass> slice = slice_for(backward);
  if (!slice) {
    return check_launch(cuda::attention_backward(backward, native_stream(stream)), stream);
  }
  const cuda::AttentionShape& shape = backward.shape;
  AttentionArrays arrays = inputs_of(backward, rotated(backward, stream));
  // The library only reads these two.
  arrays.out = const_cast<void*>(backward.out.data);
  arrays.log_sum_exp = const_cast<float*>(backward.log_sum_exp);
  arrays.dout = backward.dout.data;
  arrays.dq = backward.dqkv.data;
  arrays.dk = moved(backward.dqkv.data, shape.heads * shape.head_size, backward.dqkv.format);
  arrays.dv = moved(backward.dqkv.data, rotated_width(shape), backward.dqkv.format);
  arrays.workspace = workspace_->data();
  run_slices(*library_, *slice, arrays, stream);
  if (backward.rope == nullptr) return;
  cuda::RotationBack back;
  back.shape = shape;
  back.dqkv = backward.dqkv;
  back.rope = backward.rope;
  back.rope_positions = backward.rope_positions;
  check_launch(cuda::rotate_back(back, native_stream(stream)), stream);
}

}  // namespace ballast
