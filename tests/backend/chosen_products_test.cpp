// Which algorithm a product gets, and what is asked of the library for it, by a library that counts
// and a clock that only its runs move.
#include "backend/cuda/libraries/chosen_products.h"

#include <array>
#include <gtest/gtest.h>
#include <map>

#include "sim/base/error.h"
#include "tests/backend/emulated/immediate_cuda.h"

namespace ballast {
namespace {

constexpr int64_t kSide = 4;
const CudaStream kStream{nullptr, "compute"};

GemmAlgorithm algorithm(uint64_t number) { return {number}; }

// Time passes where a product runs.
class Clock : public tests::ImmediateCuda {
 public:
  void record(CudaEvent event, CudaStream) override {
    *static_cast<int64_t*>(event.native) = now_ns;
  }
  int64_t now_ns = 0;
};

struct Calls {
  int prepared = 0;
  int asked = 0;  // for candidates
  int most = 0;   // of them
  std::vector<uint64_t> checked, ran;
};

// Its algorithms are numbers: what each takes, or -1 where it refuses to run.
class Numbered : public GemmLibrary {
 public:
  Numbered(Clock& clock, Calls& calls, std::map<uint64_t, int64_t> takes)
      : clock_(clock), calls_(calls), takes_(std::move(takes)) {}
  std::string machine() const override { return "a GPU"; }
  std::unique_ptr<PreparedGemm> prepare(const CudaGemm&) override {
    ++calls_.prepared;
    return std::make_unique<Product>(*this);
  }

 private:
  class Product : public PreparedGemm {
   public:
    explicit Product(Numbered& library) : of_(library) {}
    std::vector<GemmAlgorithm> candidates(int most) override {
      ++of_.calls_.asked;
      of_.calls_.most = most;
      std::vector<GemmAlgorithm> all;
      for (const auto& [number, time] : of_.takes_) {
        if (static_cast<int>(all.size()) < most) all.push_back(algorithm(number));
      }
      return all;
    }
    bool accepts(const GemmAlgorithm& asked) override {
      of_.calls_.checked.push_back(asked[0]);
      return of_.takes_.contains(asked[0]);
    }
    void run(const CudaGemm& gemm, const GemmAlgorithm& with, CudaStream stream) override {
      const int64_t time = of_.takes_.at(with[0]);
      if (time < 0) throw Error("product", "refused", "none");
      of_.calls_.ran.push_back(with[0]);
      of_.clock_.now_ns += time;
      tests::PlainProducts().multiply(gemm, stream);
    }
    Numbered& of_;
  };
  Clock& clock_;
  Calls& calls_;
  std::map<uint64_t, int64_t> takes_;
};

class Chosen : public ::testing::Test {
 protected:
  GemmAlgorithmStore store() {
    return {
        [this](const std::string& key) -> std::optional<GemmAlgorithm> {
          const auto at = kept_.find(key);
          if (at == kept_.end()) return {};
          return at->second;
        },
        [this](const std::string& key, const GemmAlgorithm& which) { kept_.emplace(key, which); }};
  }
  ChosenProducts products(std::map<uint64_t, int64_t> takes, GemmAlgorithmStore with) {
    return {clock_, std::make_unique<Numbered>(clock_, calls_, std::move(takes)), std::move(with)};
  }
  // out = a b, plus itself where it adds: a is all twos and b all ones.
  CudaGemm gemm(bool adds) {
    CudaGemm made;
    made.m = made.n = made.k = kSide;
    made.a = {a_.data(), DType::kF32, Orientation::kAsStored, kSide, nullptr};
    made.b = {b_.data(), DType::kF32, Orientation::kAsStored, kSide, nullptr};
    made.out = out_.data();
    made.out_dtype = DType::kF32;
    made.out_stride = kSide;
    if (adds) made.added = made.out;
    return made;
  }
  using Matrix = std::array<float, kSide * kSide>;
  static Matrix all(float value) {
    Matrix matrix;
    matrix.fill(value);
    return matrix;
  }

