// A libnccl.so.2 without a GPU: notes every call, and carries data between threads of one process.
//
// Whoever comes last moves the data, under one lock, so an abort never meets a copy. Ranks whose
// calls do not go together have an error instead (ncclInvalidUsage), where NCCL would wait forever
// or give garbage.
#include "tests/cuda/nccl/stand_in.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "kernels/reference/convert.h"

namespace ballast::nccl {

struct End;

struct Part {
  nccl_stand_in::Noted noted;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  End* end = nullptr;
  bool done = false;
};
// Calls that go together, of one rank: collectives, or messages.
struct Launch {
  End* end = nullptr;
  size_t number = 0;  // of collectives: among those of the communicator
  std::vector<Part> parts;
};
struct Shared {
  int number = 0;
  int ranks = 0;
  std::vector<End*> ends;  // by rank; null until it has come
  std::map<size_t, std::vector<const Launch*>> arrived;
  size_t done = 0;  // launches of collectives
  // By sender and receiver, in their order: those that wait for the other end.
  std::map<std::pair<int, int>, std::deque<Part*>> sent, received;
};
struct End {
  Shared* shared = nullptr;
  int rank = 0;
  size_t launches = 0;
  size_t collectives = 0;  // of them
  Result state = kSuccess;
  bool aborted = false;
};
struct Communicator : End {};

}  // namespace ballast::nccl

