// The likeliest token of a row, found while the row's logits are computed.
#pragma once

#include "simd.h"

namespace loom {

// Of those logits that one thread has seen, in the order of their tokens.
class Likeliest {
 public:
  // Sixteen tokens from `first` on.
  void see(Vec logits, int first) {
    const Ints finite = logits - logits == 0.0f;
    if (any(~(finite & (logits <= logit_)))) look(logits, first);
  }

  // What another thread has seen of the row; of equal logits the first token's counts.
  void join(const Likeliest& other) {
    finite_ &= other.finite_;
    if (other.logit_ < logit_ || (other.logit_ == logit_ && other.token_ >= token_)) return;
    logit_ = other.logit_;
    token_ = other.token_;
  }

  int token() const { return token_; }
  bool finite() const { return finite_; }

 private:
  [[gnu::noinline]] void look(Vec logits, int first) {
    for (int i = 0; i < kLanes; i++) {
      const float logit = logits[i];
      finite_ &= logit - logit == 0;
      if (!(logit > logit_)) continue;
      logit_ = logit;
      token_ = first + i;
    }
  }

  float logit_ = -std::numeric_limits<float>::infinity();
  int token_ = 0;
  bool finite_ = true;
};

}  // namespace loom