  Clock clock_;
  Calls calls_;
  std::map<std::string, GemmAlgorithm> kept_;
  alignas(256) Matrix a_ = all(2), b_ = all(1), out_ = all(100);
};

TEST_F(Chosen, fastest_of_a_few_is_kept_and_timed_once) {
  ChosenProducts first = products({{1, 30}, {2, 10}, {3, 20}}, store());
  first.multiply(gemm(false), kStream);
  EXPECT_EQ(calls_.most, ChosenProducts::kCandidates);
  ASSERT_EQ(kept_.size(), 1U);
  EXPECT_EQ(kept_.begin()->first,
            "a GPU: 4x4x4 fp32 fp32 to fp32 strides 4 4 4 aligned 256 256 256");
  EXPECT_EQ(kept_.begin()->second, algorithm(2));
  EXPECT_EQ(calls_.ran.size(), 3 * (1 + ChosenProducts::kTimes) + 1U);
  EXPECT_EQ(calls_.ran.back(), 2U);
  for (int i = 0; i < 9; ++i) first.multiply(gemm(false), kStream);
  EXPECT_EQ(calls_.prepared, 1);
  EXPECT_EQ(calls_.asked, 1);
  // Another process takes what the first one found, once the library has accepted it.
  calls_ = {};
  ChosenProducts second = products({{1, 30}, {2, 10}, {3, 20}}, store());
  second.multiply(gemm(false), kStream);
  EXPECT_EQ(calls_.checked, std::vector<uint64_t>{2});
  EXPECT_EQ(calls_.asked, 0);
  EXPECT_EQ(calls_.ran, std::vector<uint64_t>{2});
}

TEST_F(Chosen, what_a_product_adds_to_itself_is_there_once_however_often_it_was_timed) {
  ChosenProducts chosen = products({{1, 30}, {2, 10}}, store());
  chosen.multiply(gemm(true), kStream);
  EXPECT_EQ(out_, all(100 + 2 * kSide));
  chosen.multiply(gemm(true), kStream);
  EXPECT_EQ(out_, all(100 + 4 * kSide));
}

TEST_F(Chosen, algorithm_of_the_store_that_the_library_refuses_is_chosen_anew) {
  ChosenProducts first = products({{7, 10}}, store());
  first.multiply(gemm(false), kStream);
  EXPECT_EQ(kept_.begin()->second, algorithm(7));
  ChosenProducts later = products({{1, 30}, {2, 10}}, store());
  later.multiply(gemm(false), kStream);
  ASSERT_EQ(kept_.size(), 2U);  // the store changes no answer that it has given
  EXPECT_EQ(kept_.begin()->second, algorithm(7));
  EXPECT_EQ(kept_.rbegin()->second, algorithm(2));
  EXPECT_EQ(out_, all(2 * kSide));
  calls_ = {};
  ChosenProducts last = products({{1, 30}, {2, 10}}, store());
  last.multiply(gemm(false), kStream);
  EXPECT_EQ(calls_.checked, (std::vector<uint64_t>{7, 2}));
  EXPECT_EQ(calls_.ran, std::vector<uint64_t>{2});
}

TEST_F(Chosen, candidates_that_refuse_to_run_are_passed_over) {
  ChosenProducts chosen = products({{1, -1}, {2, 40}, {3, -1}}, store());
  chosen.multiply(gemm(true), kStream);
  EXPECT_EQ(kept_.begin()->second, algorithm(2));
  EXPECT_EQ(out_, all(100 + 2 * kSide));
}

// Two devices of a process must choose alike.
TEST_F(Chosen, without_a_store_it_is_the_librarys_first_and_nothing_is_timed) {
  ChosenProducts chosen = products({{1, 30}, {2, 10}}, {});
  chosen.multiply(gemm(false), kStream);
  EXPECT_EQ(calls_.most, 1);
  EXPECT_EQ(calls_.ran, std::vector<uint64_t>{1});
}

TEST_F(Chosen, shapes_strides_alignments_and_what_is_added_are_products_of_their_own) {
  ChosenProducts chosen = products({{1, 30}}, {});
  const auto prepared = [&](const auto& change) {
    CudaGemm changed = gemm(false);
    change(changed);
    chosen.multiply(changed, kStream);
    return calls_.prepared;
  };
  EXPECT_EQ(prepared([](CudaGemm&) {}), 1);
  EXPECT_EQ(prepared([](CudaGemm& g) { g.m = 2; }), 2);
  EXPECT_EQ(prepared([](CudaGemm& g) { g.m = 2, g.a.stride = 8; }), 3);
  EXPECT_EQ(prepared([&](CudaGemm& g) { g.m = 1, g.a.data = a_.data() + 1; }), 4);
  EXPECT_EQ(prepared([](CudaGemm& g) { g.added = g.out; }), 5);
  EXPECT_EQ(prepared([&](CudaGemm& g) { g.bias = b_.data(); }), 6);
  EXPECT_EQ(prepared([](CudaGemm& g) { g.a.orientation = Orientation::kTransposed; }), 7);
  // Addresses alone are not.
  EXPECT_EQ(prepared([&](CudaGemm& g) { g.bias = a_.data(); }), 7);
}

TEST_F(Chosen, sums_of_a_factor_are_offered_where_the_library_has_an_algorithm) {
  alignas(256) std::array<float, kSide> sums{};
  CudaGemm with_sums = gemm(false);
  with_sums.sums_of_a = sums.data();
  EXPECT_FALSE(products({}, store()).offers_sums(with_sums));
  EXPECT_TRUE(kept_.empty());
  calls_ = {};
  ChosenProducts chosen = products({{1, 30}}, store());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(chosen.offers_sums(with_sums));
  EXPECT_EQ(calls_.asked, 1) << "once a shape";
  chosen.multiply(with_sums, kStream);
  EXPECT_EQ(sums, (std::array<float, kSide>{8, 8, 8, 8})) << "four twos a row";
  EXPECT_EQ(calls_.prepared, 2);
  chosen.multiply(gemm(false), kStream);
  EXPECT_EQ(calls_.prepared, 3) << "without sums it is another product";
  EXPECT_EQ(kept_.size(), 2U);
  EXPECT_TRUE(kept_.rbegin()->first.ends_with(" sums of a 256")) << kept_.rbegin()->first;
}

TEST_F(Chosen, product_without_an_algorithm_is_refused_by_its_shape_and_stream) {
  ChosenProducts chosen = products({}, store());
  try {
    chosen.multiply(gemm(false), kStream);
    FAIL() << "there is none";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("product 4x4x4 fp32 fp32 to fp32 "))
        << error.what();
  }
}

}  // namespace
}  // namespace ballast
