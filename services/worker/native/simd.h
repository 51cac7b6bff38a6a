// Sixteen lanes at a time: compiler vectors, with AVX-512 instructions where the target has them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// Sums kept in an array stay in registers only where the loops over it are unrolled entirely, and in GCC 12 only
// in a function that is not inlined (2.5 times as fast).
#if defined(__x86_64__) && !defined(__AVX2__)
#define LOOM_UNROLL  // takes the compiler minutes, for processors of before 2013
#elif defined(__clang__)
#define LOOM_UNROLL _Pragma("unroll")
#else
#define LOOM_UNROLL _Pragma("GCC unroll 16")
#endif

namespace loom {

constexpr int kLanes = 16;

typedef float Vec __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef int16_t Shorts __attribute__((vector_size(64)));
typedef int16_t HalfShorts __attribute__((vector_size(32)));
typedef int8_t Bytes __attribute__((vector_size(16)));
typedef int8_t PairedBytes __attribute__((vector_size(32)));

template <typename T>
inline T load_as(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
inline void store_as(void* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

inline Vec load(const float* from) { return load_as<Vec>(from); }
inline void store(float* to, Vec value) { std::memcpy(to, &value, sizeof(value)); }
// Less zero, since adding it would cost an addition: it turns -0 into 0.
inline Vec splat(float value) { return value - Vec{}; }
inline Ints splat(int32_t value) { return Ints{} + value; }
inline Vec choose(Ints condition, Vec yes, Vec no) { return (Vec)(((Ints)yes & condition) | ((Ints)no & ~condition)); }
// Of a NaN and a number, b.
inline Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#else
  return choose(a > b, a, b);
#endif
}

inline Ints larger(Ints a, Ints b) {
#if defined(__AVX512F__)
  return (Ints)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
  return (a & (a > b)) | (b & ~(a > b));
#endif
}

// a * b + c, rounded once where the target can.
inline Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

inline Vec magnitude(Vec a) { return (Vec)((Ints)a & 0x7fffffff); }

// Over lanes, in one fixed order.
template <typename Number, typename Lanes, typename Join>
Number fold(Lanes a, const Join& join) {
  Number lane[kLanes];
  std::memcpy(lane, &a, sizeof(lane));
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lane[i] = join(lane[i], lane[i + half]);
  return lane[0];
}

inline float sum(Vec a) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(a);
#else
  return fold<float>(a, [](float x, float y) { return x + y; });
#endif
}

inline int32_t sum(Ints a) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)a);
#else
  return fold<int32_t>(a, [](int32_t x, int32_t y) { return x + y; });
#endif
}

// Of numbers that are not NaN.
inline float most(Vec a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(a);
#else
  return fold<float>(a, [](float x, float y) { return x > y ? x : y; });
#endif
}

inline int32_t most(Ints a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)a);
#else
  return fold<int32_t>(a, [](int32_t x, int32_t y) { return x > y ? x : y; });
#endif
}

// Whether a lane of a condition holds.
inline bool any(Ints condition) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)condition, (__m512i)condition) != 0;
#else
  return fold<int32_t>(condition, [](int32_t x, int32_t y) { return x | y; }) != 0;
#endif
}

inline Ints rounded(Vec a) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtps_epi32(a);
#else
  Ints out;
  for (int i = 0; i < kLanes; i++) out[i] = (int32_t)std::nearbyint(a[i]);
  return out;
#endif
}

inline Vec to_float(Ints a) { return __builtin_convertvector(a, Vec); }

// bfloat16 is the upper half of a float32.
inline Vec from_bf16(const uint16_t* from) {
  return (Vec)(__builtin_convertvector(load_as<Halves>(from), Words) << 16);
}

inline Halves to_bf16(Vec a) {
#if defined(__AVX512BF16__)
  return load_as<Halves>(&static_cast<const __m256bh&>(_mm512_cvtneps_pbh(a)));
#else
  Words bits = (Words)a;
  Words even = bits + 0x7fffu + ((bits >> 16) & 1u);
  Ints number = a == a;
  Words kept = ((Words)number & even) | (~(Words)number & 0x7fc00000u);
  return __builtin_convertvector(kept >> 16, Halves);
#endif
}

