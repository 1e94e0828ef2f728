#include "kernels/threads.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#ifdef BALLAST_HWLOC
#include <hwloc.h>
#endif

namespace ballast::kernels {
namespace {

// A multiple of the undo's tile and of every vector, and of a page in each of the streams.
constexpr int64_t kTile = 4 * kUndoTile;

// Tiles up to the one that ends at parameter `end`, or is cut off there.
int64_t undo_tiles_to(int64_t end) { return (end + kUndoTile - 1) / kUndoTile; }

std::optional<cpu_set_t> binding_of_this_thread() {
  cpu_set_t bound;
  CPU_ZERO(&bound);
  if (sched_getaffinity(0, sizeof(bound), &bound) != 0) return std::nullopt;
  return bound;
}

#ifdef BALLAST_HWLOC

// hwloc spreads over sockets and caches first, which is where the memory channels are. It knows
// what a container allows, and not what the thread that made this one was bound to (numactl,
// mpirun, the chip of a GPU): the topology is cut down to that.
std::vector<cpu_set_t> spread(int parts) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {};
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(
      topology, hwloc_topology_destroy);
  if (hwloc_topology_load(topology) != 0) return {};
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> bound(hwloc_bitmap_alloc(),
                                                                            hwloc_bitmap_free);
  const bool is_known =
      bound != nullptr && hwloc_get_cpubind(topology, bound.get(), HWLOC_CPUBIND_THREAD) == 0;
  if (is_known && hwloc_topology_restrict(topology, bound.get(), 0) != 0) return {};
  std::vector<hwloc_cpuset_t> sets(static_cast<size_t>(parts), nullptr);
  hwloc_obj_t root = hwloc_get_root_obj(topology);
  if (hwloc_distrib(topology, &root, 1, sets.data(), static_cast<unsigned>(parts), 1 << 20, 0) !=
      0) {
    return {};
  }
  std::vector<cpu_set_t> result(sets.size());
  for (size_t i = 0; i < sets.size(); ++i) {
    CPU_ZERO(&result[i]);
    for (int core = hwloc_bitmap_first(sets[i]); core >= 0 && core < CPU_SETSIZE;
         core = hwloc_bitmap_next(sets[i], core)) {
      CPU_SET(static_cast<size_t>(core), &result[i]);
    }
    hwloc_bitmap_free(sets[i]);
  }
  return result;
}

#else

std::vector<cpu_set_t> spread(int parts) {
  const std::optional<cpu_set_t> allowed = binding_of_this_thread();
  if (!allowed || CPU_COUNT(&*allowed) == 0) return {};
  std::vector<cpu_set_t> result(static_cast<size_t>(parts));
  for (cpu_set_t& part : result) CPU_ZERO(&part);
  const auto count = static_cast<size_t>(CPU_COUNT(&*allowed));
  size_t seen = 0;
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &*allowed)) continue;
    // Neighbours to one part, or, of more parts than cores, parts that lie `count` apart.
    if (count >= result.size()) {
      CPU_SET(core, &result[seen * result.size() / count]);
    } else {
      for (size_t part = seen; part < result.size(); part += count) CPU_SET(core, &result[part]);
    }
    ++seen;
  }
  return result;
}

#endif

// A thread that cannot be bound works all the same, only less evenly.
void bind_this_thread(const cpu_set_t& cores) { (void)sched_setaffinity(0, sizeof(cores), &cores); }

void pin(int worker, int workers) {
  const std::vector<cpu_set_t> parts = spread(workers);
  if (!parts.empty()) bind_this_thread(parts[static_cast<size_t>(worker)]);
}

}  // namespace

std::vector<cpu_set_t> core_shares(int parts) {
  const std::optional<cpu_set_t> allowed = binding_of_this_thread();
  if (!allowed || CPU_COUNT(&*allowed) < parts) return {};
  return spread(parts);
}

CoreBinding::CoreBinding(const cpu_set_t& cores) : before_(binding_of_this_thread()) {
  bind_this_thread(cores);
}

CoreBinding::~CoreBinding() {
  if (before_) bind_this_thread(*before_);
}

