// Which element of a tile is in which lane: the index maps of mma.m16n8k16 and ldmatrix as the
// flash kernels use them (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type" and
// "ldmatrix"). Plain functions of the lane, tested on the host to cover each element once.
#pragma once

namespace ballast::kernels::cuda {

struct Place {
  int row = 0;
  int column = 0;
};

// Of register i of 4 in the accumulators of a 16 x 8 tile.
constexpr Place accumulator_place(int lane, int i) {
  return {lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2};
}

// Where lane's row of 8 values begins in a 16 x 16 block for ldmatrix.x4, so that the four
// registers are the operand that the name says. left: A, stored [m, k].
constexpr Place left_place(int lane) { return {lane % 8 + lane / 8 % 2 * 8, lane / 16 * 8}; }

// B for two tiles of 8 columns, registers 0 and 1 for the first, stored [n, k].
constexpr Place right_place(int lane) { return {lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8}; }

// The same stored [k, n], for the transposing ldmatrix.
constexpr Place right_transposed_place(int lane) {
  return {lane % 8 + lane / 8 % 2 * 8, lane / 16 * 8};
}

// A tile in shared memory has 8 values of padding a row: rows of 8 neighbouring matrix rows then
// begin in different banks for every head size that is a multiple of 16.
constexpr int padded_row(int head_size) { return head_size + 8; }

// Shape of a flash kernel: 4 warps, each with kRowTiles x 16 rows of the tile that stays, and
// kColumns rows of the tiles that pass by.
template <int kHeadSizeOf, int kRowTilesOf, int kColumnsOf>
struct FlashShape {
  static constexpr int kHeadSize = kHeadSizeOf;
  static constexpr int kRowTiles = kRowTilesOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kRowsOfWarp = 16 * kRowTiles;
  static constexpr int kRows = 4 * kRowsOfWarp;
  static constexpr int kStride = padded_row(kHeadSize);
  static constexpr int kColumnTiles = kColumns / 8;
  static constexpr int kHeadTiles = kHeadSize / 8;
};

}  // namespace ballast::kernels::cuda