// The largest of `count` numbers without their signs; NaN if there is one.
inline float largest_size(const float* values, int count) {
  // As integers, sizes keep their order, and NaN is above all of them.
  Ints largest = Ints{};
  for (int k = 0; k < count; k += kLanes) largest = larger(largest, (Ints)magnitude(load(values + k)));
  const int32_t bits = most(largest);
  return load_as<float>(&bits);
}

inline void store_integers(int8_t* to, Ints value) {
  const Bytes bytes = __builtin_convertvector(value, Bytes);
  std::memcpy(to, &bytes, sizeof(bytes));
}
inline void store_integers(int16_t* to, Ints value) {
  const HalfShorts shorts = __builtin_convertvector(value, HalfShorts);
  std::memcpy(to, &shorts, sizeof(shorts));
}

inline size_t up_to(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

inline uint16_t to_bf16(float a) { return to_bf16(splat(a))[0]; }
inline float from_bf16(uint16_t a) {
  uint32_t bits = (uint32_t)a << 16;
  return load_as<float>(&bits);
}

// exp to about one unit in the last place; NaN stays NaN, what is below the smallest normal number is zero.
inline Vec exp(Vec x) {
  const Vec low = splat(-87.0f), high = splat(88.0f);
  Vec bounded = choose(x < low, low, choose(x > high, high, x));
  Ints n = rounded(bounded * 1.44269504088896341f);
  Vec turns = to_float(n);
  Vec r = fma(turns, splat(-0.693359375f), bounded);
  r = fma(turns, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  Vec scaled = p * (Vec)((n + 127) << 23);
  return choose(x < low, Vec{}, scaled);
}

inline Vec tanh(Vec x) {
  const Vec size = magnitude(x);
  const Vec far = 1.0f - 2.0f / (exp(size + size) + 1.0f);
  const Vec signed_far = (Vec)((Ints)far | ((Ints)x & (int32_t)0x80000000));
  // Near zero the difference above would cancel.
  const Vec z = x * x;
  Vec p = splat(-5.70498872745e-3f);
  p = fma(p, z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  return choose(size < 0.625f, fma(p * z, x, x), signed_far);
}
inline Vec silu(Vec x) { return x / (1.0f + exp(-x)); }
inline Vec gelu(Vec x) {
  Vec inner = (x + x * x * x * 0.044715f) * 0.7978845608028654f;
  return x * 0.5f * (1.0f + tanh(inner));
}

// acc + the products of two neighbouring bfloat16 numbers in each lane.
inline Vec dot2(Vec acc, Words pairs, uint32_t pair) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(acc, (__m512bh)pairs, (__m512bh)_mm512_set1_epi32((int)pair));
#else
  Vec low = (Vec)(Words{} + (pair << 16)), high = (Vec)(Words{} + (pair & 0xffff0000u));
  return fma((Vec)(pairs & 0xffff0000u), high, fma((Vec)(pairs << 16), low, acc));
#endif
}

// The same of signed bytes with a pair of 16-bit integers.
inline Ints dot2(Ints acc, PairedBytes bytes, uint32_t pair) {
  const Shorts pairs = __builtin_convertvector(bytes, Shorts);
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)pairs, _mm512_set1_epi32((int)pair));
#else
  return acc + ((Ints)pairs << 16 >> 16) * (int32_t)(int16_t)pair + ((Ints)pairs >> 16) * ((int32_t)pair >> 16);
#endif
}

// acc + the products of four neighbouring bytes in each lane, the lanes' unsigned and the other's signed.
inline Ints dot4(Ints acc, Words bytes, uint32_t signed_bytes) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)bytes, _mm512_set1_epi32((int)signed_bytes));
#else
  for (int at = 0; at < 32; at += 8) acc += (Ints)((bytes >> at) & 255u) * (int32_t)(int8_t)(signed_bytes >> at);
  return acc;
#endif
}

}  // namespace loom
