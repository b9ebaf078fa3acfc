// Weight matrices in the order in which the products read them.
//
// A panel is 32 outputs; it is cut along the inputs into pairs of tiles of 32 inputs x 16 outputs. In a tile, element
// order is [input / P][output][input % P] with P = kPair (bfloat16: exactly the B operand of an AMX product).
// Quantised tiles are in the order of P = 1, with a scale (and minimum) per output: a group is 32 inputs of one output.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "threads.h"
#include "vector.h"

namespace midstream {

constexpr int kTileInputs = 32;
constexpr int kTile = kTileInputs * kLanes;
constexpr int kPanel = 2 * kLanes;
constexpr int kPrefetch = 4096;  // bytes ahead: hardware prefetching is late for streams this dense in work

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

// Bits 4 i ... 4 i + 3 of words[w][output] belong to input 4 i + w.
struct Q4Tile {
  uint16_t scale[kLanes];
  uint16_t minimum[kLanes];
  int32_t words[4][kLanes];
};

inline Floats inverses(const Floats& scales) { return select(scales > 0.0f, splat(1.0f) / scales, Floats{}); }

// w = scale * q with the largest |q| at 127: what GGUF's Q8_0 does, so such weights come back as they were.
inline void encode(const float* tile, Int8Tile* target) {
  Floats greatest{};
  for (int e = 0; e < kTile; e += kLanes) greatest = max(greatest, max(load(tile + e), -load(tile + e)));
  const Floats inverse = inverses(store_half(target->scale, greatest / 127.0f));
  for (int e = 0; e < kTile; e += kLanes) {
    each(round_between(load(tile + e) * inverse, -127, 127), [&](IntPart part, int first) {
      *reinterpret_cast<BytePart*>(target->values + e + first) = __builtin_convertvector(part, BytePart);
    });
  }
}

// w = scale * q + minimum, q in 0 ... 15: what GGUF's Q4_1 does.
inline void encode(const float* tile, Q4Tile* target) {
  Floats low = load(tile), high = low;
  for (int e = kLanes; e < kTile; e += kLanes) low = min(low, load(tile + e)), high = max(high, load(tile + e));
  const Floats inverse = inverses(store_half(target->scale, (high - low) / 15.0f));
  low = store_half(target->minimum, low);
  for (int w = 0; w < 4; w++) {
    Ints word{};
    for (int i = 0; i < 8; i++) word |= round_between((load(tile + (4 * i + w) * kLanes) - low) * inverse, 0, 15) << 4 * i;
    std::memcpy(target->words[w], &word, sizeof word);
  }
}

// The numbers q of input `v` for all outputs of the tile.
inline Floats numbers(const Int8Tile& tile, int v) { return load(tile.values + v * kLanes); }
inline Floats numbers(const Q4Tile& tile, int v) { return nibbles(load(tile.words[v % 4]), v / 4); }

inline Floats minimum(const Int8Tile&) { return Floats{}; }
inline Floats minimum(const Q4Tile& tile) { return load_half(tile.minimum); }

template <class Tile>
inline void prefetch_after(const Tile& tile) {
  for (size_t line = 0; line < sizeof(Tile); line += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(&tile) + kPrefetch + line);
}

template <class Tile, class T>
inline void decode(const Tile& tile, T* target) {
  prefetch_after(tile);
  const Floats scale = load_half(tile.scale), low = minimum(tile);
#pragma GCC unroll 32
  for (int v = 0; v < kTileInputs; v += 2)
    store_pairs(target + v * kLanes, numbers(tile, v) * scale + low, numbers(tile, v + 1) * scale + low);
}

#ifdef __AVX512VNNI__
constexpr bool kByteProducts = true;
#else
constexpr bool kByteProducts = false;
#endif

// A few rows of activations, [count][inputs], and their sums over each 32 inputs; `bytes`, if there are any, are the
// same as 256 * first half + second half, [count][inputs / 32][2][32] in the order of `store_bytes`, in units of `steps`.
struct FewRows {
  static constexpr int kMost = 3;
  int count;
  const float* values;
  const float* sums;
  const int8_t* bytes;
  const float* steps;
};

// Bytes of the inputs 0 ... 15 and 16 ... 31, lowest bits of `first` and `second`, in the order of products with a
// Q4Tile: in fours as far from one another as the nibbles of every second place in a word.
inline void store_bytes(int8_t* target, const Ints& first, const Ints& second) {
  constexpr int32_t kUpper[kLanes] = {8, 9, 10, 11, 12, 13, 14, 15}, kOrder[kLanes] = {0, 4, 1, 5, 2, 6, 3, 7};
  const Ints pairs = (first & 255) | (second & 255) << 16;
  const Ints upper = bits(permute(from_bits(pairs), load(kUpper)));
  const Ints fours = bits(permute(from_bits(pairs | upper << 8), load(kOrder)));
  std::memcpy(target, &fours, kTileInputs);
}

// Rounds 32 activations to two bytes each, which is finer than bfloat16; returns the step.
inline float encode_bytes(const float* values, int8_t* bytes) {
  constexpr float kGreatest = 127 * 256;
  const Floats first = load(values), second = load(values + kLanes);
  const float step = largest(max(max(first, -first), max(second, -second))) / kGreatest;
  const Floats inverse = splat(step > 0 ? 1 / step : 0.0f);
  const Ints a = round_between(first * inverse, -kGreatest, kGreatest), a_high = (a + 128) >> 8;
  const Ints b = round_between(second * inverse, -kGreatest, kGreatest), b_high = (b + 128) >> 8;
  store_bytes(bytes, a_high, b_high);
  store_bytes(bytes + kTileInputs, a - (a_high << 8), b - (b_high << 8));
  return step;
}

// c [R][32] = rows times a quantised panel without decoding it: scale * sum(a q) + minimum * sum(a) for each group.
// With one row this is half the work of decoding.
template <int R, class Tile>
inline void multiply_few(const FewRows& rows, const Tile* tiles, int input_tiles, float* c) {
  Floats totals[R][2] = {};
  for (int t = 0; t < 2 * input_tiles; t++) {
    const Tile& tile = tiles[t];
    prefetch_after(tile);
    const float* a = rows.values + t / 2 * kTileInputs;
    Floats sums[R] = {};
#pragma GCC unroll 32
    for (int v = 0; v < kTileInputs; v++) {
      const Floats q = numbers(tile, v);
      for (int r = 0; r < R; r++) sums[r] += q * a[r * input_tiles * kTileInputs + v];
    }
    const Floats scale = load_half(tile.scale), low = minimum(tile);
    for (int r = 0; r < R; r++) totals[r][t % 2] += scale * sums[r] + low * rows.sums[r * input_tiles + t / 2];
  }
  for (int r = 0; r < R; r++)
    for (int w = 0; w < 2; w++) store(c + r * kPanel + w * kLanes, totals[r][w]);
}

#ifdef __AVX512VNNI__
inline __m512i four(const int8_t* bytes) {
  int32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return _mm512_set1_epi32(word);
}

// The same in bytes: four products at a time, half of the work.
template <int R>
inline void multiply_few_bytes(const FewRows& rows, const Q4Tile* tiles, int input_tiles, float* c) {
  const __m512i nibble = _mm512_set1_epi32(0x0f0f0f0f);
  Floats totals[R][2] = {};
  for (int t = 0; t < 2 * input_tiles; t++) {
    const Q4Tile& tile = tiles[t];
    prefetch_after(tile);
    __m512i sums[R][2] = {};
#pragma GCC unroll 4
    for (int w = 0; w < 4; w++) {
      const __m512i word = _mm512_loadu_si512(tile.words[w]);
      const __m512i even = _mm512_and_si512(word, nibble);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(word, 4), nibble);
      for (int r = 0; r < R; r++) {
        const int8_t* bytes = rows.bytes + (r * input_tiles + t / 2) * 2 * kTileInputs + 8 * w;
        for (int half = 0; half < 2; half++) {
          sums[r][half] = _mm512_dpbusd_epi32(sums[r][half], even, four(bytes + half * kTileInputs));
          sums[r][half] = _mm512_dpbusd_epi32(sums[r][half], odd, four(bytes + half * kTileInputs + 4));
        }
      }
    }
    const Floats scale = load_half(tile.scale), low = minimum(tile);
    for (int r = 0; r < R; r++) {
      const int group = r * input_tiles + t / 2;
      const __m512i whole = _mm512_add_epi32(_mm512_slli_epi32(sums[r][0], 8), sums[r][1]);
      totals[r][t % 2] += (Floats)_mm512_cvtepi32_ps(whole) * (scale * rows.steps[group]) + low * rows.sums[group];
    }
  }
  for (int r = 0; r < R; r++)
    for (int w = 0; w < 2; w++) store(c + r * kPanel + w * kLanes, totals[r][w]);
}

