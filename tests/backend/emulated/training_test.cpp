// Whole trainings on the CUDA device with the CUDA kernels themselves, emulated, and plain matrix
// products: every argument of every kernel is the one that the host device computes with.
#include <cmath>
#include <gtest/gtest.h>

#include "backend/cuda/device_cuda.h"
#include "backend/cuda/transformer_cuda.h"
#include "tests/backend/emulated/immediate_cuda.h"
#include "tests/backend/emulated/plain_attention.h"
#include "tests/backend/emulated/proportional_steps.h"
#include "tests/backend/tiny_training.h"

namespace ballast {
namespace {

constexpr int kSteps = 2;

// Whose attention: our kernels', or a library's with so much workspace.
struct Attention {
  std::optional<Bytes> workspace;
  Bytes most{};  // beyond which it gets none
  std::shared_ptr<tests::AttentionRuns> runs = std::make_shared<tests::AttentionRuns>();
  std::shared_ptr<int64_t> fp8_products = std::make_shared<int64_t>(0);
  std::shared_ptr<int64_t> sums =
      nullptr;  // of products that leave a bias' gradient; null: none do
};

TrainerOptions on_emulated_cuda(TrainerOptions options, const Attention& attention = {}) {
  options.make_device = [attention](const Training& training, const DeviceOptions& with,
                                    const ControlState& state) {
    auto runtime = std::make_unique<tests::ImmediateCuda>();
    std::unique_ptr<AttentionLibrary> library;
    if (attention.workspace) library = std::make_unique<tests::PlainAttention>(attention.runs);
    auto math = std::make_unique<CudaTransformer>(
        training, RankPlace{}, *runtime,
        std::make_unique<tests::PlainProducts>(attention.fp8_products, attention.sums),
        std::make_unique<CudaAttention>(
            *runtime, OpenedAttention{std::move(library), ""},
            AttentionMemory{attention.workspace.value_or(Bytes{}), attention.most}));
    return std::make_unique<CudaDevice>(
        training, with, state, CudaParts{std::move(runtime), std::move(math), {int64_t{1} << 40}});
  };
  return options;
}

// Models so small that emulation takes seconds, with every kind of layout: one fused matrix with
// biases; several without; several with (qwen2's q, k and v).
Model small_gpt2() {
  return tiny::gpt2({.hidden = 32, .head_size = 16, .ffn = 64, .vocab = 256, .positions = 16});
}
constexpr tiny::Widths kSmall = {
    .hidden = 32, .heads = 2, .kv_heads = 1, .head_size = 16, .ffn = 48, .vocab = 256};
Model small_llama() { return tiny::llama(kSmall); }
Model small_qwen2() { return tiny::qwen2(kSmall); }

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

Plan small_plan(DType dtype) {
  Plan plan = tiny::wait_plan(dtype);
  plan.global_batch = 2;
  plan.micro_batch = 1;
  return plan;
}

TEST(EmulatedTraining, parameters_follow_those_of_the_host_device) {
  for (const Model& model : {small_gpt2(), small_llama(), small_qwen2()}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const TrainerOptions options = tiny::proportional_steps();
      const Plan plan = small_plan(dtype);
      Trainer untrained(model, plan, options);
      const std::vector<float> begin = untrained.parameters();
      const tiny::Outcome host = tiny::train(model, plan, options, kSteps, true);
      const tiny::Outcome cuda = tiny::train(model, plan, on_emulated_cuda(options), kSteps, true);
      // Of how far training went. fp32 sums in another order: about 1e-6 a step. bf16 rounds
      // activations and gradients to 2^-9 each.
      std::vector<float> host_way(begin.size()), cuda_way(begin.size());
      for (size_t i = 0; i < begin.size(); ++i) {
        host_way[i] = host.parameters[i] - begin[i];
        cuda_way[i] = cuda.parameters[i] - begin[i];
      }
      EXPECT_LT(distance(cuda_way, host_way), dtype == DType::kF32 ? 1e-4 : 3e-2)
          << model.name << " " << to_string(dtype);
      for (size_t i = 0; i < host.records.size(); ++i) {
        EXPECT_NEAR(cuda.records[i].loss, host.records[i].loss, dtype == DType::kF32 ? 1e-5 : 2e-2)
            << model.name << " step " << i;
      }
      EXPECT_LT(host.records.back().loss, host.records.front().loss);
    }
  }
}

TEST(EmulatedTraining, every_knob_gives_the_bits_of_the_gpus_own_waiting_run) {
  const TrainerOptions options = on_emulated_cuda(tiny::options_for(10));
  const Model model = small_llama();
  const Plan wait = small_plan(DType::kBf16);
  const tiny::Outcome reference = tiny::train(model, wait, options, kSteps, true);
  Plan offloads = wait;
  offloads.optimizer.sync = SyncMode::kSpeculate;
  offloads.optimizer.bucket_bytes = {4 * kSegment};
  offloads.activations = tiny::all_activations(ActivationFate::kOffload);
  Plan recomputes = wait;
  recomputes.weights.flow_share = 1;
  recomputes.activations = tiny::all_activations(ActivationFate::kRecompute);
  Plan on_gpu = offloads;
  on_gpu.optimizer.gpu_buckets = 100;
  Plan exact = on_gpu;
  exact.optimizer.undo = UndoKind::kExact;
  Plan direct = offloads;
  direct.optimizer.transfers = StateTransfers::kDirect;
  Plan direct_flow = recomputes;
  direct_flow.optimizer.transfers = StateTransfers::kDirect;
  Plan direct_cast_on_cpu = direct_flow;
  direct_cast_on_cpu.optimizer.cast = CastPlacement::kCpu;
  direct_cast_on_cpu.weights.flow_share = 0.5;
  for (const Plan& plan :
       {offloads, recomputes, on_gpu, exact, direct, direct_flow, direct_cast_on_cpu}) {
    const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, true);
    EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters));
    EXPECT_EQ(outcome.rollbacks > 0, plan.optimizer.sync == SyncMode::kSpeculate);
  }
}

