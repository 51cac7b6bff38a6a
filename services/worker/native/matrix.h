// Weights packed once at load, and rows of activations in the form that their products want.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "levels.h"
#include "simd.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace loom {

// Mirrored in services/worker/engine/native/library.py.
enum class Format : int { kFloat = 0, kBfloat = 1, kInt8 = 2, kInt4 = 3 };  // the last of weights only
enum class Stored : int { kFloat = 0, kBfloat = 1 };

// Of a number in a row.
inline int bytes_of(Format format) { return format == Format::kFloat ? 4 : format == Format::kBfloat ? 2 : 1; }

constexpr int kBlock = 32;   // output channels that are packed side by side
constexpr int kSpan = 2 * kGroup;  // inputs that share one scale of int8 activations
constexpr int kMultiple = kSpan;   // inputs are padded to it
constexpr int kBeyond = 32;        // rows that a product may read behind the last, and drop

// Memory in huge pages where the system gives them.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes) : bytes_(up_to(bytes, kHuge)) {
    data_.reset(static_cast<char*>(std::aligned_alloc(kHuge, bytes_)));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    madvise(data_.get(), bytes_, MADV_HUGEPAGE);
#endif
  }
  char* get() const { return data_.get(); }
  size_t size() const { return bytes_; }

 private:
  static constexpr size_t kHuge = 1 << 21;
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::unique_ptr<char[], Free> data_;
  size_t bytes_ = 0;
};

// A weight [channels, inputs]. A block of 32 channels lies in one run, inputs in order:
// float: [inputs][32]; bfloat: [inputs / 2][32][2]. Otherwise span by span: int8 [32 / 4][2 groups][32][4] bytes, each
// 128 above its weight's; int4 [32 / 4][32][4] bytes, the first group's levels in the lower halves, the second's in
// the upper ones. Then the scales float [2 groups][32], of int4 for levels 16 apart around 128; and in int4
// what the weights are there, bfloat [32][2 groups].
struct Matrix {
  Format format = Format::kFloat;
  int channels = 0, inputs = 0, padded_inputs = 0;
  size_t block_bytes = 0;
  char* data = nullptr;

  int blocks() const { return (channels + kBlock - 1) / kBlock; }
  const char* block(int index) const { return data + index * block_bytes; }
  float numbers() const { return (float)channels * inputs; }
  size_t bytes() const { return blocks() * block_bytes; }

  static size_t bytes_of_block(Format format, int padded_inputs) {
    switch (format) {
      case Format::kFloat:
        return (size_t)padded_inputs * kBlock * 4;
      case Format::kBfloat:
        return (size_t)padded_inputs * kBlock * 2;
      default:
        return (size_t)padded_inputs / kSpan * span_bytes(format);
    }
  }

  static Matrix shaped(Format format, int channels, int inputs) {
    Matrix matrix;
    matrix.format = format;
    matrix.channels = channels;
    matrix.inputs = inputs;
    matrix.padded_inputs = (int)up_to(inputs, kMultiple);
    matrix.block_bytes = bytes_of_block(format, matrix.padded_inputs);
    return matrix;
  }

  static constexpr size_t bytes_of_numbers(Format format) {
    return (size_t)kSpan * kBlock / (format == Format::kInt4 ? 2 : 1);
  }
  static constexpr size_t span_bytes(Format format) {
    return bytes_of_numbers(format) + 2 * kBlock * sizeof(float) + (format == Format::kInt4 ? kBlock * 4 : 0);
  }

  // Write one channel's weights, float [padded_inputs].
  void set(int channel, const float* weights) const {
    char* block = data + channel / kBlock * block_bytes;
    const int lane = channel % kBlock;
    if (format == Format::kFloat) {
      float* to = reinterpret_cast<float*>(block);
      for (int k = 0; k < padded_inputs; k++) to[k * kBlock + lane] = weights[k];
    } else if (format == Format::kBfloat) {
      uint16_t* to = reinterpret_cast<uint16_t*>(block);
      for (int k = 0; k < padded_inputs; k += kLanes) {
        const Halves halves = to_bf16(load(weights + k));
        for (int i = 0; i < kLanes; i++) to[((k + i) / 2 * kBlock + lane) * 2 + i % 2] = halves[i];
      }
    } else {
      for (int group = 0; group < padded_inputs / kGroup; group++) {
        char* span = block + group / 2 * span_bytes(format);
        const float* from = weights + group * kGroup;
        const float scale = format == Format::kInt4 ? set_levels(span, group % 2, lane, from)
                                                    : set_bytes(span, group % 2, lane, from);
        std::memcpy(span + bytes_of_numbers(format) + (group % 2 * kBlock + lane) * 4, &scale, 4);
      }
    }
  }

