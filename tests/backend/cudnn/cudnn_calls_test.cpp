// What is asked of cuDNN, noted by functions in its place: which engine is taken, which array goes
// where, on which stream, and what an absent or failing library leaves.

#include <cmath>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <map>

#include "backend/cuda/libraries/cudnn_attention.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// A descriptor with its attributes as bytes.
struct Noted {
  int kind = 0;
  std::map<int, std::vector<std::byte>> attributes;
  int engine = -1;  // of a configuration, an engine or a plan: which

  template <class Value>
  std::vector<Value> all(int attribute) const {
    const auto at = attributes.find(attribute);
    if (at == attributes.end()) return {};
    std::vector<Value> values(at->second.size() / sizeof(Value));
    std::memcpy(values.data(), at->second.data(), at->second.size());
    return values;
  }
};

// Engines in the order of the heuristics: 0 adds by atomics, 1 cannot be compiled, 2 and 3 work.
constexpr int kEngines = 4;
constexpr int64_t kWorkspace = 12345;

struct Library {
  std::deque<Noted> descriptors;
  std::vector<void*> streams;
  std::vector<Noted> packs;
  int executed_engine = -1;
  int failing_engines_from = kEngines;
  int execute_status = 0;
};
Library* noted = nullptr;

Noted& of(void* descriptor) { return *static_cast<Noted*>(descriptor); }

int64_t bytes_of_element(int element) {
  switch (element) {
    case cudnn::kBooleanElement:
    case cudnn::kCharElement:
      return 1;
    case cudnn::kHandleElement:
    case cudnn::kInt64Element:
    case cudnn::kPointerElement:
    case cudnn::kDescriptorElement:
      return 8;
    default:
      return 4;
  }
}

int set(void* descriptor, int attribute, int element, int64_t count, const void* values) {
  const auto* bytes = static_cast<const std::byte*>(values);
  of(descriptor).attributes[attribute].assign(bytes, bytes + count * bytes_of_element(element));
  if (of(descriptor).kind == cudnn::kPlan && attribute == cudnn::kPlanConfig) {
    of(descriptor).engine = of(*static_cast<void* const*>(values)).engine;
  }
  return 0;
}

int get(void* descriptor, int attribute, int, int64_t most, int64_t* count, void* values) {
  switch (attribute) {
    case cudnn::kHeuristicResults:
      *count = kEngines;
      for (int i = 0; i < std::min<int64_t>(most, kEngines); ++i) {
        of(static_cast<void**>(values)[i]).engine = i;
      }
      return 0;
    case cudnn::kConfigEngine:
      of(*static_cast<void**>(values)).engine = of(descriptor).engine;
      *count = 1;
      return 0;
    case cudnn::kEngineNotes:
      *count = of(descriptor).engine == 0 ? 2 : 1;
      static_cast<int*>(values)[0] = 0;
      static_cast<int*>(values)[1] = cudnn::kNotDeterministic;
      return 0;
    default:
      *count = 1;
      *static_cast<int64_t*>(values) = kWorkspace;
      return 0;
  }
}

CudnnFunctions functions() {
  CudnnFunctions f;
  f.version = [] { return size_t{91234}; };
  f.text = [](int) { return "CUDNN_STATUS_OF_A_TEST"; };
  f.last_error = [](char* text, size_t size) { std::strncpy(text, "it said so", size); };
  f.create = [](void** handle) {
    *handle = noted;
    return 0;
  };
  f.destroy = [](void*) { return 0; };
  f.set_stream = [](void*, void* stream) {
    noted->streams.push_back(stream);
    return 0;
  };
  f.create_descriptor = [](int kind, void** descriptor) {
    *descriptor = &noted->descriptors.emplace_back(Noted{kind, {}, -1});
    return 0;
  };
  f.destroy_descriptor = [](void*) { return 0; };
  f.set = set;
  f.get = get;
  f.finalize = [](void* descriptor) {
    const Noted& d = of(descriptor);
    const bool fails = d.engine == 1 || d.engine >= noted->failing_engines_from;
    return d.kind == cudnn::kPlan && fails ? 3000 : 0;
  };
  f.execute = [](void*, void* plan, void* pack) {
    noted->executed_engine = of(plan).engine;
    noted->packs.push_back(of(pack));
    return noted->execute_status;
  };
  return f;
}

