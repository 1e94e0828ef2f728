// Devices by name: "host", "cuda" (the first GPU; of several ranks on a machine the first rank
// takes the first, the next the second) or "cuda:N" (that one, whatever the rank).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/execute/update_control.h"
#include "backend/train/training_device.h"

namespace ballast {

// Index of the GPU that a device's name means, or -1 for the host. Throws Error for other names.
int cuda_index_of(const std::string& device);

// Throws Error "no CUDA device: ..." where the GPU is not there or CUDA was not built in, and where
// the device cannot run this training.
std::unique_ptr<TrainingDevice> make_device(const std::string& device, const Training& training,
                                            const DeviceOptions& options,
                                            const ControlState& state);

// Whether this build can run a plan, on each kind of device that there is: host, and cuda where a
// GPU is. Says nothing of memory, or whether a GPU is here. The plan's knobs must have values, else
// that is what is missing.
std::vector<DeviceVerdict> which_run(const Model& model, const Plan& plan);

}  // namespace ballast
