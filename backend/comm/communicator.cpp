#include "backend/comm/communicator.h"

#include <algorithm>
#include <array>

#include "sim/base/error.h"

namespace ballast {

void Communicator::all_reduce(Channel channel, const RankGroup& group, std::byte* values,
                              int64_t count, const SumFormat& format) {
  all_reduce(channel, group, values, values, count, format);
}

void Communicator::all_reduce(Channel channel, const RankGroup& group, const std::byte* from,
                              std::byte* to, int64_t count, const SumFormat& format) {
  const int64_t size = kernels::bytes_of(format.stored);
  const int64_t share = div_ceil(count, group.ranks);
  std::vector<SummedPart> summed;
  std::vector<GatheredPart> gathered;
  for (int owner = 0; owner < group.ranks; ++owner) {
    const int64_t begin = std::min(count, owner * share);
    const int64_t part = std::min(count, begin + share) - begin;
    if (part == 0) break;
    std::byte* const at = to + begin * size;
    summed.push_back({owner, from + begin * size, at, part});
    gathered.push_back({owner, at, at, part * size});
  }
  reduce_scatter(channel, group, summed, format);
  all_gather(channel, group, gathered);
}

void Communicator::broadcast(Channel channel, const RankGroup& group, int root,
                             std::span<std::byte> bytes) {
  const GatheredPart all{root, bytes.data(), bytes.data(), std::ssize(bytes)};
  all_gather(channel, group, {&all, 1});
}

GroupMembers Communicator::members_of(const RankGroup& group) const {
  const auto ranks = static_cast<int>(group.ranks);
  const auto stride = static_cast<int>(group.stride);
  GroupMembers members;
  members.self = rank() / stride % ranks;
  const int first = rank() - members.self * stride;
  for (int i = 0; i < ranks; ++i) members.ranks.push_back(first + i * stride);
  CHECK(members.ranks.back() < size());
  return members;
}

void sum_in_order(std::span<const std::byte* const> parts, std::byte* to, int64_t count,
                  const SumFormat& format) {
  constexpr int64_t kTile = 4096;
  const kernels::Table& table = kernels::best();
  const int64_t size = kernels::bytes_of(format.stored);
  std::array<float, kTile> sum;
  std::array<float, kTile> added;
  std::array<float, kTile> rounded;
  for (int64_t at = 0; at < count; at += kTile) {
    const int64_t n = std::min(kTile, count - at);
    table.cast(parts.front() + at * size, format.stored, sum.data(), kernels::Format::kF32, n);
    for (const std::byte* const part : parts.subspan(1)) {
      table.cast(part + at * size, format.stored, added.data(), kernels::Format::kF32, n);
      for (int64_t i = 0; i < n; ++i) {
        sum[static_cast<size_t>(i)] += added[static_cast<size_t>(i)];
      }
    }
    if (format.rounded != format.stored && format.rounded != kernels::Format::kF32) {
      table.cast(sum.data(), kernels::Format::kF32, rounded.data(), format.rounded, n);
      table.cast(rounded.data(), format.rounded, sum.data(), kernels::Format::kF32, n);
    }
    table.cast(sum.data(), kernels::Format::kF32, to + at * size, format.stored, n);
  }
}

std::string told_by_first(Communicator& ranks, std::string text) {
  const RankGroup all{ranks.size(), 1};
  auto size = static_cast<int64_t>(text.size());
  ranks.broadcast(Channel::kControl, all, 0, std::as_writable_bytes(std::span(&size, 1)));
  text.resize(static_cast<size_t>(size));
  if (size > 0) {
    ranks.broadcast(Channel::kControl, all, 0, std::as_writable_bytes(std::span(text)));
  }
  return text;
}

std::vector<std::string> told_by_all(Communicator& ranks, Channel channel,
                                     const std::string& text) {
  const RankGroup all{ranks.size(), 1};
  const auto own = static_cast<int64_t>(text.size());
  std::vector<int64_t> sizes(static_cast<size_t>(ranks.size()));
  std::vector<GatheredPart> parts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    auto* const to = reinterpret_cast<std::byte*>(&sizes[static_cast<size_t>(rank)]);
    parts.push_back({rank, reinterpret_cast<const std::byte*>(&own), to, sizeof(own)});
  }
  ranks.all_gather(channel, all, parts);
  std::vector<std::string> texts;
  for (const int64_t size : sizes) texts.emplace_back(static_cast<size_t>(size), ' ');
  parts.clear();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::string& to = texts[static_cast<size_t>(rank)];
    parts.push_back({rank, reinterpret_cast<const std::byte*>(text.data()),
                     reinterpret_cast<std::byte*>(to.data()), std::ssize(to)});
  }
  ranks.all_gather(channel, all, parts);
  return texts;
}

int64_t sum_on_this_machine(Communicator& ranks, int64_t own) {
  int64_t all = 0;
  for (const std::string& text : told_by_all(ranks, Channel::kControl, std::to_string(own))) {
    all += std::stoll(text);
  }
  return div_ceil(all * ranks.local_size(), int64_t{ranks.size()});
}

std::string failure_text(int rank, const std::string& why) {
  return "rank " + std::to_string(rank) + ": " + why;
}

}  // namespace ballast
