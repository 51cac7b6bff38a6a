// Attention of a tile of queries to the pages of their sequence, read where they lie.
//
// Keys are taken in segments of 256, cut at the same positions for every query; a segment's result is folded into
// those before it. So a query's result is the same to the bit in whichever chunk or batch it is computed.
#pragma once

#include <algorithm>

#include "simd.h"

namespace loom {

constexpr int kSegment = 256;
constexpr int kQueryTile = 24;  // rows (token, head) that are computed together
constexpr int kMostHeadDim = 512;

struct AttentionShape {
  int head_dim = 0, page_size = 0, kv_heads = 0;
  float scale = 1, cap = 0;  // no cap: 0
};

// Where one KV head's keys and values of a sequence lie. A page holds the keys of all KV heads, then the values; of
// one head, for each 16 positions, keys as [head_dim / P][16][P] and values as [16 / P][head_dim][P], where P
// numbers fill 32 bits.
template <typename T>
struct PagedHead {
  static constexpr int kPair = 4 / sizeof(T);
  const T* pool;
  const int64_t* table;
  const AttentionShape& shape;
  int head;

  const T* run(int position, int which) const {
    const size_t head_numbers = (size_t)shape.page_size * shape.head_dim;
    const size_t page = table[position / shape.page_size];
    const T* base = pool + (page * 2 * shape.kv_heads + which) * head_numbers;
    return base + (size_t)(position % shape.page_size) / kLanes * kLanes * shape.head_dim;
  }
  const T* keys(int position) const { return run(position, head); }
  const T* values(int position) const { return run(position, shape.kv_heads + head); }
};

inline void put_numbers(float* to, Vec value) { store(to, value); }
inline void put_numbers(uint16_t* to, Vec value) {
  const Halves halves = to_bf16(value);
  std::memcpy(to, &halves, sizeof(halves));
}

// Store one token's key and value of a head.
template <typename T>
void write_kv(const PagedHead<T>& to, int position, const float* key, const float* value) {
  constexpr int pair = PagedHead<T>::kPair;
  T* keys = const_cast<T*>(to.keys(position));
  T* values = const_cast<T*>(to.values(position));
  const int lane = position % kLanes, dim = to.shape.head_dim;
  T* value_row = values + lane / pair * pair * dim + lane % pair;
  T numbers[2][kLanes];
  for (int from = 0; from < dim; from += kLanes) {
    put_numbers(numbers[0], load(key + from));
    put_numbers(numbers[1], load(value + from));
    T *to_key = keys + from * kLanes + lane * pair, *to_value = value_row + from * pair;
    for (int d = 0; d < kLanes; d++) {
      to_key[d / pair * kLanes * pair + d % pair] = numbers[0][d];
      to_value[d * pair] = numbers[1][d];
    }
  }
}

// What one thread needs while it attends.
template <typename T>
struct AttentionScratch {
  alignas(64) float scores[kQueryTile][kSegment];
  alignas(64) T weights[kQueryTile][kSegment];
  alignas(64) T queries[kQueryTile * kMostHeadDim];
  alignas(64) float sums[kQueryTile * kMostHeadDim];
  alignas(64) float part[kQueryTile * kMostHeadDim];
  float largest[kQueryTile], total[kQueryTile];
};

// The first and the past-the-end key position that a query sees.
struct Span {
  int first, end;
};

namespace detail {

inline Vec accumulate(Vec acc, const float* numbers, const float* one) {
  return fma(load(numbers), splat(*one), acc);
}
inline Vec accumulate(Vec acc, const uint16_t* numbers, const uint16_t* pair) {
  return dot2(acc, load_as<Words>(numbers), load_as<uint32_t>(pair));
}

// Call 16 positions of one head into the second-level cache: the first has too few places for what is on its way.
template <typename T>
void fetch(const T* run, int head_dim) {
  const char* from = reinterpret_cast<const char*>(run);
  for (size_t at = 0; at < kLanes * head_dim * sizeof(T); at += 64) __builtin_prefetch(from + at, 0, 1);
}

// Products of R queries with B blocks of 16 keys: scores [R][kSegment], B * 16 columns. Several blocks at once keep
// the processor busy where there are few queries.
template <int R, int B, typename T>
[[gnu::noinline]] void score(const T* queries, const T* const* blocks, int head_dim, float* scores) {
  constexpr int pair = PagedHead<T>::kPair;
  Vec acc[R][B] = {};
  for (int d = 0; d < head_dim; d += pair) {
    LOOM_UNROLL
    for (int b = 0; b < B; b++) {
      LOOM_UNROLL
      for (int r = 0; r < R; r++)
        acc[r][b] = accumulate(acc[r][b], blocks[b] + d * kLanes, queries + r * head_dim + d);
    }
  }
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) store(scores + r * kSegment + b * kLanes, acc[r][b]);
}

constexpr int kScoreRows = 12, kMostBlocks = 4;

// Blocks that are scored at once for so many rows: as many as the registers hold.
constexpr int blocks_for(int rows) { return rows <= 3 ? kMostBlocks : rows <= 6 ? 2 : 1; }

template <int R, typename T>
void score_rows(int rows, const T* queries, const T* const* blocks, int count, int head_dim, float* scores) {
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

// Weighted sums of values over [first, end) of a segment for R rows and D * 16 dimensions.
template <int R, int D, typename T>
[[gnu::noinline]] void mix(const PagedHead<T>& kv, int first, int end, const T* weights, int segment, int dim, float* out) {
  constexpr int pair = PagedHead<T>::kPair;
  const int head_dim = kv.shape.head_dim;
  Vec acc[R][D] = {};
  for (int position = first / kLanes * kLanes; position < end; position += kLanes) {
    const T* values = kv.values(position) + dim * pair;
    const int stop = std::min(kLanes, end - position);
    const T* weight = weights + (position - segment);
    for (int k = 0; k < stop; k += pair, values += head_dim * pair) {
      LOOM_UNROLL
      for (int d = 0; d < D; d++) {
        if constexpr (pair == 2) {
          Words v = load_as<Words>(values + d * kLanes * 2);
          if (k + 1 == stop) v = first_of_pair(v);
          LOOM_UNROLL
          for (int r = 0; r < R; r++)
            acc[r][d] = dot2(acc[r][d], v, load_as<uint32_t>(weight + r * kSegment + k));
        } else {
          const Vec v = load(values + d * kLanes);
          LOOM_UNROLL
          for (int r = 0; r < R; r++) acc[r][d] = fma(v, splat(weight[r * kSegment + k]), acc[r][d]);
        }
      }
    }
  }
  LOOM_UNROLL
  for (int r = 0; r < R; r++)
    LOOM_UNROLL
    for (int d = 0; d < D; d++) store(out + r * head_dim + dim + d * kLanes, acc[r][d]);
}

template <int R, typename T>
void mix_rows(int rows, const PagedHead<T>& kv, int first, int end, const T* weights, int segment, float* out) {
  if constexpr (R > 0) {
    if (rows < R) return mix_rows<R - 1, T>(rows, kv, first, end, weights, segment, out);
    int dim = 0;
    for (; dim + 4 * kLanes <= kv.shape.head_dim; dim += 4 * kLanes)
      mix<R, 4, T>(kv, first, end, weights, segment, dim, out);
    for (; dim < kv.shape.head_dim; dim += kLanes) mix<R, 1, T>(kv, first, end, weights, segment, dim, out);
  }
}

inline Vec lane_numbers() { return Vec{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

// Scores of one row in a segment to weights exp(score - largest); returns whether the row sees any of it.
template <typename T>
bool weigh(const AttentionShape& shape, float* scores, T* weights, int segment, int first, int end, Span span,
           float* largest, float* total) {
  const float none = -std::numeric_limits<float>::infinity();
  Vec high = splat(none);
  for (int position = first; position < end; position += kLanes) {
    float* at = scores + (position - segment);
    Vec value = load(at) * shape.scale;
    if (shape.cap > 0) value = tanh(value / shape.cap) * shape.cap;
    const Vec number = lane_numbers() + (float)(position - span.first);
    const Ints seen = (number >= 0.0f) & (number < (float)(span.end - span.first));
    value = choose(seen, value, splat(none));
    store(at, value);
    high = larger(value, high);
  }
  *largest = most(high);
  // A row of NaN has no largest score either; the NaN must reach the sum.
  const bool empty = span.end <= first || span.first >= end;
  Vec sums = Vec{};
  for (int position = first; position < end; position += kLanes) {
    const int column = position - segment;
    const Vec value = empty ? Vec{} : exp(load(scores + column) - *largest);
    sums += value;
    put_numbers(weights + column, value);
  }
  *total = sum(sums);
  return !empty;
}

}  // namespace detail

// Attend `rows` queries (scratch.queries, [rows][head_dim]) each to its own span: out [rows][head_dim].
template <typename T>
void attend(AttentionScratch<T>& scratch, const PagedHead<T>& kv, int rows, const Span* spans, float* out) {
  const int dim = kv.shape.head_dim;
  int low = spans[0].first, high = spans[0].end;
  for (int r = 1; r < rows; r++) {
    low = std::min(low, spans[r].first);
    high = std::max(high, spans[r].end);
  }
  bool begun[kQueryTile] = {}, sees[kQueryTile];
  float largest[kQueryTile], total[kQueryTile];
  for (int segment = low / kSegment * kSegment; segment < high; segment += kSegment) {
    const int first = std::max(segment, low / kLanes * kLanes), end = std::min(segment + kSegment, high);
    for (int position = first; position < end; position += detail::kMostBlocks * kLanes) {
      const T* blocks[detail::kMostBlocks];
      int count = 0;
      for (int at = position; at < end && count < detail::kMostBlocks; at += kLanes) {
        blocks[count++] = kv.keys(at);
        // Pages lie anywhere: no processor foresees the next one.
        detail::fetch(kv.values(at), dim);
        if (at + detail::kMostBlocks * kLanes < end) detail::fetch(kv.keys(at + detail::kMostBlocks * kLanes), dim);
      }
      for (int r = 0; r < rows; r += detail::kScoreRows)
        detail::score_rows<detail::kScoreRows, T>(std::min(rows - r, detail::kScoreRows), scratch.queries + r * dim,
                                                  blocks, count, dim, &scratch.scores[r][position - segment]);
    }
    for (int r = 0; r < rows; r++)
      sees[r] = detail::weigh(kv.shape, scratch.scores[r], scratch.weights[r], segment, first, end, spans[r],
                              &largest[r], &total[r]);
    for (int r = 0; r < rows; r += 6)
      detail::mix_rows<6, T>(std::min(rows - r, 6), kv, first, end, scratch.weights[r], segment,
                             scratch.part + r * dim);
    for (int r = 0; r < rows; r++) {
      if (!sees[r]) continue;
      float *sums = scratch.sums + r * dim, *part = scratch.part + r * dim;
      if (!begun[r]) {
        begun[r] = true;
        scratch.largest[r] = largest[r];
        scratch.total[r] = total[r];
        std::memcpy(sums, part, dim * sizeof(float));
        continue;
      }
      const float both = std::max(scratch.largest[r], largest[r]);
      const float before = exp(splat(scratch.largest[r] - both))[0], now = exp(splat(largest[r] - both))[0];
      scratch.largest[r] = both;
      scratch.total[r] = scratch.total[r] * before + total[r] * now;
      for (int d = 0; d < dim; d += kLanes)
        store(sums + d, fma(load(part + d), splat(now), load(sums + d) * before));
    }
  }
  for (int r = 0; r < rows; r++)
    for (int d = 0; d < dim; d += kLanes) store(out + r * dim + d, load(scratch.sums + r * dim + d) / scratch.total[r]);
}

}  // namespace loom
