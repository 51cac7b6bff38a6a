// A decoder-only transformer as the engine was told it, with its packed weights.
#pragma once

#include <map>
#include <vector>

#include "attention.h"
#include "matrix.h"

namespace loom {

enum class Activation : int { kSilu = 0, kGelu = 1 };

// Mirrored in services/worker/engine/native/library.py.
struct ModelShape {
  int32_t hidden, heads, kv_heads, head_dim, layers, vocabulary, page_size, threads;
  Format format;
  Activation activation;
  Stored embedding_stored;
  float norm_epsilon, embedding_scale, attention_scale, attention_cap, logit_cap;
  const void* embedding;
  void* pool;
  int64_t layer_bytes;  // of one layer of the pool
};

enum MatrixKind : int { kQkv, kAttentionOut, kGateUp, kDown, kHead, kMatrixKinds };
enum VectorKind : int {
  kAttentionNorm,
  kQueryNorm,
  kKeyNorm,
  kAttentionOutNorm,
  kMlpNorm,
  kMlpOutNorm,
  kQkvBias,
  kAttentionOutBias,
  kGateUpBias,
  kDownBias,
  kFinalNorm,
  kVectorKinds
};

struct Layer {
  int inner = 0, rope = 0, window = 0;  // no window: 0
  Matrix matrices[kMatrixKinds];
  std::vector<float> vectors[kVectorKinds];

  const float* vector(VectorKind kind) const { return vectors[kind].empty() ? nullptr : vectors[kind].data(); }
};

// Hands out runs of memory that live as long as it does.
class Arena {
 public:
  char* take(size_t bytes) {
    bytes = up_to(bytes, 64);
    if (chunks_.empty() || used_ + bytes > chunks_.back().size()) {
      chunks_.emplace_back(std::max(bytes, kChunk));
      used_ = 0;
    }
    char* taken = chunks_.back().get() + used_;
    used_ += bytes;
    return taken;
  }

 private:
  static constexpr size_t kChunk = 32 << 20;
  std::vector<Memory> chunks_;
  size_t used_ = 0;
};

// Gate and up channels alternate in runs of 16, so that one pass yields both halves of a gated product. A unit of
// four blocks is 64 of each.
constexpr int kGatedUnit = 64;

inline int gated_channels(int inner) { return 2 * (int)up_to(inner, kGatedUnit); }

}  // namespace loom
