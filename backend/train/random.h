// Random numbers that are a function of (seed, stream, index) and nothing else, and the initial
// parameters made from them.
//
// There is no state to save: resuming, another number of threads or another order of parameters
// gives the same values, and so does another compiler or C library, because only exactly rounded
// operations (+ - * / sqrt) are used. Will not do: cryptography.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "sim/spec/model.h"

namespace ballast {

// 64 random bits at (row, column) of the table that `key` chooses.
struct RandomPosition {
  uint64_t row = 0;
  uint64_t column = 0;
};
uint64_t random_bits(uint64_t key, RandomPosition position);

// A key that differs with the name (FNV-1a, 64 bits) and the seed.
uint64_t key_of(uint64_t seed, std::string_view name);

// out[i] = deviation * the normal deviate number first + i of the key's sequence. `first` is a
// multiple of 4, as a counter gives four.
void fill_normal(std::span<float> out, uint64_t key, double deviation, int64_t first = 0);

// Initial parameters of one module, as GPT-2's (Radford et al. 2019, section 2.3; Hugging Face
// modeling_gpt2 _init_weights): matrices normal with deviation 0.02, those that write into the
// residual stream (attention_out, fc2) 0.02 / sqrt(2 L), norm weights 1, biases 0. Each parameter
// is drawn from its own name. out.size() == module.count.
void initialise(const Module& module, const Model& model, uint64_t seed, std::span<float> out);

// Of one of its parameters, the values from `first`, a multiple of 4: any thread may draw any part.
void initialise_part(const Module& module, const Parameter& parameter, const Model& model,
                     uint64_t seed, int64_t first, std::span<float> out);

}  // namespace ballast
