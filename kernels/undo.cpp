#include "kernels/undo.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace ballast::kernels {
namespace {

using Length = uint32_t;

// Tiles of one call of a table: where a call begins and ends its pipeline stands empty, and its
// stores past the caches must have arrived, which costs as much as some hundred parameters.
constexpr int64_t kTilesAtOnce = 16;

// The escapes of that many tiles at worst, 896 KiB, of which a call touches a few. One a thread.
uint8_t* escapes_of_call() {
  constexpr auto kBytes = static_cast<size_t>(kTilesAtOnce * kUndoTile * kUndoEscapeBytesMax);
  static thread_local const std::unique_ptr<uint8_t[]> room(new uint8_t[kBytes]);
  return room.get();
}

int64_t tiles_of(int64_t count) { return (count + kUndoTile - 1) / kUndoTile; }

AdamArrays tiles_of(const AdamArrays& arrays, int64_t begin, int64_t end) {
  const int64_t first = begin * kUndoTile;
  return slice(arrays, first, std::min(end * kUndoTile, arrays.count) - first);
}

}  // namespace

int64_t UndoRecord::fixed_bytes(int64_t count, UndoForm form) {
  if (form == UndoForm::kSnapshot) return 12 * count;
  return tiles_of(count) * (kUndoTile + kUndoTileReserve + static_cast<int64_t>(sizeof(Length)));
}

UndoRecord::UndoRecord(std::span<uint8_t> fixed, int64_t count, UndoForm form)
    : fixed_(fixed), count_(count), form_(form) {
  if (form == UndoForm::kRecord) overflow_.resize(static_cast<size_t>(tiles_of(count)));
}

int64_t UndoRecord::tiles() const { return tiles_of(count_); }

uint8_t* UndoRecord::reserve(int64_t tile) const {
  return fixed_.data() + tiles() * kUndoTile + tile * kUndoTileReserve;
}

uint8_t* UndoRecord::length(int64_t tile) const {
  return fixed_.data() + tiles() * (kUndoTile + kUndoTileReserve) +
         tile * static_cast<int64_t>(sizeof(Length));
}

void UndoRecord::step_tiles(const Table& table, const AdamArrays& arrays,
                            const AdamConstants& constants, int64_t begin, int64_t end) {
  const int64_t at_once = form_ == UndoForm::kSnapshot ? 1 : kTilesAtOnce;
  for (int64_t tile = begin; tile < end; tile += at_once) {
    const int64_t next = std::min(tile + at_once, end);
    if (form_ == UndoForm::kRecord) {
      record_tiles(table, arrays, constants, tile, next);
      continue;
    }
    const AdamArrays part = tiles_of(arrays, tile, next);
    const int64_t bytes = 4 * part.count;
    table.copy_streaming(part.master, snapshot(tile), bytes);
    table.copy_streaming(part.moment1, snapshot(tile) + bytes, bytes);
    table.copy_streaming(part.moment2, snapshot(tile) + 2 * bytes, bytes);
    table.adam_step(part, constants);
  }
}

// At most kTilesAtOnce.
void UndoRecord::record_tiles(const Table& table, const AdamArrays& arrays,
                              const AdamConstants& constants, int64_t begin, int64_t end) {
  uint8_t* escapes = escapes_of_call();
  std::array<int64_t, kTilesAtOnce> ends;
  table.adam_step_with_undo(tiles_of(arrays, begin, end), constants, codes(begin), escapes,
                            ends.data());
  for (int64_t tile = begin, from = 0; tile < end; ++tile) {
    const int64_t to = ends[static_cast<size_t>(tile - begin)];
    keep_escapes(tile, {escapes + from, escapes + to});
    from = to;
  }
}

void UndoRecord::keep_escapes(int64_t tile, std::span<const uint8_t> escapes) {
  const size_t kept = std::min(escapes.size(), static_cast<size_t>(kUndoTileReserve));
  std::memcpy(reserve(tile), escapes.data(), kept);
  // Only then: looking at the list of every tile takes a few per cent of the step.
  if (escapes.size() > kept) {
    overflow_[static_cast<size_t>(tile)].assign(escapes.begin() + static_cast<std::ptrdiff_t>(kept),
                                                escapes.end());
  }
  const Length total = static_cast<Length>(escapes.size());
  std::memcpy(length(tile), &total, sizeof(total));
}

void UndoRecord::undo_tiles(const Table& table, const AdamArrays& arrays,
                            const AdamConstants& constants, int64_t begin, int64_t end) const {
  for (int64_t tile = begin; tile < end; ++tile) {
    if (form_ == UndoForm::kRecord) {
      undo_recorded_tile(table, arrays, constants, tile);
      continue;
    }
    const AdamArrays part = tiles_of(arrays, tile, tile + 1);
    const int64_t bytes = 4 * part.count;
    const auto size = static_cast<size_t>(bytes);
    std::memcpy(part.master, snapshot(tile), size);
    std::memcpy(part.moment1, snapshot(tile) + bytes, size);
    std::memcpy(part.moment2, snapshot(tile) + 2 * bytes, size);
    if (part.weights != nullptr) {
      table.cast(part.master, Format::kF32, part.weights, part.weights_format, part.count);
    }
  }
}

void UndoRecord::undo_recorded_tile(const Table& table, const AdamArrays& arrays,
                                    const AdamConstants& constants, int64_t tile) const {
  const AdamArrays part = tiles_of(arrays, tile, tile + 1);
  if (escape_bytes(tile) <= kUndoTileReserve) {
    table.adam_undo(part, constants, codes(tile), reserve(tile));
    return;
  }
  const std::vector<uint8_t>& overflow = overflow_[static_cast<size_t>(tile)];
  std::array<uint8_t, static_cast<size_t>(kUndoTile * kUndoEscapeBytesMax)> escapes;
  std::memcpy(escapes.data(), reserve(tile), kUndoTileReserve);
  std::memcpy(escapes.data() + kUndoTileReserve, overflow.data(), overflow.size());
  table.adam_undo(part, constants, codes(tile), escapes.data());
}

int64_t UndoRecord::escape_bytes(int64_t tile) const {
  Length used = 0;
  std::memcpy(&used, length(tile), sizeof(used));
  return used;
}

int64_t UndoRecord::overflow_bytes() const {
  if (form_ == UndoForm::kSnapshot) return 0;
  int64_t total = 0;
  for (int64_t tile = 0; tile < tiles(); ++tile) {
    total += std::max(int64_t{0}, escape_bytes(tile) - kUndoTileReserve);
  }
  return total;
}

int64_t UndoRecord::used_bytes() const {
  if (form_ == UndoForm::kSnapshot) return fixed_bytes(count_, form_);
  int64_t total = count_;
  for (int64_t tile = 0; tile < tiles(); ++tile) {
    total += escape_bytes(tile) + static_cast<int64_t>(sizeof(Length));
  }
  return total;
}

}  // namespace ballast::kernels
