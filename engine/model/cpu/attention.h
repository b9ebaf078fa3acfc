// Attention over the paged KV pool, where it lies: nothing is gathered.
//
// The pool is [block][layer][KV head][K, then V], so that a block is one piece of memory. For one head of one block
// of 16 tokens, K is [dim / 32] tiles of 32 inputs x 16 tokens and V [dim / 16] tiles of 16 tokens x 16 dimensions,
// both right operands of products (see product.h).
//
// The context is taken in chunks of 64 tokens (softmax as in Milakov and Gimelshein, 2018) inside segments of 512 that
// are merged in order. Both borders are positions in the context: neither the batch nor the number of threads nor the
// way the context was computed changes a result.
#pragma once

#include <algorithm>
#include <vector>

#include "product.h"

namespace midstream {

constexpr int kSegment = 512;

// Tokens of one context in a step. Its query rows are (token, query head of the group), from tile `first_tile` on.
struct Sequence {
  int start;
  int tokens;
  int first_row;
  const int32_t* blocks;
  int first_tile;
};

struct PoolShape {
  int layers;
  int kv_heads;
  int dims;

  size_t head() const { return 2 * static_cast<size_t>(kBlock) * dims; }
  size_t block() const { return head() * layers * kv_heads; }
  size_t offset(int block_index, int layer, int head_index) const {
    return block_index * block() + (static_cast<size_t>(layer) * kv_heads + head_index) * head();
  }
};

// Writes K of one token into its slot of a head's block. What is not finite becomes 0: a slot that was left behind
// is multiplied by 0, which would turn infinity into NaN in another context.
template <class T>
inline void store_key(T* keys, int slot, const float* key, int dims) {
  T part[kLanes];
  for (int d = 0; d < dims; d += kLanes) {
    store(part, finite(load(key + d)));
    T* target = keys + d / kTileInputs * kTile + d % kTileInputs * kLanes + slot * kPair<T>;
    for (int i = 0; i < kLanes; i += kPair<T>) std::memcpy(target + i * kLanes, part + i, kPair<T> * sizeof(T));
  }
}

template <class T>
inline void store_value(T* values, int slot, const float* value, int dims) {
  T part[kLanes];
  for (int d = 0; d < dims; d += kLanes) {
    store(part, finite(load(value + d)));
    T* target = values + d / kLanes * kHalfTile + slot / kPair<T> * kLanes * kPair<T> + slot % kPair<T>;
    for (int i = 0; i < kLanes; i++) target[i * kPair<T>] = part[i];
  }
}

// Softmax so far of 16 rows: sum [16][dims] of weighted values, greatest score and sum of weights.
struct Partial {
  float greatest[kTileRows];
  float total[kTileRows];
  float* sum;

  void clear(int dims) {
    std::fill_n(greatest, kTileRows, -1e30f);
    std::fill_n(total, kTileRows, 0.0f);
    std::fill_n(sum, kTileRows * dims, 0.0f);
  }

  void merge(const Partial& other, int rows, int dims) {
    for (int r = 0; r < rows; r++) {
      float top = std::max(greatest[r], other.greatest[r]);
      // exp2 ends at 2^-126, which is not nothing for a row that has seen nothing.
      float mine = total[r] > 0 ? exp2(greatest[r] - top) : 0;
      float others = other.total[r] > 0 ? exp2(other.greatest[r] - top) : 0;
      greatest[r] = top;
      total[r] = total[r] * mine + other.total[r] * others;
      for (int d = 0; d < dims; d += kLanes) {
        float* target = sum + r * dims + d;
        store(target, load(target) * mine + load(other.sum + r * dims + d) * others);
      }
    }
  }
};

// What the attention of one layer reads and writes. `queries` [KV head][query tile][dims / 32][16][32] are scaled by
// log2(e) / sqrt(dims); `output` is the left operand of the next product.
template <class T>
struct AttentionCall {
  int layer;
  const T* pool;
  const T* queries;
  int query_tiles;
  T* output;
  int output_tiles;
};

template <class T>
class Attention {
 public:
  Attention(PoolShape shape, int group, int threads) : shape_(shape), group_(group), scratch_(threads) {}

