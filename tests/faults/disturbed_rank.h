// A rank whose messages come late, or once not at all.
//
// Late ones change the order in which threads meet, and nothing else. A message that is lost is
// one that its rank gives up waiting for: it ends there, and the others hear of it. What happens to
// which exchange follows from the seed, the rank, the channel and the number of the exchange on it,
// whatever order threads run in.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "backend/comm/communicator.h"
#include "sim/base/error.h"

namespace ballast::tests {

class DisturbedRank : public Communicator {
 public:
  static constexpr const char* kLost = "a message did not come in time";

  struct Loss {
    Channel channel{};
    int64_t exchange = 0;  // from 1
  };

  // `rank` must outlive this object. late: one exchange in so many; 0: none.
  DisturbedRank(Communicator& rank, uint64_t seed, int late, std::optional<Loss> loss)
      : inner_(rank), seed_(seed), late_(late), loss_(loss) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  void fail(const std::string& why) override { inner_.fail(why); }

  void reduce_scatter(Channel channel, const RankGroup& group, std::span<const SummedPart> parts,
                      const SumFormat& format) override {
    disturb(channel);
    inner_.reduce_scatter(channel, group, parts, format);
  }
  void all_gather(Channel channel, const RankGroup& group,
                  std::span<const GatheredPart> parts) override {
    disturb(channel);
    inner_.all_gather(channel, group, parts);
  }
  void all_to_all(Channel channel, const RankGroup& group,
                  std::span<const ExchangedPart> parts) override {
    disturb(channel);
    inner_.all_to_all(channel, group, parts);
  }

  // Of every channel, so far.
  std::map<Channel, int64_t> exchanges() const {
    const std::scoped_lock lock(mutex_);
    return exchanges_;
  }

 private:
  void disturb(Channel channel) {
    int64_t number = 0;
    {
      const std::scoped_lock lock(mutex_);
      number = ++exchanges_[channel];
    }
    std::seed_seq source{seed_, static_cast<uint64_t>(rank()), static_cast<uint64_t>(channel),
                         static_cast<uint64_t>(number)};
    std::minstd_rand random(source);
    if (late_ > 0 && random() % static_cast<unsigned>(late_) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    if (loss_ && loss_->channel == channel && loss_->exchange == number) {
      throw Error(failure_text(rank(), kLost), "the other ranks end with it", "start it again");
    }
  }

  Communicator& inner_;
  uint64_t seed_;
  int late_;
  std::optional<Loss> loss_;
  mutable std::mutex mutex_;  // guards exchanges_
  std::map<Channel, int64_t> exchanges_;
};

}  // namespace ballast::tests
