// Norms, activations, biases and their gradients against the host's.

#include "backend/host/transformer.h"
#include "tests/cuda/arrays.h"

namespace ballast::kernels::cuda::testing {
namespace {

using transformer::ConstView;
using transformer::View;

View view(std::vector<float>& values, int64_t rows) {
  return {values.data(), DType::kF32, rows, static_cast<int64_t>(values.size()) / rows};
}

// Row lengths and starts: odd ones go value by value, multiples of 8 from an aligned start go wide.
struct Layout {
  int64_t columns = 0;
  int64_t shift = 0;  // values off an aligned start
};
constexpr Layout kLayouts[] = {{33, 0}, {64, 0}, {64, 1}, {520, 0}, {2056, 0}, {1, 0}};

// --- Norms -------------------------------------------------------------------------------------

Model norm_model(NormKind kind, int64_t columns) {
  Model model;
  model.norm =
      kind == NormKind::kLayerNorm ? ballast::NormKind::kLayerNorm : ballast::NormKind::kRmsNorm;
  model.norm_epsilon = 1e-3;
  model.hidden = columns;
  return model;
}

struct NormCase {
  NormShape shape;
  Format format = Format::kF32;
  int64_t shift = 0;
  Format params_format = Format::kF32;
  Write write = Write::kOverwrite;
  bool has_residual = false;

  std::string name() const {
    return std::string(shape.kind == NormKind::kLayerNorm ? "LayerNorm " : "RMSNorm ") +
           name_of(format) + " [" + std::to_string(shape.rows) + ", " +
           std::to_string(shape.columns) + "] + " + std::to_string(shift) + " params " +
           name_of(params_format) + (has_residual ? " residual" : "");
  }
};

struct NormArrays {
  std::vector<float> x, params, out, statistics, dout, residual, dx, dparams;
};

NormArrays norm_on_host(const NormCase& c) {
  const auto [kind, rows, columns] = c.shape;
  const Model model = norm_model(kind, columns);
  NormArrays a;
  a.x = normal({0.3f, 1.5f, 1}, c.format, rows * columns);
  a.params = normal({1, 0.2f, 2}, c.params_format, c.shape.parameters());
  a.dout = normal({0, 1, 3}, c.format, rows * columns);
  a.residual = normal({0, 1, 4}, c.format, rows * columns);
  a.out.resize(a.x.size()), a.dx.resize(a.x.size());
  a.statistics.resize(static_cast<size_t>(2 * rows));
  a.dparams = normal({0, 1, 5}, c.params_format, c.shape.parameters());
  const View statistics = view(a.statistics, rows);
  transformer::norm_forward(model, view(a.x, rows), view(a.params, 1), view(a.out, rows),
                            statistics);
  const ConstView residual = c.has_residual ? ConstView(view(a.residual, rows))
                                            : ConstView(nullptr, DType::kF32, rows, columns);
  transformer::norm_backward(model, view(a.x, rows), statistics, view(a.params, 1),
                             view(a.dout, rows), residual, view(a.dx, rows), view(a.dparams, 1),
                             c.write == Write::kAdd);
  return a;
}

void expect_norm_like_host(const NormCase& c) {
  const NormArrays a = norm_on_host(c);
  const Values x(c.format, a.x, c.shift), params(c.params_format, a.params);
  const Values dout(c.format, a.dout, c.shift), residual(c.format, a.residual, c.shift);
  Values out(c.format, x.count(), c.shift), dx(c.format, x.count(), c.shift);
  Values statistics(Format::kF32, 2 * c.shape.rows);
  same_every_time([&] {
    out.poison(), statistics.poison();
    expect_launched(norm_forward(
        {c.shape, 1e-3f, x.array(), params.array(), out.array(), statistics.floats()}, nullptr));
    return out.bytes();
  });
  expect_close(statistics.get(), a.statistics, Format::kF32, 16, c.name() + " statistics");
  expect_close(out.get(), a.out, c.format, 1.01, c.name() + " out");

  const std::vector<float> before = normal({0, 1, 5}, c.params_format, c.shape.parameters());
  Values dparams(c.params_format, before);
  const Memory scratch(norm_backward_scratch_bytes(c.shape));
  NormBackward d{c.shape, x.array(),  statistics.floats(), params.array(), dout.array(),
                 {},      dx.array(), dparams.array(),     c.write,        scratch.data()};
  if (c.has_residual) d.residual_gradient = residual.array();
  same_every_time([&] {
    dx.poison(), dparams.set(before);
    expect_launched(norm_backward(d, nullptr));
    std::vector<unsigned char> written = dx.bytes();
    const std::vector<unsigned char> more = dparams.bytes();
    written.insert(written.end(), more.begin(), more.end());
    return written;
  });
  expect_close(dx.get(), a.dx, c.format, 1.01, c.name() + " dx");
  expect_close(dparams.get(), a.dparams, c.params_format, 1.01, c.name() + " dparams");
}

class rows : public OnMachine {};

TEST_F(rows, layer_norm_of_1_and_3_is_minus_1_and_1) {
  // Mean 2, variance 1: x_hat = -1, 1; times 2, plus 0.5: -1.5, 2.5.
  const NormShape shape{NormKind::kLayerNorm, 1, 2};
  const Values x(Format::kF32, std::vector<float>{1, 3});
  const Values params(Format::kF32, std::vector<float>{2, 2, 0.5f, 0.5f});
  Values out(Format::kF32, 2), statistics(Format::kF32, 2);
  expect_launched(norm_forward(
      {shape, 0.0f, x.array(), params.array(), out.array(), statistics.floats()}, nullptr));
  EXPECT_EQ(out.get(), (std::vector<float>{-1.5f, 2.5f}));
  EXPECT_EQ(statistics.get(), (std::vector<float>{2, 1}));
}

TEST_F(rows, norms_give_what_the_host_gives) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const Format format : kFormats) {
      for (const Layout& layout : kLayouts) {
        NormCase c{{kind, 19, layout.columns}, format, layout.shift, format};
        c.has_residual = layout.columns % 2 == 0;
        c.write = layout.columns == 64 ? Write::kAdd : Write::kOverwrite;
        expect_norm_like_host(c);
        c.params_format = Format::kF32;
        c.has_residual = !c.has_residual;
        expect_norm_like_host(c);
      }
    }
  }
}

