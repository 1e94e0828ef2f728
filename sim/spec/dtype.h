// Number formats of stored tensors. Arithmetic accumulates in fp32 whatever the storage.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/base/units.h"

namespace ballast {

enum class DType : uint8_t { kF64, kF32, kBf16, kF16, kI32, kU8 };

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
  }
  return "";
}

inline Bytes bytes_of(int64_t elements, DType dtype) { return {elements * size_of(dtype)}; }

}  // namespace ballast