template <int R>
inline void multiply_few(const FewRows& rows, const Q4Tile* tiles, int input_tiles, float* c) {
  if (rows.bytes != nullptr) return multiply_few_bytes<R>(rows, tiles, input_tiles, c);
  multiply_few<R, Q4Tile>(rows, tiles, input_tiles, c);
}
#endif

template <class Tile>
inline void multiply_few(const FewRows& rows, const Tile* tiles, int input_tiles, float* c) {
  switch (rows.count) {
    case 1: return multiply_few<1>(rows, tiles, input_tiles, c);
    case 2: return multiply_few<2>(rows, tiles, input_tiles, c);
    default: return multiply_few<FewRows::kMost>(rows, tiles, input_tiles, c);
  }
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
  //
  // Floats that are to be plain bfloat16 are kept smaller where that gives the very same bfloat16 numbers: weights
  // that were quantised in their file mostly do, and a step reads a third of the memory.
  template <class Source>
  void pack(Team& team, const Source* source, int rows, int columns, Format format, bool halves_side_by_side) {
    outputs = rows, inputs = columns, approximate_ = format != Format::kPlain;
    if (!approximate_ && sizeof(Source) > sizeof(T))
      for (Format smaller : {Format::kQ4, Format::kInt8})
        if (pack_as(team, source, smaller, halves_side_by_side)) return;
    pack_as(team, source, format, halves_side_by_side);
  }

  // Whether the numbers kept are not those that were given.
  bool approximate() const { return approximate_; }

  // Whether a few rows should come in bytes as well.
  bool wants_bytes() const { return kByteProducts && sizeof(T) == 2 && format_ == Format::kQ4; }

  // The tiles of a panel as T; in `scratch` (room for a panel) unless that is how they are kept.
  const T* panel(int index, T* scratch) const {
    if (format_ == Format::kPlain) return tiles<T>(index);
    for (int tile = 0; tile < 2 * input_tiles(); tile++) {
      if (format_ == Format::kInt8)
        decode(tiles<Int8Tile>(index)[tile], scratch + tile * kTile);
      else
        decode(tiles<Q4Tile>(index)[tile], scratch + tile * kTile);
    }
    return scratch;
  }

  // use(tiles) of a panel that is kept in fewer bits; false where it is not.
  template <class Use>
  bool with_packed(int index, Use use) const {
    if (format_ == Format::kInt8) use(tiles<Int8Tile>(index));
    if (format_ == Format::kQ4) use(tiles<Q4Tile>(index));
    return format_ != Format::kPlain;
  }

  // Quantised only: c [count][32] = rows times a panel.
  void multiply_few(const FewRows& rows, int index, float* c) const {
    if (format_ == Format::kInt8)
      midstream::multiply_few(rows, tiles<Int8Tile>(index), input_tiles(), c);
    else
      midstream::multiply_few(rows, tiles<Q4Tile>(index), input_tiles(), c);
  }

 private:
  size_t tile_bytes() const {
    if (format_ == Format::kPlain) return kTile * sizeof(T);
    return format_ == Format::kInt8 ? sizeof(Int8Tile) : sizeof(Q4Tile);
  }
  size_t panel_bytes() const { return 2 * input_tiles() * tile_bytes(); }

  template <class Tile>
  const Tile* tiles(int panel) const {
    return reinterpret_cast<const Tile*>(data_.as<uint8_t>() + panel * panel_bytes());
  }

  // False, and gives up, when `format` cannot hold weights that must be exact.
  template <class Source>
  bool pack_as(Team& team, const Source* source, Format format, bool halves_side_by_side) {
    format_ = format;
    data_ = Memory(panels() * panel_bytes());
    std::atomic<bool> held{true};
    team.run([&](int) {
      team.for_each(panels(), [&](int panel) {
        for (int tile = 0; tile < 2 * input_tiles() && held.load(std::memory_order_relaxed); tile++) {
          int first = halves_side_by_side ? tile % 2 * (outputs / 2) + panel * kLanes
                                          : panel * kPanel + tile % 2 * kLanes;
          if (!pack_tile(source, panel, tile, first)) held = false;
        }
      });
    });
    return held;
  }

  template <class Source>
  bool pack_tile(const Source* source, int panel, int tile, int first_output) {
    uint8_t* target = data_.as<uint8_t>() + panel * panel_bytes() + tile * tile_bytes();
    alignas(64) float values[kTile];
    read_tile(source, tile, first_output, format_ == Format::kPlain ? kPair<T> : 1, values);
    if (format_ == Format::kInt8) return encode_tile(values, reinterpret_cast<Int8Tile*>(target));
    if (format_ == Format::kQ4) return encode_tile(values, reinterpret_cast<Q4Tile*>(target));
    for (int e = 0; e < kTile; e += kLanes) store(reinterpret_cast<T*>(target) + e, load(values + e));
    return true;
  }

  // False when `values` must be exact and are not.
  template <class Tile>
  bool encode_tile(const float* values, Tile* target) const {
    encode(values, target);
    if (approximate_) return true;
    T given[kTile], kept[kTile];
    for (int v = 0; v < kTileInputs; v += 2)
      store_pairs(given + v * kLanes, load(values + v * kLanes), load(values + (v + 1) * kLanes));
    decode(*target, kept);
    return std::memcmp(given, kept, sizeof kept) == 0;
  }

  // In tile order with `pair` inputs side by side.
  template <class Source>
  void read_tile(const Source* source, int tile, int first_output, int pair, float* values) const {
    for (int e = 0; e < kTile; e++) {
      int output = first_output + e / pair % kLanes;
      size_t column = tile / 2 * kTileInputs + e / (kLanes * pair) * pair + e % pair;
      values[e] = output < outputs ? widen(source[output * static_cast<size_t>(inputs) + column]) : 0;
    }
  }

  Format format_ = Format::kPlain;
  bool approximate_ = false;
  Memory data_;
};

}  // namespace midstream
