#include "backend/execute/expert_exchanges.h"

#include <algorithm>
#include <cstring>

#include "sim/base/error.h"

namespace ballast {

ExpertExchanges::Layer& ExpertExchanges::layer_of(const Label& label) const {
  const std::scoped_lock lock(mutex_);
  return layers_[{label.layer, label.micro_batch}];
}

void ExpertExchanges::routed(const Label& label, std::span<const int64_t> first,
                             std::span<const float> weights) const {
  CHECK(std::ssize(first) == model_.experts + 1 && std::ssize(weights) == even_share());
  Layer& layer = layer_of(label);
  layer.first.assign(first.begin(), first.end());
  layer.own_weights.assign(weights.begin(), weights.end());
}

std::vector<int64_t> ExpertExchanges::given(const Layer& layer) const {
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < plan_.expert; ++rank) {
    const auto begin = static_cast<size_t>(rank * own_experts());
    rows.push_back(layer.first[begin + static_cast<size_t>(own_experts())] - layer.first[begin]);
  }
  return rows;
}

std::vector<int64_t> ExpertExchanges::taken(const Layer& layer) const {
  std::vector<int64_t> rows;
  for (int64_t rank = 0; rank < plan_.expert; ++rank) {
    int64_t sum = 0;
    for (int64_t e = 0; e < own_experts(); ++e) {
      sum += layer.counts[static_cast<size_t>(rank * own_experts() + e)];
    }
    rows.push_back(sum);
  }
  return rows;
}

template <class Visit>
void ExpertExchanges::for_runs(const Layer& layer, const Visit& visit) const {
  const int64_t experts = own_experts();
  const auto rows = [&](int64_t rank, int64_t expert) {
    return layer.counts[static_cast<size_t>(rank * experts + expert)];
  };
  std::vector<int64_t> begins(static_cast<size_t>(plan_.expert * experts));  // by rank and expert
  int64_t by_rank = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    begins[i] = by_rank;
    by_rank += layer.counts[i];
  }
  int64_t by_expert = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t rank = 0; rank < plan_.expert; ++rank) {
      const int64_t count = rows(rank, expert);
      if (count > 0) visit(begins[static_cast<size_t>(rank * experts + expert)], by_expert, count);
      by_expert += count;
    }
  }
}

void ExpertExchanges::count(const Op& op, Layer& layer) const {
  const int64_t experts = own_experts();
  std::vector<int64_t> own(static_cast<size_t>(model_.experts));
  for (size_t e = 0; e < own.size(); ++e) own[e] = layer.first[e + 1] - layer.first[e];
  layer.counts.resize(own.size());
  const int64_t bytes = experts * static_cast<int64_t>(sizeof(int64_t));
  std::vector<ExchangedPart> parts;
  for (int64_t rank = 0; rank < plan_.expert; ++rank) {
    parts.push_back({reinterpret_cast<const std::byte*>(own.data() + rank * experts), bytes,
                     reinterpret_cast<std::byte*>(layer.counts.data() + rank * experts), bytes});
  }
  ranks_.all_to_all(channel_of(op.lane), expert_group(plan_), parts);
  Sent& sent = layer.sent;
  sent.experts.clear();
  for (int64_t expert = 0; expert < experts; ++expert) {
    int64_t rows = 0;
    for (int64_t rank = 0; rank < plan_.expert; ++rank) {
      rows += layer.counts[static_cast<size_t>(rank * experts + expert)];
    }
    sent.experts.insert(sent.experts.end(), static_cast<size_t>(rows),
                        static_cast<int32_t>(expert));
  }
  sent.weights.resize(sent.experts.size());
  sent.weight_gradients.resize(sent.experts.size());
}

void ExpertExchanges::to_experts(const Op& op, const Layer& layer, const std::byte* from,
                                 int64_t size, std::byte* to) const {
  std::vector<std::byte> arrived(layer.sent.experts.size() * static_cast<size_t>(size));
  std::vector<ExchangedPart> parts;
  const std::vector<int64_t> given = this->given(layer);
  const std::vector<int64_t> taken = this->taken(layer);
  std::byte* into = arrived.data();
  for (size_t rank = 0; rank < given.size(); ++rank) {
    parts.push_back({from, given[rank] * size, into, taken[rank] * size});
    from += given[rank] * size;
    into += taken[rank] * size;
  }
  ranks_.all_to_all(channel_of(op.lane), expert_group(plan_), parts);
  for_runs(layer, [&](int64_t by_rank, int64_t by_expert, int64_t rows) {
    std::memcpy(to + by_expert * size, arrived.data() + by_rank * size,
                static_cast<size_t>(rows * size));
  });
}