class CudnnCalls : public ::testing::Test {
 protected:
  void SetUp() override { noted = &library_; }
  std::vector<Noted> of_kind(cudnn::Descriptor kind) const {
    std::vector<Noted> found;
    for (const Noted& each : library_.descriptors) {
      if (each.kind == kind) found.push_back(each);
    }
    return found;
  }
  Library library_;
};

AttentionPass small_pass(AttentionDirection direction) {
  AttentionPass pass;
  pass.direction = direction;
  pass.shape = {3, 10, 4, 2, 8};
  pass.query_stride = 48;  // (4 + 2) heads of 8, rotated
  pass.sequences = 3;
  pass.kv_heads = 1;
  return pass;
}

TEST_F(CudnnCalls, the_first_engine_that_repeats_its_bits_and_compiles_is_taken) {
  CudnnAttention attention(functions());
  EXPECT_EQ(attention.name(), "cuDNN 9.12.34");
  const AttentionPass pass = small_pass(AttentionDirection::kForward);
  EXPECT_EQ(attention.workspace(pass), Bytes{kWorkspace});
  std::vector<std::byte> memory(1);
  AttentionArrays arrays;
  arrays.workspace = memory.data();
  attention.run(pass, arrays, {&memory, "compute"});
  EXPECT_EQ(library_.executed_engine, 2);
  ASSERT_EQ(library_.streams.size(), 1U);
  EXPECT_EQ(library_.streams[0], &memory);
  EXPECT_EQ(of_kind(cudnn::kGraph).size(), 1U);  // run does not plan again
}

TEST_F(CudnnCalls, without_a_working_engine_the_pass_is_refused_and_why_is_kept) {
  library_.failing_engines_from = 2;
  CudnnAttention attention(functions());
  const AttentionPass pass = small_pass(AttentionDirection::kBackward);
  EXPECT_FALSE(attention.workspace(pass).has_value());
  EXPECT_FALSE(attention.workspace(pass).has_value());
  EXPECT_EQ(of_kind(cudnn::kGraph).size(), 1U);  // asked once
  EXPECT_NE(attention.refusal(pass).find("CUDNN_STATUS_OF_A_TEST (3000) it said so"),
            std::string::npos)
      << attention.refusal(pass);
}

// The tensor of a graph that a pointer was bound to.
Noted bound(const Library& library, const void* pointer) {
  const Noted& pack = library.packs.back();
  const std::vector<int64_t> ids = pack.all<int64_t>(cudnn::kPackIds);
  const std::vector<void*> pointers = pack.all<void*>(cudnn::kPackPointers);
  for (const Noted& each : library.descriptors) {
    if (each.kind != cudnn::kTensor) continue;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (pointers[i] == pointer && each.all<int64_t>(cudnn::kTensorId).at(0) == ids[i]) {
        return each;
      }
    }
  }
  ADD_FAILURE() << "nothing is bound there";
  return {};
}

TEST_F(CudnnCalls, every_array_is_bound_to_a_tensor_of_its_sizes_and_strides) {
  // 3 sequences of 10, one of two groups of 2 query heads, heads of 8; rows of q and k 48 values,
  // of v and the gradients (4 + 2 * 2) * 8 = 64, of out 4 * 8 = 32; sums of 4 heads a sequence.
  using Four = std::vector<int64_t>;
  CudnnAttention attention(functions());
  const AttentionPass pass = small_pass(AttentionDirection::kBackward);
  // Row sums of 3 x 2 x 10 floats, rounded up to 256, are before cuDNN's own.
  EXPECT_EQ(attention.workspace(pass), Bytes{256 + kWorkspace});
  std::vector<std::byte> m(16);
  AttentionArrays arrays;
  arrays.q = &m[0], arrays.k = &m[1], arrays.v = &m[2], arrays.out = &m[3];
  float sum = 0;
  arrays.log_sum_exp = &sum;
  arrays.dout = &m[4], arrays.dq = &m[5], arrays.dk = &m[6], arrays.dv = &m[7];
  arrays.workspace = &m[8];
  attention.run(pass, arrays, {nullptr, "compute"});
  const auto expect = [&](const void* pointer, const Four& sizes, const Four& strides) {
    const Noted tensor = bound(library_, pointer);
    EXPECT_EQ(tensor.all<int64_t>(cudnn::kTensorDimensions), sizes);
    EXPECT_EQ(tensor.all<int64_t>(cudnn::kTensorStrides), strides);
    EXPECT_FALSE(tensor.attributes.contains(cudnn::kTensorIsVirtual));
  };
  expect(arrays.q, {3, 2, 10, 8}, {480, 8, 48, 1});
  expect(arrays.k, {3, 1, 8, 10}, {480, 8, 1, 48});
  expect(arrays.v, {3, 1, 8, 10}, {640, 8, 1, 64});
  expect(arrays.out, {3, 2, 10, 8}, {320, 8, 32, 1});
  expect(arrays.dout, {3, 2, 10, 8}, {320, 8, 32, 1});
  expect(arrays.log_sum_exp, {3, 2, 10, 1}, {40, 10, 1, 1});
  expect(arrays.dq, {3, 2, 10, 8}, {640, 8, 64, 1});
  expect(arrays.dk, {3, 1, 10, 8}, {640, 8, 64, 1});
  expect(arrays.dv, {3, 1, 10, 8}, {640, 8, 64, 1});
  expect(arrays.workspace, {3, 2, 10, 1}, {20, 10, 1, 1});
  EXPECT_EQ(library_.packs.back().all<void*>(cudnn::kPackWorkspace).at(0), &m[8] + 256);
}

