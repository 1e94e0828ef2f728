#include "backend/execute/rank_exchanges.h"

#include <array>
#include <cstring>

#include "sim/base/error.h"

namespace ballast {

void RankExchanges::tensor(const Op& op, int32_t step) const {
  const CollectiveWork& work = std::get<CollectiveWork>(op.work);
  CHECK(work.ranks == plan_.tensor && work.stride == 1);
  const RankGroup group = tensor_group(plan_);
  const Channel channel = channel_of(op.lane);
  const Argument from = arguments_.find(op, Role::kSource, step);
  const Argument to = arguments_.find(op, Role::kDestination, step);
  const kernels::Format stored = format_of(from.tensor->dtype);
  const int64_t elements = to.tensor->elements;
  if (work.kind == CollectiveKind::kAllReduce) {
    CHECK(from.tensor->elements == elements);
    return ranks_.all_reduce(channel, group, from.data, to.data, elements, {stored, stored});
  }
  if (work.kind == CollectiveKind::kReduceScatter) {
    CHECK(from.tensor->elements == elements * plan_.tensor);
    std::vector<SummedPart> parts;
    for (int owner = 0; owner < plan_.tensor; ++owner) {
      parts.push_back({owner, element(from, owner * elements), to.data, elements});
    }
    return ranks_.reduce_scatter(channel, group, parts, {stored, stored});
  }
  CHECK(work.kind == CollectiveKind::kAllGather);
  CHECK(elements == from.tensor->elements * plan_.tensor);
  std::vector<GatheredPart> parts;
  for (int owner = 0; owner < plan_.tensor; ++owner) {
    std::byte* const at = element(to, owner * from.tensor->elements);
    parts.push_back({owner, from.data, at, from.tensor->bytes().count});
  }
  ranks_.all_gather(channel, group, parts);
}

void RankExchanges::sum(LaneId lane, const RankGroup& group, std::span<float> values) const {
  constexpr SumFormat kPlain{kernels::Format::kF32, kernels::Format::kF32};
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  ranks_.all_reduce(channel_of(lane), group, bytes, std::ssize(values), kPlain);
}

std::vector<std::byte> RankExchanges::all_of(LaneId lane, std::span<const std::byte> own) const {
  std::vector<std::byte> all(own.size() * static_cast<size_t>(plan_.tensor));
  std::vector<GatheredPart> parts;
  for (int owner = 0; owner < plan_.tensor; ++owner) {
    std::byte* const to = all.data() + own.size() * static_cast<size_t>(owner);
    parts.push_back({owner, own.data(), to, std::ssize(own)});
  }
  ranks_.all_gather(channel_of(lane), tensor_group(plan_), parts);
  return all;
}

std::vector<RankExchanges::Columns> RankExchanges::columns_of(ModuleKind kind, int64_t rank) const {
  std::vector<int64_t> widths = {model_.attention_width()};
  if (kind == ModuleKind::kQkv) {
    widths = {model_.heads * model_.head_size, model_.kv_heads * model_.head_size,
              model_.kv_heads * model_.value_head_size()};
  }
  std::vector<Columns> columns;
  int64_t begin = 0;
  for (const int64_t width : widths) {
    const int64_t own = div_exact(width, plan_.sequence);
    columns.push_back({begin + rank * own, own});
    begin += width;
  }
  return columns;
}

void RankExchanges::sequence(const Op& op, int32_t step) const {
  const CollectiveWork& work = std::get<CollectiveWork>(op.work);
  if (work.kind == CollectiveKind::kSendReceive) return ring(op, step);
  CHECK(work.kind == CollectiveKind::kAllToAll && work.ranks == plan_.sequence &&
        work.stride == sequence_group(plan_).stride);
  const Argument from = arguments_.find(op, Role::kSource, step);
  const Argument to = arguments_.find(op, Role::kDestination, step);
  // Forward queries, keys and values go to heads, and what attention makes returns; backward what
  // is of attention's output goes, and what is of queries, keys and values returns.
  const bool of_input = from.tensor->label.module == ModuleKind::kQkv;
  const bool goes = of_input != is_backward(op.phase);
  if (goes) {
    to_heads(op, from, to);
  } else {
    to_tokens(op, from, to);
  }
}

// To and from every rank so many bytes, one rank after another.
void RankExchanges::exchange(const Op& op, const std::vector<std::byte>& given, std::byte* taken,
                             int64_t bytes) const {
  std::vector<ExchangedPart> parts;
  for (int64_t rank = 0; rank < plan_.sequence; ++rank) {
    parts.push_back({given.data() + rank * bytes, bytes, taken + rank * bytes, bytes});
  }
  ranks_.all_to_all(channel_of(op.lane), sequence_group(plan_), parts);
}

// Rows of this rank's tokens, with all columns, become rows of all tokens with this rank's columns:
// of every sequence the tokens of rank 0, then those of rank 1.
void RankExchanges::to_heads(const Op& op, const Argument& from, const Argument& to) const {
  const ModuleKind kind = from.tensor->label.module;
  const int64_t size = size_of(from.tensor->dtype);
  const int64_t tokens = plan_.tokens_per_micro_batch();
  const int64_t width = div_exact(from.tensor->elements, tokens);
  const int64_t own = div_exact(width, plan_.sequence);
  std::vector<std::byte> given(static_cast<size_t>(from.tensor->bytes().count));
  std::byte* next = given.data();
  for (int64_t rank = 0; rank < plan_.sequence; ++rank) {
    const std::vector<Columns> columns = columns_of(kind, rank);
    for (int64_t token = 0; token < tokens; ++token) {
      for (const Columns& part : columns) {
        std::memcpy(next, element(from, token * width + part.begin),
                    static_cast<size_t>(part.count * size));
        next += part.count * size;
      }
    }
  }
  std::vector<std::byte> taken(given.size());
  exchange(op, given, taken.data(), tokens * own * size);
  const int64_t length = tokens / *plan_.micro_batch;
  const std::byte* arrived = taken.data();
  for (int64_t rank = 0; rank < plan_.sequence; ++rank) {
    for (int64_t sequence = 0; sequence < *plan_.micro_batch; ++sequence) {
      const int64_t row = (sequence * plan_.sequence + rank) * length;
      std::memcpy(element(to, row * own), arrived, static_cast<size_t>(length * own * size));
      arrived += length * own * size;
    }
  }
}

void RankExchanges::to_tokens(const Op& op, const Argument& from, const Argument& to) const {
  const ModuleKind kind = from.tensor->label.module;
  const int64_t size = size_of(from.tensor->dtype);
  const int64_t tokens = plan_.tokens_per_micro_batch();
  const int64_t width = div_exact(to.tensor->elements, tokens);
  const int64_t own = div_exact(width, plan_.sequence);
  const int64_t length = tokens / *plan_.micro_batch;
  std::vector<std::byte> given(static_cast<size_t>(from.tensor->bytes().count));
  std::byte* next = given.data();
  for (int64_t rank = 0; rank < plan_.sequence; ++rank) {
    for (int64_t sequence = 0; sequence < *plan_.micro_batch; ++sequence) {
      const int64_t row = (sequence * plan_.sequence + rank) * length;
      std::memcpy(next, element(from, row * own), static_cast<size_t>(length * own * size));
      next += length * own * size;
    }
  }
  std::vector<std::byte> taken(given.size());
  exchange(op, given, taken.data(), tokens * own * size);
  const std::byte* arrived = taken.data();
  for (int64_t rank = 0; rank < plan_.sequence; ++rank) {
    const std::vector<Columns> columns = columns_of(kind, rank);
    for (int64_t token = 0; token < tokens; ++token) {
      for (const Columns& part : columns) {
        std::memcpy(element(to, token * width + part.begin), arrived,
                    static_cast<size_t>(part.count * size));
        arrived += part.count * size;
      }
    }
  }
}

namespace {

std::tuple<int16_t, int16_t, Phase> place_in_order(const Op& op) {
  return {op.label.layer, op.label.micro_batch, op.phase};
}

}  // namespace

// Keys and values lie behind the queries of each token; of the other rank's there is one pair.
void RankExchanges::ring(const Op& op, int32_t step) const {
  CHECK(plan_.context == 2);
  const Argument from = arguments_.find(op, Role::kSource, step);
  const Argument to = arguments_.find(op, Role::kDestination, step);
  const int64_t size = size_of(from.tensor->dtype);
  const int64_t tokens = plan_.tokens_per_micro_batch();
  const int64_t width = model_.qkv_width();
  const int64_t queries = model_.heads * model_.head_size;
  const int64_t pair = (width - queries) * size;
  CHECK(from.tensor->elements == tokens * width && to.tensor->bytes().count >= tokens * pair);
  std::vector<std::byte> own(static_cast<size_t>(tokens * pair));
  for (int64_t token = 0; token < tokens; ++token) {
    std::memcpy(own.data() + token * pair, element(from, token * width + queries),
                static_cast<size_t>(pair));
  }
  const RankGroup group = context_group(plan_);
  const int self = ranks_.members_of(group).self;
  std::array<ExchangedPart, 2> parts;
  parts[static_cast<size_t>(1 - self)] = {own.data(), std::ssize(own), to.data, std::ssize(own)};
  ranks_.all_to_all(channel_of(op.lane), group, parts);
  const std::scoped_lock lock(mutex_);
  arrived_[place_in_order(op)] = to.data;
  changed_.notify_all();
}

const std::byte* RankExchanges::arrived(const Op& attention) const {
  std::unique_lock lock(mutex_);
  const auto key = place_in_order(attention);
  changed_.wait(lock, [&] { return failed_ || arrived_.contains(key); });
  if (!arrived_.contains(key)) {
    throw Error("the ring of attention", "this rank has failed", "see its message");
  }
  const std::byte* const at = arrived_.at(key);
  arrived_.erase(key);
  return at;
}

void RankExchanges::pass_back(LaneId lane, int64_t from, std::span<float> gradients) const {
  const RankGroup group = context_group(plan_);
  auto* const bytes = reinterpret_cast<std::byte*>(gradients.data());
  const auto size = static_cast<int64_t>(gradients.size_bytes());
  std::array<ExchangedPart, 2> parts;
  if (ranks_.members_of(group).self == from) {
    parts[static_cast<size_t>(1 - from)] = {bytes, size, nullptr, 0};
  } else {
    parts[static_cast<size_t>(from)] = {nullptr, 0, bytes, size};
  }
  ranks_.all_to_all(channel_of(lane), group, parts);
}

void RankExchanges::fail() const {
  const std::scoped_lock lock(mutex_);
  failed_ = true;
  changed_.notify_all();
}

}  // namespace ballast