namespace {

using namespace ballast;
using nccl_stand_in::Call;
using nccl_stand_in::Noted;

struct World {
  std::mutex mutex;  // guards all here, and all ends
  std::condition_variable changed;
  nccl_stand_in::Streams streams;
  bool errors_are_remote = false;
  std::vector<Noted> noted;
  std::vector<nccl_stand_in::Failure> failures;
  std::map<Call, int> calls;
  std::deque<nccl::Shared> communicators;
  // Work of an aborted end may look at it until its stream is gone, so ends stay.
  std::vector<std::unique_ptr<nccl::Communicator>> ends;
  int living = 0;
};

World& world() {
  static World one;
  return one;
}

thread_local int depth = 0;
thread_local std::vector<std::pair<nccl::Communicator*, nccl::Part>> open_calls;

// With the world's lock held: what the next call of this kind is to give.
std::optional<nccl_stand_in::Failure> failure_of_next(Call call) {
  const int number = world().calls[call]++;
  for (const nccl_stand_in::Failure& failure : world().failures) {
    if (failure.rank < 0 && failure.call == call && failure.number == number) return failure;
  }
  return {};
}

size_t size_of(nccl::Type type) { return type == nccl::kF32 ? 4 : type == nccl::kBytes ? 1 : 2; }

float widened(const std::byte* values, size_t i, nccl::Type type) {
  float value = 0;
  if (type == nccl::kF32) {
    std::memcpy(&value, values + i * sizeof(float), sizeof(float));
  } else if (type == nccl::kF16) {
    uint16_t half = 0;
    std::memcpy(&half, values + i * sizeof(half), sizeof(half));
    value = kernels::f16_to_f32(half);
  } else {
    uint16_t high = 0;
    std::memcpy(&high, values + i * sizeof(high), sizeof(high));
    value = std::bit_cast<float>(uint32_t{high} << 16);
  }
  return value;
}

// To the nearest and to even; to bf16 not of what is no number.
void store(float value, std::byte* values, size_t i, nccl::Type type) {
  if (type == nccl::kF32) {
    std::memcpy(values + i * sizeof(float), &value, sizeof(float));
    return;
  }
  if (type == nccl::kF16) {
    const uint16_t half = kernels::f32_to_f16(value);
    std::memcpy(values + i * sizeof(half), &half, sizeof(half));
    return;
  }
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto high = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  std::memcpy(values + i * sizeof(high), &high, sizeof(high));
}

void sum(const std::vector<const std::byte*>& from, std::byte* to, size_t count, nccl::Type type) {
  for (size_t i = 0; i < count; ++i) {
    float total = 0;
    for (const std::byte* const part : from) total += widened(part, i, type);
    store(total, to, i, type);
  }
}

bool is_message(Call call) { return call == Call::kSend || call == Call::kReceive; }

// All but the caller, its stream and its messages beside are the same on every rank.
bool go_together(const std::vector<const nccl::Launch*>& launches) {
  const auto what = [](const nccl::Part& part) {
    return std::tuple(part.noted.call, part.noted.count, part.noted.type, part.noted.other);
  };
  return std::ranges::all_of(launches, [&](const nccl::Launch* one) {
    return std::ranges::equal(one->parts, launches[0]->parts, {}, what, what);
  });
}

// Results of all ranks, before any is written: what is given may lie where a result goes.
void carry_collective(const std::vector<const nccl::Launch*>& launches, size_t index) {
  const Noted& noted = launches[0]->parts[index].noted;
  const size_t ranks = launches.size(), bytes = noted.count * size_of(noted.type);
  std::vector<std::vector<std::byte>> results(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::byte>& result = results[rank];
    const auto from = [&](size_t of) { return launches[of]->parts[index].from; };
    const size_t begin = noted.call == Call::kReduceScatter ? rank * bytes : 0;
    if (noted.call == Call::kAllGather) {
      for (size_t of = 0; of < ranks; ++of) result.insert(result.end(), from(of), from(of) + bytes);
    } else if (noted.call == Call::kBroadcast) {
      const std::byte* const root = from(static_cast<size_t>(noted.other));
      result.assign(root, root + bytes);
    } else if (noted.call != Call::kReduce || noted.other == static_cast<int>(rank)) {
      std::vector<const std::byte*> parts;
      for (size_t of = 0; of < ranks; ++of) parts.push_back(from(of) + begin);
      result.resize(bytes);
      sum(parts, result.data(), noted.count, noted.type);
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (results[rank].empty()) continue;
    std::memcpy(launches[rank]->parts[index].to, results[rank].data(), results[rank].size());
  }
}

void carry(const std::vector<const nccl::Launch*>& launches) {
  if (!go_together(launches)) {
    for (const nccl::Launch* const launch : launches) launch->end->state = nccl::kInvalidUsage;
    return;
  }
  for (size_t i = 0; i < launches[0]->parts.size(); ++i) carry_collective(launches, i);
}

// With the world's lock held, on the stream's thread, as all that follows. An end with an error
// holds its stream, as a kernel without its peers.
void run_collectives(std::unique_lock<std::mutex>& lock, const nccl::Launch& launch) {
  const nccl::End& end = *launch.end;
  nccl::Shared& shared = *end.shared;
  std::vector<const nccl::Launch*>& arrived = shared.arrived[launch.number];
  if (end.state == nccl::kSuccess && !end.aborted) arrived.push_back(&launch);
  if (static_cast<int>(arrived.size()) == shared.ranks) {
    std::ranges::sort(arrived, {}, [](const nccl::Launch* one) { return one->end->rank; });
    carry(arrived);
    ++shared.done;
    world().changed.notify_all();
  }
  world().changed.wait(lock, [&] {
    return end.aborted || (shared.done > launch.number && end.state == nccl::kSuccess);
  });
  std::erase(arrived, &launch);
}

// Messages of one rank to another match in their order.
void match(std::deque<nccl::Part*>& sent, std::deque<nccl::Part*>& received) {
  while (!sent.empty() && !received.empty()) {
    nccl::Part &from = *sent.front(), &to = *received.front();
    const size_t bytes = from.noted.count * size_of(from.noted.type);
    if (bytes == to.noted.count * size_of(to.noted.type)) {
      std::memcpy(to.to, from.from, bytes);
    } else {
      from.end->state = to.end->state = nccl::kInvalidUsage;
    }
    from.done = to.done = true;
    sent.pop_front();
    received.pop_front();
  }
}

void run_messages(std::unique_lock<std::mutex>& lock, nccl::Launch& launch) {
  nccl::End& end = *launch.end;
  nccl::Shared& shared = *end.shared;
  const auto queue_of = [&](const nccl::Part& part) -> std::deque<nccl::Part*>& {
    const int other = part.noted.other;
    return part.noted.call == Call::kSend ? shared.sent[{end.rank, other}]
                                          : shared.received[{other, end.rank}];
  };
  if (end.state == nccl::kSuccess && !end.aborted) {
    for (nccl::Part& part : launch.parts) queue_of(part).push_back(&part);
    for (auto& [ends, sent] : shared.sent) match(sent, shared.received[ends]);
    world().changed.notify_all();
  }
  world().changed.wait(lock, [&] {
    return end.aborted ||
           (end.state == nccl::kSuccess && std::ranges::all_of(launch.parts, &nccl::Part::done));
  });
  for (nccl::Part& part : launch.parts) std::erase(queue_of(part), &part);
}

void run_launch(void* data) {
  const std::unique_ptr<nccl::Launch> launch(static_cast<nccl::Launch*>(data));
  nccl::End& end = *launch->end;
  std::unique_lock lock(world().mutex);
  for (const nccl::Part& part : launch->parts) {
    for (const nccl_stand_in::Failure& failure : world().failures) {
      if (failure.call == part.noted.call && failure.rank == part.noted.rank &&
          failure.number == part.noted.group) {
        end.state = failure.result;
      }
    }
  }
  if (is_message(launch->parts.front().noted.call)) {
    run_messages(lock, *launch);
  } else {
    run_collectives(lock, *launch);
  }
}

// Enqueues what this thread has called since its group began.
nccl::Result enqueue_open() {
  std::vector<std::pair<nccl::Communicator*, nccl::Part>> calls;
  calls.swap(open_calls);
  if (calls.empty()) return nccl::kSuccess;
  nccl::Communicator* const end = calls.front().first;
  void* const stream = calls.front().second.noted.stream;
  auto launch = std::make_unique<nccl::Launch>();
  launch->end = end;
  {
    const std::scoped_lock lock(world().mutex);
    const bool messages = is_message(calls.front().second.noted.call);
    launch->number = messages ? 0 : end->collectives++;
    const size_t group = end->launches++;
    for (auto& [of, part] : calls) {
      if (of != end || part.noted.stream != stream || is_message(part.noted.call) != messages) {
        return nccl::kInvalidUsage;
      }
      part.end = end;
      part.noted.group = static_cast<int>(group);
      world().noted.push_back(part.noted);
      launch->parts.push_back(part);
    }
  }
  world().streams.enqueue(stream, run_launch, launch.release());
  return nccl::kSuccess;
}

struct Arguments {
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  nccl::Type type{};
  int other = -1;
};

nccl::Result call(Call call, const Arguments& its, nccl::Communicator* end, void* stream) {
  {
    const std::scoped_lock lock(world().mutex);
    if (const auto failure = failure_of_next(call)) return failure->result;
    if (end == nullptr || end->aborted) return nccl::kInvalidArgument;
    if (end->state != nccl::kSuccess) return end->state;
    if (its.other >= end->shared->ranks) return nccl::kInvalidArgument;
    open_calls.emplace_back(end, nccl::Part{{call, end->shared->number, end->shared->ranks,
                                             end->rank, its.count, its.type, its.other, stream, 0},
                                            static_cast<const std::byte*>(its.from),
                                            static_cast<std::byte*>(its.to),
                                            nullptr,
                                            false});
  }
  return depth > 0 ? nccl::kSuccess : enqueue_open();
}

// Of a call on a whole communicator.
void note(Call call, const nccl::Communicator* end) {
  world().noted.push_back({call, end->shared->number, end->shared->ranks, end->rank, 0,
                           nccl::kBytes, -1, nullptr, static_cast<int>(end->launches)});
}

}  // namespace

extern "C" {

void nccl_stand_in_reset(nccl_stand_in::Streams streams, bool errors_are_remote) {
  const std::scoped_lock lock(world().mutex);
  world().streams = streams;
  world().errors_are_remote = errors_are_remote;
  world().noted.clear();
  world().failures.clear();
  world().calls.clear();
}

void nccl_stand_in_fail(const nccl_stand_in::Failure& failure) {
  const std::scoped_lock lock(world().mutex);
  world().failures.push_back(failure);
}

void nccl_stand_in_take_noted(std::vector<Noted>& noted) {
  const std::scoped_lock lock(world().mutex);
  noted.swap(world().noted);
  world().noted.clear();
}

int nccl_stand_in_living() {
  const std::scoped_lock lock(world().mutex);
  return world().living;
}

nccl::Result ncclGetVersion(int* code) {
  *code = 22809;
  return nccl::kSuccess;
}

const char* ncclGetErrorString(nccl::Result result) {
  return result == nccl::kSuccess ? "no error" : "the stand-in was told to fail";
}

const char* ncclGetLastError(nccl::Communicator*) { return "its last\nwords\n"; }

nccl::Result ncclGetUniqueId(nccl::UniqueId* id) {
  const std::scoped_lock lock(world().mutex);
  if (const auto failure = failure_of_next(Call::kUniqueId)) return failure->result;
  const int number = static_cast<int>(world().communicators.size());
  world().communicators.emplace_back().number = number;
  std::memcpy(id->bytes.data(), &number, sizeof(number));
  // The last byte too must reach every rank.
  id->bytes.back() = 'z';
  return nccl::kSuccess;
}

nccl::Result ncclCommInitRankConfig(nccl::Communicator** end, int ranks, nccl::UniqueId id,
                                    int rank, nccl::Config* config) {
  const std::scoped_lock lock(world().mutex);
  if (const auto failure = failure_of_next(Call::kInit)) return failure->result;
  int number = -1;
  std::memcpy(&number, id.bytes.data(), sizeof(number));
  const nccl::Config expected;
  if (number < 0 || number >= static_cast<int>(world().communicators.size()) ||
      id.bytes.back() != 'z' || config->magic != expected.magic || config->blocking != 0) {
    return nccl::kInvalidArgument;
  }
  nccl::Shared& shared = world().communicators[static_cast<size_t>(number)];
  shared.ranks = ranks;
  shared.ends.resize(static_cast<size_t>(ranks));
  if (shared.ends[static_cast<size_t>(rank)] != nullptr) return nccl::kInvalidUsage;
  *end = world().ends.emplace_back(std::make_unique<nccl::Communicator>()).get();
  (*end)->shared = &shared;
  (*end)->rank = rank;
  shared.ends[static_cast<size_t>(rank)] = *end;
  ++world().living;
  note(Call::kInit, *end);
  return nccl::kInProgress;
}

nccl::Result ncclCommGetAsyncError(nccl::Communicator* end, nccl::Result* state) {
  const std::scoped_lock lock(world().mutex);
  if (end == nullptr || end->aborted) return nccl::kInvalidArgument;
  const bool complete =
      std::ranges::none_of(end->shared->ends, [](const nccl::End* one) { return one == nullptr; });
  *state = end->state != nccl::kSuccess ? end->state
           : complete                   ? nccl::kSuccess
                                        : nccl::kInProgress;
  return nccl::kSuccess;
}

nccl::Result ncclCommFinalize(nccl::Communicator* end) {
  const std::scoped_lock lock(world().mutex);
  if (const auto failure = failure_of_next(Call::kFinalize)) return failure->result;
  note(Call::kFinalize, end);
  return nccl::kSuccess;
}

nccl::Result ncclCommDestroy(nccl::Communicator* end) {
  const std::scoped_lock lock(world().mutex);
  note(Call::kDestroy, end);
  --world().living;
  return nccl::kSuccess;
}

nccl::Result ncclCommAbort(nccl::Communicator* end) {
  const std::scoped_lock lock(world().mutex);
  if (end->aborted) return nccl::kInvalidArgument;
  end->aborted = true;
  note(Call::kAbort, end);
  --world().living;
  for (nccl::End* const other : end->shared->ends) {
    if (world().errors_are_remote && other != nullptr && other != end) {
      other->state = nccl::kRemoteError;
    }
  }
  world().changed.notify_all();
  return nccl::kSuccess;
}

nccl::Result ncclGroupStart() {
  ++depth;
  return nccl::kSuccess;
}

nccl::Result ncclGroupEnd() { return --depth > 0 ? nccl::kSuccess : enqueue_open(); }

nccl::Result ncclAllReduce(const void* from, void* to, size_t count, nccl::Type type,
                           nccl::Operator, nccl::Communicator* end, void* stream) {
  return call(Call::kAllReduce, {from, to, count, type}, end, stream);
}

nccl::Result ncclReduceScatter(const void* from, void* to, size_t count, nccl::Type type,
                               nccl::Operator, nccl::Communicator* end, void* stream) {
  return call(Call::kReduceScatter, {from, to, count, type}, end, stream);
}

nccl::Result ncclAllGather(const void* from, void* to, size_t count, nccl::Type type,
                           nccl::Communicator* end, void* stream) {
  return call(Call::kAllGather, {from, to, count, type}, end, stream);
}

nccl::Result ncclReduce(const void* from, void* to, size_t count, nccl::Type type, nccl::Operator,
                        int root, nccl::Communicator* end, void* stream) {
  return call(Call::kReduce, {from, to, count, type, root}, end, stream);
}

nccl::Result ncclBroadcast(const void* from, void* to, size_t count, nccl::Type type, int root,
                           nccl::Communicator* end, void* stream) {
  return call(Call::kBroadcast, {from, to, count, type, root}, end, stream);
}

nccl::Result ncclSend(const void* from, size_t count, nccl::Type type, int peer,
                      nccl::Communicator* end, void* stream) {
  return call(Call::kSend, {from, nullptr, count, type, peer}, end, stream);
}

nccl::Result ncclRecv(void* to, size_t count, nccl::Type type, int peer, nccl::Communicator* end,
                      void* stream) {
  return call(Call::kReceive, {nullptr, to, count, type, peer}, end, stream);
}

}  // extern "C"