// A bias has its gradient from the product of its matrix or from a kernel, in fp32 but for the
// order of the sum; of two micro-batches the second adds to the first, by the kernel. Biases: of
// four matrices in two layers of gpt2, of qkv's three in two of qwen2, llama none.
TEST(EmulatedTraining, gradients_of_biases_come_from_products_where_a_library_offers_that) {
  const struct {
    Model model;
    int64_t sums;  // a step
  } kCases[] = {{small_gpt2(), 8}, {small_qwen2(), 6}, {small_llama(), 0}};
  for (const auto& [model, sums] : kCases) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const TrainerOptions options = tiny::proportional_steps();
      Attention offers;
      offers.sums = std::make_shared<int64_t>(0);
      const Plan plan = small_plan(dtype);
      const tiny::Outcome kernel =
          tiny::train(model, plan, on_emulated_cuda(options), kSteps, true);
      const tiny::Outcome epilogue =
          tiny::train(model, plan, on_emulated_cuda(options, offers), kSteps, true);
      EXPECT_EQ(*offers.sums, kSteps * sums) << model.name;
      EXPECT_LT(distance(epilogue.parameters, kernel.parameters),
                dtype == DType::kF32 ? 1e-6 : 1e-4)
          << model.name << " " << to_string(dtype);
    }
  }
}

// Of equal logits the loss has the bits of the whole: its tokens' losses are added up in one order.
// The head's gradient is a sum over pieces, and has those of the GPU's own waiting run.
TEST(EmulatedTraining, head_and_loss_in_pieces_follow_the_whole) {
  const TrainerOptions options = on_emulated_cuda(tiny::proportional_steps());
  for (const Model& model : {small_gpt2(), small_llama()}) {
    const Plan whole = small_plan(DType::kF32);
    Plan pieces = whole;
    pieces.loss_chunks = 5;
    const tiny::Outcome one = tiny::train(model, whole, options, kSteps, true);
    const tiny::Outcome five = tiny::train(model, pieces, options, kSteps, true);
    EXPECT_EQ(five.records.front().loss, one.records.front().loss) << model.name;
    EXPECT_LT(distance(five.parameters, one.parameters), 1e-6) << model.name;
    EXPECT_FALSE(tiny::same_bits(five.parameters, one.parameters)) << "are there pieces?";
    Plan speculates = pieces;
    speculates.optimizer.sync = SyncMode::kSpeculate;
    speculates.activations = tiny::all_activations(ActivationFate::kOffload);
    EXPECT_TRUE(tiny::same_bits(tiny::train(model, speculates, options, kSteps, true).parameters,
                                five.parameters));
  }
}

