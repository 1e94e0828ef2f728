// Our declarations of NCCL against its header, where that is, and against the library itself, which
// needs no GPU to tell its version.
#include <gtest/gtest.h>
#include <type_traits>

#include "backend/cuda/libraries/nccl_library.h"
#include "tests/backend/temporary_folder.h"

#if defined(BALLAST_HAS_CUDA_HEADERS) && __has_include(<nccl.h>)
#include <nccl.h>
#define BALLAST_HAS_NCCL_HEADER
#endif

namespace ballast {
namespace {

#ifdef BALLAST_HAS_NCCL_HEADER

// How an argument or a result is passed: by its size, and whether it is an address, a number of a
// register, or a record.
template <class Ours, class Theirs>
constexpr bool same_argument() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
           std::is_class_v<Ours> == std::is_class_v<Theirs>;
  }
}

template <class Ours, class Theirs>
struct SameCall : std::false_type {};
template <class Ours, class... OurArguments, class Theirs, class... TheirArguments>
struct SameCall<Ours (*)(OurArguments...), Theirs (*)(TheirArguments...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(OurArguments) != sizeof...(TheirArguments)) {
      return false;
    } else {
      return same_argument<Ours, Theirs>() &&
             (same_argument<OurArguments, TheirArguments>() && ... && true);
    }
  }
  static constexpr bool value = compare();
};

TEST(nccl_header, functions_take_what_ours_give) {
#define EXPECT_SAME(member, function) \
  EXPECT_TRUE((SameCall<decltype(NcclFunctions::member), decltype(&function)>::value)) << #function
  EXPECT_SAME(version, ncclGetVersion);
  EXPECT_SAME(text, ncclGetErrorString);
  EXPECT_SAME(last_error, ncclGetLastError);
  EXPECT_SAME(unique_id, ncclGetUniqueId);
  EXPECT_SAME(init, ncclCommInitRankConfig);
  EXPECT_SAME(finalize, ncclCommFinalize);
  EXPECT_SAME(destroy, ncclCommDestroy);
  EXPECT_SAME(abort, ncclCommAbort);
  EXPECT_SAME(async_error, ncclCommGetAsyncError);
  EXPECT_SAME(group_start, ncclGroupStart);
  EXPECT_SAME(group_end, ncclGroupEnd);
  EXPECT_SAME(all_reduce, ncclAllReduce);
  EXPECT_SAME(reduce_scatter, ncclReduceScatter);
  EXPECT_SAME(all_gather, ncclAllGather);
  EXPECT_SAME(reduce, ncclReduce);
  EXPECT_SAME(broadcast, ncclBroadcast);
  EXPECT_SAME(send, ncclSend);
  EXPECT_SAME(receive, ncclRecv);
#undef EXPECT_SAME
  // The comparison itself tells calls apart.
  EXPECT_FALSE((SameCall<decltype(NcclFunctions::send), decltype(&ncclReduce)>::value));
}

TEST(nccl_header, numbers_are_ours) {
  EXPECT_EQ(static_cast<int>(ncclSuccess), nccl::kSuccess);
  EXPECT_EQ(static_cast<int>(ncclUnhandledCudaError), nccl::kUnhandledCudaError);
  EXPECT_EQ(static_cast<int>(ncclSystemError), nccl::kSystemError);
  EXPECT_EQ(static_cast<int>(ncclInternalError), nccl::kInternalError);
  EXPECT_EQ(static_cast<int>(ncclInvalidArgument), nccl::kInvalidArgument);
  EXPECT_EQ(static_cast<int>(ncclInvalidUsage), nccl::kInvalidUsage);
  EXPECT_EQ(static_cast<int>(ncclRemoteError), nccl::kRemoteError);
  EXPECT_EQ(static_cast<int>(ncclInProgress), nccl::kInProgress);
  EXPECT_EQ(static_cast<int>(ncclUint8), nccl::kBytes);
  EXPECT_EQ(static_cast<int>(ncclFloat16), nccl::kF16);
  EXPECT_EQ(static_cast<int>(ncclFloat32), nccl::kF32);
  EXPECT_EQ(static_cast<int>(ncclBfloat16), nccl::kBf16);
  EXPECT_EQ(static_cast<int>(ncclSum), nccl::kSum);
  EXPECT_EQ(sizeof(ncclUniqueId), sizeof(nccl::UniqueId));
}

TEST(nccl_header, a_configuration_begins_as_ours) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(theirs.magic, nccl::Config{}.magic);
  EXPECT_EQ(offsetof(ncclConfig_t, size), offsetof(nccl::Config, size));
  EXPECT_EQ(offsetof(ncclConfig_t, magic), offsetof(nccl::Config, magic));
  EXPECT_EQ(offsetof(ncclConfig_t, version), offsetof(nccl::Config, version));
  EXPECT_EQ(offsetof(ncclConfig_t, blocking), offsetof(nccl::Config, blocking));
  EXPECT_GE(sizeof(ncclConfig_t), sizeof(nccl::Config));
  EXPECT_EQ(NCCL_VERSION(2, 14, 0), static_cast<int>(nccl::Config{}.version));
}

#else

TEST(nccl_header, is_here) { GTEST_SKIP() << "there is no nccl.h beside a CUDA toolkit"; }

#endif

TEST(nccl_library, the_real_one_has_all_functions) {
  const std::string library = nccl_library_name();
  const std::string missing = why_no_nccl(library);
  if (!missing.empty()) GTEST_SKIP() << library << ": " << missing;
  const NcclFunctions functions = load_nccl(library);
  int version = 0;
  EXPECT_EQ(functions.version(&version), nccl::kSuccess);
  EXPECT_GE(version, kNcclOldest);
  const std::string text = nccl_failure_text(functions, nccl::kInvalidUsage, nullptr);
  EXPECT_TRUE(text.starts_with("ncclInvalidUsage (5), ")) << text;
  std::printf("NCCL %d: %s\n", version, text.c_str());
}

std::string failure_to_load(const std::string& library) {
  return error_of([&] { load_nccl(library); });
}

TEST(nccl_library, one_that_cannot_serve_is_named) {
  const std::string advice =
      "; install NCCL 2.14 or newer (nvidia-nccl-cu13), or name its library in BALLAST_NCCL";
  EXPECT_EQ(failure_to_load("libno-nccl.so.2"),
            "libno-nccl.so.2: NCCL could not be loaded" + advice);
  EXPECT_EQ(failure_to_load("libm.so.6"), "libm.so.6: it lacks functions of NCCL" + advice);
}

TEST(nccl_library, a_failure_is_one_line) {
  const NcclFunctions functions = load_nccl(BALLAST_NCCL_STAND_IN);
  EXPECT_EQ(nccl_failure_text(functions, nccl::kRemoteError, nullptr),
            "ncclRemoteError (6), the stand-in was told to fail: its last words");
}

}  // namespace
}  // namespace ballast
