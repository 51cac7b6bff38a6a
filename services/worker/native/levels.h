// Weights that their source stored in four bits, found again after they were rounded to bfloat16.
#pragma once

#include <cmath>
#include <optional>

namespace loom {

constexpr int kGroup = 32;   // inputs that share one scale of weights
constexpr int kLevels = 16;  // what four bits tell apart

// Weights of a group as low + step * (0 .. 15).
struct Levels {
  float low = 0, step = 0;

  int of(float weight) const { return step > 0 ? (int)std::nearbyint((weight - low) / step) : 0; }
};

// The line through the weights over their levels: rounding has moved both ends of the range too.
inline Levels closest(const Levels& levels, const float* weights) {
  float n = 0, weight = 0, squares = 0, products = 0;
  for (int k = 0; k < kGroup; k++) {
    n += levels.of(weights[k]) / (float)kGroup;
    weight += weights[k] / kGroup;
  }
  for (int k = 0; k < kGroup; k++) {
    const float off = levels.of(weights[k]) - n;
    squares += off * off;
    products += off * weights[k];
  }
  const float step = products / squares;
  return {weight - step * n, step};
}

// Levels that hold a group of weights to about what rounding to bfloat16 took away, if there are any: blocks of 32
// four-bit numbers with a scale and a minimum (Q4_1), or one of both (Q4_0, Q4_K), have them. The range of a group
// need not reach its first and last level.
inline std::optional<Levels> levels_of(const float* weights) {
  float low = weights[0], high = weights[0];
  for (int k = 1; k < kGroup; k++) {
    low = std::fmin(low, weights[k]);
    high = std::fmax(high, weights[k]);
  }
  if (low == high) return Levels{low, 0};
  const float tolerance = std::fmax(std::fabs(low), std::fabs(high)) / 128;
  for (int last = kLevels - 1; last > 0; last--) {
    const Levels levels{low, (high - low) / last};
    bool fits = true;
    for (int k = 0; fits && k < kGroup; k++)
      fits = std::fabs(levels.low + levels.step * levels.of(weights[k]) - weights[k]) <= tolerance;
    if (fits) return closest(levels, weights);
  }
  return std::nullopt;
}

}  // namespace loom
