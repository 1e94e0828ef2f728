// How several ranks write one checkpoint: all succeed, or none of them keeps anything of it.
//
// Every rank calls each of these alike. Will not do: read state (rank_parts).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/checkpoint/shards.h"
#include "backend/comm/communicator.h"

namespace ballast {

// Calls `own`, which returns what is wrong with this rank's part, or nothing. Returns what the
// first rank of those with something wrong returned. Throws on every rank where it throws on any.
// ranks: null where this one is alone.
std::optional<std::string> first_of_ranks(Communicator* ranks,
                                          const std::function<std::optional<std::string>()>& own);

// Writes this rank's shard, whose header's checksum `write` returns, and, where all ranks have,
// as the first one the manifest at `path`. Throws on every rank where `write` throws on any, and on
// the first one where it does not find the shards of the others. `channel` may be that of a thread
// of its own.
void write_shards(Communicator& ranks, Channel channel, const std::string& path,
                  const ShardName& name, const std::function<uint32_t()>& write,
                  StoredMetadata metadata, Files& files);

}  // namespace ballast