Workers::Workers(int count, Pinning pinning)
    : count_(count), failures_(static_cast<size_t>(count)) {
  if (count == 1 && pinning == Pinning::kNone) return;
  threads_.reserve(static_cast<size_t>(count));
  for (int worker = 0; worker < count; ++worker) {
    threads_.emplace_back([this, worker, count, pinning] {
      if (pinning == Pinning::kCores) pin(worker, count);
      serve(worker, count);
    });
  }
}

Workers::~Workers() {
  stop_ = true;
  ++generation_;
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::serve(int worker, int workers) {
  uint32_t seen = 0;
  while (true) {
    generation_.wait(seen);
    ++seen;  // jobs come one at a time, so none can be missed
    if (stop_) return;
    const int64_t tiles = (job_.count + job_.tile - 1) / job_.tile;
    const int64_t begin = tiles * worker / workers * job_.tile;
    const int64_t end = std::min(tiles * (worker + 1) / workers * job_.tile, job_.count);
    try {
      if (begin < end) (*job_.body)(begin, end);
    } catch (...) {
      failures_[static_cast<size_t>(worker)] = std::current_exception();
    }
    if (unfinished_.fetch_sub(1) == 1) unfinished_.notify_one();
  }
}

void Workers::for_tiles(int64_t count, int64_t tile,
                        const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  if (threads_.empty()) return body(0, count);
  job_ = {.count = count, .tile = tile, .body = &body};
  unfinished_ = this->count();
  ++generation_;
  generation_.notify_all();
  for (int left = unfinished_; left > 0; left = unfinished_) unfinished_.wait(left);
  for (std::exception_ptr& failure : failures_) {
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }
}

void adam_step(Workers& workers, const Table& table, const AdamArrays& arrays,
               const AdamConstants& constants) {
  workers.for_tiles(arrays.count, kTile, [&](int64_t begin, int64_t end) {
    table.adam_step(slice(arrays, begin, end - begin), constants);
  });
}

void adam_step_bf16_moments(Workers& workers, const Table& table, const AdamArrays& arrays,
                            const Bf16Moments& moments, const AdamConstants& constants) {
  workers.for_tiles(arrays.count, kTile, [&](int64_t begin, int64_t end) {
    adam_step_bf16_moments(table, slice_without_moments(arrays, begin, end - begin),
                           {moments.moment1 + begin, moments.moment2 + begin}, constants);
  });
}

void adam_step_with_undo(Workers& workers, const Table& table, const AdamArrays& arrays,
                         const AdamConstants& constants, UndoRecord& record) {
  workers.for_tiles(arrays.count, kTile, [&](int64_t begin, int64_t end) {
    record.step_tiles(table, arrays, constants, begin / kUndoTile, undo_tiles_to(end));
  });
}

void adam_undo(Workers& workers, const Table& table, const AdamArrays& arrays,
               const AdamConstants& constants, const UndoRecord& record) {
  workers.for_tiles(arrays.count, kTile, [&](int64_t begin, int64_t end) {
    record.undo_tiles(table, arrays, constants, begin / kUndoTile, undo_tiles_to(end));
  });
}

void cast(Workers& workers, const Table& table, const void* src, Format src_format, void* dst,
          Format dst_format, int64_t count) {
  workers.for_tiles(count, kTile, [&](int64_t begin, int64_t end) {
    table.cast(static_cast<const char*>(src) + begin * bytes_of(src_format), src_format,
               static_cast<char*>(dst) + begin * bytes_of(dst_format), dst_format, end - begin);
  });
}

void copy_streaming(Workers& workers, const Table& table, const void* src, void* dst,
                    int64_t bytes) {
  workers.for_tiles(bytes, 4 * kTile, [&](int64_t begin, int64_t end) {
    table.copy_streaming(static_cast<const char*>(src) + begin, static_cast<char*>(dst) + begin,
                         end - begin);
  });
}

void first_touch(Workers& workers, void* values, int64_t value_bytes, int64_t count) {
  workers.for_tiles(count, kTile, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(values) + begin * value_bytes, 0,
                static_cast<size_t>((end - begin) * value_bytes));
  });
}

}  // namespace ballast::kernels
