// What one step is to do, and how its tokens are shared out among threads.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "model.h"
#include "product.h"

namespace loom {

// Mirrored in services/worker/engine/native/library.py; fields as in services/worker/engine/batch.py.
struct StepInput {
  int32_t tokens, rows, sampled, table_width;
  const int64_t *token_ids, *positions, *counts, *page_tables, *sampled_at;
  const uint8_t* wanted;  // of each sampled token, whether its logits are to be written; all are, where it is null
  float* logits;
  int64_t* likeliest;
  uint8_t* finite;
};

// Queries of one sequence and one KV head, numbered token by token, head by head.
struct QueryTile {
  int row, kv_head, first, count;
};

// Tokens in a row that one thread begins with, and what is to do of them.
struct Share {
  int first = 0, end = 0, first_sampled = 0, end_sampled = 0;
  int waits_for = 0;               // first of the shares whose keys this one reads; its own number if there are none
  std::vector<int> shared_tokens;  // tokens whose keys other tasks of the step read
  std::vector<QueryTile> tiles;
};

struct Step {
  StepInput input;
  std::vector<int> first_token;  // of each row
  std::vector<Share> shares;
};

class Planner {
 public:
  Planner(const ModelShape& shape, const std::vector<Layer>& layers) : shape_(shape), layers_(layers) {}

  Step plan(const StepInput& input) const {
    Step step;
    step.input = input;
    for (int row = 0, token = 0; row < input.rows; token += (int)input.counts[row++]) step.first_token.push_back(token);
    share_out(step);
    for (Share& share : step.shares) list_tasks(step, share);
    return step;
  }

 private:
  // Tokens that each thread needs of its own for each thread and, but on tiles, for each byte of a weight: with fewer,
  // reading the weights once for every thread takes longer than computing does. Measured with two.
  static constexpr int kTokensOfShare = 2, kTokensOfTiledShare = 40;
  // Numbers of products that take as long as fetching one number of keys or values from memory.
  static constexpr float kReading = 24;

  // Cut the tokens into one share for each thread, of about the same work, if there are enough of them.
  void share_out(Step& step) const {
    const StepInput& input = step.input;
    const int threads = shape_.threads;
    const bool tiled = on_tiles(shape_.format, input.tokens);
    const int least = tiled ? kTokensOfTiledShare : kTokensOfShare * bytes_of(shape_.format);
    const int most = input.tokens >= least * threads * threads ? threads : 1;
    const std::vector<float> work = work_of(input);
    const float all = std::accumulate(work.begin(), work.end(), 0.0f);
    float done = 0;
    step.shares.resize(1);
    for (int token = 0; token < input.tokens; token++) {
      Share& share = step.shares.back();
      share.end = token + 1;
      done += work[token];
      const int count = (int)step.shares.size();
      if (count == most || token + 1 == input.tokens || done < all * count / most) continue;
      step.shares.emplace_back();
      step.shares.back().first = token + 1;
    }
    for (Share& share : step.shares) {
      const int64_t *sampled = input.sampled_at, *end = sampled + input.sampled;
      share.first_sampled = (int)(std::lower_bound(sampled, end, share.first) - sampled);
      share.end_sampled = (int)(std::lower_bound(sampled, end, share.end) - sampled);
    }
  }

  // Of each token, in numbers of products. Tokens of one row read its keys and values together.
  std::vector<float> work_of(const StepInput& input) const {
    float products = 0;
    for (const Layer& layer : layers_)
      for (int kind = kQkv; kind < kHead; kind++) products += layer.matrices[kind].numbers();
    const float position = 2.0f * shape_.layers * shape_.kv_heads * shape_.head_dim;
    std::vector<float> work;
    for (int row = 0; row < input.rows; row++)
      for (int i = 0; i < input.counts[row]; i++) {
        const float reading = input.counts[row] > 1 ? 1 : kReading;
        work.push_back(products + reading * position * (input.positions[work.size()] + 1));
      }
    for (int at = 0; at < input.sampled; at++) work[input.sampled_at[at]] += layers_.back().matrices[kHead].numbers();
    return work;
  }

  // Rows of many tokens come first, their last tiles, which see most, before the others.
  void list_tasks(const Step& step, Share& share) const {
    const StepInput& input = step.input;
    const int group = shape_.heads / shape_.kv_heads;
    const auto own = (int)(&share - step.shares.data());
    share.waits_for = own;
    for (const bool many : {true, false})
      for (int row = 0; row < input.rows; row++) {
        const int begin = step.first_token[row], count = (int)input.counts[row];
        const int first = std::max(begin, share.first), end = std::min(begin + count, share.end);
        if ((count > 1) != many || first >= end) continue;
        if (many) {
          for (int token = first; token < end; token++) share.shared_tokens.push_back(token);
          while (step.shares[share.waits_for].first > begin) share.waits_for--;
        }
        const int low = (first - begin) * group, high = (end - begin) * group;
        for (int from = low + (high - low - 1) / kQueryTile * kQueryTile; from >= low; from -= kQueryTile)
          for (int head = 0; head < shape_.kv_heads; head++)
            share.tiles.push_back({row, head, from, std::min(kQueryTile, high - from)});
      }
  }

  const ModelShape& shape_;
  const std::vector<Layer>& layers_;
};

}  // namespace loom
