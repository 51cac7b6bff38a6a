// One step of the model, every thread in the same program.
#pragma once

#include <memory>

#include "likeliest.h"
#include "product.h"
#include "step.h"
#include "team.h"

namespace loom {

// Numbers of one step between its phases.
struct Workspace {
  int capacity = 0, inner = 0;
  std::vector<float> residual, qkv, attended, out, cos, sin;
  Rows normed, attention, gated, last;
  std::vector<Likeliest> likeliest;  // [threads, sampled]
};

template <typename T>
class Forward {
 public:
  Forward(const ModelShape& shape, const std::vector<Layer>& layers, const std::vector<std::vector<float>>& ropes,
          Workspace& space, const Step& step, int share)
      : shape_(shape),
        layers_(layers),
        ropes_(ropes),
        space_(space),
        step_(step),
        input_(step.input),
        share_(step.shares[share]) {
    attention_ = {shape.head_dim, shape.page_size, shape.kv_heads, shape.attention_scale, shape.attention_cap};
    hidden_stride_ = (int)up_to(shape.hidden, kMultiple);
    qkv_stride_ = (int)up_to((shape.heads + 2 * shape.kv_heads) * shape.head_dim, kBlock);
  }

  static int phases(int layers) { return 4 + 9 * layers; }

  void run(Team::Walk& walk) const {
    const Tiles tiles(tile_depth(shape_.format));
    if (!by_token(walk, [&](int token) { begin(token); })) return;
    for (int index = 0; index < shape_.layers; index++)
      if (!layer(walk, index, tiles)) return;
    const Layer& last = layers_.back();
    const int first = share_.first_sampled, end = share_.end_sampled;
    if (!each(walk, first, end, [&](int at) { final_norm(last, at); })) return;
    multiply(walk, space_.last, first, end, last.matrices[kHead], [&](int row, int channel, const float* values) {
      put_logits(walk.thread(), row, channel, values);
    });
  }

  // The products of a share, of whatever the rows hold, and nothing else: what they cost alone.
  void products(Team::Walk& walk) const {
    const Tiles tiles(tile_depth(shape_.format));
    const auto drop = [](int, int, const float*) {};
    for (const Layer& layer : layers_)
      if (!multiply(walk, space_.normed, layer.matrices[kQkv], drop) ||
          !multiply(walk, space_.attention, layer.matrices[kAttentionOut], drop) ||
          !multiply<true>(walk, space_.normed, layer.matrices[kGateUp], drop) ||
          !multiply(walk, space_.gated, layer.matrices[kDown], drop))
        return;
    multiply(walk, space_.last, share_.first_sampled, share_.end_sampled, layers_.back().matrices[kHead], drop);
  }

 private:
  static constexpr int kRowsAtOnce = 96, kTiledRowsAtOnce = 256, kTokensAtOnce = 4, kTasksOfThread = 4, kMaxBlocks = 4;
  static constexpr size_t kRowBytesAtOnce = 1 << 20;
  static constexpr int kOutRows = kMostTile + 1;  // a power of two apart, results would meet in the cache

  template <int kAtOnce>
  static int chunks_of(int count) {
    return (count + kAtOnce - 1) / kAtOnce;
  }

  template <int kAtOnce = kTokensAtOnce, typename Task>
  static bool each(Team::Walk& walk, int first, int end, const Task& task) {
    return walk.phase(chunks_of<kAtOnce>(end - first), [&](int index) {
      const int from = first + index * kAtOnce, to = std::min(end, from + kAtOnce);
      for (int at = from; at < to; at++) task(at);
    });
  }

  template <typename Task>
  bool by_token(Team::Walk& walk, const Task& task) const {
    return each(walk, share_.first, share_.end, task);
  }

  template <bool kWide = false, typename Finish>
  bool multiply(Team::Walk& walk, const Rows& rows, const Matrix& matrix, const Finish& finish) const {
    return multiply<kWide>(walk, rows, share_.first, share_.end, matrix, finish);
  }

