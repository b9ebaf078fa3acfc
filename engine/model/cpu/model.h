// A step of a llama-family model: embedding, layers, logits. Activations between products are float; T (float or
// bf16) is what products and the KV pool are in.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"

namespace midstream {

struct Sizes {
  int32_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, kv_blocks;
  float eps;
};

struct Step {
  int32_t rows, sequences, copies, wanted;
  const int32_t* tokens;        // [rows]
  const int32_t* starts;        // [sequences]: position of the first token of each
  const int32_t* lengths;       // [sequences]: how many tokens of each
  const int32_t* first_blocks;  // [sequences]: where the blocks of each begin in `blocks`
  const int32_t* blocks;
  const int32_t* copied;        // [copies][2]: block copies (from, to) to be made before all else, in order
  const int32_t* wanted_rows;   // [wanted]: rows after which logits are wanted
  float* logits;                // [wanted][vocab]
};

// A matrix or table in float or bf16, row major.
struct Source {
  const void* data;
  bool narrow;

  Floats lanes(size_t index) const {
    return narrow ? load(static_cast<const bf16*>(data) + index) : load(static_cast<const float*>(data) + index);
  }
};

enum class MatrixName : int32_t { kQkv, kOutput, kGateUp, kDown, kHead };
enum class VectorName : int32_t { kInputNorm, kPostNorm, kQkvBias, kQNorm, kKNorm, kFinalNorm };

class AnyModel {
 public:
  virtual ~AnyModel() = default;
  virtual void set_matrix(int layer, MatrixName name, Source source, Format format) = 0;
  virtual void set_vector(int layer, VectorName name, const float* values) = 0;
  // Kept, not copied.
  virtual void set_embedding(Source source) = 0;
  virtual void run(const Step& step) = 0;
  // [kv_blocks] blocks, each one piece.
  virtual void* pool() = 0;
};

template <class T>
class Model : public AnyModel {
 public:
  Model(const Sizes& sizes, const float* inverse_frequencies, int threads)
      : sizes_(sizes),
        shape_{sizes.layers, sizes.kv_heads, sizes.head_dim},
        group_(sizes.heads / sizes.kv_heads),
        queries_width_(sizes.heads * sizes.head_dim),
        qkv_width_((sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim),
        inverse_frequencies_(inverse_frequencies, inverse_frequencies + sizes.head_dim / 2),
        layers_(sizes.layers),
        pool_(shape_.block() * sizes.kv_blocks * sizeof(T)),
        scratch_(threads),
        attention_(shape_, group_, threads),
        team_(threads) {
    size_t widest = std::max({sizes.hidden, queries_width_, sizes.intermediate});
    for (Scratch& scratch : scratch_) {
      scratch.panel = Memory(widest * kPanel * sizeof(T));
      scratch.few = Memory(3 * FewRows::kMost * widest * sizeof(float));
    }
  }

  void set_matrix(int layer, MatrixName name, Source source, Format format) override {
    const auto [matrix, outputs, inputs] = matrix_of(layer, name);
    bool side_by_side = name == MatrixName::kGateUp;
    if (source.narrow)
      matrix->pack(team_, static_cast<const bf16*>(source.data), outputs, inputs, format, side_by_side);
    else
      matrix->pack(team_, static_cast<const float*>(source.data), outputs, inputs, format, side_by_side);
  }

  void set_vector(int layer, VectorName name, const float* values) override {
    switch (name) {
      case VectorName::kInputNorm: return layers_[layer].input_norm.assign(values, values + sizes_.hidden);
      case VectorName::kPostNorm: return layers_[layer].post_norm.assign(values, values + sizes_.hidden);
      case VectorName::kQkvBias: return layers_[layer].qkv_bias.assign(values, values + qkv_width_);
      case VectorName::kQNorm: return layers_[layer].q_norm.assign(values, values + sizes_.head_dim);
      case VectorName::kKNorm: return layers_[layer].k_norm.assign(values, values + sizes_.head_dim);
      case VectorName::kFinalNorm: return final_norm_.assign(values, values + sizes_.hidden);
    }
  }

  void set_embedding(Source source) override { embedding_ = source; }

  void* pool() override { return pool_.as<void>(); }

  void run(const Step& step) override {
    prepare(step);
    team_.run([&](int thread) {
      embed(step);
      for (int layer = 0; layer < sizes_.layers; layer++) run_layer(step, layer, thread);
      if (step.wanted > 0) write_logits(step, thread);
      release_tiles();
    });
  }

 private:
  struct Layer {
    Matrix<T> qkv, output, gate_up, down;
    std::vector<float> input_norm, post_norm, qkv_bias, q_norm, k_norm;
  };
  struct Scratch {
    Memory product, panel, few;
  };
  struct Row {
    const Sequence* sequence;
    int token;  // index in the sequence's part of the step
  };
  struct MatrixSlot {
    Matrix<T>* matrix;
    int outputs, inputs;
  };

  MatrixSlot matrix_of(int layer, MatrixName name) {
    switch (name) {
      case MatrixName::kQkv: return {&layers_[layer].qkv, qkv_width_, sizes_.hidden};
      case MatrixName::kOutput: return {&layers_[layer].output, sizes_.hidden, queries_width_};
      case MatrixName::kGateUp: return {&layers_[layer].gate_up, 2 * sizes_.intermediate, sizes_.hidden};
      case MatrixName::kDown: return {&layers_[layer].down, sizes_.hidden, sizes_.intermediate};
      case MatrixName::kHead: break;
    }
    return {&head_, sizes_.vocab, sizes_.hidden};
  }

  void prepare(const Step& step) {
    sequences_.clear(), rows_.clear();
    query_tiles_ = 0;
    int first_row = 0;
    for (int i = 0; i < step.sequences; i++) {
      sequences_.push_back({step.starts[i], step.lengths[i], first_row, step.blocks + step.first_blocks[i], query_tiles_});
      query_tiles_ += attention_.tiles(sequences_.back());
      first_row += step.lengths[i];
    }
    for (const Sequence& s : sequences_)
      for (int token = 0; token < s.tokens; token++) rows_.push_back({&s, token});
    attention_.prepare(sequences_);
    reserve(std::max(step.rows, step.wanted));
    for (int i = 0; i < step.copies; i++) copy_block(step.copied[2 * i], step.copied[2 * i + 1]);
  }

  // Room for the activations of a step.
  void reserve(int rows) {
    size_t padded = (rows + kTileRows - 1) / kTileRows * kTileRows, tiled = kTileRows * sizeof(T) * query_tiles_;
    grow(residual_, padded * sizes_.hidden * sizeof(float));
    grow(rotary_, padded * sizes_.head_dim * sizeof(float));
    grow(qkv_, padded * qkv_width_ * sizeof(float));
    grow(normed_, padded * sizes_.hidden * sizeof(T));
    grow(attended_, padded * queries_width_ * sizeof(T));
    grow(gated_, padded * sizes_.intermediate * sizeof(T));
    grow(queries_, tiled * sizes_.kv_heads * sizes_.head_dim);
  }

  static void grow(Memory& memory, size_t bytes) {
    if (memory.bytes() < bytes) memory = Memory(bytes + bytes / 2);
  }

  void copy_block(int from, int to) {
    T* pool = pool_.as<T>();
    std::memcpy(pool + to * shape_.block(), pool + from * shape_.block(), shape_.block() * sizeof(T));
  }

  void embed(const Step& step) {
    const int half = sizes_.head_dim / 2;
    team_.for_each(step.rows, [&](int row) {
      float* residual = residual_row(row);
      for (int i = 0; i < sizes_.hidden; i += kLanes)
        store(residual + i, embedding_.lanes(static_cast<size_t>(step.tokens[row]) * sizes_.hidden + i));
      float* cosines = rotary_.as<float>() + static_cast<size_t>(row) * sizes_.head_dim;
      float position = static_cast<float>(rows_[row].sequence->start + rows_[row].token);
      for (int i = 0; i < half; i++) {
        cosines[i] = std::cos(position * inverse_frequencies_[i]);
        cosines[half + i] = std::sin(position * inverse_frequencies_[i]);
      }
    });
  }

  void run_layer(const Step& step, int index, int thread) {
    const Layer& layer = layers_[index];
    const int rows = step.rows;
    normalise(layer.input_norm, rows, [](int row) { return row; });
    multiply(thread, layer.qkv, normed_, rows, [&](int panel, int row, const float* values) {
      float* target = qkv_row(row) + panel * kPanel;
      for (int i = 0; i < kPanel; i += kLanes) {
        Floats sums = load(values + i);
        if (!layer.qkv_bias.empty()) sums += load(&layer.qkv_bias[panel * kPanel + i]);
        store(target + i, sums);
      }
    });
    team_.for_each(rows, [&](int row) { spread_heads(layer, index, row); });
    attention_.run(team_, thread,
                   {index, pool_.as<T>(), queries_.as<T>(), query_tiles_, attended_.as<T>(),
                    queries_width_ / kTileInputs});
    multiply(thread, layer.output, attended_, rows, AddToResidual{this});
    normalise(layer.post_norm, rows, [](int row) { return row; });
    multiply(thread, layer.gate_up, normed_, rows, [&](int panel, int row, const float* values) {
      Floats gate = load(values), up = load(values + kLanes);
      gate = gate / (exp2(gate * -1.44269504f) + 1.0f);
      store(gated_.as<T>() + left_index(row, panel * kLanes, sizes_.intermediate / kTileInputs), gate * up);
    });
    multiply(thread, layer.down, gated_, rows, AddToResidual{this});
  }

  struct AddToResidual {
    Model* model;
    void operator()(int panel, int row, const float* values) const {
      float* target = model->residual_row(row) + panel * kPanel;
      for (int i = 0; i < kPanel; i += kLanes) store(target + i, load(target + i) + load(values + i));
    }
  };

  void write_logits(const Step& step, int thread) {
    normalise(final_norm_, step.wanted, [&](int row) { return step.wanted_rows[row]; });
    multiply(thread, head_, normed_, step.wanted, [&](int panel, int row, const float* values) {
      int count = std::min(kPanel, sizes_.vocab - panel * kPanel);
      std::memcpy(step.logits + static_cast<size_t>(row) * sizes_.vocab + panel * kPanel, values, count * sizeof(float));
    });
  }

  // normed_ row i = RMS norm of residual row `pick(i)`.
  template <class Pick>
  void normalise(const std::vector<float>& weight, int rows, Pick pick) {
    team_.for_each(rows, [&](int row) {
      const float* source = residual_row(pick(row));
      float scale = norm_scale(source, sizes_.hidden);
      for (int i = 0; i < sizes_.hidden; i += kLanes)
        store(normed_.as<T>() + left_index(row, i, sizes_.hidden / kTileInputs),
              load(&weight[i]) * (load(source + i) * scale));
    });
  }

  float norm_scale(const float* values, int count) const {
    Floats squares{};
    for (int i = 0; i < count; i += kLanes) squares += load(values + i) * load(values + i);
    return 1 / std::sqrt(sum(squares) / count + sizes_.eps);
  }

  // From the product to attention: norms of heads, rotary embedding; K and V into the pool.
  void spread_heads(const Layer& layer, int index, int row) {
    const Sequence& s = *rows_[row].sequence;
    const int dims = sizes_.head_dim, token = rows_[row].token, position = s.start + token;
    const float* cosines = rotary_.as<float>() + static_cast<size_t>(row) * dims;
    float* heads = qkv_row(row);
    const Floats scale = splat(1.44269504f / std::sqrt(static_cast<float>(dims)));  // softmax in powers of two
    for (int head = 0; head < sizes_.heads; head++, heads += dims) {
      turn(heads, layer.q_norm, cosines);
      int query = token * group_ + head % group_;
      size_t tile = static_cast<size_t>(head / group_) * query_tiles_ + s.first_tile + query / kTileRows;
      T* target = queries_.as<T>() + tile * kTileRows * dims;
      for (int d = 0; d < dims; d += kLanes)
        store(target + left_index(query % kTileRows, d, dims / kTileInputs), load(heads + d) * scale);
    }
    for (int head = 0; head < sizes_.kv_heads; head++, heads += dims) {
      turn(heads, layer.k_norm, cosines);
      T* block = pool_.as<T>() + shape_.offset(s.blocks[position / kBlock], index, head);
      store_key(block, position % kBlock, heads, dims);
      store_value(block + kBlock * dims, position % kBlock, heads + sizes_.kv_heads * dims, dims);
    }
  }

  // Norm where the model has one, and rotary embedding, of one head in place.
  void turn(float* head, const std::vector<float>& norm, const float* cosines) const {
    const int dims = sizes_.head_dim, half = dims / 2;
    if (!norm.empty()) {
      float scale = norm_scale(head, dims);
      for (int d = 0; d < dims; d += kLanes) store(head + d, load(&norm[d]) * (load(head + d) * scale));
    }
    for (int d = 0; d < half; d += kLanes) {
      Floats first = load(head + d), second = load(head + half + d);
      Floats cosine = load(cosines + d), sine = load(cosines + half + d);
      store(head + d, first * cosine - second * sine);
      store(head + half + d, second * cosine + first * sine);
    }
  }

  // finish(panel, row, 32 results) for all rows of `input` times the matrix. A panel is read from memory once for as
  // many rows as the cache holds.
  template <class Finish>
  void multiply(int thread, const Matrix<T>& matrix, const Memory& input, int rows, Finish finish) {
    constexpr int kCachedBytes = 1 << 20, kDeepest = 18;  // tiles of a panel that fit the first-level cache
    const int panels = matrix.panels(), tiles = matrix.input_tiles();
    const size_t row_tile = static_cast<size_t>(tiles) * kTile;
    int part = std::min(kCachedBytes / (matrix.inputs * static_cast<int>(sizeof(T))), rows * panels / (4 * team_.size()));
    part = std::max(part / kPanel, 2) * kPanel;
    Scratch& scratch = scratch_[thread];
    if (matrix.approximate() && rows <= FewRows::kMost) return multiply_few(scratch, matrix, input, rows, finish);
    const int pieces = (tiles + kDeepest - 1) / kDeepest, depth = (tiles + pieces - 1) / pieces;
    grow(scratch.product, (static_cast<size_t>(part) + kPanel) * kPanel * sizeof(float));
    float* product = scratch.product.template as<float>();
    configure_tiles(false);
    team_.for_each((rows + part - 1) / part * panels, [&](int i) {
      int panel = i % panels, begin = i / panels * part, end = std::min(rows, begin + part);
      const T* first_row = input.as<T>() + begin / kTileRows * row_tile;
      T* decoded = scratch.panel.template as<T>();
      if (end - begin <= 2 * kTileRows &&
          multiply_packed_panel(first_row, row_tile, end - begin, matrix, panel, decoded, product)) {
        for (int row = begin; row < end; row++) finish(panel, row, product + (row - begin) * kPanel);
        return;
      }
      const T* weights = matrix.panel(panel, decoded);
      for (int tile = 0; tile < tiles; tile += depth)
        for (int first = begin; first < end; first += 2 * kTileRows) {
          int count = std::min(2 * kTileRows, end - first);
          float* c = product + (first - begin) * kPanel;
          multiply_panel(input.as<T>() + first / kTileRows * row_tile + tile * kTile, row_tile, count,
                         weights + tile * 2 * kTile, std::min(depth, tiles - tile), c, tile > 0);
          for (int r = 0; tile + depth >= tiles && r < count; r++) finish(panel, first + r, c + r * kPanel);
        }
    });
  }

  template <class Finish>
  void multiply_few(Scratch& scratch, const Matrix<T>& matrix, const Memory& input, int rows, Finish finish) {
    const int inputs = matrix.inputs, tiles = matrix.input_tiles();
    float *values = scratch.few.template as<float>(), *sums = values + FewRows::kMost * inputs;
    float* steps = sums + FewRows::kMost * tiles;
    int8_t* bytes = reinterpret_cast<int8_t*>(steps + FewRows::kMost * tiles);
    grow(scratch.product, FewRows::kMost * kPanel * sizeof(float));
    float* product = scratch.product.template as<float>();
    for (int row = 0; row < rows; row++)
      for (int t = 0; t < tiles; t++) {
        const T* source = input.as<T>() + left_index(row, t * kTileInputs, tiles);
        Floats first = load(source), second = load(source + kLanes);
        store(values + row * inputs + t * kTileInputs, first);
        store(values + row * inputs + t * kTileInputs + kLanes, second);
        const int group = row * tiles + t;
        sums[group] = sum(first + second);
        if (matrix.wants_bytes())
          steps[group] = encode_bytes(values + group * kTileInputs, bytes + group * 2 * kTileInputs);
      }
    team_.for_each(matrix.panels(), [&](int panel) {
      matrix.multiply_few({rows, values, sums, matrix.wants_bytes() ? bytes : nullptr, steps}, panel, product);
      for (int row = 0; row < rows; row++) finish(panel, row, product + row * kPanel);
    });
  }

  float* residual_row(int row) const { return residual_.as<float>() + static_cast<size_t>(row) * sizes_.hidden; }
  float* qkv_row(int row) const { return qkv_.as<float>() + static_cast<size_t>(row) * qkv_width_; }

  const Sizes sizes_;
  const PoolShape shape_;
  const int group_, queries_width_, qkv_width_;
  const std::vector<float> inverse_frequencies_;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  Matrix<T> head_;
  Source embedding_{};
  Memory pool_;

  std::vector<Sequence> sequences_;
  std::vector<Row> rows_;
  int query_tiles_ = 0;
  Memory residual_, rotary_, qkv_, queries_, normed_, attended_, gated_;
  std::vector<Scratch> scratch_;
  Attention<T> attention_;
  Team team_;
};

}  // namespace midstream
