// Tiles of AMX: 16 rows of 64 bytes, multiplied as matrices.
#pragma once

#include <atomic>
#include <cstdint>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#define LOOM_TILES
#endif

namespace loom {

#if defined(LOOM_TILES)
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif
constexpr int kTileRows = 16;

#if defined(LOOM_TILES)

// Tiles 0 to 3 hold sums, [16][16]. Tiles 4 and 5 hold `depth` bytes of each of 16 rows, 6 and 7 as many of each of the
// 16 columns that the rows are multiplied by.
struct alignas(64) TileShapes {
  constexpr explicit TileShapes(int depth) {
    for (int i = 0; i < 8; i++) {
      row_bytes[i] = i / 2 == 2 ? depth : 64;
      rows[i] = i / 2 == 3 ? depth / 4 : kTileRows;
    }
  }
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

#endif

// A thread's tiles, as long as it is in a step: its state is 8 KB larger meanwhile.
class Tiles {
 public:
  // For weights of which `depth` bytes of a channel are multiplied at once, 32 or 64; none: 0.
  explicit Tiles(int depth) : depth_(depth) { shape(depth); }
#if defined(LOOM_TILES)
  ~Tiles() {
    if (depth_) _tile_release();
  }
#endif
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Between products: bfloat16 is attended to 32 bytes at a time; bytes are not on tiles.
  void for_pages() const {
    if (depth_ == 64) shape(32);
  }
  void after_pages() const {
    if (depth_ == 64) shape(64);
  }

 private:
  static void shape([[maybe_unused]] int depth) {
#if defined(LOOM_TILES)
    // Constants: of a local GCC 12 drops all but 8 bytes, for it takes the instruction to read no more.
    static constexpr TileShapes half(32), whole(64);
    if (depth) _tile_loadconfig(depth == 32 ? &half : &whole);
#endif
  }

  const int depth_;
};

#if defined(LOOM_TILES)

// Registers are named in the instruction.
#define LOOM_TILE_MULTIPLY(sums, rows, columns) \
  {                                             \
    if constexpr (sizeof(Number) == 2)          \
      _tile_dpbf16ps(sums, rows, columns);      \
    else                                        \
      _tile_dpbssd(sums, rows, columns);        \
  }

// Sums of products of 16 R rows with 16 C columns, for R and C of 1 or 2: of bfloat16, or of signed bytes.
template <int R, int C, typename Number = uint16_t>
struct TileSums {
  TileSums() {
    _tile_zero(0);
    if constexpr (C == 2) _tile_zero(1);
    if constexpr (R == 2) _tile_zero(2);
    if constexpr (R == 2 && C == 2) _tile_zero(3);
  }

  // Strides are in bytes: from row to row, and from one four bytes of the columns to the next.
  void add(const void* rows, size_t row_stride, const void* columns, const void* more_columns, size_t column_stride) {
    // What lies there must have been written: GCC does not know that these instructions read memory.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    _tile_loadd(4, rows, row_stride);
    _tile_loadd(6, columns, column_stride);
    LOOM_TILE_MULTIPLY(0, 4, 6)
    if constexpr (C == 2) {
      _tile_loadd(7, more_columns, column_stride);
      LOOM_TILE_MULTIPLY(1, 4, 7)
    }
    if constexpr (R == 2) {
      _tile_loadd(5, static_cast<const char*>(rows) + kTileRows * row_stride, row_stride);
      LOOM_TILE_MULTIPLY(2, 5, 6)
      if constexpr (C == 2) LOOM_TILE_MULTIPLY(3, 5, 7)
    }
  }

  // Rows are `stride` sums apart.
  template <typename Sum>
  void store(Sum* to, size_t stride) {
    const size_t bytes = stride * sizeof(Sum);
    _tile_stored(0, to, bytes);
    if constexpr (C == 2) _tile_stored(1, to + 16, bytes);
    if constexpr (R == 2) _tile_stored(2, to + kTileRows * stride, bytes);
    if constexpr (R == 2 && C == 2) _tile_stored(3, to + kTileRows * stride + 16, bytes);
  }
};

#undef LOOM_TILE_MULTIPLY

#endif

}  // namespace loom
