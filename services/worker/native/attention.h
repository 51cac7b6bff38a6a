// Attention of a tile of queries to the pages of their sequence, read where they lie.
//
// Keys are taken in segments of 256, cut at the same positions for every query; a segment's result is folded into
// those before it. So a query's result is the same to the bit in whichever chunk or batch it is computed.
#pragma once

#include <algorithm>
#include <optional>
#include <type_traits>

#include "pages.h"
#include "tiles.h"

namespace loom {

constexpr int kQueryTile = kHasTiles ? 2 * kTileRows : 24;  // rows (token, head) that are computed together

// What one thread needs while it attends.
template <typename T>
struct AttentionScratch {
  alignas(64) float scores[kQueryTile][kSegment];
  alignas(64) Factor<T> weights[kQueryTile][kSegment];
  alignas(64) Factor<T> queries[kQueryTile * kMostHeadDim];
  float query_scales[kQueryTile];
  alignas(64) float sums[kQueryTile * kMostHeadDim];
  alignas(64) float part[kQueryTile * kMostHeadDim];
  float largest[kQueryTile], total[kQueryTile];
};

namespace detail {

inline Vec accumulate(Vec acc, const float* numbers, const float* one) {
  return fma(load(numbers), splat(*one), acc);
}
inline Vec accumulate(Vec acc, const uint16_t* numbers, const uint16_t* pair) {
  return dot2(acc, load_as<Words>(numbers), load_as<uint32_t>(pair));
}
inline Ints accumulate(Ints acc, const int8_t* numbers, const int16_t* pair) {
  return dot2(acc, load_as<PairedBytes>(numbers), load_as<uint32_t>(pair));
}

inline Vec as_float(Vec sums) { return sums; }
inline Vec as_float(Ints sums) { return to_float(sums); }

// Call a run into the second-level cache: the first has too few places for what is on its way. All that only fetches
// must be inlined: GCC takes such a function for one without effect, and drops the calls.
[[gnu::always_inline]] inline void fetch_bytes(const void* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 0, 1);
}
template <typename T>
[[gnu::always_inline]] inline void fetch(const T* run, int head_dim) {
  fetch_bytes(run, PagedHead<T>::run_bytes(head_dim));
}
template <typename T>
[[gnu::always_inline]] inline void fetch_next(const Reading<T>& read, int run, int head_dim) {
  for (int next = read.next_of(run); next < read.next_of(run + 1); next++) fetch(read.next[next], head_dim);
}

// Products of R queries with B blocks of 16 keys: scores [R][kSegment], B * 16 columns. Several blocks at once keep
// the processor busy where there are few queries.
template <int R, int B, typename T>
[[gnu::noinline]] void score(const Factor<T>* queries, const T* const* blocks, int head_dim, float* scores) {
  constexpr int pair = Kept<T>::kPair;
  typename Kept<T>::Sum acc[R][B] = {};
  for (int d = 0; d < head_dim; d += pair) {
    LOOM_UNROLL
    for (int b = 0; b < B; b++) {
      LOOM_UNROLL
      for (int r = 0; r < R; r++)
        acc[r][b] = accumulate(acc[r][b], blocks[b] + d * kLanes, queries + r * head_dim + d);
    }
  }
  for (int b = 0; b < B; b++) {
    Vec scale = splat(1.0f);
    if constexpr (Kept<T>::kScales > 0) scale = load(PagedHead<T>::scales(blocks[b], head_dim));
    for (int r = 0; r < R; r++) store(scores + r * kSegment + b * kLanes, as_float(acc[r][b]) * scale);
  }
}

constexpr int kScoreRows = 12, kMostBlocks = 4;

// Blocks that are scored at once for so many rows: as many as the registers hold.
constexpr int blocks_for(int rows) { return rows <= 3 ? kMostBlocks : rows <= 6 ? 2 : 1; }

template <int R, typename T>
void score_rows(int rows, const Factor<T>* queries, const T* const* blocks, int count, int head_dim, float* scores) {
  if constexpr (R > 0) {
    if (rows < R) return score_rows<R - 1, T>(rows, queries, blocks, count, head_dim, scores);
    constexpr int together = blocks_for(R);
    for (int b = 0; b < count; b += together)
      if (b + together <= count)
        score<R, together, T>(queries, blocks + b, head_dim, scores + b * kLanes);
      else
        for (int single = b; single < count; single++)
          score<R, 1, T>(queries, blocks + single, head_dim, scores + single * kLanes);
  }
}

// The pair of values at `from`, without the second, which may hold anything.
inline Words first_of_pair(Words pairs) { return pairs & 0xffffu; }

// Weighted sums of values for R rows and D * 16 dimensions; with `fetching`, the keys that come next are called.
template <int R, int D, typename T>
[[gnu::noinline]] void mix(const Reading<T>& read, const Factor<T>* weights, int head_dim, int dim, bool fetching,
                           float* out) {
  constexpr int pair = Kept<T>::kPair;
  typename Kept<T>::Sum acc[R][D] = {};
  const Factor<T>* weight = weights + (read.first - read.segment);
  for (int run = 0; run < read.runs; run++, weight += kLanes) {
    if (fetching) fetch_next(read, run, head_dim);
    const T* values = read.values[run] + dim * pair;
    const int stop = std::min(kLanes, read.end - read.first - run * kLanes);
    for (int k = 0; k < stop; k += pair, values += head_dim * pair) {
      LOOM_UNROLL
      for (int d = 0; d < D; d++) {
        const T* at = values + d * kLanes * pair;
        if constexpr (std::is_same_v<T, uint16_t>) {
          Words v = load_as<Words>(at);
          if (k + 1 == stop) v = first_of_pair(v);
          LOOM_UNROLL
          for (int r = 0; r < R; r++)
            acc[r][d] = dot2(acc[r][d], v, load_as<uint32_t>(weight + r * kSegment + k));
        } else {
          // Whole numbers that were never written weigh nothing.
          LOOM_UNROLL
          for (int r = 0; r < R; r++) acc[r][d] = accumulate(acc[r][d], at, weight + r * kSegment + k);
        }
      }
    }
  }
  LOOM_UNROLL
  for (int r = 0; r < R; r++)
    LOOM_UNROLL
    for (int d = 0; d < D; d++) store(out + r * head_dim + dim + d * kLanes, as_float(acc[r][d]));
}

template <int R, typename T>
void mix_rows(int rows, const Reading<T>& read, const Factor<T>* weights, int head_dim, bool fetching, float* out) {
  if constexpr (R > 0) {
    if (rows < R) return mix_rows<R - 1, T>(rows, read, weights, head_dim, fetching, out);
    int dim = 0;
    for (; dim + 4 * kLanes <= head_dim; dim += 4 * kLanes)
      mix<R, 4, T>(read, weights, head_dim, dim, fetching && dim == 0, out);
    for (; dim < head_dim; dim += kLanes) mix<R, 1, T>(read, weights, head_dim, dim, fetching && dim == 0, out);
  }
}

inline Vec lane_numbers() { return Vec{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

// What a row sees of a segment.
struct Weighed {
  bool sees;
  float largest, total;
  float scale;  // of the weights
};

// Scores of one row in a segment to weights exp(score - largest), times the values' scales if they have any.
template <typename T>
Weighed weigh(const Reading<T>& read, const AttentionShape& shape, float score_scale, float* scores, Factor<T>* weights,
              Span span) {
  const float none = -std::numeric_limits<float>::infinity();
  const float cap = shape.cap;
  const int segment = read.segment, first = read.first, end = read.end;
  Vec high = splat(none);
  for (int position = first; position < end; position += kLanes) {
    float* at = scores + (position - segment);
    Vec value = load(at) * score_scale;
    if (cap > 0) value = tanh(value / cap) * cap;
    if (position < span.first || position + kLanes > span.end) {
      const Vec number = lane_numbers() + (float)(position - span.first);
      const Ints seen = (number >= 0.0f) & (number < (float)(span.end - span.first));
      value = choose(seen, value, splat(none));
    }
    store(at, value);
    high = larger(value, high);
  }
  const float largest = most(high);
  // A row of NaN has no largest score either; the NaN must reach the sum.
  const bool empty = span.end <= first || span.first >= end;
  Vec sums = Vec{};
  for (int position = first; position < end; position += kLanes) {
    float* at = scores + (position - segment);
    Vec value = empty ? Vec{} : exp(load(at) - largest);
    sums += value;
    if constexpr (Kept<T>::kScales > 0) {
      const T* values = read.values[(position - first) / kLanes];
      value = choose(value > 0.0f, value * load(PagedHead<T>::scales(values, shape.head_dim)), Vec{});
    }
    store(at, value);
  }
  const int begin = first - segment, count = (int)up_to(end - first, kLanes);
  return {!empty, largest, sum(sums), put_numbers(weights + begin, scores + begin, count)};
}

#if defined(LOOM_TILES)

// Scores of 16 Q queries with B runs of keys. Queries beyond those that are asked for are whatever lies there.
template <int Q, int B>
void score_tiled(const uint16_t* queries, const uint16_t* const* keys, const uint16_t* const* values, int dim,
                 float* scores) {
  TileSums<Q, B> sums;
  for (int d = 0; d < dim; d += kLanes) {
    for (int run = 0; run < B; run++) fetch_bytes(values[run] + d * kLanes, kLanes * kLanes * 2);
    sums.add(queries + d, dim * 2, keys[0] + d * kLanes, keys[B - 1] + d * kLanes, kLanes * 4);
  }
  sums.store(scores, kSegment);
}

// Weighted sums of values for 16 Q rows and 16 D dimensions.
template <int Q, int D>
void mix_tiled(const Reading<uint16_t>& read, const uint16_t* last, const uint16_t* weights, int head_dim, int dim,
               float* out) {
  TileSums<Q, D> sums;
  for (int run = 0; run < read.runs; run++) {
    if (dim == 0) fetch_next(read, run, head_dim);
    const uint16_t* values = (run + 1 == read.runs ? last : read.values[run]) + dim * 2;
    sums.add(weights + run * kLanes, kSegment * 2, values, values + kLanes * 2, head_dim * 4);
  }
  sums.store(out + dim, head_dim);
}

// What the last run holds beyond `end` was never written: zeros in its place.
inline const uint16_t* last_values(const Reading<uint16_t>& read, int head_dim) {
  alignas(64) static thread_local uint16_t whole[kMostHeadDim * kLanes];
  const uint16_t* values = read.values[read.runs - 1];
  const int written = read.end - read.first - (read.runs - 1) * kLanes;
  if (written == kLanes) return values;
  const int pairs = written / 2 * head_dim * 2;
  std::memset(whole, 0, head_dim * kLanes * 2);
  std::memcpy(whole, values, pairs * 2);
  if (written % 2)
    for (int d = 0; d < head_dim; d++) whole[pairs + d * 2] = values[pairs + d * 2];
  return whole;
}

template <int Q>
void score_tiled(AttentionScratch<uint16_t>& scratch, const Reading<uint16_t>& read, int dim) {
  float* scores = scratch.scores[0] + (read.first - read.segment);
  for (int run = 0; run < read.runs; run += 2)
    (run + 1 < read.runs ? score_tiled<Q, 2> : score_tiled<Q, 1>)(scratch.queries, read.keys + run, read.values + run,
                                                                  dim, scores + run * kLanes);
}

template <int Q>
void mix_tiled(AttentionScratch<uint16_t>& scratch, const Reading<uint16_t>& read, int dim) {
  const uint16_t* last = last_values(read, dim);
  const uint16_t* weights = scratch.weights[0] + (read.first - read.segment);
  for (int d = 0; d < dim; d += 2 * kLanes)
    (d + kLanes < dim ? mix_tiled<Q, 2> : mix_tiled<Q, 1>)(read, last, weights, dim, d, scratch.part);
}

#endif

// Scores of all rows, in scratch.scores; the values are called meanwhile.
template <typename T>
void score_all(AttentionScratch<T>& scratch, const Reading<T>& read, int rows, int dim) {
#if defined(LOOM_TILES)
  if constexpr (std::is_same_v<T, uint16_t>)
    return (rows > kTileRows ? score_tiled<2> : score_tiled<1>)(scratch, read, dim);
#endif
  float* scores = scratch.scores[0] + (read.first - read.segment);
  for (int run = 0; run < read.runs; run += kMostBlocks) {
    const int count = std::min(kMostBlocks, read.runs - run);
    for (int i = 0; i < count; i++) fetch(read.values[run + i], dim);
    for (int r = 0; r < rows; r += kScoreRows)
      score_rows<kScoreRows, T>(std::min(rows - r, kScoreRows), scratch.queries + r * dim, read.keys + run, count, dim,
                                scores + r * kSegment + run * kLanes);
  }
}

// Weighted sums of all rows, in scratch.part; the next keys are called meanwhile.
template <typename T>
void mix_all(AttentionScratch<T>& scratch, const Reading<T>& read, int rows, int dim) {
#if defined(LOOM_TILES)
  if constexpr (std::is_same_v<T, uint16_t>)
    return (rows > kTileRows ? mix_tiled<2> : mix_tiled<1>)(scratch, read, dim);
#endif
  for (int r = 0; r < rows; r += 6)
    mix_rows<6, T>(std::min(rows - r, 6), read, scratch.weights[r], dim, r == 0, scratch.part + r * dim);
}

}  // namespace detail

// Attend `rows` queries (scratch.queries, [rows][head_dim]) each to its own span: out [rows][head_dim]. Pages lie
// anywhere, so that no processor foresees the next one: while it computes, it is told what comes, `next` after this.
template <typename T>
void attend(AttentionScratch<T>& scratch, const PagedHead<T>& kv, int rows, const Span* spans,
            const std::optional<Context<T>>& next, float* out) {
  const int dim = kv.shape.head_dim;
  Context<T> context{kv, spans[0]};
  Span& all = context.span;
  for (int r = 1; r < rows; r++) all = {std::min(all.first, spans[r].first), std::max(all.end, spans[r].end)};
  bool begun[kQueryTile] = {};
  detail::Weighed weighed[kQueryTile];
  for (int segment = all.first / kSegment * kSegment; segment < all.end; segment += kSegment) {
    Reading<T> read(context, segment);
    if (segment + kSegment < all.end)
      read.then({kv, {segment + kSegment, all.end}});
    else if (next)
      read.then(*next);
    detail::score_all(scratch, read, rows, dim);
    for (int r = 0; r < rows; r++)
      weighed[r] = detail::weigh(read, kv.shape, kv.shape.scale * scratch.query_scales[r], scratch.scores[r],
                                 scratch.weights[r], spans[r]);
    detail::mix_all(scratch, read, rows, dim);
    for (int r = 0; r < rows; r++) {
      const auto [sees, largest, total, scale] = weighed[r];
      if (!sees) continue;
      float *sums = scratch.sums + r * dim, *part = scratch.part + r * dim;
      if (!begun[r]) {
        begun[r] = true;
        scratch.largest[r] = largest;
        scratch.total[r] = total;
        for (int d = 0; d < dim; d += kLanes) store(sums + d, load(part + d) * scale);
        continue;
      }
      const float both = std::max(scratch.largest[r], largest);
      const float before = exp(splat(scratch.largest[r] - both))[0], now = exp(splat(largest - both))[0];
      scratch.largest[r] = both;
      scratch.total[r] = scratch.total[r] * before + total * now;
      for (int d = 0; d < dim; d += kLanes)
        store(sums + d, fma(load(part + d), splat(now * scale), load(sums + d) * before));
    }
  }
  for (int r = 0; r < rows; r++)
    for (int d = 0; d < dim; d += kLanes) store(out + r * dim + d, load(scratch.sums + r * dim + d) / scratch.total[r]);
}

}  // namespace loom
