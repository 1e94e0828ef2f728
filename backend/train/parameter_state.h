// The state of a training parameter by parameter, wherever a plan keeps it: what is written to
// files and read from them, and the update of the gradients that wait at the end of a run.
//
// Will not do: files (checkpoint, weights_file), or run while the executor does.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "backend/execute/optimizer_state.h"
#include "backend/train/training_device.h"
#include "kernels/kernels.h"
#include "sim/graph/core/graph.h"

namespace ballast {

// Every parameter of the model once, in its order, with the index of the (first) module that holds
// it: the stages of a pipeline have those of the undivided model, tensor-parallel ranks those of
// the whole.
void for_parameters(const Graph& graph, const TrainingDevice& device,
                    const std::function<void(size_t module, const Parameter&)>& visit);

// One array of a parameter as fp32, whatever it is kept in: moments in fewer bits come back as they
// were. While nothing runs. Of several ranks all read at once, and each comes to know what the
// others have; it writes what it keeps.
std::vector<float> read_parameter(const Graph& graph, TrainingDevice& device, size_t module,
                                  const Parameter& parameter, StateArray array);
// The same, where the values are to go: parameter.count() of them.
void read_parameter(const Graph& graph, TrainingDevice& device, size_t module,
                    const Parameter& parameter, StateArray array, std::span<float> values);
// Also of the copy that another stage has of a tied embedding.
void write_parameter(const Graph& graph, TrainingDevice& device, size_t module,
                     const Parameter& parameter, StateArray array, std::span<const float> values);

// This rank's part of a parameter of the whole model, all of it where ranks split none; null where
// other ranks have it.
const Parameter* own_part(const TrainingDevice& device, size_t module, const Parameter& parameter);
// The modules that hold a parameter: beside `module` what other stages have of a tied embedding.
std::vector<size_t> modules_that_hold(const Graph& graph, size_t module);
// What of its part this rank keeps itself, where ranks share the state: elements from the part's
// start, in their order.
std::vector<ElementRange> kept_ranges(const Graph& graph, const TrainingDevice& device,
                                      size_t module, const Parameter& own);
// Is told values as soon as they were read, a block at a time, of which a cache may still hold all.
using ReadBlock = std::function<void(std::span<const float> values)>;
// Fills what of its part, from element `begin` on, this rank keeps itself. Asks no other rank.
void read_kept(const Graph& graph, TrainingDevice& device, size_t module, const Parameter& own,
               int64_t begin, StateArray array, std::span<float> values, const ReadBlock& seen);

// Parameters of a module (an index into Graph::modules), from its element `begin`, into their
// masters. Several threads may write different ones.
void write_masters(const Graph& graph, size_t module, int64_t begin, std::span<const float> values,
                   TrainingDevice& device);

// The gradients of the last step where updates are delayed: each lies in its landed bucket or, for
// buckets stepped on the GPU, in what ranks reduced it to, or in the module's own gradient.
class PendingGradients {
 public:
  // Both must outlive this.
  PendingGradients(const Graph& graph, TrainingDevice& device);
  std::vector<float> read(size_t module, const Parameter& parameter) const;
  void read(size_t module, const Parameter& parameter, std::span<float> values) const;
  void write(size_t module, const Parameter& parameter, std::span<const float> values);
  // As the function of that name.
  void read_kept(size_t module, const Parameter& own, int64_t begin, std::span<float> values) const;

 private:
  // Of values `offset` from the start of what this rank's tensors of a bucket hold, and `begin`
  // from that of their module.
  StateHome home(int32_t bucket, size_t module, int64_t offset, int64_t begin) const;

  const Graph& graph_;
  TrainingDevice& device_;
  std::vector<TensorId> landed_, by_module_;
};

// One step of Adam of every parameter with these gradients, to the bits of the step that would have
// applied them. Weights made from the masters stay as they are (TrainingDevice::spread_weights).
void apply_pending_gradients(const Graph& graph, TrainingDevice& device,
                             const kernels::AdamConstants& constants);

}  // namespace ballast
