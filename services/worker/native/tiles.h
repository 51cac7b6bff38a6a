// Tiles of AMX: 16 rows of 64 bytes, multiplied as matrices.
#pragma once

#include <cstdint>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#define LOOM_TILES
#endif

namespace loom {

constexpr int kTileRows = 16;

#if defined(LOOM_TILES)

struct alignas(64) TileShapes {
  // Numbers of a row, and pairs of rows by which it is multiplied.
  constexpr explicit TileShapes(int depth) {
    for (int i = 0; i < 8; i++) {
      row_bytes[i] = i / 2 == 2 ? depth * 2 : 64;
      rows[i] = i / 2 == 3 ? depth / 2 : kTileRows;
    }
  }
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

#endif

// A thread's tiles, as long as it multiplies bfloat16: its state is 8 KB larger meanwhile. Tiles 0 to 3 hold sums;
// what is multiplied lies in 4 and 5, and by what in 6 and 7.
class Tiles {
 public:
#if defined(LOOM_TILES)
  explicit Tiles(bool held) : held_(held) {
    if (held_) for_weights();
  }
  ~Tiles() {
    if (held_) _tile_release();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // 16 rows of 32 numbers by 32 of 16. Shapes are constants: of a local one GCC 12 drops all but 8 bytes, for it takes
  // the instruction to read no more.
  void for_weights() const {
    static constexpr TileShapes shapes(32);
    if (held_) _tile_loadconfig(&shapes);
  }
  // 16 rows of 16 numbers by 16 of 16.
  void for_pages() const {
    static constexpr TileShapes shapes(16);
    if (held_) _tile_loadconfig(&shapes);
  }

 private:
  const bool held_;
#else
  explicit Tiles(bool) {}
  void for_weights() const {}
  void for_pages() const {}
#endif
};

#if defined(LOOM_TILES)

// Sums of products of 16 R rows with 16 C columns, for R and C of 1 or 2.
template <int R, int C>
struct TileSums {
  TileSums() {
    _tile_zero(0);
    if constexpr (C == 2) _tile_zero(1);
    if constexpr (R == 2) _tile_zero(2);
    if constexpr (R == 2 && C == 2) _tile_zero(3);
  }

  // Strides are in bytes: from row to row, and from pair to pair of the columns' numbers.
  void add(const void* rows, size_t row_stride, const void* columns, const void* more_columns, size_t pair_stride) {
    _tile_loadd(4, rows, row_stride);
    _tile_loadd(6, columns, pair_stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (C == 2) {
      _tile_loadd(7, more_columns, pair_stride);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (R == 2) {
      _tile_loadd(5, static_cast<const char*>(rows) + kTileRows * row_stride, row_stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (C == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }

  // Rows are `stride` numbers apart.
  void store(float* to, size_t stride) {
    const size_t bytes = stride * sizeof(float);
    _tile_stored(0, to, bytes);
    if constexpr (C == 2) _tile_stored(1, to + 16, bytes);
    if constexpr (R == 2) _tile_stored(2, to + kTileRows * stride, bytes);
    if constexpr (R == 2 && C == 2) _tile_stored(3, to + kTileRows * stride + 16, bytes);
  }
};

#endif

}  // namespace loom