// Steps that nothing clips: what their records did not hold is stepped when they are kept. In the
// first steps that is most of it.
TEST(EmulatedTraining, exact_steps_of_the_gpu_that_are_kept_give_the_bits_of_waiting) {
  TrainerOptions unclipped = tiny::options_for(10);
  unclipped.optimizer.clip_norm = 1e6;
  const TrainerOptions options = on_emulated_cuda(unclipped);
  Plan exact = small_plan(DType::kBf16);
  const tiny::Outcome reference = tiny::train(small_llama(), exact, options, kSteps, true);
  exact.optimizer.sync = SyncMode::kSpeculate;
  exact.optimizer.undo = UndoKind::kExact;
  exact.optimizer.gpu_buckets = 100;
  const tiny::Outcome outcome = tiny::train(small_llama(), exact, options, kSteps, true);
  EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters));
  EXPECT_EQ(outcome.rollbacks, 0);
}

// The way of a training's parameters from where they began.
std::vector<float> way(const Model& model, const Plan& plan, const TrainerOptions& options) {
  Trainer untrained(model, plan, options);
  const std::vector<float> begin = untrained.parameters();
  std::vector<float> end = tiny::train(model, plan, options, kSteps, true).parameters;
  for (size_t i = 0; i < end.size(); ++i) end[i] -= begin[i];
  return end;
}

// Eight micro-batches whose gradients add up in 32 bits: every kernel that writes or reads one
// takes it so. Products are rounded to bf16 no more, so what is left of the distance to the host
// device is that of activations.
Plan wide_sums() {
  Plan plan = small_plan(DType::kBf16);
  plan.global_batch = 8;
  plan.gradients = GradientFormat::kF32;
  return plan;
}

TEST(EmulatedTraining, sums_of_gradients_in_32_bits_follow_those_of_the_host_device) {
  const TrainerOptions options = tiny::proportional_steps();
  for (const Model& model : {small_gpt2(), small_llama(), small_qwen2()}) {
    Plan plan = wide_sums();
    const std::vector<float> host = way(model, plan, options);
    const std::vector<float> cuda = way(model, plan, on_emulated_cuda(options));
    const double off = distance(cuda, host);
    plan.gradients = GradientFormat::kAsWeights;
    const double off_narrow = distance(way(model, plan, on_emulated_cuda(options)), host);
    EXPECT_LT(off, 1e-2) << model.name;
    EXPECT_GT(off_narrow, off) << model.name;
    std::printf("%s: off by %.1e with sums in fp32, %.1e in bf16\n", model.name.c_str(), off,
                off_narrow);
  }
}

TEST(EmulatedTraining, sums_of_gradients_in_32_bits_give_the_bits_of_waiting_whatever_the_knob) {
  const TrainerOptions options = on_emulated_cuda(tiny::options_for(10));
  const Model model = small_llama();
  const Plan wait = wide_sums();
  const std::vector<float> reference = tiny::train(model, wait, options, kSteps, true).parameters;
  Plan offloads = wait;
  offloads.optimizer.sync = SyncMode::kSpeculate;
  offloads.optimizer.bucket_bytes = {4 * kSegment};
  offloads.optimizer.cast = CastPlacement::kCpu;
  offloads.activations = tiny::all_activations(ActivationFate::kOffload);
  Plan exact = offloads;
  exact.optimizer.cast = CastPlacement::kGpu;
  exact.optimizer.gpu_buckets = 100;
  exact.optimizer.undo = UndoKind::kExact;
  for (const Plan& plan : {offloads, exact}) {
    EXPECT_TRUE(
        tiny::same_bits(reference, tiny::train(model, plan, options, kSteps, true).parameters));
  }
  Plan narrow = wait;
  narrow.gradients = GradientFormat::kAsWeights;
  EXPECT_FALSE(
      tiny::same_bits(reference, tiny::train(model, narrow, options, kSteps, true).parameters));
}

TEST(EmulatedTraining, attention_of_a_library_trains_as_ours_does) {
  const TrainerOptions options = tiny::proportional_steps();
  for (const Model& model : {small_gpt2(), small_llama(), small_qwen2()}) {
    const Plan plan = small_plan(DType::kBf16);
    const Attention library{Bytes{1 << 20}};
    const std::vector<float> ours = way(model, plan, on_emulated_cuda(options));
    const std::vector<float> its = way(model, plan, on_emulated_cuda(options, library));
    EXPECT_LT(distance(its, ours), 3e-2) << model.name;  // bf16, as above
    // Each step: two sequences through every layer, forward and backward.
    EXPECT_EQ(library.runs->forward, 2 * kSteps * model.layers) << model.name;
    EXPECT_EQ(library.runs->backward, 2 * kSteps * model.layers) << model.name;
  }
}

