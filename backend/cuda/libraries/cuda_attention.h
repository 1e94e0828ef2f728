// Which kernels do an attention: a library's where there is one with kernels for the shape, ours
// otherwise. Both keep the same statistics, so one may do the forward and the other the backward.
//
// A library rotates no positions: q and k are turned before it, dq and dk turned back behind it.
// Where its workspace for all sequences and heads would be too large (cuDNN's backward in fixed
// order needs the square of the length for every head), the work is done in equal slices.
// Will not do: load a library (cudnn_attention.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/libraries/attention_library.h"

namespace ballast {

// What a library gets as workspace, whatever it needs: so the profile of a GPU, which takes it too,
// counts it among the memory of context and libraries.
inline constexpr Bytes kLibraryWorkspace{int64_t{256} << 20};

struct AttentionMemory {
  Bytes workspace = kLibraryWorkspace;
  // As much as this where the smallest slice of a shape needs more than the workspace; never less.
  Bytes most{};
};

class CudaAttention {
 public:
  // Without a library ours do everything. With one, its workspace is taken from the runtime, which
  // must outlive this.
  CudaAttention(CudaRuntime& runtime, OpenedAttention opened, AttentionMemory memory = {});

  // That the caller brings on the device. The library makes its plans here and gets the workspace
  // that it needs for them, so no step waits for either.
  Bytes scratch_of(const kernels::cuda::AttentionForward& forward);
  Bytes scratch_of(const kernels::cuda::AttentionBackward& backward);
  // Enqueue. Throw Error that names what was refused, and the stream. Where a path is asked for by
  // name, it is ours.
  void run(const kernels::cuda::AttentionForward& forward, CudaStream stream);
  void run(const kernels::cuda::AttentionBackward& backward, CudaStream stream);

  // The slice that the library works on at once; nothing where ours do it. The pass says what is to
  // be done, its slice is not read.
  std::optional<AttentionPass> slice_of(const AttentionPass& pass);

  // What a library gets whatever the shapes are; nothing where there is none.
  Bytes workspace() const { return library_ ? least_ : Bytes{}; }

  // What a library was expected to do and does not, and why; each once.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  bool grow(Bytes needed);
  void note(const AttentionPass& pass, const std::string& why);
  std::optional<AttentionPass> found(AttentionPass pass);
  template <class Task>
  std::optional<AttentionPass> slice_for(const Task& task);

  CudaRuntime& runtime_;
  std::unique_ptr<AttentionLibrary> library_;
  Bytes least_;
  Bytes most_;
  std::optional<CudaMemory> workspace_;
  std::vector<std::string> notes_;
  // Each pass with what was found for it.
  std::vector<std::pair<AttentionPass, std::optional<AttentionPass>>> known_;
};

}  // namespace ballast
