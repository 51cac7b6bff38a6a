// Attention of a tile of queries to the pages of their sequence, read where they lie.
//
// Keys are taken in segments of 256, cut at the same positions for every query; a segment's result is folded into
// those before it. So a query's result is the same to the bit in whichever chunk or batch it is computed.
#pragma once

#include <algorithm>
#include <type_traits>

#include "simd.h"

namespace loom {

constexpr int kSegment = 256;
constexpr int kQueryTile = 24;  // rows (token, head) that are computed together
constexpr int kMostHeadDim = 512;  // so many products of 8 and 16 bits fill 32

struct AttentionShape {
  int head_dim = 0, page_size = 0, kv_heads = 0;
  float scale = 1, cap = 0;  // no cap: 0
};

// A number as the pool keeps it, and what it is multiplied by: float, bfloat16, or bytes with a scale for each
// position of a head, multiplied by integers of 16 bits.
template <typename T>
struct Kept {
  using Factor = T;
  using Sum = Vec;
  static constexpr int kPair = 4 / sizeof(T);  // factors that fill 32 bits
  static constexpr size_t kScales = 0;         // bytes of scales behind 16 positions
};
template <>
struct Kept<int8_t> {
  using Factor = int16_t;
  using Sum = Ints;
  static constexpr int kPair = 2;
  static constexpr size_t kScales = kLanes * sizeof(float);
};
template <typename T>
using Factor = typename Kept<T>::Factor;

// Where one KV head's keys and values of a sequence lie. A page holds the keys of all KV heads, then the values; of
// one head, a run for each 16 positions: keys as [head_dim / P][16][P], values as [16 / P][head_dim][P], where P is
// Kept::kPair; then the positions' scales, float [16], if they have any.
template <typename T>
struct PagedHead {
  const char* pool;
  const int64_t* table;
  const AttentionShape& shape;
  int head;

  static size_t run_bytes(int head_dim) { return (size_t)kLanes * head_dim * sizeof(T) + Kept<T>::kScales; }
  static const float* scales(const T* run, int head_dim) {
    return reinterpret_cast<const float*>(run + kLanes * head_dim);
  }

