#include "kernels/undo.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace ballast::kernels {
namespace {

using Escapes = std::array<uint8_t, static_cast<size_t>(kUndoTile* kUndoEscapeBytesMax)>;
using Length = uint32_t;

int64_t tiles_of(int64_t count) { return (count + kUndoTile - 1) / kUndoTile; }

AdamArrays tile_of(const AdamArrays& arrays, int64_t tile) {
  const int64_t begin = tile * kUndoTile;
  return slice(arrays, begin, std::min(kUndoTile, arrays.count - begin));
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

void UndoRecord::step_tile(const Table& table, const AdamArrays& arrays,
                           const AdamConstants& constants, int64_t tile) {
  const AdamArrays part = tile_of(arrays, tile);
  if (form_ == UndoForm::kSnapshot) {
    const int64_t bytes = 4 * part.count;
    table.copy_streaming(part.master, snapshot(tile), bytes);
    table.copy_streaming(part.moment1, snapshot(tile) + bytes, bytes);
    table.copy_streaming(part.moment2, snapshot(tile) + 2 * bytes, bytes);
    table.adam_step(part, constants);
    return;
  }
  Escapes escapes;
  const int64_t used = table.adam_step_with_undo(part, constants, codes(tile), escapes.data());
  const int64_t kept = std::min(used, kUndoTileReserve);
  std::memcpy(reserve(tile), escapes.data(), static_cast<size_t>(kept));
  // Only then: looking at the list of every tile takes a few per cent of the step.
  if (used > kept) {
    overflow_[static_cast<size_t>(tile)].assign(escapes.data() + kept, escapes.data() + used);
  }
  const Length total = static_cast<Length>(used);
  std::memcpy(length(tile), &total, sizeof(total));
}

void UndoRecord::undo_tile(const Table& table, const AdamArrays& arrays,
                           const AdamConstants& constants, int64_t tile) const {
  const AdamArrays part = tile_of(arrays, tile);
  if (form_ == UndoForm::kSnapshot) {
    const int64_t bytes = 4 * part.count;
    const auto size = static_cast<size_t>(bytes);
    std::memcpy(part.master, snapshot(tile), size);
    std::memcpy(part.moment1, snapshot(tile) + bytes, size);
    std::memcpy(part.moment2, snapshot(tile) + 2 * bytes, size);
    if (part.weights != nullptr) {
      table.cast(part.master, Format::kF32, part.weights, part.weights_format, part.count);
    }
    return;
  }
  if (escape_bytes(tile) <= kUndoTileReserve) {
    table.adam_undo(part, constants, codes(tile), reserve(tile));
    return;
  }
  const std::vector<uint8_t>& overflow = overflow_[static_cast<size_t>(tile)];
  Escapes escapes;
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
