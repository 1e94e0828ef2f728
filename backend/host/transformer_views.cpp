#include "backend/host/transformer_views.h"

#include <array>
#include <memory>
#include <new>

#include "backend/host/transformer_rows.h"

namespace ballast::transformer {
namespace {

constexpr std::align_val_t kCacheLineAlignment{64};

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, kCacheLineAlignment); }
};

struct Block {
  std::unique_ptr<std::byte[], AlignedDelete> memory;
  int64_t bytes = 0;
};

}  // namespace

void* scratch_bytes(Slot slot, int64_t bytes) {
  thread_local std::array<Block, static_cast<size_t>(Slot::kCount)> blocks;
  Block& block = blocks[static_cast<size_t>(slot)];
  if (block.bytes < bytes) {
    block.memory.reset();  // first, so that old and new are never both held
    block.bytes = 0;
    block.memory.reset(new (kCacheLineAlignment) std::byte[static_cast<size_t>(bytes)]);
    block.bytes = bytes;
  }
  return block.memory.get();
}

template <class Real>
void write_sums(Real* sums, const View& view, int64_t first, int64_t count, bool accumulate) {
  if (accumulate) {
    row_loops<Real>().add(load<Real>(view, first, count, Slot::kResidual), sums, count);
  }
  copy_out(sums, view, first, count);
}
template void write_sums(float*, const View&, int64_t, int64_t, bool);
template void write_sums(double*, const View&, int64_t, int64_t, bool);

}  // namespace ballast::transformer