  // Rows that are multiplied by some weights while those are in the cache. On tiles that takes so little time that
  // the weights should come from memory once only, if half of the second-level cache holds the rows.
  static int rows_at_once(Format format, size_t row_bytes) {
    return has_tiles(format) ? std::clamp((int)(kRowBytesAtOnce / row_bytes), kMostTile, kTiledRowsAtOnce) : kRowsAtOnce;
  }

  // Multiply rows by a matrix; finish(row, channel, values) takes 32 * kMaxBlocks channels at a time, or 32.
  template <bool kWide = false, typename Finish>
  bool multiply(Team::Walk& walk, const Rows& rows, int first_row, int end_row, const Matrix& matrix,
                const Finish& finish) const {
    const int blocks = matrix.blocks();
    const int together = kWide ? kMaxBlocks : blocks > 256 ? kMaxBlocks : 1;
    const int units = (blocks + together - 1) / together;
    const int tile = tile_of(matrix.format), at_once = rows_at_once(matrix.format, rows.row_bytes());
    const int chunks = (end_row - first_row + at_once - 1) / at_once;
    const int next = together * stride();
    return walk.phase(units * chunks, [&](int index) {
      const int first = first_row + index / units * at_once, end = std::min(end_row, first + at_once);
      const int first_block = index % units * together, end_block = std::min(blocks, first_block + together);
      const int passes = (end - first + tile - 1) / tile;
      // A tile takes as long for a few rows; elsewhere passes of about as many rows each are the fastest.
      const int step = has_tiles(matrix.format) ? tile : (end - first + passes - 1) / passes;
      if constexpr (kWide) {
        alignas(64) float out[kMaxBlocks][kOutRows][kBlock];
        for (int row = first, pass = 0; row < end; row += step, pass++) {
          const int here = std::min(step, end - row);
          for (int block = first_block; block < end_block; block++)
            product(rows, row, here, matrix, block, {matrix.block(block + next), pass, passes},
                    out[block - first_block][0]);
          for (int r = 0; r < here; r++) finish(row + r, first_block * kBlock, &out[0][r][0]);
        }
      } else {
        alignas(64) float out[kOutRows][kBlock];
        for (int block = first_block; block < end_block; block++)
          for (int row = first, pass = 0; row < end; row += step, pass++) {
            const int here = std::min(step, end - row);
            product(rows, row, here, matrix, block, {matrix.block(block + next), pass, passes}, out[0]);
            for (int r = 0; r < here; r++) finish(row + r, block * kBlock, out[r]);
          }
      }
    });
  }

  bool layer(Team::Walk& walk, int index, const Tiles& tiles) const {
    const Layer& layer = layers_[index];
    const Layer* before = index ? &layers_[index - 1] : nullptr;
    if (!by_token(walk, [&](int token) {
          if (before) join(token, before->vector(kMlpOutNorm));
          norm(token, layer.vector(kAttentionNorm));
        }))
      return false;
    const float* bias = layer.vector(kQkvBias);
    if (!multiply(walk, space_.normed, layer.matrices[kQkv], [&](int row, int channel, const float* values) {
          put(&space_.qkv[(size_t)row * qkv_stride_ + channel], values, bias ? bias + channel : nullptr);
        }))
      return false;
    tiles.for_pages();
    if (!attention(walk, index)) return false;
    tiles.after_pages();
    return residual(walk, space_.attention, layer.matrices[kAttentionOut], layer.vector(kAttentionOutBias),
                    layer.vector(kAttentionOutNorm)) &&
           by_token(walk,
                    [&](int token) {
                      join(token, layer.vector(kAttentionOutNorm));
                      norm(token, layer.vector(kMlpNorm));
                    }) &&
           gate_up(walk, layer) &&
           residual(walk, space_.gated, layer.matrices[kDown], layer.vector(kDownBias), layer.vector(kMlpOutNorm));
  }

