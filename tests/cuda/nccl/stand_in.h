// What tests ask of the library that stands in for libnccl.so.2 (stand_in.cpp): which calls were
// made, and calls that fail. Found by dlsym, like NCCL's own functions.
//
// Ranks are threads of one process; memory of GPUs is memory. As NCCL: what goes together is
// enqueued on its stream when the group of calls ends; a collective runs when every rank has come
// to it, a message when its two ends have. A rank that aborts leaves the others waiting until they
// abort too, unless errors are remote.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backend/cuda/libraries/nccl_library.h"

namespace ballast::nccl_stand_in {

enum class Call {
  kUniqueId,
  kInit,
  kAbort,
  kFinalize,
  kDestroy,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kReduce,
  kBroadcast,
  kSend,
  kReceive,
};

// One call of one rank, in the order in which its thread made it.
struct Noted {
  Call call{};
  int communicator = -1;  // by the order in which ids were made
  int ranks = 0;
  int rank = 0;  // of the caller, in the communicator
  size_t count = 0;
  nccl::Type type{};
  int other = -1;  // root or peer
  void* stream = nullptr;
  int group = 0;  // of calls of this rank's end of the communicator that went together
};

// The call of this kind with this number, from 0, over all ranks, fails at once. Where a rank is
// named, the one in its group of this number does, as its turn comes on the stream.
struct Failure {
  Call call{};
  int number = 0;
  nccl::Result result = nccl::kSuccess;
  int rank = -1;
};

struct Streams {
  // Has `work(data)` called on the stream's own thread, in its turn.
  void (*enqueue)(void* stream, void (*work)(void*), void* data) = nullptr;
};

// `nccl_stand_in_reset` forgets what was noted and what should fail.
using Reset = void (*)(Streams streams, bool errors_are_remote);
using Fail = void (*)(const Failure& failure);
using TakeNoted = void (*)(std::vector<Noted>& noted);
using Living = int (*)();  // ends of communicators that were neither destroyed nor aborted

}  // namespace ballast::nccl_stand_in
