#include "backend/cuda/libraries/cublaslt_library.h"

#include <fmt/format.h>
#include <string>

#include "backend/cuda/libraries/shared_library.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

bool find_all(void* library, CublasLtFunctions& its) {
  return find_functions(
      library, "cublasLtCreate", its.create, "cublasLtDestroy", its.destroy,
      "cublasLtGetStatusString", its.text, "cublasLtGetVersion", its.version, "cublasLtMatmul",
      its.multiply, "cublasLtMatmulAlgoCheck", its.check_algorithm,
      "cublasLtMatmulAlgoGetHeuristic", its.propose_algorithms, "cublasLtMatmulDescCreate",
      its.create_operation, "cublasLtMatmulDescDestroy", its.destroy_operation,
      "cublasLtMatmulDescSetAttribute", its.set_of_operation, "cublasLtMatmulPreferenceCreate",
      its.create_preference, "cublasLtMatmulPreferenceDestroy", its.destroy_preference,
      "cublasLtMatmulPreferenceSetAttribute", its.set_of_preference, "cublasLtMatrixLayoutCreate",
      its.create_layout, "cublasLtMatrixLayoutDestroy", its.destroy_layout);
}

CublasLtFunctions load() {
  // Of the major version whose header this was built with: its types are those of no other.
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  const char* const advice =
      "install that version of cuBLAS, or name its folder in LD_LIBRARY_PATH";
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(BALLAST_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(name, "it could not be loaded", advice);
  CublasLtFunctions functions;
  if (!find_all(library, functions)) throw Error(name, "it lacks functions", advice);
  return functions;
}

}  // namespace

const CublasLtFunctions& cublaslt() {
  static const CublasLtFunctions functions = load();
  return functions;
}

}  // namespace ballast
