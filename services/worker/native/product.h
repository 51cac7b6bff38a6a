// Rows times a block of packed weights. A result is summed over the inputs in their order, whatever the number
// of rows that are computed beside it.
#pragma once

#include "matrix.h"
#include "tiles.h"

namespace loom {

// Rows that one pass over a block serves: as many as leave room for the weights in 32 registers, or two tiles.
constexpr int kTile = 12;
constexpr int kTileInt8 = 8;
constexpr int kMostTile = kHasTiles ? 2 * kTileRows : kTile;
static_assert(kMostTile <= kBeyond + 1);

// Weights that this thread most likely comes to next, called into the second-level cache while it computes: of each
// span of inputs one part of `parts`, since as many passes are made over the block before them.
struct Ahead {
  const char* block = nullptr;
  int part = 0, parts = 1;

  [[gnu::always_inline]] void fetch(size_t bytes) const {
    const size_t lines = bytes / kLine;
    for (size_t at = lines * part / parts; at < lines * (part + 1) / parts; at++)
      __builtin_prefetch(block + at * kLine, 0, 2);
  }

 private:
  static constexpr size_t kLine = 64;
};

namespace detail {

// Call what lies a little further on into the first-level cache, and from far ahead into the second.
[[gnu::always_inline]] inline void fetch_ahead(const char* from) {
  __builtin_prefetch(from + 1024);
  __builtin_prefetch(from + 8192, 0, 2);
}

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

// V times 16 channels: out [R][32]. Within a span sums are of whole numbers, and scaled once. With `fetch`, all 32
// channels' weights are called ahead.
template <Format format, int R, int V>
[[gnu::noinline]] void bytes(const Rows& rows, int first, const char* block, int inputs, float* out, bool fetch) {
  constexpr bool packed = format == Format::kInt4;
  constexpr size_t numbers = Matrix::bytes_of_numbers(format), line = kLanes * 4;
  constexpr size_t lines = Matrix::span_bytes(format) / line;
  const char* row = rows.row(first);
  const float* scales = rows.scales(first);
  const uint32_t* sums = rows.sums(first);
  const int32_t* offsets = rows.offsets(first);
  const size_t row_bytes = rows.row_bytes(), spans = rows.spans();
  Vec acc[V][R] = {};
  for (int k = 0; k < inputs; k += kSpan, row += kSpan, scales++, sums++, offsets += 2) {
    Ints part[V][2][R];
    LOOM_UNROLL
    for (int v = 0; v < V; v++)
      LOOM_UNROLL
      for (int r = 0; r < R; r++) {
        part[v][0][r] = splat(offsets[r * spans * 2]);
        part[v][1][r] = splat(offsets[r * spans * 2 + 1]);
      }
    LOOM_UNROLL
    for (int i = 0; i < kGroup; i += 4) {
      if (fetch)
        LOOM_UNROLL
        for (size_t at = lines * i / kGroup; at < lines * (i + 4) / kGroup; at++) fetch_ahead(block + at * line);
      LOOM_UNROLL
      for (int v = 0; v < V; v++) {
        const char* from = block + i * kBlock * (packed ? 1 : 2) + v * line;
        const Words both = load_as<Words>(from);
        const Words first_group = packed ? (both << 4) & 0xf0f0f0f0u : both;
        const Words second_group = packed ? both & 0xf0f0f0f0u : load_as<Words>(from + 2 * line);
        LOOM_UNROLL
        for (int r = 0; r < R; r++)
          part[v][0][r] = dot4(part[v][0][r], first_group, load_as<uint32_t>(row + r * row_bytes + i));
        LOOM_UNROLL
        for (int r = 0; r < R; r++)
          part[v][1][r] = dot4(part[v][1][r], second_group, load_as<uint32_t>(row + r * row_bytes + kGroup + i));
      }
    }
    LOOM_UNROLL
    for (int v = 0; v < V; v++) {
      const char* from = block + numbers + v * line;
      const Vec first_scale = load_as<Vec>(from), second_scale = load_as<Vec>(from + 2 * line);
      LOOM_UNROLL
      for (int r = 0; r < R; r++) {
        Vec span = to_float(part[v][0][r]) * first_scale;
        span = fma(to_float(part[v][1][r]), second_scale, span);
        if (packed) span = dot2(span, load_as<Words>(from + 4 * line), sums[r * spans]);
        acc[v][r] = fma(span, splat(scales[r * spans]), acc[v][r]);
      }
    }
    block += Matrix::span_bytes(format);
  }
  for (int v = 0; v < V; v++)
    for (int r = 0; r < R; r++) store(out + r * kBlock + v * kLanes, acc[v][r]);
}

// All 32 channels at once where there are few rows, so that enough sums are under way.
template <Format format, int R>
void bytes(const Rows& rows, int first, const char* block, int inputs, float* out) {
  if constexpr (R <= 4) {
    bytes<format, R, 2>(rows, first, block, inputs, out, true);
  } else if constexpr (R <= kTileInt8) {
    bytes<format, R, 1>(rows, first, block, inputs, out, true);
    bytes<format, R, 1>(rows, first, block + kLanes * 4, inputs, out + kLanes, false);
  }
}

#if defined(LOOM_TILES)

// On T tiles of rows. They are whole: rows beyond those that are asked for are whatever lies there. out: [16 T][32].
template <int T>
void bfloats_tiled(const char* rows, size_t row_bytes, const char* block, int inputs, Ahead ahead, float* out) {
  constexpr int step = 32, line = kBlock * 4, step_bytes = step / 2 * line;
  TileSums<T, 2> sums;
  for (int k = 0; k < inputs; k += step, rows += step * 2, block += step_bytes, ahead.block += step_bytes) {
    ahead.fetch(step_bytes);
    sums.add(rows, row_bytes, block, block + line / 2, line);
  }
  sums.store(out, kBlock);
}

// A span's weights as signed bytes, a tile for each group and each 16 channels.
struct SpanTiles {
  alignas(64) char tiles[2][2][kGroup / 4][kLanes * 4];

