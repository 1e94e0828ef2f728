#include "backend/cuda/libraries/nccl_ranks.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <thread>
#include <tuple>

#include "sim/base/error.h"

namespace ballast {

namespace {

using namespace std::chrono_literals;

// How long a failure may go unheard while this rank waits.
constexpr auto kWatchPeriod = 20ms;

// NCCL tells that it has begun what it was asked for by asking it alone. Ranks of tests, and of
// small machines, share cores with each other's computation.
void rest(int asked) {
  constexpr int kEagerly = 200;
  if (asked < kEagerly) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(50us);
  }
}

auto key_of(const NcclGroup& group) {
  return std::tuple(group.lane, group.ranks.ranks, group.ranks.stride);
}

std::string name_of(const NcclGroup& group) {
  return fmt::format("communicator {} of {} ranks, {} apart", to_string(kind_of(group.lane)),
                     group.ranks.ranks, group.ranks.stride);
}

nccl::Type type_of(kernels::Format format) {
  switch (format) {
    case kernels::Format::kF32:
      return nccl::kF32;
    case kernels::Format::kBf16:
      return nccl::kBf16;
    case kernels::Format::kF16:
      return nccl::kF16;
  }
  CHECK(false && "a format without a type of NCCL");
}

size_t to_size(int64_t count) {
  CHECK(count >= 0);
  return static_cast<size_t>(count);
}

// Results of calls that go together: the first that is neither done nor on its way.
nccl::Result first_failure(nccl::Result so_far, nccl::Result next) {
  const bool fine = so_far == nccl::kSuccess || so_far == nccl::kInProgress;
  return fine ? next : so_far;
}

// The same of a call for each part.
template <class Part, class Call>
nccl::Result first_failure_of(std::span<const Part> parts, const Call& call) {
  nccl::Result result = nccl::kSuccess;
  for (const Part& part : parts) result = first_failure(result, call(part));
  return result;
}

constexpr const char* kRemedy = "set NCCL_DEBUG=INFO to see why";
constexpr const char* kOthersRemedy = "see the message of the rank that failed first";

}  // namespace

std::vector<NcclGroup> nccl_groups_of(const Graph& graph) {
  bool has_stages = !graph.blocks.empty();
  std::vector<NcclGroup> groups;
  for (const Op& op : graph.step.ops) {
    const auto* const work = std::get_if<CollectiveWork>(&op.work);
    if (work == nullptr) continue;
    const bool in_ring = kind_of(op.lane) == LaneKind::kSequenceNetwork;
    has_stages |= work->kind == CollectiveKind::kSendReceive && !in_ring;
    groups.push_back({op.lane, {work->ranks, work->stride}});
  }
  if (has_stages) {
    throw Error("NCCL", "messages between stages of a pipeline have no communicator",
                "train them on the host device, or choose plan.pipeline=1");
  }
  std::ranges::sort(groups, {}, key_of);
  const auto same = [](const NcclGroup& one, const NcclGroup& other) {
    return key_of(one) == key_of(other);
  };
  groups.erase(std::unique(groups.begin(), groups.end(), same), groups.end());
  return groups;
}