TEST_F(CudnnCalls, every_tensor_in_memory_or_by_value_is_bound_once) {
  for (const AttentionDirection direction :
       {AttentionDirection::kForward, AttentionDirection::kBackward}) {
    library_ = Library();
    CudnnAttention attention(functions());
    std::byte memory{};
    AttentionArrays arrays;
    arrays.workspace = &memory;
    attention.run(small_pass(direction), arrays, {nullptr, "compute"});
    std::vector<int64_t> ids = library_.packs.back().all<int64_t>(cudnn::kPackIds);
    std::sort(ids.begin(), ids.end());
    std::vector<int64_t> real;
    for (const Noted& tensor : of_kind(cudnn::kTensor)) {
      if (tensor.attributes.contains(cudnn::kTensorIsVirtual)) continue;
      real.push_back(tensor.all<int64_t>(cudnn::kTensorId).at(0));
    }
    EXPECT_EQ(ids, real);
    EXPECT_EQ(real.size(), direction == AttentionDirection::kForward ? 7U : 13U);
  }
}

TEST_F(CudnnCalls, a_run_that_fails_names_pass_stream_and_remedy) {
  library_.execute_status = 5003;
  CudnnAttention attention(functions());
  std::byte memory{};
  AttentionArrays arrays;
  arrays.workspace = &memory;
  try {
    attention.run(small_pass(AttentionDirection::kForward), arrays, {nullptr, "compute"});
    FAIL() << "the library refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("CUDNN_STATUS_OF_A_TEST (5003) it said so; train "
                        "with BALLAST_CUDNN=none"),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what())
                  .find("attention forward of 3 sequences of 10, 2 of 4 heads "
                        "(2 kv) of 8 on stream compute"),
              std::string::npos)
        << error.what();
  }
}

TEST(CudnnLibrary, what_is_not_there_or_is_no_cudnn_leaves_attention_to_our_kernels) {
  EXPECT_FALSE(load_cudnn("libno-such-library.so").has_value());
  EXPECT_FALSE(load_cudnn("libm.so.6").has_value());
  EXPECT_EQ(why_no_cudnn("libno-such-library.so"), "libno-such-library.so is not here");
  EXPECT_EQ(why_no_cudnn("libm.so.6"), "") << "it is here, and that it is no cuDNN is a fault";
  setenv("BALLAST_CUDNN", "none", 1);
  EXPECT_EQ(cudnn_library_name(), "none");
  EXPECT_EQ(open_cudnn_attention().library, nullptr);
  EXPECT_EQ(open_cudnn_attention().why_not, "") << "nobody asked for one";
  for (const auto& [name, why] : {std::pair("libno-such-library.so", "is not here"),
                                  std::pair("libm.so.6", "lacks functions of cuDNN 9")}) {
    setenv("BALLAST_CUDNN", name, 1);
    EXPECT_EQ(open_cudnn_attention().library, nullptr);
    EXPECT_EQ(open_cudnn_attention().why_not, std::string(name) + " " + why);
  }
  unsetenv("BALLAST_CUDNN");
  EXPECT_EQ(cudnn_library_name(), "libcudnn.so.9");
}

}  // namespace
}  // namespace ballast
