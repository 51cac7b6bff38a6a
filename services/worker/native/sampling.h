// Drawing one token of each row from its logits, exactly: of the tokens kept, the one whose exponential clock rings
// first, which is the one with the largest Gumbel-perturbed logit. Nothing is sorted but one bin of a histogram.
#pragma once

#include <algorithm>
#include <vector>

#include "simd.h"
#include "team.h"

namespace loom {

// Mirrored in services/worker/engine/native/library.py; arrays of [rows], logits [rows, vocabulary].
struct SampleInput {
  int32_t rows, vocabulary;
  const float* logits;
  const double *temperature, *top_p, *min_p;
  const int64_t* top_k;
  const uint64_t* keys;
  const uint8_t* finite;
  int64_t* token_ids;  // at first the likeliest, which greedy rows keep
};

namespace detail {

// As services/worker/engine/noise.py.
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;
// As GREEDY_BELOW of services/worker/engine/sampling.py: logits of greedy rows may not be written.
constexpr double kGreedyBelow = 1e-5;

inline uint64_t mixed(uint64_t state) {
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
  return state ^ (state >> 31);
}

// In (0, 1).
inline double uniform(uint64_t key, int token) {
  const uint64_t bits = mixed(key + ((uint64_t)token + 1) * kGolden);
  return ((double)(bits >> 11) + 0.5) * 0x1.0p-53;
}

// Tokens in order of their logits, equal ones by id: where the kept ones end.
struct Cut {
  float logit = -std::numeric_limits<float>::infinity();
  int token = std::numeric_limits<int>::max();

  bool keeps(float other, int id) const { return other > logit || (other == logit && id <= token); }
};

// One row's logits relative to the likeliest and over the temperature, and their exponentials.
class Row {
 public:
  Row(const float* logits, int vocabulary, float high, float temperature) : vocabulary_(vocabulary) {
    static thread_local std::vector<float> space;
    const size_t padded = (size_t)(vocabulary + kLanes - 1) / kLanes * kLanes;
    space.resize(2 * padded);
    logits_ = space.data();
    weights_ = logits_ + padded;
    std::memcpy(logits_, logits, vocabulary * sizeof(float));
    std::fill(logits_ + vocabulary, logits_ + padded, -std::numeric_limits<float>::infinity());
    for (size_t i = 0; i < padded; i += kLanes) {
      const Vec relative = (load(logits_ + i) - high) / temperature;
      store(logits_ + i, relative);
      store(weights_ + i, exp(relative));
    }
  }

  double mass(const Cut& cut) const {
    double total = 0;
    for (int i = 0; i < vocabulary_; i++) total += cut.keeps(logits_[i], i) ? weights_[i] : 0;
    return total;
  }

  // Keep a token as long as before(count, mass) holds of those before it; the first is kept whatever it says.
  template <typename Before>
  void shorten(Cut& cut, const Before& before) const {
    int counts[kBins] = {};
    double masses[kBins] = {};
    for (int i = 0; i < vocabulary_; i++) {
      if (!cut.keeps(logits_[i], i)) continue;
      const int bin = bin_of(logits_[i]);
      counts[bin]++;
      masses[bin] += weights_[i];
    }
    int bin = 0, count = 0;
    double mass = 0;
    for (; bin < kBins && before(count + counts[bin], mass + masses[bin]); bin++) {
      count += counts[bin];
      mass += masses[bin];
    }
    std::vector<int> members;
    for (int i = 0; bin < kBins && i < vocabulary_; i++)
      if (bin_of(logits_[i]) == bin && cut.keeps(logits_[i], i)) members.push_back(i);
    std::sort(members.begin(), members.end(), [&](int a, int b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    });
    for (const int token : members) {
      if (count && !before(count, mass)) break;
      cut = {logits_[token], token};
      mass += weights_[token];
      count++;
    }
  }

  int draw(const Cut& cut, double min_p, uint64_t key) const {
    int best = 0;
    double first = std::numeric_limits<double>::infinity();
    for (int from = 0; from < vocabulary_; from += kLanes) {
      double uniforms[kLanes];
      for (int i = 0; i < kLanes; i++) uniforms[i] = uniform(key, from + i);
      for (int i = 0; i < kLanes; i++) {
        const double weight = weights_[from + i];
        // -log(u) is at least 1 - u: most tokens are late without a logarithm.
        if (!(1 - uniforms[i] < first * weight) || weight < min_p) continue;
        if (!cut.keeps(logits_[from + i], from + i)) continue;
        const double rings = -std::log(uniforms[i]) / weight;
        if (rings < first) {
          first = rings;
          best = from + i;
        }
      }
    }
    return best;
  }

 private:
  static constexpr int kBins = 1024;

  static int bin_of(float logit) { return logit > -31.0f ? (int)(logit * -(kBins / 32)) : kBins - 1; }

  const int vocabulary_;
  float *logits_, *weights_;
};

}  // namespace detail

inline void sample(const SampleInput& input, int row) {
  const double temperature = input.temperature[row];
  if (!input.finite[row] || temperature < detail::kGreedyBelow) return;
  const float* logits = input.logits + (size_t)row * input.vocabulary;
  const detail::Row scaled(logits, input.vocabulary, logits[input.token_ids[row]], (float)temperature);
  detail::Cut cut;
  const int64_t top_k = input.top_k[row];
  if (top_k > 0 && top_k < input.vocabulary)
    scaled.shorten(cut, [&](int count, double) { return count < top_k; });
  if (input.top_p[row] < 1) {
    const double all = scaled.mass(cut);
    scaled.shorten(cut, [&](int, double mass) { return mass < input.top_p[row] * all; });
  }
  input.token_ids[row] = scaled.draw(cut, input.min_p[row], input.keys[row]);
}

}  // namespace loom
