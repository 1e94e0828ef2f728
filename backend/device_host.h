// The host device: the "GPU" is the threads of its lanes with an arena of their own, the "CPU" the
// optimizer's workers with another; copies between the two are real copies.
//
// Carries out every kind of operation by the roles of its tensors. Will not do: order operations
// (executor), or judge gradients (update_control).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/arena.h"
#include "backend/data.h"
#include "backend/device.h"
#include "backend/transformer.h"
#include "backend/update_control.h"
#include "kernels/kernels.h"
#include "kernels/threads.h"
#include "kernels/undo.h"
#include "sim/graph/graph.h"
#include "sim/graph/rewrite.h"
#include "sim/spec/model.h"
#include "sim/spec/plan.h"

namespace ballast {

struct HostOptions {
  int optimizer_threads = 1;
  std::string adam = "best";
  OptimizerOptions optimizer;
  std::function<double(int32_t step)> gradient_factor;  // see TrainerOptions
};

class HostDevice : public Device {
 public:
  // All references must outlive the device. Arenas begin as zeros. Throws Error where the arenas
  // do not fit, the Adam is unknown here, or the model needs a module that is not written yet.
  HostDevice(const Model& model, const Plan& plan, const Graph& graph, const TokenSource& data,
             const HostOptions& options, const ControlState& state);

  void execute(const Sequence& sequence, OpId id, int32_t step) override;
  bool commit(int32_t step) override { return control_.commit(step); }

  UpdateControl& control() { return control_; }
  Arena& arena(Place place) { return *arenas_[static_cast<size_t>(place)]; }

  // The values of a tensor; of copy `copy` where it has two. Not while the executor runs.
  std::span<std::byte> bytes(TensorId tensor, int copy = 0);
  template <class T>
  std::span<T> values(TensorId tensor, int copy = 0) {
    const std::span<std::byte> raw = bytes(tensor, copy);
    return {reinterpret_cast<T*>(raw.data()), raw.size() / sizeof(T)};
  }

  // Writes the 16-bit (or fp32) weights of every module that lives on the GPU, and the 16-bit
  // home of those that flow, from the masters. At the start of a run, the executor at rest.
  void spread_weights();
  // Recomputes the norm partials of gradients that were restored into the buckets (delay).
  void restore_partials(int32_t step);

  // Mean loss of forward operations over held-out data; see Trainer::validation_loss.
  double evaluate(int64_t batch, int32_t step);

 private:
  // One tensor argument: where it is and what it holds.
  struct Argument {
    std::byte* data = nullptr;
    const Tensor* tensor = nullptr;
    bool adds = false;  // read and written
  };
  // The arrays of one run, as the kernels want them.
  struct BucketArguments {
    Argument master, moment1, moment2, undo;
    std::vector<Argument> gradients, weights;
  };

  Argument argument(const Access& access, int32_t step) const;
  Argument find(const Op& op, Role role, int32_t step) const;
  std::vector<Argument> all(const Op& op, Role role, int32_t step) const;
  const Bucket& bucket_of(const Op& op) const;
  const Bucket::Piece& piece_of(const Bucket& bucket, const Tensor& module_tensor) const;

  // Modules (device_host_modules.cpp).
  void load_batch(const Op& op, int32_t step);
  void embedding(const Op& op, int32_t step);
  void norm(const Op& op, int32_t step);
  void gemm(const Op& op, int32_t step);
  void attention(const Op& op, int32_t step);
  void activation(const Op& op, int32_t step);
  void loss(const Op& op, int32_t step);

  // Buckets (device_host_buckets.cpp).
  void pack(const Op& op, int32_t step);
  void unpack(const Op& op, int32_t step);
  void cast(const Op& op, int32_t step);
  void sum_of_squares(const Op& op, int32_t step);
  void snapshot(const Op& op, int32_t step);
  void undo(const Op& op, int32_t step);
  void adam(const Op& op, int32_t step, bool redo);
  BucketArguments bucket_arguments(const Op& op, int32_t step) const;
  kernels::AdamArrays arrays_of(const BucketArguments& arguments, const Run& run) const;
  void exact_undo(const Op& op, int32_t step);
  void restore_weights(const Op& op, int32_t step);
  void copy(const Op& op, int32_t step);
  void fetch(const std::vector<Argument>& sources, const Argument& destination);
  void copy_stationary(const Op& op, const Argument& source,
                       const std::vector<Argument>& destinations);
  void find_tensors();
  void find_undo_records(TensorId tensor);
  double sum_of_partials() const;

  const Model& model_;
  const Plan& plan_;
  const Graph& graph_;
  const TokenSource& data_;
  HostOptions options_;
  const kernels::Table& table_;
  kernels::Workers workers_;
  std::array<std::unique_ptr<Arena>, kPlaces> arenas_;
  std::vector<TensorId> partials_;                      // by bucket, in DRAM
  std::vector<std::vector<Run>> runs_;                  // by bucket
  std::vector<std::vector<kernels::UndoRecord>> undo_;  // by bucket and run, where undo is exact
  std::vector<TensorId> stationary_weight_;  // by module, -1: its weights flow, or it has none
  UpdateControl control_;
  Split split_ = Split::kTraining;
  double evaluated_loss_ = 0;
};

// The storage format of the kernels for a dtype. Requires fp32, bf16 or fp16.
kernels::Format format_of(DType dtype);

}  // namespace ballast
