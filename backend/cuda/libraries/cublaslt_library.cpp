#include "backend/cuda/libraries/cublaslt_library.h"

#include <fmt/format.h>
#include <string>

#include "backend/cuda/libraries/shared_library.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

bool find_all(void* library, CublasLtFunctions& its) {
  return find_function(library, "cublasLtCreate", its.create) &&
         find_function(library, "cublasLtDestroy", its.destroy) &&
         find_function(library, "cublasLtGetStatusString", its.text) &&
         find_function(library, "cublasLtGetVersion", its.version) &&
         find_function(library, "cublasLtMatmul", its.multiply) &&
         find_function(library, "cublasLtMatmulAlgoCheck", its.check_algorithm) &&
         find_function(library, "cublasLtMatmulAlgoGetHeuristic", its.propose_algorithms) &&
         find_function(library, "cublasLtMatmulDescCreate", its.create_operation) &&
         find_function(library, "cublasLtMatmulDescDestroy", its.destroy_operation) &&
         find_function(library, "cublasLtMatmulDescSetAttribute", its.set_of_operation) &&
         find_function(library, "cublasLtMatmulPreferenceCreate", its.create_preference) &&
         find_function(library, "cublasLtMatmulPreferenceDestroy", its.destroy_preference) &&
         find_function(library, "cublasLtMatmulPreferenceSetAttribute", its.set_of_preference) &&
         find_function(library, "cublasLtMatrixLayoutCreate", its.create_layout) &&
         find_function(library, "cublasLtMatrixLayoutDestroy", its.destroy_layout);
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
