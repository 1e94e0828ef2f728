#include "backend/comm/local_ranks.h"

#include <cstring>

#include "sim/base/error.h"

namespace ballast {

class LocalRanks::Rank : public Communicator {
 public:
  Rank(LocalRanks& all, int rank, int size) : all_(all), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void reduce_scatter(Channel channel, const RankGroup& group, std::span<const SummedPart> parts,
                      const SumFormat& format) override;
  void all_gather(Channel channel, const RankGroup& group,
                  std::span<const GatheredPart> parts) override;
  void all_to_all(Channel channel, const RankGroup& group,
                  std::span<const ExchangedPart> parts) override;
  void fail(const std::string& why) override { all_.fail(rank_, why); }
  std::optional<std::string> failure() const override { return all_.failure(); }

 private:
  template <class Part>
  std::vector<std::span<const Part>> parts_of_all(Channel channel, const GroupMembers& members,
                                                  int64_t stride, const std::span<const Part>& own);

  LocalRanks& all_;
  int rank_;
  int size_;
};

LocalRanks::LocalRanks(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, rank, ranks));
  }
}

LocalRanks::~LocalRanks() = default;

Communicator& LocalRanks::of(int rank) const { return *ranks_[static_cast<size_t>(rank)]; }

int LocalRanks::failed() const {
  const std::scoped_lock lock(mutex_);
  return failure_ ? failure_->rank : -1;
}

std::optional<std::string> LocalRanks::failure() const {
  const std::scoped_lock lock(mutex_);
  if (!failure_) return {};
  return failure_text(failure_->rank, failure_->why);
}

std::vector<const void*> LocalRanks::meet(Channel channel, const GroupMembers& members,
                                          int64_t stride, Moment moment, const void* given) {
  std::unique_lock lock(mutex_);
  const size_t count = members.ranks.size();
  Meeting& meeting = meetings_[{channel, members.ranks.front(), stride, count}];
  meeting.given.resize(count);
  meeting.given[static_cast<size_t>(members.self)] = given;
  const int64_t round = meeting.round;
  const auto gives_up = [&] { return moment == Moment::kBegin && failure_; };
  if (!gives_up() && ++meeting.arrived == std::ssize(meeting.given)) {
    meeting.arrived = 0;
    meeting.seen = meeting.given;
    ++meeting.round;
    meeting.changed.notify_all();
    return meeting.seen;
  }
  // A round that is full counts, whatever failed meanwhile: the others read this rank's memory.
  meeting.changed.wait(lock, [&] { return meeting.round != round || gives_up(); });
  if (meeting.round != round) return meeting.seen;
  throw Error(failure_text(failure_->rank, failure_->why), "the other ranks end with it",
              "see its message");
}

void LocalRanks::fail(int rank, const std::string& why) {
  const std::scoped_lock lock(mutex_);
  if (!failure_) failure_ = Failure{rank, why};
  for (auto& [key, meeting] : meetings_) meeting.changed.notify_all();
}

template <class Part>
std::vector<std::span<const Part>> LocalRanks::Rank::parts_of_all(
    Channel channel, const GroupMembers& members, int64_t stride,
    const std::span<const Part>& own) {
  std::vector<std::span<const Part>> all;
  for (const void* const given : all_.meet(channel, members, stride, Moment::kBegin, &own)) {
    all.push_back(*static_cast<const std::span<const Part>*>(given));
    CHECK(all.back().size() == own.size() && "ranks exchange other parts");
  }
  return all;
}

void LocalRanks::Rank::reduce_scatter(Channel channel, const RankGroup& group,
                                      std::span<const SummedPart> parts, const SumFormat& format) {
  const GroupMembers members = members_of(group);
  const auto all = parts_of_all(channel, members, group.stride, parts);
  std::vector<const std::byte*> from;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].owner != members.self) continue;
    from.clear();
    if (parts[i].adds) from.push_back(parts[i].to);
    for (const std::span<const SummedPart>& of_rank : all) {
      CHECK(of_rank[i].count == parts[i].count && of_rank[i].owner == parts[i].owner);
      from.push_back(of_rank[i].from);
    }
    sum_in_order(from, parts[i].to, parts[i].count, format);
  }
  all_.meet(channel, members, group.stride, Moment::kEnd, nullptr);
}

void LocalRanks::Rank::all_gather(Channel channel, const RankGroup& group,
                                  std::span<const GatheredPart> parts) {
  const GroupMembers members = members_of(group);
  const auto all = parts_of_all(channel, members, group.stride, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    const GatheredPart& source = all[static_cast<size_t>(parts[i].owner)][i];
    CHECK(source.bytes == parts[i].bytes && source.owner == parts[i].owner);
    if (parts[i].bytes == 0 || source.from == parts[i].to) continue;
    std::memcpy(parts[i].to, source.from, static_cast<size_t>(parts[i].bytes));
  }
  all_.meet(channel, members, group.stride, Moment::kEnd, nullptr);
}

void LocalRanks::Rank::all_to_all(Channel channel, const RankGroup& group,
                                  std::span<const ExchangedPart> parts) {
  const GroupMembers members = members_of(group);
  const auto all = parts_of_all(channel, members, group.stride, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    const ExchangedPart& given = all[i][static_cast<size_t>(members.self)];
    CHECK(given.from_bytes == parts[i].to_bytes && "ranks exchange other parts");
    if (given.from_bytes == 0) continue;
    std::memcpy(parts[i].to, given.from, static_cast<size_t>(given.from_bytes));
  }
  all_.meet(channel, members, group.stride, Moment::kEnd, nullptr);
}

}  // namespace ballast
