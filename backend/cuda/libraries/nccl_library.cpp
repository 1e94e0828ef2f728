#include "backend/cuda/libraries/nccl_library.h"

#include <algorithm>
#include <fmt/format.h>

#include "backend/cuda/libraries/shared_library.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

const char* const kAdvice =
    "install NCCL 2.14 or newer (nvidia-nccl-cu13), or name its library in BALLAST_NCCL";

bool find_all(void* library, NcclFunctions& its) {
  return find_functions(
      library, "ncclGetVersion", its.version, "ncclGetErrorString", its.text, "ncclGetLastError",
      its.last_error, "ncclGetUniqueId", its.unique_id, "ncclCommInitRankConfig", its.init,
      "ncclCommFinalize", its.finalize, "ncclCommDestroy", its.destroy, "ncclCommAbort", its.abort,
      "ncclCommGetAsyncError", its.async_error, "ncclGroupStart", its.group_start, "ncclGroupEnd",
      its.group_end, "ncclAllReduce", its.all_reduce, "ncclReduceScatter", its.reduce_scatter,
      "ncclAllGather", its.all_gather, "ncclReduce", its.reduce, "ncclBroadcast", its.broadcast,
      "ncclSend", its.send, "ncclRecv", its.receive);
}

// As nccl.h names them.
const char* name_of(nccl::Result result) {
  switch (result) {
    case nccl::kSuccess:
      return "ncclSuccess";
    case nccl::kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case nccl::kSystemError:
      return "ncclSystemError";
    case nccl::kInternalError:
      return "ncclInternalError";
    case nccl::kInvalidArgument:
      return "ncclInvalidArgument";
    case nccl::kInvalidUsage:
      return "ncclInvalidUsage";
    case nccl::kRemoteError:
      return "ncclRemoteError";
    case nccl::kInProgress:
      return "ncclInProgress";
  }
  return "an unknown result";
}

}  // namespace

std::string nccl_library_name() { return library_name("BALLAST_NCCL", "libnccl.so.2"); }

std::string why_no_nccl(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return "NCCL could not be loaded";
  decltype(NcclFunctions::version) version = nullptr;
  int code = 0;
  const bool older = find_function(handle, "ncclGetVersion", version) &&
                     version(&code) == nccl::kSuccess && code < kNcclOldest;
  return older ? fmt::format("this NCCL is of version {}", code) : "";
}

NcclFunctions load_nccl(const std::string& library) {
  const std::string why = why_no_nccl(library);
  if (!why.empty()) throw Error(library, why, kAdvice);
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  NcclFunctions functions;
  if (!find_all(handle, functions)) throw Error(library, "it lacks functions of NCCL", kAdvice);
  return functions;
}

std::string nccl_failure_text(const NcclFunctions& functions, nccl::Result result,
                              nccl::Communicator* communicator) {
  std::string text =
      fmt::format("{} ({}), {}", name_of(result), static_cast<int>(result), functions.text(result));
  const char* const last = functions.last_error(communicator);
  if (last != nullptr && *last != '\0') text += fmt::format(": {}", last);
  std::ranges::replace(text, '\n', ' ');
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace ballast
