#include "backend/comm/lone_rank.h"

#include <array>
#include <cstring>

namespace ballast {

void LoneRank::reduce_scatter(Channel, const RankGroup&, std::span<const SummedPart> parts,
                              const SumFormat& format) {
  for (const SummedPart& part : parts) {
    const std::array<const std::byte*, 2> both = {part.to, part.from};
    const std::span<const std::byte* const> from(both);
    if (part.owner == 0) {
      sum_in_order(part.adds ? from : from.last(1), part.to, part.count, format);
    }
  }
}

void LoneRank::all_gather(Channel, const RankGroup&, std::span<const GatheredPart> parts) {
  for (const GatheredPart& part : parts) {
    if (part.owner != 0 || part.from == part.to) continue;
    std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
  }
}

void LoneRank::all_to_all(Channel, const RankGroup&, std::span<const ExchangedPart> parts) {
  const ExchangedPart& own = parts.front();
  if (own.to_bytes == 0) return;
  std::memcpy(own.to, own.from, static_cast<size_t>(own.to_bytes));
}

}  // namespace ballast