  int tiles(const Sequence& s) const { return (s.tokens * group_ + kTileRows - 1) / kTileRows; }

  // Makes the tasks of a step. Segments are separate tasks where there would be too few to share evenly.
  void prepare(const std::vector<Sequence>& sequences) {
    tasks_.clear(), rows_.clear();
    size_t count = 0;
    for (const Sequence& s : sequences) count += tiles(s) * shape_.kv_heads;
    split_ = count < kTasksPerThread * scratch_.size();
    for (const Sequence& s : sequences)
      for (int head = 0; head < shape_.kv_heads; head++)
        for (int tile = 0; tile < tiles(s); tile++) add_tasks(s, head, tile);
    // The longest first, so that no thread starts one when the others are done.
    std::stable_sort(tasks_.begin(), tasks_.end(), [](const Task& a, const Task& b) { return a.tokens > b.tokens; });
    size_t sum = static_cast<size_t>(kTileRows) * shape_.dims, partials = split_ ? tasks_.size() : 0;
    size_t needed = (partials + 2 * scratch_.size()) * sum * sizeof(float);
    if (sums_.bytes() < needed) sums_ = Memory(2 * needed);
    float* next = sums_.as<float>();
    for (Scratch& scratch : scratch_) scratch.total.sum = next, scratch.part.sum = next + sum, next += 2 * sum;
    partials_.resize(partials);
    for (Partial& partial : partials_) partial.sum = next, next += sum;
  }

  // Inside a job of the team.
  void run(Team& team, int thread, const AttentionCall<T>& call) {
    configure_tiles(true);
    Scratch& scratch = scratch_[thread];
    team.for_each(tasks_.size(), [&](int i) {
      const Task& task = tasks_[i];
      // By and large the threads take tasks in turns.
      if (i + team.size() < static_cast<int>(tasks_.size())) fetch(call, tasks_[i + team.size()], 0);
      Partial& total = split_ ? partials_[task.partial] : scratch.total;
      attend(call, task, task.segment, total, scratch);
      for (int segment = 1; !split_ && segment < task.rows.segments; segment++) {
        attend(call, task, segment, scratch.part, scratch);
        total.merge(scratch.part, task.rows.count, shape_.dims);
      }
      if (!split_) finish(call, task.rows, total);
    });
    if (split_) merge_partials(team, call);
  }

 private:
  // A tile of query rows of one KV head; with `split_` its segments leave their results from `partial` on.
  struct Rows {
    const Sequence* sequence;
    int head;
    int tile;
    int count;
    int segments;
    int partial;
  };
  struct Task {
    Rows rows;
    int segment;
    int partial;
    int tokens;
  };
  struct Scratch {
    alignas(64) float scores[kTileRows * kChunk];
    alignas(64) T weights[kTileRows * kChunk];
    Partial total, part;
  };

  static constexpr size_t kTasksPerThread = 4;

  int position(const Rows& rows, int row) const {
    return rows.sequence->start + (rows.tile * kTileRows + row) / group_;
  }

  void add_tasks(const Sequence& s, int head, int tile) {
    int count = std::min(kTileRows, s.tokens * group_ - tile * kTileRows);
    Rows rows{&s, head, tile, count, 0, static_cast<int>(tasks_.size())};
    int tokens = position(rows, count - 1) + 1;
    rows.segments = (tokens + kSegment - 1) / kSegment;
    rows_.push_back(rows);
    if (!split_) return tasks_.push_back({rows, 0, 0, tokens});
    for (int segment = 0; segment < rows.segments; segment++)
      tasks_.push_back({rows, segment, rows.partial + segment, std::min(kSegment, tokens - segment * kSegment)});
  }

  // K and V of a chunk, `ahead` tokens into a task, into the cache: blocks lie anywhere, which no processor foresees.
  void fetch(const AttentionCall<T>& call, const Task& task, int ahead) const {
    const Rows& rows = task.rows;
    const int base = task.segment * kSegment + ahead, last = position(rows, rows.count - 1);
    for (int token = base; token < base + kChunk && token <= last; token += kBlock) {
      const T* keys = call.pool + shape_.offset(rows.sequence->blocks[token / kBlock], call.layer, rows.head);
      for (size_t e = 0; e < shape_.head(); e += 64 / sizeof(T)) __builtin_prefetch(keys + e);
    }
  }

