// What a step leaves behind so that it can be taken back exactly, for a whole bucket.
//
// Owns the escapes that overflow, not the fixed part: the caller allocates fixed_bytes(count), so
// that a planner knows the memory beforehand. Starts no thread; tiles are independent, each
// written and read by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace ballast::kernels {

// kRecord: the rounding differences, about 1.13 bytes a parameter. kSnapshot: a copy of master and
// moments, 12 bytes a parameter, which needs neither the gradient nor the constants to undo.
enum class UndoForm : uint8_t { kRecord, kSnapshot };

// Bytes for escapes that the fixed part holds for a tile: 1/8 byte a parameter. From the third step
// on Gaussian gradients need 0.03 to 0.15; the second step of a run 0.5, the rest of which
// overflows.
inline constexpr int64_t kUndoTileReserve = kUndoTile / 8;

class UndoRecord {
 public:
  // Size of the fixed part for count parameters.
  static int64_t fixed_bytes(int64_t count, UndoForm form);

  // fixed must have fixed_bytes(count, form) bytes, aligned to 64, and outlive the record.
  UndoRecord(std::span<uint8_t> fixed, int64_t count, UndoForm form);

  int64_t tiles() const;
  UndoForm form() const { return form_; }

  // Tiles begin .. end - 1 of table.adam_step, recorded; those of its undo, from the same
  // arguments. arrays are those of the whole bucket.
  void step_tiles(const Table& table, const AdamArrays& arrays, const AdamConstants& constants,
                  int64_t begin, int64_t end);
  void undo_tiles(const Table& table, const AdamArrays& arrays, const AdamConstants& constants,
                  int64_t begin, int64_t end) const;

  // Bytes of escapes that did not fit the fixed part, over all tiles.
  int64_t overflow_bytes() const;
  // Bytes of codes and escapes in use, wherever they are.
  int64_t used_bytes() const;

 private:
  void record_tiles(const Table& table, const AdamArrays& arrays, const AdamConstants& constants,
                    int64_t begin, int64_t end);
  void keep_escapes(int64_t tile, std::span<const uint8_t> escapes);
  void undo_recorded_tile(const Table& table, const AdamArrays& arrays,
                          const AdamConstants& constants, int64_t tile) const;
  // The fixed part of kRecord: a code a parameter, whole tiles; a reserve a tile; a length a tile.
  uint8_t* codes(int64_t tile) const { return fixed_.data() + tile * kUndoTile; }
  uint8_t* reserve(int64_t tile) const;
  uint8_t* length(int64_t tile) const;
  int64_t escape_bytes(int64_t tile) const;
  uint8_t* snapshot(int64_t tile) const { return fixed_.data() + tile * kUndoTile * 12; }

  std::span<uint8_t> fixed_;
  int64_t count_;
  UndoForm form_;
  std::vector<std::vector<uint8_t>> overflow_;  // one a tile, for those whose length says so
};

}  // namespace ballast::kernels
