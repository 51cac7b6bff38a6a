// Tiles of AMX: 16 rows of 64 bytes, multiplied as matrices.
#pragma once

#include <cstdint>

#if defined(__AMX_BF16__)
#include <immintrin.h>
#define LOOM_TILES
#endif

namespace loom {

constexpr int kTileRows = 16;

// A thread's tiles, as long as it multiplies bfloat16: its state is 8 KB larger meanwhile.
class Tiles {
 public:
#if defined(LOOM_TILES)
  explicit Tiles(bool held) : held_(held) {
    // A constant: of a local one GCC 12 drops all but 8 bytes, for it takes the instruction to read no more.
    static constexpr Shapes shapes;
    if (held_) _tile_loadconfig(&shapes);
  }
  ~Tiles() {
    if (held_) _tile_release();
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct alignas(64) Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };

  const bool held_;
#else
  explicit Tiles(bool) {}
#endif
};

}  // namespace loom