TEST(EmulatedTraining, attention_in_slices_gives_the_bits_of_attention_at_once) {
  // A backward's workspace is 2 S^2 bytes a query head: 288 of 12 tokens. gpt2 here has 2 heads of
  // their own, so with 288 bytes each head of each sequence is a slice, with 576 both heads.
  Model model = small_gpt2();
  Plan plan = small_plan(DType::kBf16);
  plan.micro_batch = 2;
  const TrainerOptions options = tiny::proportional_steps();
  const Attention at_once{Bytes{1 << 20}}, by_sequence{Bytes{600}}, by_head{Bytes{300}};
  const Attention none{Bytes{100}};
  const std::vector<float> whole = way(model, plan, on_emulated_cuda(options, at_once));
  EXPECT_TRUE(tiny::same_bits(whole, way(model, plan, on_emulated_cuda(options, by_sequence))));
  EXPECT_TRUE(tiny::same_bits(whole, way(model, plan, on_emulated_cuda(options, by_head))));
  EXPECT_EQ(at_once.runs->backward, kSteps * model.layers);
  EXPECT_EQ(by_sequence.runs->backward, 2 * kSteps * model.layers);
  EXPECT_EQ(by_head.runs->backward, 4 * kSteps * model.layers);
  // By each of two devices: the forward once, the backward for the whole and for the slice. What by
  // the whole's workspace is too large is not asked for.
  EXPECT_EQ(by_head.runs->asked, 2 * 3);
  // Too little for any slice of the backward: it is ours, the forward the library's.
  static_cast<void>(way(model, plan, on_emulated_cuda(options, none)));
  EXPECT_EQ(none.runs->backward, 0);
  EXPECT_EQ(none.runs->forward, kSteps * model.layers);
  EXPECT_EQ(none.runs->asked, 2 * 2);
}

// One head's backward needs 288 bytes of the 100 that are there.
TEST(EmulatedTraining, workspace_grows_to_the_smallest_slice_where_that_is_allowed) {
  const TrainerOptions options = tiny::proportional_steps();
  Plan plan = small_plan(DType::kBf16);
  plan.micro_batch = 2;
  const Attention at_once{Bytes{1 << 20}}, grows{Bytes{100}, Bytes{288}};
  const std::vector<float> whole = way(small_gpt2(), plan, on_emulated_cuda(options, at_once));
  EXPECT_TRUE(tiny::same_bits(whole, way(small_gpt2(), plan, on_emulated_cuda(options, grows))));
  EXPECT_EQ(grows.runs->backward, 4 * kSteps * small_gpt2().layers);
}

TEST(EmulatedTraining, what_a_library_leaves_to_our_kernels_is_told_once_with_the_reason) {
  const Plan plan = small_plan(DType::kBf16);
  const auto notes = [&](const Attention& attention) {
    return Trainer(small_gpt2(), plan, on_emulated_cuda(tiny::proportional_steps(), attention))
        .notes();
  };
  EXPECT_EQ(notes({Bytes{1 << 20}}).size(), 0U);
  EXPECT_EQ(
      notes({Bytes{100}}),
      std::vector<std::string>{"attention backward of 12 tokens, 2 heads (2 kv) of 16 by our "
                               "kernels: plain needs at least 0.000288 MB of workspace a head "
                               "with its queries, and has 0.0001 MB"});
  Attention refused{Bytes{100}};
  refused.runs->refuses = true;
  const std::vector<std::string> told = notes(refused);
  ASSERT_EQ(told.size(), 2U);  // forward and backward, however many layers there are
  EXPECT_EQ(
      told[0],
      "attention forward of 12 tokens, 2 heads (2 kv) of 16 by our kernels: it has no kernel");
}

TEST(EmulatedTraining, fp32_is_left_to_our_kernels) {
  const Attention library{Bytes{1 << 20}};
  static_cast<void>(way(small_llama(), small_plan(DType::kF32),
                        on_emulated_cuda(tiny::proportional_steps(), library)));
  EXPECT_EQ(library.runs->forward + library.runs->backward, 0);
}

// Products in fp8 need sequences of sixteens.
Plan fp8_plan(ProductFormat products) {
  Plan plan = small_plan(DType::kBf16);
  plan.sequence_length = 16;
  plan.products = products;
  return plan;
}

