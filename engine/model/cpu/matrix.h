// Weight matrices in the order in which the products read them.
//
// A panel is 32 outputs; it is cut along the inputs into pairs of tiles of 32 inputs x 16 outputs. In a tile, element
// order is [input / P][output][input % P] with P = kPair (bfloat16: exactly the B operand of an AMX product).
// Quantised tiles keep that order, with a scale (and minimum) per output: a group is 32 inputs of one output.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

#include "threads.h"
#include "vector.h"

namespace midstream {

constexpr int kTileInputs = 32;
constexpr int kTile = kTileInputs * kLanes;
constexpr int kPanel = 2 * kLanes;

// Zeroed memory in huge pages where the system gives them; committed when first touched.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  }
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory() {
    if (bytes_ > 0) munmap(data_, bytes_);
  }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

enum class Format : int32_t { kPlain = 0, kInt8 = 1, kQ4 = 2 };

struct Int8Tile {
  uint16_t scale[kLanes];
  int8_t values[kTile];
};

// Bits 4 i ... 4 i + 3 of words[w][lane] are element (4 i + w) * 16 + lane of the tile.
struct Q4Tile {
  uint16_t scale[kLanes];
  uint16_t minimum[kLanes];
  int32_t words[4][kLanes];
};

// The output of the tile that element `e` belongs to.
template <class T>
inline int output_of(int e) {
  return e / kPair<T> % kLanes;
}

template <class T>
inline int input_of(int e) {
  return e / (kLanes * kPair<T>) * kPair<T> + e % kPair<T>;
}

template <class T>
inline void encode(const float* tile, T* target) {
  for (int e = 0; e < kTile; e += kLanes) store(target + e, load(tile + e));
}

// w = scale * q with the largest |q| at 127: what GGUF's Q8_0 does, so such weights come back as they were.
template <class T>
inline void encode(const float* tile, Int8Tile* target) {
  float largest[kLanes] = {};
  for (int e = 0; e < kTile; e++) largest[output_of<T>(e)] = std::max(largest[output_of<T>(e)], std::fabs(tile[e]));
  float inverse[kLanes];
  for (int n = 0; n < kLanes; n++) {
    float scale = round_to_half(largest[n] / 127, &target->scale[n]);
    inverse[n] = scale > 0 ? 1 / scale : 0;
  }
  for (int e = 0; e < kTile; e++) {
    float q = std::nearbyint(tile[e] * inverse[output_of<T>(e)]);
    target->values[e] = static_cast<int8_t>(std::min(std::max(q, -127.0f), 127.0f));
  }
}

// w = scale * q + minimum, q in 0 ... 15: what GGUF's Q4_1 does.
template <class T>
inline void encode(const float* tile, Q4Tile* target) {
  float low[kLanes], high[kLanes], inverse[kLanes];
  std::fill_n(low, kLanes, INFINITY);
  std::fill_n(high, kLanes, -INFINITY);
  for (int e = 0; e < kTile; e++) {
    int n = output_of<T>(e);
    low[n] = std::min(low[n], tile[e]);
    high[n] = std::max(high[n], tile[e]);
  }
  for (int n = 0; n < kLanes; n++) {
    float scale = round_to_half((high[n] - low[n]) / 15, &target->scale[n]);
    low[n] = round_to_half(low[n], &target->minimum[n]);
    inverse[n] = scale > 0 ? 1 / scale : 0;
  }
  std::memset(target->words, 0, sizeof target->words);
  for (int e = 0; e < kTile; e++) {
    int n = output_of<T>(e), v = e / kLanes;
    float q = std::nearbyint((tile[e] - low[n]) * inverse[n]);
    uint32_t bits = static_cast<uint32_t>(std::min(std::max(q, 0.0f), 15.0f)) << (v / 4 * 4);
    target->words[v % 4][e % kLanes] |= static_cast<int32_t>(bits);
  }
}

// One factor per output as kPair vectors that match the elements of consecutive vectors of the tile.
template <class T>
struct Factors {
  Floats vectors[kPair<T>];
  explicit Factors(const uint16_t* halves) {
    const Floats values = load_half(halves);
    for (int v = 0; v < kPair<T>; v++) vectors[v] = permute(values, (kLaneNumbers + v * kLanes) / kPair<T>);
  }
  Floats operator[](int v) const { return vectors[v % kPair<T>]; }
};

template <class T>
inline void decode(const Int8Tile& tile, T* target) {
  const Factors<T> scale(tile.scale);
#pragma GCC unroll 32
  for (int v = 0; v < kTile / kLanes; v++) store(target + v * kLanes, load(tile.values + v * kLanes) * scale[v]);
}

template <class T>
inline void decode(const Q4Tile& tile, T* target) {
  const Factors<T> scale(tile.scale), minimum(tile.minimum);
#pragma GCC unroll 32
  for (int v = 0; v < kTile / kLanes; v++)
    store(target + v * kLanes, nibbles(load(tile.words[v % 4]), v / 4) * scale[v] + minimum[v]);
}

// A matrix [outputs, inputs] for products with inputs of type T (float or bf16).
template <class T>
class Matrix {
 public:
  int outputs = 0;
  int inputs = 0;
  int panels() const { return (outputs + kPanel - 1) / kPanel; }
  int input_tiles() const { return inputs / kTileInputs; }

