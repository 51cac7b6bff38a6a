// The interface that services/worker/engine/native/library.py calls.
#include "forward.h"
#include "sampling.h"

using namespace loom;

namespace {

// A weight [rows, inputs] as it lies in its file.
struct Source {
  const void* data;
  Stored stored;
  int rows, inputs;

  void read(int row, float* to) const {
    const size_t at = (size_t)row * inputs;
    if (stored == Stored::kFloat) {
      std::memcpy(to, static_cast<const float*>(data) + at, inputs * sizeof(float));
    } else {
      const uint16_t* from = static_cast<const uint16_t*>(data) + at;
      for (int k = 0; k < inputs; k++) to[k] = from_bf16(from[k]);
    }
  }
};

class Model {
 public:
  explicit Model(const ModelShape& shape)
      : shape_(shape),
        layers_(shape.layers),
        team_(new Team(shape.threads, std::max(Forward<float>::phases(shape.layers), 8))) {}

  void set_layer(int index, int inner, int rope, int window) {
    layers_[index].inner = inner;
    layers_[index].rope = rope;
    layers_[index].window = window;
  }

  void add_rope(const float* frequencies) {
    ropes_.emplace_back(frequencies, frequencies + shape_.head_dim / 2);
  }

  void set_vector(int layer, int kind, const float* values, int count, int padded) {
    auto& vector = layers_[layer].vectors[kind];
    vector.assign(padded, 0);
    std::copy(values, values + count, vector.begin());
  }

  void shape_matrix(int layer, int kind, Format format, int channels, int inputs) {
    Matrix& matrix = layers_[layer].matrices[kind];
    matrix = Matrix::shaped(format, channels, inputs);
    matrix.data = arena_.take(matrix.bytes());
    // Channels that only pad must weigh nothing; all of them lie in the last unit.
    const int first = std::max(0, matrix.blocks() - kGatedUnit * 2 / kBlock);
    std::memset(matrix.data + first * matrix.block_bytes, 0, (matrix.blocks() - first) * matrix.block_bytes);
  }

  // Source channel c goes to channel first + c / 16 * spread + c % 16.
  void pack(int layer, int kind, const Source& source, int first, int spread) {
    const Matrix matrix = layers_[layer].matrices[kind];
    by_channel(source, [=](int c, const float* weights) {
      matrix.set(first + c / kLanes * spread + c % kLanes, weights);
    });
  }

  bool in_levels(const Source& source) {
    std::atomic<bool> fits = true;
    by_channel(source, [&](int, const float* weights) {
      for (int k = 0; fits && k < source.inputs; k += kGroup)
        if (!levels_of(weights + k)) fits = false;
    });
    return fits;
  }

  void step(const StepInput& input) {
    space_.likeliest.assign((size_t)shape_.threads * input.sampled, {});
    run(planned(input), [](const auto& forward, Team::Walk& walk) { forward.run(walk); });
    for (int row = 0; row < input.sampled; row++) {
      Likeliest all;
      for (int thread = 0; thread < shape_.threads; thread++) all.join(space_.likeliest[thread * input.sampled + row]);
      input.likeliest[row] = all.token();
      input.finite[row] = all.finite();
    }
  }

  void products(int rows) {
    const std::vector<int64_t> zeros(rows, 0), ones(rows, 1);
    std::vector<int64_t> all(rows);
    std::iota(all.begin(), all.end(), 0);
    StepInput input{};
    input.tokens = input.rows = input.sampled = rows;
    input.positions = zeros.data();
    input.counts = ones.data();
    input.sampled_at = all.data();
    run(planned(input), [](const auto& forward, Team::Walk& walk) { forward.products(walk); });
  }

  void draw(const SampleInput& input) {
    team_->run([input](Team::Walk& walk) { walk.phase(input.rows, [&](int row) { sample(input, row); }); });
  }

 private:
  template <typename Program>
  void run(std::shared_ptr<Step> step, const Program& program) {
    team_->run(
        [this, step, program](Team::Walk& walk) {
          if (shape_.format == Format::kFloat)
            program(Forward<float>(shape_, layers_, ropes_, space_, *step, walk.share()), walk);
          else if (shape_.format == Format::kBfloat)
            program(Forward<uint16_t>(shape_, layers_, ropes_, space_, *step, walk.share()), walk);
          else
            program(Forward<int8_t>(shape_, layers_, ropes_, space_, *step, walk.share()), walk);
        },
        (int)step->shares.size());
  }

