// Products of small tiles: AMX where the processor has it, vector instructions otherwise.
//
// Left operands are tiles [16 rows][inputs], right ones [inputs / P][16 outputs][P] (see matrix.h); results are float.
// Each result is summed over its inputs in one fixed order, whatever rows it is computed with: a row's result does not
// depend on the batch.
#pragma once

#include <cstddef>

#include "matrix.h"
#include "vector.h"
#if defined(__AMX_BF16__) && defined(__linux__)
#define MIDSTREAM_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace midstream {

constexpr int kTileRows = 16;
constexpr int kBlock = 16;                     // tokens in a block of the KV pool
constexpr int kChunkBlocks = 4;                // blocks that attention takes at once
constexpr int kChunk = kBlock * kChunkBlocks;  // tokens
constexpr int kHalfTile = kBlock * kLanes;     // elements of a V tile: 16 tokens x 16 dimensions

// Where element (row, column) of a left operand with `tiles` tiles to a row lies.
inline size_t left_index(int row, int column, int tiles) {
  size_t tile = static_cast<size_t>(row / kTileRows) * tiles + column / kTileInputs;
  return tile * kTile + row % kTileRows * kTileInputs + column % kTileInputs;
}

#ifdef MIDSTREAM_AMX

// Linux lends the tile registers only to processes that ask.
inline bool request_amx() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

inline const bool kAmx = request_amx();

// Register 0-3: results. 4, 5: left and 6, 7: right operands of a panel; for attention 4 left and 5 right operand of
// 32 inputs, 6 left and 7 right operand of 16.
struct alignas(64) TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Constants: GCC does not see that loading a configuration reads memory, and drops stores to a local one.
inline const TileShapes kPanelShapes = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
inline const TileShapes kAttentionShapes = {1, 0, {}, {64, 64, 64, 64, 64, 64, 32, 64}, {16, 16, 16, 16, 16, 16, 16, 8}};

inline void configure_tiles(bool attention) {
  if (kAmx) _tile_loadconfig(attention ? &kAttentionShapes : &kPanelShapes);
}

inline void release_tiles() {
  if (kAmx) _tile_release();
}

