#include "backend/checkpoint/shard_write.h"

#include <charconv>
#include <exception>

#include "sim/base/crc32c.h"
#include "sim/base/error.h"

namespace ballast {

namespace {

// How what a rank tells the others begins.
constexpr char kWell = '+';
constexpr char kFailed = '-';

// What `work` returns on every rank; where it throws on any, so does this on all.
std::vector<std::string> told_results(Communicator& ranks, Channel channel,
                                      const std::function<std::string()>& work) {
  std::string own;
  std::exception_ptr failure;
  try {
    own = kWell + work();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    own = std::string(1, kFailed) + error.what();
  }
  std::vector<std::string> all = told_by_all(ranks, channel, own);
  if (failure) std::rethrow_exception(failure);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string text = all[rank].substr(1);
    if (all[rank].front() == kFailed) {
      throw Error(failure_text(static_cast<int>(rank), text), "no rank keeps this checkpoint",
                  "see its message");
    }
    all[rank] = text;
  }
  return all;
}

}  // namespace

std::optional<std::string> first_of_ranks(Communicator* ranks,
                                          const std::function<std::optional<std::string>()>& own) {
  if (ranks == nullptr) return own();
  for (std::string& text :
       told_results(*ranks, Channel::kControl, [&] { return own().value_or(""); })) {
    if (!text.empty()) return std::move(text);
  }
  return std::nullopt;
}

void write_shards(Communicator& ranks, Channel channel, const std::string& path,
                  const ShardName& name, const std::function<uint32_t()>& write,
                  StoredMetadata metadata, Files& files) {
  const std::vector<std::string> told =
      told_results(ranks, channel, [&] { return hex_of(write()); });
  if (ranks.rank() != 0) return;
  std::vector<Shard> shards;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    ShardName of_rank = name;
    of_rank.rank = static_cast<int>(rank);
    Shard& shard = shards.emplace_back(Shard{shard_file(of_rank), 0});
    const std::string& sum = told[rank];
    std::from_chars(sum.data(), sum.data() + sum.size(), shard.checksum, 16);
  }
  try {
    ShardReaders(path, shards, files);
  } catch (const Error& error) {
    throw Error(path,
                std::string("the first rank does not find what another one wrote: ") + error.what(),
                "name a folder that all ranks share");
  }
  add_shards(shards, metadata);
  SafetensorsWriter manifest(path, {}, metadata, files);
  manifest.commit();
}

}  // namespace ballast