  // Every thread takes some channels, as floats, padded with zeros.
  template <typename Task>
  void by_channel(const Source& source, const Task& task) {
    team_->run([=](Team::Walk& walk) {
      constexpr int chunk = 64;
      walk.phase((source.rows + chunk - 1) / chunk, [&](int index) {
        std::vector<float> weights(up_to(source.inputs, kMultiple), 0);
        for (int c = index * chunk; c < std::min(source.rows, (index + 1) * chunk); c++) {
          source.read(c, weights.data());
          task(c, weights.data());
        }
      });
    });
  }

  std::shared_ptr<Step> planned(const StepInput& input) {
    fit(input.tokens);
    return std::make_shared<Step>(Planner(shape_, layers_).plan(input));
  }

  void fit(int tokens) {
    if (tokens <= space_.capacity) return;
    const int size = (int)up_to(tokens, 64);
    int inner = 0;
    for (const Layer& layer : layers_) inner = std::max(inner, layer.inner);
    const size_t hidden = up_to(shape_.hidden, kMultiple), heads = shape_.heads * shape_.head_dim;
    const size_t qkv = up_to((shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim, kBlock);
    space_.capacity = size;
    space_.residual.assign(size * hidden, 0);
    space_.out.assign(size * hidden, 0);
    space_.qkv.assign(size * qkv, 0);
    space_.attended.assign(size * up_to(heads, kMultiple), 0);
    space_.cos.assign(ropes_.size() * size * shape_.head_dim / 2, 0);
    space_.sin = space_.cos;
    space_.normed = Rows(shape_.format, size, shape_.hidden);
    space_.attention = Rows(shape_.format, size, (int)heads);
    space_.last = Rows(shape_.format, size, shape_.hidden);
    space_.gated = Rows(shape_.format, size, (int)up_to(inner, kGatedUnit));
  }

  const ModelShape shape_;
  std::vector<Layer> layers_;
  std::vector<std::vector<float>> ropes_;
  Arena arena_;
  Workspace space_;
  // Last, so that its threads end before what they read.
  std::unique_ptr<Team> team_;
};

template <typename Work>
int guarded(const Work& work) {
  try {
    work();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace

extern "C" {

void* loom_create(const ModelShape* shape) {
  void* made = nullptr;
  guarded([&] { made = new Model(*shape); });
  return made;
}

void loom_destroy(void* model) { delete static_cast<Model*>(model); }

void loom_add_rope(void* model, const float* frequencies) { static_cast<Model*>(model)->add_rope(frequencies); }

void loom_set_layer(void* model, int index, int inner, int rope, int window) {
  static_cast<Model*>(model)->set_layer(index, inner, rope, window);
}

void loom_set_vector(void* model, int layer, int kind, const float* values, int count, int padded) {
  static_cast<Model*>(model)->set_vector(layer, kind, values, count, padded);
}

int loom_shape_matrix(void* model, int layer, int kind, int format, int channels, int inputs) {
  return guarded([&] {
    static_cast<Model*>(model)->shape_matrix(layer, kind, static_cast<Format>(format), channels, inputs);
  });
}

// Whether four bits hold a weight's every number as well as bfloat16 does.
int loom_in_levels(void* model, const void* source, int stored, int rows, int inputs) {
  return static_cast<Model*>(model)->in_levels({source, static_cast<Stored>(stored), rows, inputs});
}

int loom_pack(void* model, int layer, int kind, const void* source, int stored, int rows, int inputs, int first, int spread) {
  return guarded([&] {
    static_cast<Model*>(model)->pack(layer, kind, {source, static_cast<Stored>(stored), rows, inputs}, first, spread);
  });
}

int loom_sample(void* model, const SampleInput* input) {
  return guarded([&] { static_cast<Model*>(model)->draw(*input); });
}

int loom_products(void* model, int rows) {
  return guarded([&] { static_cast<Model*>(model)->products(rows); });
}

int loom_step(void* model, const StepInput* input) {
  return guarded([&] { static_cast<Model*>(model)->step(*input); });
}
}