  template <Format format>
  void unpack(const char* span) {
    constexpr bool packed = format == Format::kInt4;
    constexpr size_t line = kLanes * 4;
    for (int i = 0; i < kGroup / 4; i++)
      for (int v = 0; v < 2; v++) {
        const char* from = span + i * line * (packed ? 2 : 4) + v * line;
        const Words both = load_as<Words>(from);
        const Words first_group = packed ? (both << 4) & 0xf0f0f0f0u : both;
        const Words second_group = packed ? both & 0xf0f0f0f0u : load_as<Words>(from + 2 * line);
        store_as(tiles[0][v][i], first_group ^ 0x80808080u);
        store_as(tiles[1][v][i], second_group ^ 0x80808080u);
      }
  }

  // Sums of each group for 16 T rows: [2][32][32].
  template <int T>
  void multiply(const char* rows, size_t row_bytes, int32_t* sums) const {
    for (int group = 0; group < 2; group++) {
      TileSums<T, 2, int8_t> tiled;
      tiled.add(rows + group * kGroup, row_bytes, tiles[group][0], tiles[group][1], kLanes * 4);
      tiled.store(sums + group * kMostTile * kBlock, kBlock);
    }
  }
};

// Add a span's sums to out [count][32], as `bytes` does.
template <Format format>
void add_span(const Rows& rows, int first, int count, int span, const char* block, const int32_t* sums, float* out) {
  constexpr size_t numbers = Matrix::bytes_of_numbers(format), line = kLanes * 4;
  const size_t spans = rows.spans();
  const float* row_scales = rows.scales(first) + span;
  const uint32_t* row_sums = rows.sums(first) + span;
  for (int v = 0; v < 2; v++) {
    const char* from = block + numbers + v * line;
    const Vec first_scale = load_as<Vec>(from), second_scale = load_as<Vec>(from + 2 * line);
    for (int r = 0; r < count; r++) {
      const int32_t* at = sums + r * kBlock + v * kLanes;
      Vec all = to_float(load_as<Ints>(at)) * first_scale;
      all = fma(to_float(load_as<Ints>(at + kMostTile * kBlock)), second_scale, all);
      if (format == Format::kInt4) all = dot2(all, load_as<Words>(from + 4 * line), row_sums[r * spans]);
      float* to = out + r * kBlock + v * kLanes;
      store(to, fma(all, splat(row_scales[r * spans]), load(to)));
    }
  }
}

// On T tiles of rows, the same to the bit: sums of whole numbers, scaled and added in the same order, but one span
// behind the tiles, which take a while.
template <Format format, int T>
[[gnu::noinline]] void bytes_tiled(const Rows& rows, int first, int count, const char* block, int inputs, Ahead ahead,
                                   float* out) {
  constexpr size_t span_bytes = Matrix::span_bytes(format);
  const char* row = rows.row(first);
  const int spans = inputs / kSpan;
  SpanTiles weights;
  alignas(64) int32_t sums[2][2 * kMostTile * kBlock];
  std::memset(out, 0, count * kBlock * sizeof(float));
  const auto add = [&](int span) {
    add_span<format>(rows, first, count, span, block + span * span_bytes, sums[span % 2], out);
  };
  for (int span = 0; span < spans; span++, ahead.block += span_bytes) {
    ahead.fetch(span_bytes);
    weights.unpack<format>(block + span * span_bytes);
    weights.multiply<T>(row + span * kSpan, rows.row_bytes(), sums[span % 2]);
    if (span) add(span - 1);
  }
  add(spans - 1);
}

template <int T>
void tiled(const Rows& rows, int first, int count, const Matrix& weight, const char* block, Ahead ahead, float* out) {
  const int inputs = weight.padded_inputs;
  if (weight.format == Format::kBfloat)
    bfloats_tiled<T>(rows.row(first), rows.row_bytes(), block, inputs, ahead, out);
  else if (weight.format == Format::kInt8)
    bytes_tiled<Format::kInt8, T>(rows, first, count, block, inputs, ahead, out);
  else
    bytes_tiled<Format::kInt4, T>(rows, first, count, block, inputs, ahead, out);
}

#endif

template <int R>
void tile(const Rows& rows, int first, int count, const Matrix& weight, const char* block, float* out) {
  if constexpr (R > 0) {
    if (count < R) return tile<R - 1>(rows, first, count, weight, block, out);
    if (weight.format == Format::kFloat) {
      floats<R>(rows.row(first), rows.row_bytes(), block, weight.padded_inputs, out);
    } else if (weight.format == Format::kBfloat) {
      bfloats<R>(rows.row(first), rows.row_bytes(), block, weight.padded_inputs, out);
    } else if (weight.format == Format::kInt8) {
      bytes<Format::kInt8, R>(rows, first, block, weight.padded_inputs, out);
    } else {
      bytes<Format::kInt4, R>(rows, first, block, weight.padded_inputs, out);
    }
  }
}

}  // namespace detail

inline bool has_tiles(Format format) { return kHasTiles && format != Format::kFloat; }

// Whether so many rows are multiplied on tiles: a few in int8 are faster without.
inline bool on_tiles(Format format, int rows) {
  return has_tiles(format) && (format == Format::kBfloat || rows > kTileInt8);
}

inline int tile_of(Format format) {
  return has_tiles(format) ? kMostTile : format >= Format::kInt8 ? kTileInt8 : kTile;
}

// Bytes of a channel that tiles multiply at once: in int8 those of a group, which have a scale of their own.
inline int tile_depth(Format format) { return !has_tiles(format) ? 0 : format == Format::kBfloat ? 64 : kGroup; }

// Rows `first` and on times block `index`, for count <= tile_of(format); out has room for [kMostTile, 32].
inline void product(const Rows& rows, int first, int count, const Matrix& weight, int index,
                    [[maybe_unused]] Ahead ahead, float* out) {
#if defined(LOOM_TILES)
  if (on_tiles(weight.format, count)) {
    const char* block = weight.block(index);
    return count > kTileRows ? detail::tiled<2>(rows, first, count, weight, block, ahead, out)
                             : detail::tiled<1>(rows, first, count, weight, block, ahead, out);
  }
#endif
  detail::tile<kTile>(rows, first, count, weight, weight.block(index), out);
}

}  // namespace loom
