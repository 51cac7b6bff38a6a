// Weights that their source stored in four bits, found again after they were rounded to bfloat16.
#pragma once

#include <algorithm>
#include <optional>

#include "simd.h"

namespace loom {

constexpr int kGroup = 2 * kLanes;  // inputs that share one scale of weights
constexpr int kLevels = 16;         // what four bits tell apart

struct Group {
  Vec first, second;

  explicit Group(const float* weights) : first(load(weights)), second(load(weights + kLanes)) {}
  float lowest() const { return -most(larger(-first, -second)); }
  float highest() const { return most(larger(first, second)); }
};

// Weights of a group as low + step * (0 .. 15).
struct Levels {
  float low = 0, step = 0;

  Ints of(Vec weights) const { return step > 0 ? rounded((weights - low) / step) : Ints{}; }

  bool hold(Vec weights, float tolerance) const {
    return sum(magnitude(low + step * to_float(of(weights)) - weights) <= tolerance) == -kLanes;
  }

  // The line through the weights over these levels: rounding has moved both ends of the range too.
  Levels closest(const Group& group) const {
    const Vec first = to_float(of(group.first)), second = to_float(of(group.second));
    const float level = sum(first + second) / kGroup, weight = sum(group.first + group.second) / kGroup;
    const Vec first_off = first - level, second_off = second - level;
    const float products = sum(first_off * group.first + second_off * group.second);
    const float slope = products / sum(first_off * first_off + second_off * second_off);
    return {weight - slope * level, slope};
  }
};

// Levels that hold a group of weights to about what rounding to bfloat16 took away, if there are any: blocks of 32
// four-bit numbers with a scale and a minimum (Q4_1), or one of both (Q4_0, Q4_K), have them. The range of a group
// need not reach its first and last level.
inline std::optional<Levels> levels_of(const float* weights) {
  const Group group(weights);
  const float low = group.lowest(), high = group.highest();
  if (low == high) return Levels{low, 0};
  const float tolerance = std::max(std::fabs(low), std::fabs(high)) / 128;
  for (int last = kLevels - 1; last > 0; last--) {
    const Levels levels{low, (high - low) / last};
    if (levels.hold(group.first, tolerance) && levels.hold(group.second, tolerance)) return levels.closest(group);
  }
  return std::nullopt;
}

}  // namespace loom
