// Number formats of stored tensors. Arithmetic accumulates in fp32 whatever the storage.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/base/units.h"

namespace ballast {

// kE4m3 and kE5m2 are the 8-bit floats of arXiv 2209.05433, "fp8" and "fp8_e5m2": factors of matrix
// products, never how a tensor of a graph is stored. The rate of a machine's 8-bit products stands
// under kE4m3.
enum class DType : uint8_t { kF64, kF32, kBf16, kF16, kI32, kU8, kE4m3, kE5m2 };

// What a matrix product multiplies: its operands as they are stored, or rounded to 8 bits with one
// scale for each operand.
enum class ProductFormat : uint8_t { kAsStored, kFp8 };
constexpr std::string_view to_string(ProductFormat format) {
  return format == ProductFormat::kFp8 ? "fp8" : "as-stored";
}

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kE4m3:
    case DType::kE5m2:
      return 1;
  }
  return 0;
}

constexpr std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "fp64";
    case DType::kF32:
      return "fp32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kI32:
      return "int32";
    case DType::kU8:
      return "uint8";
    case DType::kE4m3:
      return "fp8";
    case DType::kE5m2:
      return "fp8_e5m2";
  }
  return "";
}

inline Bytes bytes_of(int64_t elements, DType dtype) { return {elements * size_of(dtype)}; }

}  // namespace ballast
