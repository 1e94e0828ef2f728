#include "backend/cuda/libraries/cudnn_library.h"

#include <array>
#include <fmt/format.h>
#include <utility>

#include "backend/cuda/libraries/shared_library.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

bool find_all(void* library, CudnnFunctions& functions) {
  return find_functions(library, "cudnnGetVersion", functions.version, "cudnnGetErrorString",
                        functions.text, "cudnnGetLastErrorString", functions.last_error,
                        "cudnnCreate", functions.create, "cudnnDestroy", functions.destroy,
                        "cudnnSetStream", functions.set_stream, "cudnnBackendCreateDescriptor",
                        functions.create_descriptor, "cudnnBackendDestroyDescriptor",
                        functions.destroy_descriptor, "cudnnBackendSetAttribute", functions.set,
                        "cudnnBackendGetAttribute", functions.get, "cudnnBackendFinalize",
                        functions.finalize, "cudnnBackendExecute", functions.execute);
}

}  // namespace

std::optional<CudnnFunctions> load_cudnn(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {};
  CudnnFunctions functions;
  if (!find_all(handle, functions) || functions.version() < kCudnnOldest) return {};
  return functions;
}

std::string why_no_cudnn(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return library + " is not here";
  decltype(CudnnFunctions::version) version = nullptr;
  if (!find_function(handle, "cudnnGetVersion", version) || version() >= kCudnnOldest) return "";
  return fmt::format("{} is of version {}, and {} is the oldest that serves", library, version(),
                     kCudnnOldest);
}

std::string cudnn_library_name() {
  return library_name("BALLAST_CUDNN", "libcudnn.so.9");
}

void check_cudnn(const CudnnFunctions& functions, int status, std::string_view attempt) {
  if (status == 0) return;
  std::array<char, 512> said{};
  functions.last_error(said.data(), said.size());
  throw Error(fmt::format("cuDNN, {}", attempt),
              fmt::format("{} ({}) {}", functions.text(status), status, said.data()),
              "train with BALLAST_CUDNN=none, which leaves attention to our kernels");
}

CudnnDescriptor::CudnnDescriptor(const CudnnFunctions& functions, cudnn::Descriptor kind)
    : functions_(functions), kind_(kind) {
  check_cudnn(functions_, functions_.create_descriptor(kind, &native_), "creation of a descriptor");
}

CudnnDescriptor::~CudnnDescriptor() {
  if (native_ != nullptr) functions_.destroy_descriptor(native_);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : functions_(other.functions_),
      kind_(other.kind_),
      native_(std::exchange(other.native_, nullptr)) {}

void CudnnDescriptor::set_values(cudnn::Attribute attribute, cudnn::Element element, int64_t count,
                                 const void* values) {
  check_cudnn(functions_, functions_.set(native_, attribute, element, count, values),
              fmt::format("attribute {} of a descriptor {}", static_cast<int>(attribute),
                          static_cast<int>(kind_)));
}

int64_t CudnnDescriptor::get(cudnn::Attribute attribute, cudnn::Element element, int64_t most,
                             void* values) const {
  int64_t count = 0;
  check_cudnn(functions_, functions_.get(native_, attribute, element, most, &count, values),
              fmt::format("query of attribute {} of a descriptor {}", static_cast<int>(attribute),
                          static_cast<int>(kind_)));
  return count;
}

void CudnnDescriptor::finalize() {
  check_cudnn(functions_, functions_.finalize(native_),
              fmt::format("check of a descriptor {}", static_cast<int>(kind_)));
}

}  // namespace ballast
