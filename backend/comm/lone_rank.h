// One of several ranks, without the others: for timing what a rank does by itself.
//
// A sum is this rank's contribution, and what others would have given stays as it is.
#pragma once

#include "backend/comm/communicator.h"

namespace ballast {

class LoneRank : public Communicator {
 public:
  explicit LoneRank(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  void reduce_scatter(Channel channel, const RankGroup& group, std::span<const SummedPart> parts,
                      const SumFormat& format) override;
  void all_gather(Channel channel, const RankGroup& group,
                  std::span<const GatheredPart> parts) override;
  void all_to_all(Channel channel, const RankGroup& group,
                  std::span<const ExchangedPart> parts) override;
  void fail(const std::string&) override {}

 private:
  int size_;
};

}  // namespace ballast