TEST_F(rows, a_norms_gradient_may_take_the_place_of_the_residual_gradient_or_of_dout) {
  const NormCase c{{NormKind::kRmsNorm, 7, 64}, Format::kF32, 0, Format::kF32,
                   Write::kOverwrite,           true};
  const NormArrays a = norm_on_host(c);
  for (const bool in_dout : {false, true}) {
    const Values x(c.format, a.x), params(c.format, a.params), statistics(c.format, a.statistics);
    const Values dout(c.format, a.dout), residual(c.format, a.residual);
    const Values dparams(c.format, c.shape.parameters());
    const Memory scratch(norm_backward_scratch_bytes(c.shape));
    const Array dx = in_dout ? dout.array() : residual.array();
    expect_launched(
        norm_backward({c.shape, x.array(), statistics.floats(), params.array(), dout.array(),
                       residual.array(), dx, dparams.array(), Write::kOverwrite, scratch.data()},
                      nullptr));
    expect_close((in_dout ? dout : residual).get(), a.dx, c.format, 4, "dx in place");
    expect_close(dparams.get(), a.dparams, c.format, 16, "dparams");
  }
}

TEST_F(rows, a_norm_whose_sums_no_block_can_hold_is_refused) {
  NormBackward d;
  d.shape = {NormKind::kLayerNorm, 1, kNormParametersMax / 2 + 8};
  const Status status = norm_backward(d, nullptr);
  EXPECT_FALSE(status.ok());
  EXPECT_STREQ(status.kernel, "norm_backward");
}

// --- Activations -------------------------------------------------------------------------------

Model activation_model(const ActivationShape& shape) {
  Model model;
  model.ffn = shape.columns;
  model.activation = shape.kind == ActivationKind::kSwiGlu ? ballast::ActivationKind::kSwiGlu
                     : shape.kind == ActivationKind::kGelu ? ballast::ActivationKind::kGelu
                                                           : ballast::ActivationKind::kGeluTanh;
  return model;
}

void expect_activation_like_host(const ActivationShape& shape, Format format, int64_t shift) {
  const std::string name = "activation " + std::to_string(static_cast<int>(shape.kind)) + " " +
                           name_of(format) + " columns " + std::to_string(shape.columns);
  const Model model = activation_model(shape);
  std::vector<float> h = normal({0, 2, 1}, format, shape.rows * shape.inputs());
  std::vector<float> da = normal({0, 1, 2}, format, shape.rows * shape.columns);
  std::vector<float> a(da.size()), dh(h.size());
  transformer::activation_forward(model, view(h, shape.rows), view(a, shape.rows));
  transformer::activation_backward(model, view(h, shape.rows), view(da, shape.rows),
                                   view(dh, shape.rows));
  const Values from(format, h, shift), gradient(format, da, shift);
  Values to(format, gradient.count(), shift), dfrom(format, from.count(), shift);
  expect_launched(activation_forward({shape, from.array(), {}, to.array()}, nullptr));
  expect_close(to.get(), a, format, 1.01, name + " forward");
  expect_launched(
      activation_backward({shape, from.array(), gradient.array(), dfrom.array()}, nullptr));
  expect_close(dfrom.get(), dh, format, 1.01, name + " backward");
  expect_launched(
      activation_backward({shape, from.array(), gradient.array(), from.array()}, nullptr));
  EXPECT_EQ(from.bytes(), dfrom.bytes()) << name << " in place";
}

TEST_F(rows, activations_give_what_the_host_gives) {
  for (const ActivationKind kind :
       {ActivationKind::kGelu, ActivationKind::kGeluTanh, ActivationKind::kSwiGlu}) {
    for (const Format format : kFormats) {
      for (const Layout& layout : kLayouts) {
        expect_activation_like_host({kind, 5, layout.columns}, format, layout.shift);
      }
    }
  }
}

