// The functions of cuBLASLt that Ballast calls, loaded when the first product is asked for.
//
// The library is half a gigabyte, of which the loader writes 190 MB before main() begins: what only
// predicts, or trains on the host, neither waits for that nor has it in memory. Will not do:
// multiply (gemm_cublaslt.h).
#pragma once

#include <cublasLt.h>

namespace ballast {

// Each has the name and the type that the library's header gives it.
struct CublasLtFunctions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) text = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check_algorithm = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose_algorithms = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_of_operation = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_of_preference = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
};

// Looked for where the loader looks, then where the build found it; once in a process. Throws Error
// where the library is not there, or lacks a function.
const CublasLtFunctions& cublaslt();

}  // namespace ballast
