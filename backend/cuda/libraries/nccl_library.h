// The part of NCCL that we call, found at run time, so that a build needs neither the library nor
// its header.
//
// Numbers and types are those of nccl.h (NVIDIA NCCL 2.28.9, BSD-3-Clause), which keeps them from
// one version of libnccl.so.2 to the next; where that header is, the tests hold ours against it.
// Will not do: know who belongs to a group, or when something is sent (nccl_ranks.h).
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace ballast {

namespace nccl {

struct Communicator;  // of NCCL: one rank's end
struct UniqueId {
  std::array<char, 128> bytes{};
};

enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum Type : int { kBytes = 1, kF16 = 6, kF32 = 7, kBf16 = 9 };
enum Operator : int { kSum = 0 };

// ncclConfig_t of 2.14, which later versions read too: they tell by `size` and `version` what
// follows, and take their defaults for it.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;  // calls return at once, so that they can be given up
};

}  // namespace nccl

// Each is the function of NCCL whose name is beside it; a stream is a cudaStream_t.
struct NcclFunctions {
  using Result = nccl::Result;
  using Comm = nccl::Communicator*;
  using Stream = void*;

  Result (*version)(int* code) = nullptr;                        // ncclGetVersion
  const char* (*text)(Result) = nullptr;                         // ncclGetErrorString
  const char* (*last_error)(Comm) = nullptr;                     // ncclGetLastError
  Result (*unique_id)(nccl::UniqueId*) = nullptr;                // ncclGetUniqueId
  Result (*init)(Comm*, int ranks, nccl::UniqueId id, int rank,  // ncclCommInitRankConfig
                 nccl::Config*) = nullptr;
  Result (*finalize)(Comm) = nullptr;              // ncclCommFinalize
  Result (*destroy)(Comm) = nullptr;               // ncclCommDestroy
  Result (*abort)(Comm) = nullptr;                 // ncclCommAbort
  Result (*async_error)(Comm, Result*) = nullptr;  // ncclCommGetAsyncError
  Result (*group_start)() = nullptr;               // ncclGroupStart
  Result (*group_end)() = nullptr;                 // ncclGroupEnd
  // ncclAllReduce, ncclReduceScatter (`count` of what a rank receives), ncclAllGather (`count` of
  // what it sends), ncclReduce, ncclBroadcast, ncclSend, ncclRecv.
  Result (*all_reduce)(const void* from, void* to, size_t count, nccl::Type, nccl::Operator, Comm,
                       Stream) = nullptr;
  Result (*reduce_scatter)(const void* from, void* to, size_t count, nccl::Type, nccl::Operator,
                           Comm, Stream) = nullptr;
  Result (*all_gather)(const void* from, void* to, size_t count, nccl::Type, Comm,
                       Stream) = nullptr;
  Result (*reduce)(const void* from, void* to, size_t count, nccl::Type, nccl::Operator, int root,
                   Comm, Stream) = nullptr;
  Result (*broadcast)(const void* from, void* to, size_t count, nccl::Type, int root, Comm,
                      Stream) = nullptr;
  Result (*send)(const void* from, size_t count, nccl::Type, int peer, Comm, Stream) = nullptr;
  Result (*receive)(void* to, size_t count, nccl::Type, int peer, Comm, Stream) = nullptr;
};

// 2.14: the oldest version whose communicators can be made without blocking.
inline constexpr int kNcclOldest = 21400;

// What the environment's BALLAST_NCCL names, else libnccl.so.2.
std::string nccl_library_name();

// Why there is none to load: not there, or older. Empty where there should be one: that it then
// lacks a function is a fault and no reason.
std::string why_no_nccl(const std::string& library);

// `library`: a path, or a name for the loader. Throws Error, one line with that name, where it is
// not here, lacks a function or is older than kNcclOldest.
NcclFunctions load_nccl(const std::string& library);

// "ncclRemoteError (6), a peer is gone": what NCCL says of a result, on one line. `communicator`
// may be null.
std::string nccl_failure_text(const NcclFunctions& functions, nccl::Result result,
                              nccl::Communicator* communicator);

}  // namespace ballast
