// What begins and ends with token ids: the embedding and the classifier, against the host's.

#include "backend/host/transformer.h"
#include "tests/cuda/arrays.h"

namespace ballast::kernels::cuda::testing {
namespace {

using transformer::View;

View tokens_view(std::vector<float>& values, int64_t rows) {
  return {values.data(), DType::kF32, rows, static_cast<int64_t>(values.size()) / rows};
}

// Ids [sequences, length + 1] of a vocabulary, of which every third token is id 1.
std::vector<int32_t> some_tokens(int64_t sequences, int64_t length, int64_t vocab) {
  std::mt19937 generator(3);
  std::vector<int32_t> ids(static_cast<size_t>(sequences * (length + 1)));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i % 3 == 0 ? 1 : static_cast<int32_t>(generator() % static_cast<uint32_t>(vocab));
  }
  return ids;
}

struct Tokens {
  explicit Tokens(const std::vector<int32_t>& values)
      : memory(static_cast<int64_t>(4 * values.size())) {
    memory.set(values.data());
  }
  const int32_t* data() const { return static_cast<const int32_t*>(memory.data()); }
  Memory memory;
};

// --- Embedding ---------------------------------------------------------------------------------

Model embedding_model(const EmbeddingShape& shape) {
  Model model;
  model.hidden = shape.width;
  model.vocab = shape.vocab;
  model.max_positions = shape.positions;
  model.position = shape.positions > 0 ? PositionKind::kLearned : PositionKind::kRope;
  return model;
}

int64_t parameters_of(const EmbeddingShape& s) { return (s.vocab + s.positions) * s.width; }

// The host stores in the same format, so bits can be compared.
struct Stored {
  Stored(Format format, const std::vector<float>& values)
      : bytes(values.size() * static_cast<size_t>(bytes_of(format))),
        dtype(dtype_of(format)),
        count(static_cast<int64_t>(values.size())) {
    reference().cast(values.data(), Format::kF32, bytes.data(), format, count);
  }
  View view(int64_t rows) { return {bytes.data(), dtype, rows, count / rows}; }
  std::vector<unsigned char> bytes;
  DType dtype;
  int64_t count;
};

// `part`: of a vocabulary that ranks share.
void expect_embedding_like_host(const EmbeddingShape& shape, Format format, Write write,
                                int64_t shift, const transformer::VocabularyPart& part = {}) {
  const std::string name = name_of(format) + " width " + std::to_string(shape.width) + " vocab " +
                           std::to_string(shape.vocab);
  const Model model = embedding_model(shape);
  const transformer::Shape batch{shape.sequences, shape.length};
  const std::vector<int32_t> ids =
      some_tokens(shape.sequences, shape.length, part.is_shared() ? part.all : shape.vocab);
  const std::vector<float> params = normal({0, 1, 1}, format, parameters_of(shape));
  const std::vector<float> gradient = normal({0, 1, 2}, format, shape.tokens() * shape.width);
  const std::vector<float> before = normal({0, 1, 3}, format, parameters_of(shape));
  Stored host_params(format, params), host_dout(format, gradient), host_dparams(format, before);
  Stored host_out(format, std::vector<float>(gradient.size()));
  transformer::embedding_forward(model, batch, ids.data(), host_params.view(1),
                                 host_out.view(shape.tokens()), part);
  transformer::embedding_backward(model, batch, ids.data(), host_dout.view(shape.tokens()),
                                  host_dparams.view(1), write == Write::kAdd, part);
  const Tokens tokens(ids);
  const Values from(format, params, shift), dout(format, gradient, shift);
  Values out(format, dout.count(), shift), dparams(format, before, shift);
  expect_launched(embedding_forward(
      {shape, tokens.data(), from.array(), out.array(), part.adds_positions}, nullptr));
  EXPECT_EQ(out.bytes(), host_out.bytes) << name;
  const Memory scratch(embedding_backward_scratch_bytes(shape));
  const auto written = same_every_time([&] {
    dparams.set(before);
    expect_launched(embedding_backward(
        {shape, tokens.data(), dout.array(), dparams.array(), write, scratch.data()}, nullptr));
    return dparams.bytes();
  });
  EXPECT_EQ(written, host_dparams.bytes) << name;
}

class tokens : public OnMachine {};

TEST_F(tokens, embeddings_and_their_gradients_have_the_bits_of_the_host) {
  for (const Format format : kFormats) {
    for (const Write write : {Write::kOverwrite, Write::kAdd}) {
      expect_embedding_like_host({2, 19, 24, 37, 30}, format, write, 0);
      expect_embedding_like_host({3, 7, 33, 50, 0}, format, write, 0);
      expect_embedding_like_host({1, 40, 16, 1100, 40}, format, write, 1);
      expect_embedding_like_host({1, 90, 2056, 5, 0}, format, write, 0);
    }
  }
}

// 37 ids on three ranks of 13 rows, of which the last has 11 and two rows of no id; an id that
// another rank has gives zeros, and one rank adds positions.
TEST_F(tokens, embeddings_of_a_shared_vocabulary_have_the_bits_of_the_host) {
  for (const Format format : kFormats) {
    for (const int64_t first : {0, 13, 26}) {
      EmbeddingShape shape{2, 19, 24, 13, 30, first, 37};
      const transformer::VocabularyPart part{first, std::min(int64_t{13}, 37 - first), 37,
                                             first == 0};
      for (const Write write : {Write::kOverwrite, Write::kAdd}) {
        expect_embedding_like_host(shape, format, write, 0, part);
      }
    }
  }
}

TEST_F(tokens, an_id_outside_the_vocabulary_gives_nan_and_touches_nothing_else) {
  const EmbeddingShape shape{1, 3, 8, 10, 0};
  const Tokens ids({2, 10, -1, 5});
  const Values params(Format::kF32, std::vector<float>(80, 1.0f));
  const Values out(Format::kF32, 24), dparams(Format::kF32, 80);
  expect_launched(embedding_forward({shape, ids.data(), params.array(), out.array()}, nullptr));
  const std::vector<float> rows = out.get();
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(std::isnan(rows[i]), i >= 8) << i;
  const Values dout(Format::kF32, std::vector<float>(24, 1.0f));
  const Memory scratch(embedding_backward_scratch_bytes(shape));
  expect_launched(embedding_backward(
      {shape, ids.data(), dout.array(), dparams.array(), Write::kOverwrite, scratch.data()},
      nullptr));
  const std::vector<float> sums = dparams.get();
  for (size_t i = 0; i < 80; ++i) EXPECT_EQ(sums[i], i / 8 == 2 ? 1.0f : 0.0f) << i;
}

// --- Classifier --------------------------------------------------------------------------------

struct ClassifierCase {
  int64_t vocab = 0;
  Format format = Format::kF32;
  int64_t shift = 0;
};

struct Expected {
  std::vector<float> logits;  // before
  std::vector<float> gradient;
  double mean = 0;
};

constexpr int64_t kSequences = 2, kLength = 5, kTokens = kSequences * kLength;
constexpr float kFactor = 0.125f;

Expected classify_on_host(const ClassifierCase& c, const std::vector<int32_t>& ids) {
  Model model;
  model.vocab = c.vocab;
  Expected e;
  e.logits = normal({1, 4, 6}, c.format, kTokens * c.vocab);
  e.gradient = e.logits;
  e.mean = transformer::loss_forward_backward(model, {kSequences, kLength}, ids.data(),
                                              tokens_view(e.gradient, kTokens), double{kFactor});
  return e;
}

double mean_on_device(const Memory& losses) {
  const Memory mean(8);
  expect_launched(mean_loss(
      {static_cast<const double*>(losses.data()), kTokens, static_cast<double*>(mean.data())},
      nullptr));
  return mean.get_as<double>()[0];
}

TEST_F(tokens, two_equal_logits_cost_ln_2_and_pull_by_a_half) {
  const Tokens ids({0, 1});
  const Values logits(Format::kF32, std::vector<float>{3, 3});
  const Memory losses(8);
  Classifier d{{1, 1, 0, 1},   2,    ids.data(),
               logits.array(), 4.0f, static_cast<double*>(losses.data())};
  expect_launched(classifier(d, nullptr));
  EXPECT_DOUBLE_EQ(losses.get_as<double>()[0], std::log(2.0));
  EXPECT_EQ(logits.get(), (std::vector<float>{2, -2}));
}

TEST_F(tokens, the_classifier_gives_the_hosts_loss_and_gradient_rows_at_a_time) {
  for (const Format format : kFormats) {
    for (const auto& [columns, shift] : std::vector<std::pair<int64_t, int64_t>>{
             {2, 0}, {37, 1}, {64, 0}, {1000, 3}, {4101, 0}, {9000, 1}}) {
      const int64_t vocab = columns;  // Clang 14 captures no name of a pair's part
      const ClassifierCase c{vocab, format, shift};
      const std::vector<int32_t> ids = some_tokens(kSequences, kLength, vocab);
      const Expected expected = classify_on_host(c, ids);
      const Tokens on_device(ids);
      Values logits(format, expected.logits, shift);
      const Memory losses(8 * kTokens);
      const int64_t row_bytes = vocab * bytes_of(format);
      same_every_time([&] {
        logits.set(expected.logits);
        for (int64_t first = 0; first < kTokens; first += 4) {
          Classifier d{{kSequences, kLength, first, std::min(int64_t{4}, kTokens - first)},
                       vocab,
                       on_device.data(),
                       {static_cast<char*>(logits.data()) + first * row_bytes, format},
                       kFactor,
                       static_cast<double*>(losses.data())};
          expect_launched(classifier(d, nullptr));
        }
        return logits.bytes();
      });
      const std::string name = name_of(format) + " vocabulary " + std::to_string(vocab);
      expect_close(logits.get(), expected.gradient, format, 1.5, name);
      EXPECT_NEAR(mean_on_device(losses), expected.mean, 2e-6 * expected.mean) << name;
    }
  }
}

// What lies between rows is neither read nor written.
TEST_F(tokens, rows_of_logits_may_begin_further_apart_than_they_are_long) {
  constexpr int64_t kStride = 1024;
  for (const Format format : kFormats) {
    const ClassifierCase c{1000, format, 0};
    const std::vector<int32_t> ids = some_tokens(kSequences, kLength, c.vocab);
    const Expected expected = classify_on_host(c, ids);
    const Tokens on_device(ids);
    const auto apart = [&](const std::vector<float>& rows) {
      std::vector<float> spread(static_cast<size_t>(kTokens * kStride), 60.0f);
      for (int64_t row = 0; row < kTokens; ++row) {
        std::copy_n(rows.begin() + row * c.vocab, c.vocab, spread.begin() + row * kStride);
      }
      return spread;
    };
    const Values logits(format, apart(expected.logits));
    const Memory losses(8 * kTokens);
    Classifier d{
        {kSequences, kLength, 0, kTokens},   c.vocab, on_device.data(), logits.array(), kFactor,
        static_cast<double*>(losses.data()), kStride};
    expect_launched(classifier(d, nullptr));
    expect_close(logits.get(), apart(expected.gradient), format, 1.5, name_of(format));
    EXPECT_NEAR(mean_on_device(losses), expected.mean, 2e-6 * expected.mean);
  }
}

TEST_F(tokens, a_vocabulary_in_chunks_gives_what_it_gives_whole) {
  for (const Format format : kFormats) {
    const ClassifierCase c{1000, format, 0};
    const std::vector<int32_t> ids = some_tokens(kSequences, kLength, c.vocab);
    const Expected expected = classify_on_host(c, ids);
    const Tokens on_device(ids);
    const Memory losses(8 * kTokens), running(24 * kTokens);
    std::vector<std::unique_ptr<Values>> chunks;
    const auto chunk_of = [&](int64_t first, int64_t columns) {
      std::vector<float> part;
      for (int64_t row = 0; row < kTokens; ++row) {
        const auto begin = expected.logits.begin() + row * c.vocab + first;
        part.insert(part.end(), begin, begin + columns);
      }
      chunks.push_back(std::make_unique<Values>(format, part));
      return ClassifierChunk{{kSequences, kLength, 0, kTokens},
                             c.vocab,
                             first,
                             columns,
                             on_device.data(),
                             chunks.back()->array(),
                             kFactor,
                             static_cast<double*>(running.data())};
    };
    std::vector<ClassifierChunk> parts;
    for (const auto& [first, columns] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 301}, {301, 400}, {701, 299}}) {
      parts.push_back(chunk_of(first, columns));
      expect_launched(
          classifier_observe(parts.back(), first == 0 ? Chunk::kFirst : Chunk::kLater, nullptr));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      double* to = i == 0 ? static_cast<double*>(losses.data()) : nullptr;
      expect_launched(classifier_gradient(parts[i], to, nullptr));
      std::vector<float> gradient;
      for (int64_t row = 0; row < kTokens; ++row) {
        const auto begin = expected.gradient.begin() + row * c.vocab + parts[i].first_column;
        gradient.insert(gradient.end(), begin, begin + parts[i].columns);
      }
      expect_close(chunks[i]->get(), gradient, format, 1.5, "chunk " + std::to_string(i));
    }
    EXPECT_NEAR(mean_on_device(losses), expected.mean, 2e-6 * expected.mean);
  }
}

