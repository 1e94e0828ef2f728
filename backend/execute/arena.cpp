#include "backend/execute/arena.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/units.h"

namespace ballast {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

}  // namespace

void back_whole(const std::string& arena, std::byte* base, Bytes size) {
#ifdef MADV_POPULATE_WRITE
  const int64_t threads = std::max(1U, std::thread::hardware_concurrency());
  const int64_t each = round_up(div_ceil(size.count, threads), kHugePage);
  std::atomic<int> failure{0};
  {
    std::vector<std::jthread> crew;
    for (int64_t begin = 0; begin < size.count; begin += each) {
      const auto bytes = static_cast<size_t>(std::min(each, size.count - begin));
      crew.emplace_back([=, &failure] {
        if (madvise(base + begin, bytes, MADV_POPULATE_WRITE) != 0) failure = errno;
      });
    }
  }
  const bool unknown_advice = failure == EINVAL;
  if (failure == 0 || unknown_advice) return;
  throw Error("arena " + arena,
              fmt::format("cannot back {} with memory: {}", bytes_text(size), strerror(failure)),
              "choose a plan that needs less memory, or end what else uses it");
#else
  static_cast<void>(arena);
  static_cast<void>(base);
  static_cast<void>(size);
#endif
}

Arena::Arena(std::string name, Bytes size, ArenaBacking backing)
    : name_(std::move(name)), size_(size) {
  if (size.count == 0) return;
  const bool is_memory = backing != ArenaBacking::kNone;
  void* region =
      mmap(nullptr, static_cast<size_t>(size.count), is_memory ? PROT_READ | PROT_WRITE : PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) {
    throw Error("arena " + name_,
                fmt::format("cannot reserve {}: {}", bytes_text(size), strerror(errno)),
                "choose a plan that needs less memory");
  }
  base_ = static_cast<std::byte*>(region);
  if (!is_memory) return;
  if (backing == ArenaBacking::kWhole) {
    madvise(region, static_cast<size_t>(size.count), MADV_HUGEPAGE);
    try {
      back_whole(name_, base_, size);
    } catch (const Error&) {
      munmap(region, static_cast<size_t>(size.count));  // no destructor of what was never made
      throw;
    }
    return;
  }
  // Whole huge pages would make `resident` count memory that no tensor touched.
  madvise(region, static_cast<size_t>(size.count), MADV_NOHUGEPAGE);
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(size_.count));
}

Bytes Arena::resident() const {
  if (base_ == nullptr) return {0};
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> pages(static_cast<size_t>(div_ceil(size_.count, page)));
  if (mincore(base_, static_cast<size_t>(size_.count), pages.data()) != 0) {
    throw Error("arena " + name_, fmt::format("cannot count resident pages: {}", strerror(errno)),
                "report this system");
  }
  int64_t resident = 0;
  for (const unsigned char flags : pages) resident += flags & 1;
  return {resident * page};
}

}  // namespace ballast
