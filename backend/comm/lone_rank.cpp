#include "backend/comm/lone_rank.h"

#include <cstring>

namespace ballast {

void LoneRank::reduce_scatter(Channel, const RankGroup&, std::span<const SummedPart> parts,
                              const SumFormat& format) {
  for (const SummedPart& part : parts) {
    if (part.owner == 0) sum_in_order({&part.from, 1}, part.to, part.count, format);
  }
}

void LoneRank::all_gather(Channel, const RankGroup&, std::span<const GatheredPart> parts) {
  for (const GatheredPart& part : parts) {
    if (part.owner != 0 || part.from == part.to) continue;
    std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
  }
}

}  // namespace ballast