  bool attention(Team::Walk& walk, int index) const {
    const Layer& layer = layers_[index];
    const int dim = shape_.head_dim;
    const std::vector<int>& shared = share_.shared_tokens;
    // So many that threads seldom write to one run of a page, whose lines then go to and fro.
    constexpr int at_once = kLanes;
    if (!each<at_once>(walk, 0, (int)shared.size(), [&](int at) {
          const int token = shared[at], row = row_of(token);
          for (int head = 0; head < shape_.heads; head++) turn(layer, token, head_of(token, head), kQueryNorm);
          for (int head = 0; head < shape_.kv_heads; head++) write(index, row, token, head);
        }))
      return false;
    for (int share = share_.waits_for; share < walk.share(); share++)
      if (!walk.after(share, chunks_of<at_once>((int)step_.shares[share].shared_tokens.size()))) return false;
    const bool direct = shape_.format != Format::kInt8 || dim % kSpan == 0;
    const std::vector<QueryTile>& tiles = share_.tiles;
    const int count = (int)tiles.size(), together = tiles_together(), next = stride() * together;
    if (!walk.phase((count + together - 1) / together, [&](int task) {
          const int first = task * together, end = std::min(count, first + together);
          for (int at = first; at < end; at++) {
            const int then = at + 1 < end ? at + 1 : first + next;
            attend_tile(index, tiles[at], then < count ? &tiles[then] : nullptr, direct);
          }
        }))
      return false;
    if (direct) return true;
    return by_token(walk, [&](int token) {
      const int width = (int)up_to(shape_.heads * dim, kMultiple);
      space_.attention.put(token, 0, width, &space_.attended[(size_t)token * width]);
    });
  }

  // What a thread that takes task i of a phase most likely takes next is task i + stride.
  int stride() const { return step_.shares.size() > 1 ? 1 : shape_.threads; }

  // Tiles of a task: the heads of a row one after the other, as they lie in its pages, unless threads would idle.
  int tiles_together() const {
    return std::clamp((int)share_.tiles.size() / (kTasksOfThread * shape_.threads), 1, (int)shape_.kv_heads);
  }

  // What a token sees.
  Span span_of(int index, int token) const {
    const int end = (int)input_.positions[token] + 1, window = layers_[index].window;
    return {window ? std::max(0, end - window) : 0, end};
  }

  void attend_tile(int index, const QueryTile& tile, const QueryTile* next, bool direct) const {
    static thread_local std::unique_ptr<AttentionScratch<T>> scratch(new AttentionScratch<T>);
    const Layer& layer = layers_[index];
    const int dim = shape_.head_dim, group = shape_.heads / shape_.kv_heads;
    const int first_token = step_.first_token[tile.row], count = (int)input_.counts[tile.row];
    const PagedHead<T> kv = paged(index, tile.row, tile.kv_head);
    const bool single = count == 1;
    if (single) write(index, tile.row, first_token, tile.kv_head);
    Span spans[kQueryTile];
    for (int r = 0; r < tile.count; r++) {
      const int token = first_token + (tile.first + r) / group;
      const int head = tile.kv_head * group + (tile.first + r) % group;
      if (single) turn(layer, token, head_of(token, head), kQueryNorm);
      scratch->query_scales[r] = put_numbers(&scratch->queries[r * dim], head_of(token, head), dim);
      spans[r] = span_of(index, token);
    }
    alignas(64) static thread_local float out[kQueryTile * kMostHeadDim];
    std::optional<Context<T>> coming;
    if (next)
      coming.emplace(paged(index, next->row, next->kv_head),
                     span_of(index, step_.first_token[next->row] + next->first / group));
    attend(*scratch, kv, tile.count, spans, coming, out);
    const int width = (int)up_to(shape_.heads * dim, kMultiple);
    for (int r = 0; r < tile.count; r++) {
      const int token = first_token + (tile.first + r) / group;
      const int head = tile.kv_head * group + (tile.first + r) % group;
      if (direct)
        space_.attention.put(token, head * dim, dim, out + r * dim);
      else
        std::memcpy(&space_.attended[(size_t)token * width + head * dim], out + r * dim, dim * sizeof(float));
    }
  }