template <int RowTiles>
inline void amx_panel(const bf16* a, size_t row_tile, const bf16* b, int input_tiles, float* c, bool accumulate) {
  constexpr int kRow = 64, kResultRow = kPanel * sizeof(float);
  if (accumulate) {
    _tile_loadd(0, c, kResultRow);
    _tile_loadd(1, c + kLanes, kResultRow);
    if (RowTiles == 2) {
      _tile_loadd(2, c + kTileRows * kPanel, kResultRow);
      _tile_loadd(3, c + kTileRows * kPanel + kLanes, kResultRow);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int t = 0; t < input_tiles; t++, a += kTile, b += 2 * kTile) {
    _tile_loadd(4, a, kRow);
    _tile_loadd(6, b, kRow);
    _tile_loadd(7, b + kTile, kRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (RowTiles == 2) {
      _tile_loadd(5, a + row_tile, kRow);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, kResultRow);
  _tile_stored(1, c + kLanes, kResultRow);
  if (RowTiles == 2) {
    _tile_stored(2, c + kTileRows * kPanel, kResultRow);
    _tile_stored(3, c + kTileRows * kPanel + kLanes, kResultRow);
  }
}

// The same for a packed panel, decoded pair by pair into `buffer` [2][2 tiles] while the products of the pair before are
// under way: neither the panel nor the rows leave the first-level cache.
template <int RowTiles, class Tile>
inline void amx_packed_panel(const bf16* a, size_t row_tile, const Tile* tiles, int input_tiles, bf16* buffer,
                             float* c) {
  constexpr int kRow = 64, kResultRow = kPanel * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  decode(tiles[0], buffer);
  decode(tiles[1], buffer + kTile);
  for (int t = 0; t < input_tiles; t++, a += kTile) {
    const bf16* b = buffer + t % 2 * 2 * kTile;
    if (t + 1 < input_tiles) {
      bf16* next = buffer + (t + 1) % 2 * 2 * kTile;
      decode(tiles[2 * t + 2], next);
      decode(tiles[2 * t + 3], next + kTile);
    }
    // GCC does not see that loading a tile reads memory.
    __asm__ volatile("" ::: "memory");
    _tile_loadd(4, a, kRow);
    _tile_loadd(6, b, kRow);
    _tile_loadd(7, b + kTile, kRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (RowTiles == 2) {
      _tile_loadd(5, a + row_tile, kRow);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, kResultRow);
  _tile_stored(1, c + kLanes, kResultRow);
  if (RowTiles == 2) {
    _tile_stored(2, c + kTileRows * kPanel, kResultRow);
    _tile_stored(3, c + kTileRows * kPanel + kLanes, kResultRow);
  }
}

inline void amx_scores(const bf16* q, const bf16* const* keys, int dim_tiles, float* scores) {
  constexpr int kRow = 64, kResultRow = kChunk * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int t = 0; t < dim_tiles; t++) {
    _tile_loadd(4, q + t * kTile, kRow);
    _tile_loadd(5, keys[0] + t * kTile, kRow);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, keys[1] + t * kTile, kRow);
    _tile_dpbf16ps(1, 4, 5);
    _tile_loadd(5, keys[2] + t * kTile, kRow);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(5, keys[3] + t * kTile, kRow);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, scores, kResultRow);
  _tile_stored(1, scores + kBlock, kResultRow);
  _tile_stored(2, scores + 2 * kBlock, kResultRow);
  _tile_stored(3, scores + 3 * kBlock, kResultRow);
}

// 32 dimensions of sum + weights . values.
inline void amx_weigh(const bf16* weights, const bf16* const* values, size_t first_tile, float* sum, int dims) {
  const int result_row = dims * sizeof(float);
  _tile_loadd(0, sum, result_row);
  _tile_loadd(1, sum + kLanes, result_row);
  for (int block = 0; block < kChunkBlocks; block++) {
    const bf16* value = values[block] + first_tile * kHalfTile;
    _tile_loadd(6, weights + block * kTileRows * kBlock, 32);
    _tile_loadd(7, value, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, value + kHalfTile, 64);
    _tile_dpbf16ps(1, 6, 7);
  }
  _tile_stored(0, sum, result_row);
  _tile_stored(1, sum + kLanes, result_row);
}

#else

inline constexpr bool kAmx = false;
inline void configure_tiles(bool) {}
inline void release_tiles() {}

#endif

// c [R][16 W] (+)= a . b. In a, tiles follow one another; in b they are `b_tile` apart, and `b_column` those of the
// next 16 outputs. `Inputs` are in a tile.
template <int R, int W, int Inputs, class T>
inline void multiply_rows(const T* a, const T* b, size_t b_tile, size_t b_column, int tiles, float* c, int c_row,
                          bool accumulate) {
  constexpr int kStep = kPair<T>;
  Floats sums[R][W];
  for (int r = 0; r < R; r++)
    for (int w = 0; w < W; w++) sums[r][w] = accumulate ? load(c + r * c_row + w * kLanes) : Floats{};
  for (int t = 0; t < tiles; t++, a += kTileRows * Inputs, b += b_tile)
    for (int k = 0; k < Inputs; k += kStep)
      for (int r = 0; r < R; r++)
        for (int w = 0; w < W; w++)
          sums[r][w] = multiply_add(sums[r][w], b + w * b_column + k * kLanes, a + r * Inputs + k);
  for (int r = 0; r < R; r++)
    for (int w = 0; w < W; w++) store(c + r * c_row + w * kLanes, sums[r][w]);
}

// The same for the first `rows` rows of a row tile, as many at a time as the registers hold.
template <int W, int Inputs, class T>
inline void multiply_tile(const T* a, int rows, const T* b, size_t b_tile, size_t b_column, int tiles, float* c,
                          int c_row, bool accumulate) {
#if defined(__AVX512F__)
  constexpr int kMost = 8;
#else
  constexpr int kMost = 2;
#endif
  int r = 0;
  for (; r + kMost <= rows; r += kMost)
    multiply_rows<kMost, W, Inputs>(a + r * Inputs, b, b_tile, b_column, tiles, c + r * c_row, c_row, accumulate);
  for (; kMost > 4 && r + 4 <= rows; r += 4)
    multiply_rows<4, W, Inputs>(a + r * Inputs, b, b_tile, b_column, tiles, c + r * c_row, c_row, accumulate);
  for (; r < rows; r++)
    multiply_rows<1, W, Inputs>(a + r * Inputs, b, b_tile, b_column, tiles, c + r * c_row, c_row, accumulate);
}

// c [32][32] (+)= up to 32 rows times a panel or a part of its inputs; row tiles of `a` are `row_tile` elements apart.
template <class T>
inline void multiply_panel(const T* a, size_t row_tile, int rows, const T* panel, int input_tiles, float* c,
                           bool accumulate) {
#ifdef MIDSTREAM_AMX
  if constexpr (sizeof(T) == 2) {
    if (kAmx)
      return rows > kTileRows ? amx_panel<2>(a, row_tile, panel, input_tiles, c, accumulate)
                              : amx_panel<1>(a, row_tile, panel, input_tiles, c, accumulate);
  }
#endif
  for (int first = 0; first < rows; first += kTileRows, a += row_tile, c += kTileRows * kPanel)
    multiply_tile<2, kTileInputs>(a, std::min(rows - first, kTileRows), panel, 2 * kTile, kTile, input_tiles, c, kPanel,
                                  accumulate);
}

// The same for a whole packed panel, if that is better than to decode it first: then true. `scratch` has room for a panel.
template <class T>
inline bool multiply_packed_panel(const T* a, size_t row_tile, int rows, const Matrix<T>& matrix, int panel,
                                  T* scratch, float* c) {
#ifdef MIDSTREAM_AMX
  if constexpr (sizeof(T) == 2) {
    if (!kAmx || matrix.input_tiles() < 2) return false;
    return matrix.with_packed(panel, [&](const auto* tiles) {
      if (rows > kTileRows)
        amx_packed_panel<2>(a, row_tile, tiles, matrix.input_tiles(), scratch, c);
      else
        amx_packed_panel<1>(a, row_tile, tiles, matrix.input_tiles(), scratch, c);
    });
  }
#endif
  return false;
}

// scores [16][64] = queries of one head times the keys of four blocks.
template <class T>
inline void multiply_keys(const T* q, int rows, const T* const* keys, int dim_tiles, float* scores) {
#ifdef MIDSTREAM_AMX
  if constexpr (sizeof(T) == 2) {
    if (kAmx) return amx_scores(q, keys, dim_tiles, scores);
  }
#endif
  for (int block = 0; block < kChunkBlocks; block++)
    multiply_tile<1, kTileInputs>(q, rows, keys[block], kTile, 0, dim_tiles, scores + block * kBlock, kChunk, false);
}

// sum [16][dims] += weights [4 blocks][16 rows][16 tokens] times the values of four blocks.
template <class T>
inline void add_values(const T* weights, int rows, const T* const* values, float* sum, int dims) {
  for (int tile = 0; tile < dims / kLanes; tile += 2) {
    float* part = sum + tile * kLanes;
#ifdef MIDSTREAM_AMX
    if constexpr (sizeof(T) == 2) {
      if (kAmx) {
        amx_weigh(weights, values, tile, part, dims);
        continue;
      }
    }
#endif
    for (int block = 0; block < kChunkBlocks; block++)
      multiply_tile<2, kBlock>(weights + block * kTileRows * kBlock, rows, values[block] + tile * kHalfTile, 0,
                               kHalfTile, 1, part, dims, true);
  }
}

}  // namespace midstream
