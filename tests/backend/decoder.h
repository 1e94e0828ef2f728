// A whole decoder composed from the modules of backend/host/transformer.h, and arrays to test them
// with.
//
// Forward keeps what backward reads; nothing is shared, recomputed or fast. Test programs only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "backend/host/transformer.h"
#include "sim/spec/dtype.h"
#include "sim/spec/model.h"

namespace ballast::transformer {

// A row-major [rows, columns] array that owns its bytes.
struct Array {
  DType dtype = DType::kF64;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<std::byte> bytes;

  View view() { return {bytes.data(), dtype, rows, columns}; }
  ConstView view() const { return {bytes.data(), dtype, rows, columns}; }
  int64_t count() const { return rows * columns; }
  bool operator==(const Array&) const = default;
};

Array zeros(DType dtype, int64_t rows, int64_t columns);
// Values rounded to dtype.
Array array_of(std::span<const double> values, DType dtype, int64_t rows, int64_t columns);
std::vector<double> values_of(const Array& array);
Array converted(const Array& array, DType dtype);
// Uniform in [centre - spread, centre + spread], rounded to dtype; the seed decides all bits.
struct Uniform {
  double centre = 0;
  double spread = 1;
  uint32_t seed = 1;
};
Array random_array(const Uniform& uniform, DType dtype, int64_t rows, int64_t columns);
double largest_magnitude(std::span<const double> values);

// Small models that differ in everything the modules branch on. C = 8, D = 4 or as given.
Model gpt2_like();   // LayerNorm, learned positions, GELU tanh, biases, tied, [in, out]
Model llama_like();  // RMSNorm, RoPE, SwiGLU, 4 heads on 2 kv heads, free head
Model qwen2_like();  // llama_like with qkv bias and tied embeddings

// The families beyond llama that are trained here, as small.
std::vector<Model> newer_models();

// Token ids [B, S+1] of the model, with repeats.
std::vector<int32_t> some_tokens(const Model& model, Shape shape);

// The model's flat parameters [1, count]: matrices around 0, norm weights around 1.
Array some_parameters(const Model& model, DType dtype);

struct StepResult {
  double loss = 0;
  Array logits;     // [T, V]
  Array gradients;  // [1, count], of the mean loss
};

// Forward and backward of one micro-batch with every array of parameters.dtype.
StepResult run_step(const Model& model, Shape shape, std::span<const int32_t> tokens,
                    const Array& parameters);
// The same with a factor on the gradient of a token's loss in place of 1 / tokens; adds to the
// gradients of micro-batches before, if there are any.
struct GradientsSoFar {
  double factor = 1;
  const Array* before = nullptr;
  std::optional<DType> dtype = {};  // of gradients of parameters; none: that of the parameters
  int64_t loss_chunks = 1;  // pieces of the tokens that pass head and loss one after another
};
StepResult run_step(const Model& model, Shape shape, std::span<const int32_t> tokens,
                    const Array& parameters, const GradientsSoFar& gradients);

}  // namespace ballast::transformer