  bool gate_up(Team::Walk& walk, const Layer& layer) const {
    const float* bias = layer.vector(kGateUpBias);
    return multiply<true>(walk, space_.normed, layer.matrices[kGateUp],
                          [&](int row, int channel, const float* values) {
                            alignas(64) float gated[kGatedUnit];
                            for (int block = 0; block < kMaxBlocks; block++) {
                              const float* at = values + block * kOutRows * kBlock;
                              Vec gate = load(at), up = load(at + kLanes);
                              if (bias) {
                                gate += load(bias + channel + block * kBlock);
                                up += load(bias + channel + block * kBlock + kLanes);
                              }
                              gate = shape_.activation == Activation::kSilu ? silu(gate) : gelu(gate);
                              store(gated + block * kLanes, gate * up);
                            }
                            space_.gated.put(row, channel / 2, kGatedUnit, gated);
                          });
  }

  // The product joins the residual stream at once, or waits in `out` to be normed first.
  bool residual(Team::Walk& walk, const Rows& rows, const Matrix& matrix, const float* bias, const float* normed) const {
    return multiply(walk, rows, matrix, [&](int row, int channel, const float* values) {
      const size_t at = (size_t)row * hidden_stride_ + channel;
      const float* offset = bias ? bias + channel : nullptr;
      if (normed)
        put(&space_.out[at], values, offset);
      else
        add(&space_.residual[at], values, offset);
    });
  }

  static void put(float* to, const float* values, const float* bias) {
    for (int i = 0; i < kBlock; i += kLanes) store(to + i, bias ? load(values + i) + load(bias + i) : load(values + i));
  }

  static void add(float* to, const float* values, const float* bias) {
    for (int i = 0; i < kBlock; i += kLanes)
      store(to + i, load(to + i) + (bias ? load(values + i) + load(bias + i) : load(values + i)));
  }

  void begin(int token) const {
    float* row = &space_.residual[(size_t)token * hidden_stride_];
    const size_t first = (size_t)input_.token_ids[token] * shape_.hidden;
    for (int i = 0; i < shape_.hidden; i++)
      row[i] = (shape_.embedding_stored == Stored::kFloat ? static_cast<const float*>(shape_.embedding)[first + i]
                                                          : from_bf16(static_cast<const uint16_t*>(shape_.embedding)[first + i])) *
               shape_.embedding_scale;
    const int half = shape_.head_dim / 2;
    const float position = (float)input_.positions[token];
    for (size_t rope = 0; rope < ropes_.size(); rope++)
      for (int i = 0; i < half; i++) {
        const size_t at = (rope * input_.tokens + token) * half + i;
        const float angle = position * ropes_[rope][i];
        space_.cos[at] = std::cos(angle);
        space_.sin[at] = std::sin(angle);
      }
  }

  // What undoes the size of `count` numbers.
  float scale_of(const float* values, int count) const {
    Vec squares = Vec{};
    for (int i = 0; i < count; i += kLanes) squares = fma(load(values + i), load(values + i), squares);
    return 1 / std::sqrt(sum(squares) / count + shape_.norm_epsilon);
  }

  void join(int token, const float* weight) const {
    if (!weight) return;
    float *row = &space_.residual[(size_t)token * hidden_stride_], *out = &space_.out[(size_t)token * hidden_stride_];
    const float scale = scale_of(out, shape_.hidden);
    for (int i = 0; i < shape_.hidden; i += kLanes)
      store(row + i, load(row + i) + load(out + i) * scale * load(weight + i));
  }

  void norm(int token, const float* weight) const { norm(token, weight, space_.normed, token); }

  void norm(int token, const float* weight, Rows& rows, int to) const {
    static thread_local std::vector<float> normed;
    normed.resize(hidden_stride_);
    const float* row = &space_.residual[(size_t)token * hidden_stride_];
    const float scale = scale_of(row, shape_.hidden);
    for (int i = 0; i < shape_.hidden; i += kLanes) store(&normed[i], load(row + i) * scale * load(weight + i));
    for (int i = shape_.hidden; i < hidden_stride_; i++) normed[i] = 0;
    rows.put(to, 0, hidden_stride_, normed.data());
  }