// Over all of fp32's exponentials, where the emulated special function unit misses by as much as it
// may: half a unit of bf16, and the error that is stated beside the kernel's sigmoid.
TEST_F(rows, swiglu_in_16_bits_misses_by_no_more_than_is_stated) {
  constexpr int64_t kColumns = 1440;
  const ActivationShape shape{ActivationKind::kSwiGlu, 1, kColumns};
  std::vector<float> h(2 * kColumns, 1.0f);  // gates, then ups
  for (int64_t i = 0; i < kColumns; ++i) {
    h[static_cast<size_t>(i)] = static_cast<float>(i - kColumns / 2) / 8;
  }
  h = rounded(h, Format::kBf16);
  const Values from(Format::kBf16, h);
  Values to(Format::kBf16, kColumns);
  expect_launched(activation_forward({shape, from.array(), {}, to.array()}, nullptr));
  const std::vector<float> got = to.get();
  for (size_t i = 0; i < got.size(); ++i) {
    const double x = h[i];
    const double exact = x / (1 + std::exp(-x));
    const double half_unit = exact == 0 ? 0 : std::ldexp(1.0, std::ilogb(exact) - 8);
    const double stated = std::abs(exact) * (4.3e-7 + 1.2e-7 * std::abs(x));
    const double allowed = half_unit + stated + 1e-36;  // denormals are 0
    EXPECT_NEAR(got[i], exact, allowed) << x;
  }
}

TEST_F(rows, a_bias_goes_into_h_before_it_is_activated) {
  for (const Format format : kFormats) {
    const ActivationShape shape{ActivationKind::kSwiGlu, 3, 16};
    const std::vector<float> h = normal({0, 1, 1}, format, 96);
    const std::vector<float> bias = normal({0, 1, 2}, Format::kF32, 32);
    std::vector<float> biased(96), expected(48);
    for (size_t i = 0; i < 96; ++i) biased[i] = h[i] + bias[i % 32];
    biased = rounded(biased, format);
    transformer::activation_forward(activation_model(shape), view(biased, 3), view(expected, 3));
    const Values from(format, h), added(Format::kF32, bias);
    Values to(format, 48);
    expect_launched(activation_forward({shape, from.array(), added.array(), to.array()}, nullptr));
    EXPECT_EQ(from.get(), biased);
    expect_close(to.get(), expected, format, 1.01, "activated " + name_of(format));
  }
}

// --- Biases ------------------------------------------------------------------------------------

// A part of y's columns; everything beside it stays as it was.
TEST_F(rows, a_bias_and_a_residual_are_added_to_their_columns_alone) {
  for (const Format format : kFormats) {
    for (const Columns place : {Columns{5, 48, 16, 24}, Columns{4, 31, 7, 13}}) {
      const std::vector<float> y = normal({0, 1, 1}, format, place.rows * place.stride);
      const std::vector<float> residual = normal({0, 1, 2}, format, place.rows * place.stride);
      const std::vector<float> bias = normal({0, 1, 3}, Format::kF32, place.columns);
      std::vector<float> expected = y;
      for (int64_t i = 0; i < place.rows * place.stride; ++i) {
        const int64_t column = i % place.stride - place.first;
        if (column < 0 || column >= place.columns) continue;
        const auto at = static_cast<size_t>(i);
        expected[at] = y[at] + bias[static_cast<size_t>(column)] + residual[at];
      }
      const Values to(format, y), from(format, residual), added(Format::kF32, bias);
      expect_launched(add_bias({place, to.array(), added.array(), from.array()}, nullptr));
      EXPECT_EQ(to.get(), rounded(expected, format)) << name_of(format);
    }
  }
}

TEST_F(rows, a_bias_gradient_is_the_sum_of_its_columns) {
  for (const Format format : kFormats) {
    for (const Columns place : {Columns{1, 8, 0, 8}, Columns{600, 56, 16, 24},
                                Columns{257, 41, 3, 37}, Columns{300, 600, 8, 520}}) {
      const std::vector<float> dy = normal({0.2f, 1, 1}, format, place.rows * place.stride);
      const std::vector<float> before = normal({0, 1, 2}, Format::kF32, place.columns);
      std::vector<double> sums(before.begin(), before.end());
      for (int64_t row = 0; row < place.rows; ++row) {
        for (int64_t j = 0; j < place.columns; ++j) {
          sums[static_cast<size_t>(j)] +=
              double{dy[static_cast<size_t>(row * place.stride + place.first + j)]};
        }
      }
      const Values from(format, dy);
      Values to(Format::kF32, place.columns);
      const Memory scratch(bias_gradient_scratch_bytes(place));
      same_every_time([&] {
        to.set(before);
        expect_launched(
            bias_gradient({place, from.array(), to.array(), Write::kAdd, scratch.data()}, nullptr));
        return to.bytes();
      });
      expect_close(to.get(), std::vector<float>(sums.begin(), sums.end()), Format::kF32, 64,
                   "bias gradient " + name_of(format));
    }
  }
}

}  // namespace
}  // namespace ballast::kernels::cuda::testing