NcclRanks::NcclRanks(const NcclFunctions& functions, CudaRuntime& runtime, Communicator& host,
                     const std::vector<NcclGroup>& groups)
    : NcclRanks(functions, runtime, host) {
  // From here on the destructor ends what was created, whatever fails.
  runtime_.bind_thread();
  all_.reserve(groups.size());
  for (const NcclGroup& group : groups) create(group);
  if (groups.empty()) return;
  watcher_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

NcclRanks::~NcclRanks() {
  watcher_ = {};  // ends before what it asks
  const std::scoped_lock lock(mutex_);
  for (One& one : all_) {
    if (one.native != nullptr) functions_.abort(one.native);
  }
}

void NcclRanks::create(const NcclGroup& group) {
  CHECK(group.ranks.ranks > 1);
  CHECK(std::ranges::none_of(all_,
                             [&](const One& one) { return key_of(one.group) == key_of(group); }));
  One& one = all_.emplace_back();
  one.group = group;
  one.members = host_.members_of(group.ranks);
  nccl::UniqueId id;
  if (one.members.self == 0) check(one, functions_.unique_id(&id), "its id");
  host_.broadcast(Channel::kControl, group.ranks, 0, std::as_writable_bytes(std::span(id.bytes)));
  nccl::Config config;
  nccl::Result result = nccl::kSuccess;
  {
    const std::scoped_lock lock(mutex_);
    throw_if_failed();
    result = functions_.init(&one.native, static_cast<int>(group.ranks.ranks), id, one.members.self,
                             &config);
  }
  check(one, result, "creation");
  settle(one, "creation");
}

const NcclRanks::One& NcclRanks::one_of(const NcclGroup& group) const {
  const auto found =
      std::ranges::find(all_, key_of(group), [](const One& one) { return key_of(one.group); });
  CHECK(found != all_.end() && "no communicator was made for this group");
  return *found;
}

// A call that failed may have left the group of calls open on this thread: it is ended whatever
// happened in it.
template <class Calls>
void NcclRanks::together(const One& one, const char* attempt, const Calls& calls) {
  nccl::Result result = nccl::kSuccess;
  {
    const std::scoped_lock lock(mutex_);
    throw_if_failed();
    CHECK(one.native != nullptr && "the communicator was closed");
    runtime_.bind_thread();
    result = functions_.group_start();
    if (result == nccl::kSuccess) {
      result = calls();
      result = first_failure(result, functions_.group_end());
    }
  }
  check(one, result, attempt);
  settle(one, attempt);
}

nccl::Result NcclRanks::state_of(const One& one) {
  const std::scoped_lock lock(mutex_);
  throw_if_failed();
  if (one.native == nullptr) return nccl::kSuccess;
  nccl::Result state = nccl::kSuccess;
  const nccl::Result result = functions_.async_error(one.native, &state);
  return result == nccl::kSuccess ? state : result;
}

void NcclRanks::watch(const std::stop_token& stop) {
  try {
    runtime_.bind_thread();
    while (!stop.stop_requested()) {
      check_all();
      throw_if_another_failed("watch");
      std::unique_lock lock(mutex_);
      stopped_.wait_for(lock, stop, kWatchPeriod, [] { return false; });
    }
  } catch (const Error&) {
    // Aborted: whoever waits is told why.
  }
}

void NcclRanks::throw_if_another_failed(const std::string& attempt) {
  const std::optional<std::string> other = host_.failure();
  if (!other) return;
  {
    const std::scoped_lock lock(mutex_);
    abort_all(*other);
  }
  throw Error("NCCL, " + attempt, *other, kOthersRemedy);
}

void NcclRanks::settle(const One& one, const std::string& attempt) {
  for (int asked = 0;; ++asked) {
    const nccl::Result state = state_of(one);
    check(one, state, attempt);
    if (state != nccl::kInProgress) return;
    throw_if_another_failed(attempt + " of " + name_of(one.group));
    rest(asked);
  }
}

void NcclRanks::check(const One& one, nccl::Result result, const std::string& attempt) {
  if (result == nccl::kSuccess || result == nccl::kInProgress) return;
  std::string text;
  {
    const std::scoped_lock lock(mutex_);
    throw_if_failed();
    text = nccl_failure_text(functions_, result, one.native);
  }
  const Error error("NCCL, " + attempt + " of " + name_of(one.group), text, kRemedy);
  {
    const std::scoped_lock lock(mutex_);
    if (!why_ && !error_) error_ = error;
  }
  fail(error.what());
  throw error;
}

void NcclRanks::check_all() {
  for (const One& one : all_) check(one, state_of(one), "work");
}

void NcclRanks::throw_if_failed() {
  if (why_) throw Error("NCCL, communicators were aborted", *why_, kOthersRemedy);
}

void NcclRanks::abort_all(const std::string& why) {
  if (!why_) why_ = why;
  for (One& one : all_) {
    if (one.native != nullptr) functions_.abort(one.native);
    one.native = nullptr;
  }
}

// The others hear of it before any thread of this rank can fail for that, which is a consequence.
void NcclRanks::fail(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  host_.fail(why);
  abort_all(why);
}

void NcclRanks::wait(CudaEvent event) {
  runtime_.bind_thread();
  runtime_.synchronize(event);
  // What an abort ends early is done too, and is no result.
  {
    const std::scoped_lock lock(mutex_);
    if (error_) throw Error(*error_);
    if (why_) {
      throw Error(fmt::format("NCCL, wait for stream {}", event.stream), *why_, kOthersRemedy);
    }
  }
  check_all();
}

void NcclRanks::close() {
  for (One& one : all_) {
    nccl::Result result = nccl::kSuccess;
    {
      const std::scoped_lock lock(mutex_);
      throw_if_failed();
      if (one.native == nullptr) continue;
      result = functions_.finalize(one.native);
    }
    check(one, result, "end");
    settle(one, "end");
    const std::scoped_lock lock(mutex_);
    throw_if_failed();
    functions_.destroy(one.native);
    one.native = nullptr;
  }
}

void NcclRanks::all_reduce(const NcclGroup& group, const std::byte* from, std::byte* to,
                           int64_t count, kernels::Format format, CudaStream stream) {
  const One& one = one_of(group);
  together(one, "all-reduce", [&] {
    return functions_.all_reduce(from, to, to_size(count), type_of(format), nccl::kSum, one.native,
                                 stream.native);
  });
}

void NcclRanks::all_reduce(const NcclGroup& group, std::span<const ValueRun> runs,
                           kernels::Format format, CudaStream stream) {
  const One& one = one_of(group);
  together(one, "all-reduce", [&] {
    return first_failure_of(runs, [&](const ValueRun& run) {
      return functions_.all_reduce(run.values, run.values, to_size(run.count), type_of(format),
                                   nccl::kSum, one.native, stream.native);
    });
  });
}

void NcclRanks::reduce_scatter(const NcclGroup& group, const std::byte* from, std::byte* to,
                               int64_t count, kernels::Format format, CudaStream stream) {
  const One& one = one_of(group);
  together(one, "reduce-scatter", [&] {
    return functions_.reduce_scatter(from, to, to_size(count), type_of(format), nccl::kSum,
                                     one.native, stream.native);
  });
}

void NcclRanks::all_gather(const NcclGroup& group, const std::byte* from, std::byte* to,
                           int64_t bytes, CudaStream stream) {
  const One& one = one_of(group);
  together(one, "all-gather", [&] {
    return functions_.all_gather(from, to, to_size(bytes), nccl::kBytes, one.native, stream.native);
  });
}

void NcclRanks::reduce_scatter(const NcclGroup& group, std::span<const SummedPart> parts,
                               kernels::Format format, CudaStream stream) {
  const One& one = one_of(group);
  together(one, "reduce-scatter", [&] {
    return first_failure_of(parts, [&](const SummedPart& part) {
      CHECK(!part.adds && "NCCL adds to nothing that is there");
      if (part.count == 0) return nccl::kSuccess;
      return functions_.reduce(part.from, part.to, to_size(part.count), type_of(format), nccl::kSum,
                               part.owner, one.native, stream.native);
    });
  });
}

void NcclRanks::all_gather(const NcclGroup& group, std::span<const GatheredPart> parts,
                           CudaStream stream) {
  const One& one = one_of(group);
  together(one, "all-gather", [&] {
    return first_failure_of(parts, [&](const GatheredPart& part) {
      if (part.bytes == 0) return nccl::kSuccess;
      const std::byte* const from = part.owner == one.members.self ? part.from : part.to;
      return functions_.broadcast(from, part.to, to_size(part.bytes), nccl::kBytes, part.owner,
                                  one.native, stream.native);
    });
  });
}

void NcclRanks::all_to_all(const NcclGroup& group, std::span<const ExchangedPart> parts,
                           CudaStream stream) {
  const One& one = one_of(group);
  CHECK(std::ssize(parts) == group.ranks.ranks);
  together(one, "all-to-all", [&] {
    nccl::Result result = nccl::kSuccess;
    for (int other = 0; other < static_cast<int>(std::ssize(parts)); ++other) {
      const ExchangedPart& part = parts[static_cast<size_t>(other)];
      if (part.from_bytes > 0) {
        result =
            first_failure(result, functions_.send(part.from, to_size(part.from_bytes), nccl::kBytes,
                                                  other, one.native, stream.native));
      }
      if (part.to_bytes > 0) {
        result =
            first_failure(result, functions_.receive(part.to, to_size(part.to_bytes), nccl::kBytes,
                                                     other, one.native, stream.native));
      }
    }
    return result;
  });
}

void NcclRanks::broadcast(const NcclGroup& group, int root, std::span<std::byte> bytes,
                          CudaStream stream) {
  const One& one = one_of(group);
  together(one, "broadcast", [&] {
    return functions_.broadcast(bytes.data(), bytes.data(), bytes.size(), nccl::kBytes, root,
                                one.native, stream.native);
  });
}

void NcclRanks::send(const NcclGroup& group, int other, std::span<const std::byte> bytes,
                     CudaStream stream) {
  const One& one = one_of(group);
  together(one, "send", [&] {
    return functions_.send(bytes.data(), bytes.size(), nccl::kBytes, other, one.native,
                           stream.native);
  });
}

void NcclRanks::receive(const NcclGroup& group, int other, std::span<std::byte> bytes,
                        CudaStream stream) {
  const One& one = one_of(group);
  together(one, "receive", [&] {
    return functions_.receive(bytes.data(), bytes.size(), nccl::kBytes, other, one.native,
                              stream.native);
  });
}

// Which call it is depends on the work alone, so it is the same on every rank.
void NcclRanks::run(LaneId lane, const CollectiveWork& work, const NcclBuffers& buffers,
                    CudaStream stream) {
  const NcclGroup group{lane, {work.ranks, work.stride}};
  const int64_t bytes = work.bytes.count;
  const int64_t size = kernels::bytes_of(buffers.format);
  const bool even = bytes % (work.ranks * size) == 0;
  switch (work.kind) {
    case CollectiveKind::kAllReduce:
      return all_reduce(group, buffers.from, buffers.to, div_exact(bytes, size), buffers.format,
                        stream);
    case CollectiveKind::kReduceScatter:
      if (!even) return run_uneven(group, work, buffers, stream);
      return reduce_scatter(group, buffers.from, buffers.to, bytes / size / work.ranks,
                            buffers.format, stream);
    case CollectiveKind::kAllGather:
      if (!even) return run_uneven(group, work, buffers, stream);
      return all_gather(group, buffers.from, buffers.to, bytes / work.ranks, stream);
    case CollectiveKind::kBroadcast:
      return broadcast(group, 0, {buffers.to, to_size(bytes)}, stream);
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kSendReceive:
      return exchange_evenly(group, work, buffers, stream);
  }
}

// Owners in their order, each of a part as long as those before it, as far as the values go.
void NcclRanks::run_uneven(const NcclGroup& group, const CollectiveWork& work,
                           const NcclBuffers& buffers, CudaStream stream) {
  const int64_t size = kernels::bytes_of(buffers.format);
  const int64_t count = div_exact(work.bytes.count, size);
  const int64_t share = div_ceil(count, work.ranks);
  std::vector<SummedPart> summed;
  std::vector<GatheredPart> gathered;
  for (int owner = 0; owner < static_cast<int>(work.ranks); ++owner) {
    const int64_t begin = std::min(count, owner * share);
    const int64_t part = std::min(count, begin + share) - begin;
    summed.push_back({owner, buffers.from + begin * size, buffers.to, part});
    gathered.push_back({owner, buffers.from, buffers.to + begin * size, part * size});
  }
  if (work.kind == CollectiveKind::kReduceScatter) {
    reduce_scatter(group, summed, buffers.format, stream);
  } else {
    all_gather(group, gathered, stream);
  }
}

void NcclRanks::exchange_evenly(const NcclGroup& group, const CollectiveWork& work,
                                const NcclBuffers& buffers, CudaStream stream) {
  const auto ranks = static_cast<int>(work.ranks);
  const int64_t bytes = work.bytes.count;
  std::vector<ExchangedPart> parts(static_cast<size_t>(ranks));
  if (work.kind == CollectiveKind::kAllToAll) {
    const int64_t share = div_exact(bytes, work.ranks);
    for (int other = 0; other < ranks; ++other) {
      parts[static_cast<size_t>(other)] = {buffers.from + other * share, share,
                                           buffers.to + other * share, share};
    }
  } else {
    const int self = one_of(group).members.self;
    ExchangedPart& next = parts[static_cast<size_t>((self + 1) % ranks)];
    next.from = buffers.from;
    next.from_bytes = bytes;
    ExchangedPart& before = parts[static_cast<size_t>((self + ranks - 1) % ranks)];
    before.to = buffers.to;
    before.to_bytes = bytes;
  }
  all_to_all(group, parts, stream);
}

}  // namespace ballast
