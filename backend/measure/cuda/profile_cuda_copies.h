// Copies between CPU and GPU: by size, direction and kind of CPU memory, and both ways at once.
//
// Every size is checked byte for byte after it was timed. Will not do: other GPUs, or disks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/execute/arena.h"
#include "backend/measure/cuda/profile_cuda_kernels.h"
#include "backend/measure/cuda/profile_cuda_timing.h"
#include "backend/measure/operation_times.h"
#include "sim/graph/core/graph.h"
#include "sim/spec/machine.h"

namespace ballast {

class CudaCopies {
 public:
  struct Extent {
    Bytes largest;           // pinned; a power of 4 times 4 KiB
    Bytes largest_pageable;  // at most `largest`
    ProbeLimits limits;
  };
  // Takes two buffers of the largest size, pinned, and as much on the device.
  CudaCopies(CudaRuntime& runtime, CudaStopwatch& watch, const Extent& extent);

  // One a size, from 4 KiB up, as operations for the cost model. Stops early at `deadline`
  // (CudaStopwatch::now()), but not before the first. Throws Error where bytes did not arrive.
  std::vector<OperationTime> by_size(CopyDirection direction, HostMemory host, double deadline);

  // Bytes per second by bytes of kernels that read pinned memory, or write it, less their start.
  std::vector<Curve::Point> by_kernel(CopyDirection direction, Duration start,
                                      CudaProbeKernels& probes, double deadline);

  // Bytes per second of both directions together while both are at work, on two streams.
  struct BothWays {
    Bytes each;  // of one copy
    double in = 0;
    double out = 0;
  };
  BothWays both_ways();

  // Enqueues one pinned copy of so many bytes on a stream of its direction and waits for it: for
  // what runs beside copies. From any thread.
  void copy_and_wait(CopyDirection direction, Bytes bytes, int repeat);

 private:
  struct Buffers {
    std::byte* from = nullptr;
    std::byte* to = nullptr;
    CopyKind kind{};
  };
  struct SizeTime {
    Bytes bytes;
    Timing timing;
  };
  // Enqueues what moves bytes.
  using Move = std::function<void(const CudaCopy& asked)>;
  std::vector<SizeTime> times_of(CopyDirection direction, HostMemory host, double deadline,
                                 const Move& move);
  Buffers buffers(CopyDirection direction, HostMemory host);
  void clear(CopyDirection direction, const Buffers& buffers, Bytes at, Bytes bytes);
  // Whether what lies at `at` of the destination is what the source holds.
  bool arrived(CopyDirection direction, const Buffers& buffers, Bytes at, Bytes bytes);
  Bytes place(Bytes bytes, int repeat) const;
  CudaStream stream(CopyDirection direction) const {
    return direction == CopyDirection::kHostToDevice ? in_.get() : out_.get();
  }

  CudaRuntime& runtime_;
  CudaStopwatch& watch_;
  Extent extent_;
  CudaMemory device_, pinned_from_, pinned_to_;
  std::unique_ptr<Arena> pageable_;  // when first used
  CudaOwned<CudaStream> in_, out_;
};

}  // namespace ballast