  // `source` is row major. With `halves_side_by_side`, each panel gets 16 outputs of the first half of the rows and
  // the same 16 of the second half: a gate and what it gates meet in one product.
  template <class Source>
  void pack(Team& team, const Source* source, int rows, int columns, Format format, bool halves_side_by_side) {
    outputs = rows, inputs = columns, format_ = format;
    data_ = Memory(panels() * panel_bytes());
    team.run([&](int) {
      team.for_each(panels(), [&](int panel) {
        for (int tile = 0; tile < 2 * input_tiles(); tile++) {
          int first = halves_side_by_side ? tile % 2 * (rows / 2) + panel * kLanes : panel * kPanel + tile % 2 * kLanes;
          pack_tile(source, panel, tile, first);
        }
      });
    });
  }

  // The tiles of a panel as T; in `scratch` (room for a panel) unless that is how they are kept.
  const T* panel(int index, T* scratch) const {
    const uint8_t* source = data_.as<uint8_t>() + index * panel_bytes();
    if (format_ == Format::kPlain) return reinterpret_cast<const T*>(source);
    for (int tile = 0; tile < 2 * input_tiles(); tile++, source += tile_bytes()) {
      if (format_ == Format::kInt8)
        decode(*reinterpret_cast<const Int8Tile*>(source), scratch + tile * kTile);
      else
        decode(*reinterpret_cast<const Q4Tile*>(source), scratch + tile * kTile);
    }
    return scratch;
  }

 private:
  size_t tile_bytes() const {
    if (format_ == Format::kPlain) return kTile * sizeof(T);
    return format_ == Format::kInt8 ? sizeof(Int8Tile) : sizeof(Q4Tile);
  }
  size_t panel_bytes() const { return 2 * input_tiles() * tile_bytes(); }

  template <class Source>
  void pack_tile(const Source* source, int panel, int tile, int first_output) {
    float values[kTile];
    for (int e = 0; e < kTile; e++) {
      int output = first_output + output_of<T>(e);
      size_t column = tile / 2 * kTileInputs + input_of<T>(e);
      values[e] = output < outputs ? widen(source[output * static_cast<size_t>(inputs) + column]) : 0;
    }
    uint8_t* target = data_.as<uint8_t>() + panel * panel_bytes() + tile * tile_bytes();
    if (format_ == Format::kPlain)
      encode(values, reinterpret_cast<T*>(target));
    else if (format_ == Format::kInt8)
      encode<T>(values, reinterpret_cast<Int8Tile*>(target));
    else
      encode<T>(values, reinterpret_cast<Q4Tile*>(target));
  }

  Format format_ = Format::kPlain;
  Memory data_;
};

}  // namespace midstream
