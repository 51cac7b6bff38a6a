// Where the keys and values of a sequence lie.
#pragma once

#include <algorithm>

#include "simd.h"

namespace loom {

constexpr int kSegment = 256;      // positions whose keys are read together
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

// The first and the past-the-end key position that a query sees.
struct Span {
  int first, end;
};

template <typename T>
struct Context {
  PagedHead<T> kv;
  Span span;
};

// Positions of a head that are read together, within one segment, and the keys that are read next.
template <typename T>
struct Reading {
  static constexpr int kMostRuns = kSegment / kLanes;

  int segment, first, end;  // positions: `first` is the first of a run
  int runs = 0, next_runs = 0;
  const T *keys[kMostRuns], *values[kMostRuns], *next[kMostRuns];

  Reading(const Context<T>& context, int segment)
      : segment(segment),
        first(std::max(segment, context.span.first / kLanes * kLanes)),
        end(std::min(segment + kSegment, context.span.end)) {
    for (int position = first; position < end; position += kLanes, runs++) {
      keys[runs] = context.kv.keys(position);
      values[runs] = context.kv.values(position);
    }
  }

  // After these come the keys of a context's first segment.
  void then(const Context<T>& context) {
    const auto& [kv, span] = context;
    const int end = std::min(span.end, span.first / kSegment * kSegment + kSegment);
    for (int at = span.first / kLanes * kLanes; at < end; at += kLanes) next[next_runs++] = kv.keys(at);
  }

  // Of `next`, the first one that is called while run `at` of the values is read.
  int next_of(int at) const { return next_runs * at / runs; }
};

}  // namespace loom