// e4m3 keeps 4 bits of a value and e5m2 3: a factor is off by 2.5 % or 5 % on average, and so are
// gradients that pass one product. Embedding, head and norms are nearly as far as in bf16.
TEST(EmulatedTraining, products_in_fp8_go_the_way_of_those_in_bf16) {
  const TrainerOptions options = tiny::proportional_steps();
  for (const Model& model : {small_gpt2(), small_llama(), small_qwen2()}) {
    const Attention counted;
    const std::vector<float> bf16 =
        way(model, fp8_plan(ProductFormat::kAsStored), on_emulated_cuda(options, counted));
    EXPECT_EQ(*counted.fp8_products, 0);
    const std::vector<float> fp8 =
        way(model, fp8_plan(ProductFormat::kFp8), on_emulated_cuda(options, counted));
    const double off = distance(fp8, bf16);
    EXPECT_LT(off, 6e-2) << model.name;
    EXPECT_GT(off, 1e-3) << model.name;  // it does round
    // Each of two sequences a step: qkv, attention_out, fc1 and fc2 of every layer, forward and
    // twice backward; q, k and v apart where they have biases (qwen2).
    const int64_t matrices = model.architecture == "qwen2" ? 6 : 4;
    EXPECT_EQ(*counted.fp8_products, kSteps * 2 * 3 * matrices * model.layers) << model.name;
  }
}

// Codes of weights that are kept are those that each product would make: with one matrix an
// operation and with several, stored either way, of several micro-batches and recomputed.
TEST(EmulatedTraining, kept_codes_of_weights_are_those_of_each_use) {
  const TrainerOptions options = on_emulated_cuda(tiny::options_for(10));
  for (const Model& model : {small_gpt2(), small_llama(), small_qwen2()}) {
    Plan each_use = fp8_plan(ProductFormat::kFp8);
    each_use.global_batch = 4;
    each_use.micro_batch = 1;
    const tiny::Outcome reference = tiny::train(model, each_use, options, kSteps, true);
    Plan kept = each_use;
    kept.weights.keep_codes = true;
    Plan recomputing = kept;
    recomputing.activations = tiny::all_activations(ActivationFate::kRecompute);
    Plan speculating = tiny::plan_of_both_homes(SyncMode::kSpeculate);
    speculating.global_batch = each_use.global_batch;
    speculating.micro_batch = each_use.micro_batch;
    speculating.sequence_length = each_use.sequence_length;
    speculating.dtype = each_use.dtype;
    speculating.products = each_use.products;
    speculating.weights.keep_codes = true;
    std::vector<Plan> plans = {kept};
    if (model.architecture == "qwen2") plans.insert(plans.end(), {recomputing, speculating});
    for (const Plan& plan : plans) {
      const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, true);
      EXPECT_TRUE(tiny::same_bits(outcome.parameters, reference.parameters)) << model.name;
      // What is done again makes them again.
      EXPECT_EQ(outcome.rollbacks > 0, plan.optimizer.sync == SyncMode::kSpeculate);
    }
  }
}

TEST(EmulatedTraining, losses_in_fp8_fall_with_those_in_bf16_and_repeat_bit_by_bit) {
  constexpr int kMore = 12;
  const TrainerOptions options = on_emulated_cuda(tiny::options_for(kMore));
  const Model model = small_llama();
  const tiny::Outcome bf16 =
      tiny::train(model, fp8_plan(ProductFormat::kAsStored), options, kMore, true);
  const Plan plan = fp8_plan(ProductFormat::kFp8);
  const tiny::Outcome fp8 = tiny::train(model, plan, options, kMore, true);
  EXPECT_TRUE(
      tiny::same_bits(fp8.parameters, tiny::train(model, plan, options, kMore, true).parameters));
  EXPECT_LT(fp8.records.back().loss, fp8.records.front().loss - 0.3);
  for (size_t i = 0; i < fp8.records.size(); ++i) {
    EXPECT_NEAR(fp8.records[i].loss, bf16.records[i].loss, 5e-3) << "step " << i;
  }
}

TEST(EmulatedTraining, every_knob_gives_the_bits_of_waiting_in_fp8_too) {
  const TrainerOptions options = on_emulated_cuda(tiny::options_for(10));
  const Model model = small_llama();
  const Plan wait = fp8_plan(ProductFormat::kFp8);
  const tiny::Outcome reference = tiny::train(model, wait, options, kSteps, true);
  Plan recomputes = wait;
  recomputes.weights.flow_share = 1;
  recomputes.activations = tiny::all_activations(ActivationFate::kRecompute);
  Plan offloads = wait;
  offloads.optimizer.sync = SyncMode::kSpeculate;
  offloads.activations = tiny::all_activations(ActivationFate::kOffload);
  for (const Plan& plan : {recomputes, offloads}) {
    const tiny::Outcome outcome = tiny::train(model, plan, options, kSteps, true);
    EXPECT_TRUE(tiny::same_bits(reference.parameters, outcome.parameters));
  }
}

}  // namespace
}  // namespace ballast
