// Rows times a block of packed weights. A result is summed over the inputs in their order, whatever the number
// of rows that are computed beside it.
#pragma once

#include "matrix.h"

namespace loom {

// Rows that one pass over a block serves: as many as leave room for the weights in 32 registers. In int8 a few of the
// sums over groups do not fit, which costs less than a second pass.
constexpr int kTile = 12;
constexpr int kTileInt8 = 8;

namespace detail {

inline void fetch_ahead(const char* from) { __builtin_prefetch(from + 2048); }

// out: [R][32].
template <int R>
[[gnu::noinline]] void floats(const char* rows, size_t row_bytes, const char* block, int inputs, float* out) {
  Vec acc[R][2] = {};
  for (int k = 0; k < inputs; k++, block += kBlock * 4) {
    const Vec w0 = load_as<Vec>(block), w1 = load_as<Vec>(block + 64);
    LOOM_UNROLL
    for (int r = 0; r < R; r++) {
      const Vec a = splat(load_as<float>(rows + r * row_bytes + k * 4));
      acc[r][0] = fma(w0, a, acc[r][0]);
      acc[r][1] = fma(w1, a, acc[r][1]);
    }
  }
  std::memcpy(out, acc, sizeof(acc));
}

template <int R>
[[gnu::noinline]] void bfloats(const char* rows, size_t row_bytes, const char* block, int inputs, float* out) {
  Vec acc[R][2] = {};
  for (int k = 0; k < inputs; k += 2, block += kBlock * 4) {
    fetch_ahead(block);
    fetch_ahead(block + 64);
    const Words w0 = load_as<Words>(block), w1 = load_as<Words>(block + 64);
    LOOM_UNROLL
    for (int r = 0; r < R; r++) {
      const uint32_t a = load_as<uint32_t>(rows + r * row_bytes + k * 2);
      acc[r][0] = dot2(acc[r][0], w0, a);
      acc[r][1] = dot2(acc[r][1], w1, a);
    }
  }
  std::memcpy(out, acc, sizeof(acc));
}

template <int R>
[[gnu::noinline]] void bytes(const Rows& rows, int first, const char* block, int inputs, float* out) {
  const char* row = rows.row(first);
  const float* scales = rows.scales(first);
  const int32_t* offsets = rows.offsets(first);
  const size_t row_bytes = rows.row_bytes(), groups = rows.groups();
  Vec acc[R][2] = {};
  for (int k = 0; k < inputs; k += kGroup, row += kGroup, scales++, offsets++) {
    Ints part[R][2];
    LOOM_UNROLL
    for (int r = 0; r < R; r++) part[r][0] = part[r][1] = splat(offsets[r * groups]);
    for (int i = 0; i < kGroup; i += 4, block += kBlock * 4) {
      fetch_ahead(block);
      fetch_ahead(block + 64);
      const Words w0 = load_as<Words>(block), w1 = load_as<Words>(block + 64);
      LOOM_UNROLL
      for (int r = 0; r < R; r++) {
        const uint32_t a = load_as<uint32_t>(row + r * row_bytes + i);
        part[r][0] = dot4(part[r][0], w0, a);
        part[r][1] = dot4(part[r][1], w1, a);
      }
    }
    const Vec s0 = load_as<Vec>(block), s1 = load_as<Vec>(block + 64);
    block += kBlock * 4;
    LOOM_UNROLL
    for (int r = 0; r < R; r++) {
      const Vec scale = splat(scales[r * groups]);
      acc[r][0] = fma(to_float(part[r][0]), s0 * scale, acc[r][0]);
      acc[r][1] = fma(to_float(part[r][1]), s1 * scale, acc[r][1]);
    }
  }
  std::memcpy(out, acc, sizeof(acc));
}

template <int R>
void tile(const Rows& rows, int first, int count, const Matrix& weight, const char* block, float* out) {
  if constexpr (R > 0) {
    if (count < R) return tile<R - 1>(rows, first, count, weight, block, out);
    if (weight.format == Format::kFloat) {
      floats<R>(rows.row(first), rows.row_bytes(), block, weight.padded_inputs, out);
    } else if (weight.format == Format::kBfloat) {
      bfloats<R>(rows.row(first), rows.row_bytes(), block, weight.padded_inputs, out);
    } else if constexpr (R <= kTileInt8) {
      bytes<R>(rows, first, block, weight.padded_inputs, out);
    }
  }
}

}  // namespace detail

inline int tile_of(Format format) { return format == Format::kInt8 ? kTileInt8 : kTile; }

// [count <= tile_of(format), 32]: rows `first` and on times block `index`.
inline void product(const Rows& rows, int first, int count, const Matrix& weight, int index, float* out) {
  detail::tile<kTile>(rows, first, count, weight, weight.block(index), out);
}

}  // namespace loom