  const T* run(int position, int which) const {
    const size_t page = table[position / shape.page_size];
    const size_t first = (page * 2 * shape.kv_heads + which) * (shape.page_size / kLanes);
    const size_t at = first + position % shape.page_size / kLanes;
    return reinterpret_cast<const T*>(pool + at * run_bytes(shape.head_dim));
  }
  const T* keys(int position) const { return run(position, head); }
  const T* values(int position) const { return run(position, shape.kv_heads + head); }
};

// Numbers in the form that they are kept or multiplied in; returns what one of them stands for.
inline float put_numbers(float* to, const float* from, int count) {
  std::memcpy(to, from, count * sizeof(float));
  return 1;
}
inline float put_numbers(uint16_t* to, const float* from, int count) {
  for (int i = 0; i < count; i += kLanes) {
    const Halves halves = to_bf16(load(from + i));
    std::memcpy(to + i, &halves, sizeof(halves));
  }
  return 1;
}
template <typename Integer>
float put_integers(Integer* to, const float* from, int count) {
  constexpr float most = std::numeric_limits<Integer>::max();
  const float high = largest_size(from, count), inverse = high > 0 ? most / high : 0;
  for (int i = 0; i < count; i += kLanes) store_integers(to + i, rounded(load(from + i) * inverse));
  return high / most;
}
inline float put_numbers(int8_t* to, const float* from, int count) { return put_integers(to, from, count); }
inline float put_numbers(int16_t* to, const float* from, int count) { return put_integers(to, from, count); }

// Store one token's key and value of a head.
template <typename T>
void write_kv(const PagedHead<T>& to, int position, const float* key, const float* value) {
  constexpr int pair = Kept<T>::kPair;
  T *keys = const_cast<T*>(to.keys(position)), *values = const_cast<T*>(to.values(position));
  const int lane = position % kLanes, dim = to.shape.head_dim;
  T numbers[kMostHeadDim];
  const float key_scale = put_numbers(numbers, key, dim);
  for (int d = 0; d < dim; d += pair) std::memcpy(keys + d * kLanes + lane * pair, numbers + d, pair * sizeof(T));
  const float value_scale = put_numbers(numbers, value, dim);
  for (int d = 0; d < dim; d++) values[lane / pair * pair * dim + d * pair + lane % pair] = numbers[d];
  if constexpr (Kept<T>::kScales > 0) {
    const_cast<float*>(to.scales(keys, dim))[lane] = key_scale;
    const_cast<float*>(to.scales(values, dim))[lane] = value_scale;
  }
}

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
inline Ints accumulate(Ints acc, const int8_t* numbers, const int16_t* pair) {
  return dot2(acc, load_as<PairedBytes>(numbers), load_as<uint32_t>(pair));
}

inline Vec as_float(Vec sums) { return sums; }
inline Vec as_float(Ints sums) { return to_float(sums); }

// Call a run into the second-level cache: the first has too few places for what is on its way. All that only fetches
// must be inlined: GCC takes such a function for one without effect, and drops the calls.
template <typename T>
[[gnu::always_inline]] inline void fetch(const T* run, int head_dim) {
  const char* from = reinterpret_cast<const char*>(run);
  for (size_t at = 0; at < PagedHead<T>::run_bytes(head_dim); at += 64) __builtin_prefetch(from + at, 0, 1);
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

// Weighted sums of values over [first, end) of a segment for R rows and D * 16 dimensions.
template <int R, int D, typename T>
[[gnu::noinline]] void mix(const PagedHead<T>& kv, int first, int end, const Factor<T>* weights, int segment, int dim,
                           float* out) {
  constexpr int pair = Kept<T>::kPair;
  const int head_dim = kv.shape.head_dim;
  typename Kept<T>::Sum acc[R][D] = {};
  for (int position = first / kLanes * kLanes; position < end; position += kLanes) {
    const T* values = kv.values(position) + dim * pair;
    const int stop = std::min(kLanes, end - position);
    const Factor<T>* weight = weights + (position - segment);
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
void mix_rows(int rows, const PagedHead<T>& kv, int first, int end, const Factor<T>* weights, int segment, float* out) {
  if constexpr (R > 0) {
    if (rows < R) return mix_rows<R - 1, T>(rows, kv, first, end, weights, segment, out);
    int dim = 0;
    for (; dim + 4 * kLanes <= kv.shape.head_dim; dim += 4 * kLanes)
      mix<R, 4, T>(kv, first, end, weights, segment, dim, out);
    for (; dim < kv.shape.head_dim; dim += kLanes) mix<R, 1, T>(kv, first, end, weights, segment, dim, out);
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
Weighed weigh(const PagedHead<T>& kv, float score_scale, float* scores, Factor<T>* weights, int segment, int first, int end,
              Span span) {
  const float none = -std::numeric_limits<float>::infinity();
  const float cap = kv.shape.cap;
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
    if constexpr (Kept<T>::kScales > 0)
      value = choose(value > 0.0f, value * load(kv.scales(kv.values(position), kv.shape.head_dim)), Vec{});
    store(at, value);
  }
  const int begin = first - segment, count = (int)up_to(end - first, kLanes);
  return {!empty, largest, sum(sums), put_numbers(weights + begin, scores + begin, count)};
}

}  // namespace detail

// Call the first keys that a tile reads into the second-level cache, before it is that tile's turn.
template <typename T>
[[gnu::always_inline]] inline void fetch_keys(const PagedHead<T>& kv, Span span) {
  const int end = std::min(span.end, span.first + kSegment);
  for (int position = span.first; position < end; position += kLanes) detail::fetch(kv.keys(position), kv.shape.head_dim);
}

// Attend `rows` queries (scratch.queries, [rows][head_dim]) each to its own span: out [rows][head_dim].
template <typename T>
void attend(AttentionScratch<T>& scratch, const PagedHead<T>& kv, int rows, const Span* spans, float* out) {
  const int dim = kv.shape.head_dim;
  int low = spans[0].first, high = spans[0].end;
  for (int r = 1; r < rows; r++) {
    low = std::min(low, spans[r].first);
    high = std::max(high, spans[r].end);
  }
  bool begun[kQueryTile] = {};
  detail::Weighed weighed[kQueryTile];
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
      weighed[r] = detail::weigh(kv, kv.shape.scale * scratch.query_scales[r], scratch.scores[r], scratch.weights[r],
                                 segment, first, end, spans[r]);
    for (int r = 0; r < rows; r += 6)
      detail::mix_rows<6, T>(std::min(rows - r, 6), kv, first, end, scratch.weights[r], segment,
                             scratch.part + r * dim);
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