  void attend(const AttentionCall<T>& call, const Task& task, int segment, Partial& partial, Scratch& scratch) const {
    const Rows& rows = task.rows;
    const int dim_tiles = shape_.dims / kTileInputs;
    const T* queries = call.queries + (static_cast<size_t>(rows.head) * call.query_tiles + rows.sequence->first_tile +
                                       rows.tile) * dim_tiles * kTile;
    const int last = position(rows, rows.count - 1), end = std::min((segment + 1) * kSegment, last + 1);
    partial.clear(shape_.dims);
    for (int base = segment * kSegment; base < end; base += kChunk) {
      if (base + kChunk < end) fetch(call, task, base + kChunk - task.segment * kSegment);
      const T *keys[kChunkBlocks], *values[kChunkBlocks];
      for (int i = 0; i < kChunkBlocks; i++) {
        // Past the context any block will do: its tokens get no weight.
        int token = std::min(base + i * kBlock, last);
        keys[i] = call.pool + shape_.offset(rows.sequence->blocks[token / kBlock], call.layer, rows.head);
        values[i] = keys[i] + kBlock * shape_.dims;
      }
      multiply_keys(queries, rows.count, keys, dim_tiles, scratch.scores);
      for (int r = 0; r < rows.count; r++) weigh(r, position(rows, r) + 1 - base, partial, scratch);
      add_values(scratch.weights, rows.count, values, partial.sum, shape_.dims);
    }
  }

  // Scores of one row against a chunk, of which it sees the first `visible` tokens, to weights.
  void weigh(int row, int visible, Partial& partial, Scratch& scratch) const {
    Floats scores[kChunkBlocks], greatest = splat(partial.greatest[row]);
    for (int i = 0; i < kChunkBlocks; i++) {
      scores[i] = load(scratch.scores + row * kChunk + i * kBlock);
      if (visible < (i + 1) * kBlock) scores[i] = select(lane_numbers() < visible - i * kBlock, scores[i], splat(-1e30f));
      greatest = max(greatest, scores[i]);
    }
    const float top = largest(greatest), rescale = exp2(partial.greatest[row] - top);
    Floats total{};
    for (int i = 0; i < kChunkBlocks; i++) {
      Floats weights = exp2(scores[i] - top);
      if (visible < (i + 1) * kBlock) weights = select(lane_numbers() < visible - i * kBlock, weights, Floats{});
      total += weights;
      store(scratch.weights + (i * kTileRows + row) * kBlock, weights);
    }
    float* sums = partial.sum + row * shape_.dims;
    for (int d = 0; rescale != 1 && d < shape_.dims; d += kLanes) store(sums + d, load(sums + d) * rescale);
    partial.total[row] = partial.total[row] * rescale + sum(total);
    partial.greatest[row] = top;
  }

  void merge_partials(Team& team, const AttentionCall<T>& call) {
    team.for_each(rows_.size(), [&](int i) {
      const Rows& rows = rows_[i];
      Partial& total = partials_[rows.partial];
      for (int segment = 1; segment < rows.segments; segment++)
        total.merge(partials_[rows.partial + segment], rows.count, shape_.dims);
      finish(call, rows, total);
    });
  }

  void finish(const AttentionCall<T>& call, const Rows& rows, const Partial& total) const {
    for (int r = 0; r < rows.count; r++) {
      int query = rows.tile * kTileRows + r;
      int row = rows.sequence->first_row + query / group_, head = rows.head * group_ + query % group_;
      float share = 1 / total.total[r];
      for (int d = 0; d < shape_.dims; d += kLanes)
        store(call.output + left_index(row, head * shape_.dims + d, call.output_tiles),
              load(total.sum + r * shape_.dims + d) * share);
    }
  }

  const PoolShape shape_;
  const int group_;
  bool split_ = false;
  std::vector<Task> tasks_;
  std::vector<Rows> rows_;
  std::vector<Partial> partials_;
  std::vector<Scratch> scratch_;
  Memory sums_;
};

}  // namespace midstream