// Three ranks of 334 columns, of which the last has 332 ids: what lies beyond them is of no weight,
// and its gradient is zero.
TEST_F(tokens, ranks_that_share_a_vocabulary_give_what_it_gives_whole) {
  constexpr int64_t kRanks = 3, kColumns = 334;
  for (const Format format : kFormats) {
    const ClassifierCase c{1000, format, 0};
    const std::vector<int32_t> ids = some_tokens(kSequences, kLength, c.vocab);
    const Expected expected = classify_on_host(c, ids);
    const Tokens on_device(ids);
    const Memory losses(8 * kTokens), told(12 * kRanks * kTokens), sums(12 * kTokens);
    auto* const of_ranks = static_cast<float*>(told.data());
    std::vector<std::unique_ptr<Values>> logits;
    std::vector<ClassifierShare> shares;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const int64_t first = rank * kColumns;
      const int64_t own = std::min(kColumns, c.vocab - first);
      std::vector<float> part(static_cast<size_t>(kTokens * kColumns), 100.0f);
      for (int64_t row = 0; row < kTokens; ++row) {
        std::copy_n(expected.logits.begin() + row * c.vocab + first, own,
                    part.begin() + row * kColumns);
      }
      logits.push_back(std::make_unique<Values>(format, part));
      shares.push_back({{kSequences, kLength, 0, kTokens},
                        first,
                        own,
                        kColumns,
                        on_device.data(),
                        logits.back()->array(),
                        kFactor});
      expect_launched(classifier_tell(shares.back(), of_ranks + rank * kTokens * 3, nullptr));
    }
    auto* const of_all = static_cast<float*>(sums.data());
    expect_launched(classifier_merge({of_ranks, kRanks, kTokens, of_all}, nullptr));
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      const ClassifierShare& share = shares[rank];
      expect_launched(
          classifier_share(share, of_all, static_cast<double*>(losses.data()), nullptr));
      EXPECT_NEAR(mean_on_device(losses), expected.mean, 2e-6 * expected.mean) << rank;
      std::vector<float> gradient(static_cast<size_t>(kTokens * kColumns), 0.0f);
      for (int64_t row = 0; row < kTokens; ++row) {
        std::copy_n(expected.gradient.begin() + row * c.vocab + share.first_id, share.ids,
                    gradient.begin() + row * kColumns);
      }
      expect_close(logits[rank]->get(), gradient, format, 1.5, "rank " + std::to_string(rank));
    }
  }
}

TEST_F(tokens, logits_that_are_not_finite_reach_the_loss) {
  const Tokens ids({0, 1});
  for (const float bad : {INFINITY, NAN}) {
    const Values logits(Format::kF32, std::vector<float>{3, 1, bad});
    const Memory losses(8);
    expect_launched(classifier(
        {{1, 1, 0, 1}, 3, ids.data(), logits.array(), 1.0f, static_cast<double*>(losses.data())},
        nullptr));
    EXPECT_TRUE(std::isnan(losses.get_as<double>()[0])) << bad;
  }
  // exp(-inf) is 0: the two others share it, and the loss of the second is ln(1 + e^2).
  const Values logits(Format::kF32, std::vector<float>{3, 1, -INFINITY});
  const Memory losses(8);
  expect_launched(classifier(
      {{1, 1, 0, 1}, 3, ids.data(), logits.array(), 1.0f, static_cast<double*>(losses.data())},
      nullptr));
  EXPECT_NEAR(losses.get_as<double>()[0], std::log1p(std::exp(2.0)), 1e-6);
  EXPECT_EQ(logits.get()[2], 0.0f);
}

}  // namespace
}  // namespace ballast::kernels::cuda::testing
