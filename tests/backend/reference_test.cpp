// Whole decoders against PyTorch: logits, loss and the gradient of every parameter of the models
// that scripts/make_reference.py computed with Hugging Face transformers in fp32.
//
// PyTorch's own numbers are rounded to fp32 at every module, so fp64 here and fp32 there differ by
// some tens of roundings of 2^-24 = 6e-8; 5e-6 of a tensor's largest value bounds either.

#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <string>

#include "backend/formats/safetensors.h"
#include "backend/host/transformer.h"
#include "profiles/load.h"
#include "tests/backend/decoder.h"

namespace ballast::transformer {
namespace {

constexpr double kReferenceTolerance = 5e-6;

class Reference {
 public:
  explicit Reference(const std::string& name)
      : model_(load_model(path(name) + ".json")), file_(path(name) + ".safetensors") {}

  const Model& model() const { return model_; }
  Shape shape() const {
    const std::vector<int64_t>& sizes = file_.at("tokens").shape;
    return {sizes[0], sizes[1] - 1};
  }
  std::vector<int32_t> tokens() const { return read<int32_t>("tokens"); }
  std::vector<double> values(const std::string& name) const {
    const std::vector<float> floats = read<float>(name);
    return {floats.begin(), floats.end()};
  }
  // The tensors named prefix + parameter, flat in the order of the modules.
  std::vector<double> flat(const std::string& prefix) const {
    std::vector<double> all;
    for (const Module& module : modules_of(model_)) {
      for (const Parameter& parameter : module.parameters) {
        const std::vector<double> one = values(prefix + parameter.name);
        EXPECT_EQ(static_cast<int64_t>(one.size()), parameter.count()) << parameter.name;
        all.insert(all.end(), one.begin(), one.end());
      }
    }
    return all;
  }

 private:
  static std::string path(const std::string& name) {
    return fmt::format("{}/tests/data/reference_{}", BALLAST_SOURCE_DIR, name);
  }
  template <class Value>
  std::vector<Value> read(const std::string& name) const {
    const StoredTensor& tensor = file_.at(name);
    EXPECT_EQ(size_of(tensor.type), static_cast<int64_t>(sizeof(Value))) << name;
    std::vector<Value> out(static_cast<size_t>(tensor.elements()));
    file_.read(tensor, std::as_writable_bytes(std::span(out)));
    return out;
  }

  Model model_;
  SafetensorsReader file_;
};

void expect_near(std::span<const double> actual, std::span<const double> expected, double tolerance,
                 const std::string& what, double scale = 0) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  scale = std::max(scale, largest_magnitude(expected));
  // No gradient reaches what corrects the choice of experts.
  EXPECT_TRUE(scale > 0 || what.find("correction_bias") != std::string::npos) << what;
  double worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    worst = std::max(worst, std::abs(actual[i] - expected[i]));
  }
  EXPECT_LE(worst, tolerance * scale) << what << ", largest value " << scale;
}

void compare(const std::string& name, DType dtype) {
  SCOPED_TRACE(name + " in " + std::string(to_string(dtype)));
  const Reference reference(name);
  const Model& model = reference.model();
  const int64_t count = parameter_count(model);
  const Array parameters = array_of(reference.flat(""), dtype, 1, count);
  const StepResult step = run_step(model, reference.shape(), reference.tokens(), parameters);
  EXPECT_NEAR(step.loss, reference.values("loss")[0], 1e-6 * reference.values("loss")[0]);
  expect_near(values_of(step.logits), reference.values("logits"), kReferenceTolerance, "logits");

  const std::vector<double> actual = values_of(step.gradients);
  const std::vector<double> expected = reference.flat("gradient.");
  for (const Module& module : modules_of(model)) {
    for (const Parameter& parameter : module.parameters) {
      const auto first = static_cast<size_t>(module.flat_offset + parameter.offset);
      const auto size = static_cast<size_t>(parameter.count());
      // Of all experts of a layer PyTorch has one tensor; one expert may be sent next to nothing.
      const bool of_experts = parameter.name.find(".experts.") != std::string::npos;
      const auto all = std::span(expected).subspan(static_cast<size_t>(module.flat_offset),
                                                   static_cast<size_t>(module.count));
      expect_near(std::span(actual).subspan(first, size), std::span(expected).subspan(first, size),
                  kReferenceTolerance, parameter.name, of_experts ? largest_magnitude(all) : 0);
    }
  }
}

TEST(Reference, gpt2_agrees_with_pytorch) {
  compare("gpt2", DType::kF32);
  compare("gpt2", DType::kF64);
}

TEST(Reference, llama_with_grouped_heads_agrees_with_pytorch) {
  compare("llama", DType::kF32);
  compare("llama", DType::kF64);
}

TEST(Reference, qwen2_with_biases_and_tied_embeddings_agrees_with_pytorch) {
  compare("qwen2", DType::kF32);
  compare("qwen2", DType::kF64);
}

TEST(Reference, qwen3_with_norms_of_heads_agrees_with_pytorch) {
  compare("qwen3", DType::kF32);
  compare("qwen3", DType::kF64);
}

TEST(Reference, mixtral_with_the_loss_that_balances_experts_agrees_with_pytorch) {
  compare("mixtral", DType::kF32);
  compare("mixtral", DType::kF64);
}

TEST(Reference, qwen3_moe_with_a_dense_layer_and_weights_that_do_not_sum_to_one_agrees) {
  compare("qwen3_moe", DType::kF32);
  compare("qwen3_moe", DType::kF64);
}

TEST(Reference, deepseek_v3_with_latents_shared_experts_and_groups_agrees_with_pytorch) {
  compare("deepseek_v3", DType::kF32);
  compare("deepseek_v3", DType::kF64);
}

TEST(Reference, gpt_oss_with_sinks_windows_and_biased_experts_agrees_with_pytorch) {
  compare("gpt_oss", DType::kF32);
  compare("gpt_oss", DType::kF64);
}

}  // namespace
}  // namespace ballast::transformer