void ExpertExchanges::to_tokens(const Op& op, const Layer& layer, const std::byte* from,
                                int64_t size, std::byte* to) const {
  std::vector<std::byte> leaving(layer.sent.experts.size() * static_cast<size_t>(size));
  for_runs(layer, [&](int64_t by_rank, int64_t by_expert, int64_t rows) {
    std::memcpy(leaving.data() + by_rank * size, from + by_expert * size,
                static_cast<size_t>(rows * size));
  });
  std::vector<ExchangedPart> parts;
  const std::vector<int64_t> given = this->taken(layer);
  const std::vector<int64_t> taken = this->given(layer);
  const std::byte* out = leaving.data();
  for (size_t rank = 0; rank < given.size(); ++rank) {
    parts.push_back({out, given[rank] * size, to, taken[rank] * size});
    out += given[rank] * size;
    to += taken[rank] * size;
  }
  ranks_.all_to_all(channel_of(op.lane), expert_group(plan_), parts);
}

std::byte* ExpertExchanges::rows(const Label& label, ExpertArray array, const Argument& planned,
                                 int64_t columns) const {
  Layer& layer = layer_of(label);
  if (layer.sent.rows() <= even_share()) return planned.data;
  std::vector<std::byte>& beside = layer.beside[static_cast<size_t>(array)];
  const auto size =
      static_cast<size_t>(layer.sent.rows() * columns * size_of(planned.tensor->dtype));
  if (beside.size() != size) {
    give_back(beside);
    beside.resize(size);
    const std::scoped_lock lock(mutex_);
    beside_ += std::ssize(beside);
    most_beside_ = std::max(most_beside_, beside_);
  }
  return beside.data();
}

void ExpertExchanges::give_back(std::vector<std::byte>& beside) const {
  const std::scoped_lock lock(mutex_);
  beside_ -= std::ssize(beside);
  std::vector<std::byte>().swap(beside);
}

// Forward the router's rows go to the experts, and what kFc2 makes of them returns; backward the
// gradients of what it made go, and those of the router's rows return.
void ExpertExchanges::exchange(const Op& op, const OperationArguments& arguments,
                               int32_t step) const {
  const CollectiveWork& work = std::get<CollectiveWork>(op.work);
  CHECK(work.kind == CollectiveKind::kAllToAll && work.ranks == plan_.expert &&
        work.stride == expert_group(plan_).stride);
  const Argument from = arguments.find(op, Role::kSource, step);
  const Argument to = arguments.find(op, Role::kDestination, step);
  CHECK(from.tensor->elements == even_share() * model_.hidden);
  const int64_t size = model_.hidden * size_of(from.tensor->dtype);
  Layer& layer = layer_of(op.label);
  const auto bytes = [](auto& numbers) { return reinterpret_cast<std::byte*>(numbers.data()); };
  const bool of_router = op.label.module == ModuleKind::kRouter;
  const auto sent_rows = [&](ExpertArray array, const Argument& planned) {
    return rows(op.label, array, planned, model_.hidden);
  };
  if (of_router && !is_backward(op.phase)) {
    count(op, layer);
    to_experts(op, layer, bytes(layer.own_weights), sizeof(float), bytes(layer.sent.weights));
    return to_experts(op, layer, from.data, size, sent_rows(ExpertArray::kSent, to));
  }
  if (of_router) {
    layer.own_gradients.resize(layer.own_weights.size());
    to_tokens(op, layer, bytes(layer.sent.weight_gradients), sizeof(float),
              bytes(layer.own_gradients));
    to_tokens(op, layer, sent_rows(ExpertArray::kSentGradient, from), size, to.data);
    // The backward of the layer's experts is over.
    for (std::vector<std::byte>& one : layer.beside) give_back(one);
    return;
  }
  if (!is_backward(op.phase)) {
    to_tokens(op, layer, sent_rows(ExpertArray::kMade, from), size, to.data);
    return give_back(layer.beside[static_cast<size_t>(ExpertArray::kMade)]);
  }
  to_experts(op, layer, from.data, size, sent_rows(ExpertArray::kMadeGradient, to));
}

Bytes ExpertExchanges::beside() const {
  const std::scoped_lock lock(mutex_);
  return {most_beside_};
}

}  // namespace ballast