 private:
  static float set_bytes(char* span, int half, int lane, const float* weights) {
    float largest = 0;
    for (int k = 0; k < kGroup; k++) largest = std::fmax(largest, std::fabs(weights[k]));
    const float inverse = largest > 0 ? 127 / largest : 0;
    for (int k = 0; k < kGroup; k++) {
      const int value = (int)std::nearbyint(weights[k] * inverse);
      span[(k / 4 * 2 + half) * kBlock * 4 + lane * 4 + k % 4] = (char)(uint8_t)(value + 128);
    }
    return largest / 127;
  }

  static float set_levels(char* span, int half, int lane, const float* weights) {
    const Levels levels = levels_of(weights).value_or(Levels{});
    for (int from = 0; from < kGroup; from += kLanes) {
      const Ints numbers = levels.of(load(weights + from));
      for (int i = 0; i < kLanes; i++) {
        char& both = span[((from + i) / 4 * kBlock + lane) * 4 + i % 4];
        both = (char)(half ? (both & 0x0f) | numbers[i] << 4 : (both & 0xf0) | numbers[i]);
      }
    }
    const uint16_t middle = to_bf16(levels.low + levels.step * (kLevels / 2));
    std::memcpy(span + bytes_of_numbers(Format::kInt4) + 2 * kBlock * 4 + lane * 4 + half * 2, &middle, 2);
    return levels.step / 16;
  }
};

// Activations [rows, inputs]. int8 rows have a scale for each span, and for each group their sum and what undoes the
// 128 in the weights.
class Rows {
 public:
  Rows() = default;
  Rows(Format format, int rows, int inputs) : format_(format), width_((int)up_to(inputs, kMultiple)) {
    row_bytes_ = (size_t)width_ * bytes_of(format);
    // Rows a power of two apart would all fall into the same few sets of the cache.
    if (row_bytes_ % 1024 == 0) row_bytes_ += 64;
    values_ = Memory((rows + kBeyond) * row_bytes_);
    std::memset(values_.get(), 0, values_.size());
    if (format == Format::kInt8) {
      scales_.assign((size_t)rows * spans(), 0);
      sums_.assign((size_t)rows * spans(), 0);
      offsets_.assign((size_t)rows * spans() * 2, 0);
    }
  }

  Format format() const { return format_; }
  int spans() const { return width_ / kSpan; }
  const char* row(int index) const { return values_.get() + index * row_bytes_; }
  size_t row_bytes() const { return row_bytes_; }
  const float* scales(int row) const { return scales_.data() + (size_t)row * spans(); }
  const uint32_t* sums(int row) const { return sums_.data() + (size_t)row * spans(); }  // pairs of bfloat16
  const int32_t* offsets(int row) const { return offsets_.data() + (size_t)row * spans() * 2; }

  // Write `count` inputs from `first` on; both are multiples of 16, in int8 of the span.
  void put(int row, int first, int count, const float* values) {
    char* to = values_.get() + row * row_bytes_;
    if (format_ == Format::kFloat) {
      std::memcpy(to + first * 4, values, (size_t)count * 4);
    } else if (format_ == Format::kBfloat) {
      for (int k = 0; k < count; k += kLanes) {
        const Halves halves = to_bf16(load(values + k));
        std::memcpy(to + (first + k) * 2, &halves, sizeof(halves));
      }
    } else {
      for (int k = 0; k < count; k += kSpan)
        put_span(row, (first + k) / kSpan, reinterpret_cast<int8_t*>(to) + first + k, values + k);
    }
  }

 private:
  void put_span(int row, int span, int8_t* to, const float* values) {
    const float high = largest_size(values, kSpan);
    const size_t at = (size_t)row * spans() + span;
    scales_[at] = high / 127;
    sums_[at] = 0;
    for (int group = 0; group < 2; group++) {
      const int32_t total = put_group(to + group * kGroup, values + group * kGroup, high > 0 ? 127 / high : 0);
      offsets_[2 * at + group] = -128 * total;
      sums_[at] |= (uint32_t)to_bf16((float)total) << 16 * group;
    }
  }

  static int32_t put_group(int8_t* to, const float* values, float inverse) {
    Ints total = Ints{};
    for (int k = 0; k < kGroup; k += kLanes) {
      const Ints value = rounded(load(values + k) * inverse);
      total += value;
      store_integers(to + k, value);
    }
    return sum(total);
  }

  Format format_ = Format::kFloat;
  int width_ = 0;
  size_t row_bytes_ = 0;
  Memory values_;
  std::vector<float> scales_;
  std::vector<uint32_t> sums_;
  std::vector<int32_t> offsets_;
};

}  // namespace loom
