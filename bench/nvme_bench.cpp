// How fast state moves to and from a disk, as a share of what plain sequential transfers of the
// same file reach in the same run.
//
//   build/bench/nvme_bench [DIR [MIB [TURNS]]]     [$TMPDIR, 512, 7]
//
// Plain is what fio does with direct=1: one file, one block after another into memory that nobody
// looks at, here with 8 MiB blocks, one at a time and several at a time by as many threads. The
// better of the two counts. State is copied into its tensors, and its checksums are held. The two
// take turns, and each turn's ratio counts: what else the disk does meanwhile disturbs both.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "backend/disk/state_file.h"
#include "sim/base/error.h"
#include "sim/base/median.h"

namespace ballast {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& run) {
  const auto begin = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// All of a file in blocks, by threads that each take every so many of them.
class Plain {
 public:
  Plain(int file, int64_t bytes, int64_t block, int threads)
      : file_(file), bytes_(bytes), block_(block), threads_(threads) {
    const auto size = static_cast<size_t>(block * threads);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, size)));
    std::fill_n(memory_.get(), size, std::byte{5});
  }

  void run(bool reads) {
    std::vector<std::jthread> crew;
    for (int i = 0; i < threads_; ++i) {
      crew.emplace_back([=, this] {
        std::byte* const at = memory_.get() + i * block_;
        for (int64_t begin = i * block_; begin < bytes_; begin += threads_ * block_) {
          const auto count = static_cast<size_t>(std::min(block_, bytes_ - begin));
          const ssize_t moved =
              reads ? pread(file_, at, count, begin) : pwrite(file_, at, count, begin);
          if (moved != static_cast<ssize_t>(count)) {
            throw Error("the disk", "moves only a part", "report this system");
          }
        }
      });
    }
  }

 private:
  int file_;
  int64_t bytes_, block_;
  int threads_;
  std::unique_ptr<std::byte[], Free> memory_;
};

void report(const char* what, std::vector<double> ratios, double best, double own, int64_t bytes) {
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const double low = *least;
  const double high = *most;
  std::printf(
      "%-6s %.3f of plain (median of %zu turns; %.3f to %.3f); medians: %.2f of %.2f GB/s\n", what,
      median(ratios), ratios.size(), low, high, static_cast<double>(bytes) / own / 1e9,
      static_cast<double>(bytes) / best / 1e9);
}

void measure(const DiskOptions& options, int64_t bytes, int turns) {
  StateFile file({{bytes}}, options);
  std::vector<std::byte> state(static_cast<size_t>(bytes));
  std::minstd_rand random(1);
  for (std::byte& one : state) one = static_cast<std::byte>(random() >> 8);
  file.write(0, {std::span<const std::byte>(state)});
  std::printf("%s, %lld MiB, chunks of %lld KiB, %d at a time\n", file.described().c_str(),
              static_cast<long long>(bytes >> 20),
              static_cast<long long>(options.chunk.count >> 10), options.depth);
  Plain one(file.descriptor(), bytes, options.chunk.count, 1);
  Plain several(file.descriptor(), bytes, options.chunk.count, options.depth);
  for (const bool reads : {true, false}) {
    std::vector<double> ratios, plain, own;
    for (int turn = 0; turn < turns; ++turn) {
      const double by_one = seconds_of([&] { one.run(reads); });
      const double by_several = seconds_of([&] { several.run(reads); });
      if (!reads || turn == 0) file.write(0, {std::span<const std::byte>(state)});
      const double ours = seconds_of([&] {
        if (reads) return file.read(0, {std::span<std::byte>(state)});
        file.write(0, {std::span<const std::byte>(state)});
      });
      plain.push_back(std::min(by_one, by_several));
      own.push_back(ours);
      ratios.push_back(plain.back() / ours);
    }
    report(reads ? "read" : "write", ratios, median(plain), median(own), bytes);
  }
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  ballast::DiskOptions options;
  if (argc > 1) options.folder = argv[1];
  const int64_t mib = argc > 2 ? std::atoll(argv[2]) : 512;
  const int turns = argc > 3 ? std::atoi(argv[3]) : 7;
  try {
    for (const ballast::IoEngine engine : {ballast::IoEngine::kBest, ballast::IoEngine::kThreads}) {
      options.engine = engine;
      ballast::measure(options, mib << 20, turns);
    }
  } catch (const ballast::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