  void final_norm(const Layer& last, int at) const {
    const int token = (int)input_.sampled_at[at];
    join(token, last.vector(kMlpOutNorm));
    norm(token, last.vector(kFinalNorm), space_.last, at);
  }

  void put_logits(int thread, int row, int channel, const float* values) const {
    const bool wanted = !input_.wanted || input_.wanted[row];
    Likeliest& likeliest = space_.likeliest[(size_t)thread * input_.sampled + row];
    float* to = input_.logits + (size_t)row * shape_.vocabulary + channel;
    for (int i = 0; i < kBlock && channel + i < shape_.vocabulary; i += kLanes) {
      Vec logits = load(values + i);
      if (shape_.logit_cap > 0) logits = tanh(logits / shape_.logit_cap) * shape_.logit_cap;
      const int fit = std::min(kLanes, shape_.vocabulary - channel - i);
      // Channels that only pad are made like the first, which comes before them.
      if (fit < kLanes)
        for (int lane = fit; lane < kLanes; lane++) logits[lane] = logits[0];
      likeliest.see(logits, channel + i);
      if (wanted && fit == kLanes)
        store(to + i, logits);
      else if (wanted)
        std::memcpy(to + i, &logits, fit * sizeof(float));
    }
  }

  int row_of(int token) const {
    return (int)(std::upper_bound(step_.first_token.begin(), step_.first_token.end(), token) - step_.first_token.begin()) - 1;
  }

  PagedHead<T> paged(int layer, int row, int head) const {
    const char* pool = static_cast<const char*>(shape_.pool) + layer * shape_.layer_bytes;
    return {pool, input_.page_tables + (size_t)row * input_.table_width, attention_, head};
  }

  float* head_of(int token, int head) const {
    return &space_.qkv[(size_t)token * qkv_stride_ + head * shape_.head_dim];
  }

  // Norm and rotate one query or key head where it lies.
  void turn(const Layer& layer, int token, float* numbers, VectorKind kind) const {
    const int dim = shape_.head_dim, half = dim / 2;
    if (const float* weight = layer.vector(kind)) {
      const float scale = scale_of(numbers, dim);
      for (int i = 0; i < dim; i += kLanes) store(numbers + i, load(numbers + i) * scale * load(weight + i));
    }
    const size_t at = ((size_t)layer.rope * input_.tokens + token) * half;
    const float *cos = &space_.cos[at], *sin = &space_.sin[at];
    int i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const Vec low = load(numbers + i), high = load(numbers + i + half), c = load(cos + i), s = load(sin + i);
      store(numbers + i, low * c - high * s);
      store(numbers + i + half, high * c + low * s);
    }
    for (; i < half; i++) {
      const float low = numbers[i], high = numbers[i + half];
      numbers[i] = low * cos[i] - high * sin[i];
      numbers[i + half] = high * cos[i] + low * sin[i];
    }
  }

  void write(int index, int row, int token, int head) const {
    const int dim = shape_.head_dim;
    // A copy is turned: where a KV head has more queries than a tile, each of its tiles comes here.
    alignas(64) float key[kMostHeadDim];
    std::memcpy(key, head_of(token, shape_.heads + head), dim * sizeof(float));
    turn(layers_[index], token, key, kKeyNorm);
    const float* value = head_of(token, shape_.heads + shape_.kv_heads + head);
    write_kv(paged(index, row, head), (int)input_.positions[token], key, value);
  }

  const ModelShape& shape_;
  const std::vector<Layer>& layers_;
  const std::vector<std::vector<float>>& ropes_;
  Workspace& space_;
  const Step& step_;
  const StepInput& input_;
  const Share& share_;
  AttentionShape attention_;
  int hidden_stride_, qkv_stride_;
};

}  // namespace loom
