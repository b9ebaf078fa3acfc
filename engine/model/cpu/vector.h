// Sixteen floats at a time, in GCC's vector extension: AVX-512 where the processor has it, right everywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace midstream {

constexpr int kLanes = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef float UnalignedFloats __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t UnalignedInts __attribute__((vector_size(64), aligned(4), may_alias));
typedef int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2), may_alias));

constexpr Ints kLaneNumbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct bf16 {
  uint16_t bits;
};

// How many consecutive inputs of one output lie side by side in a tile: a bfloat16 product takes two at a time.
template <class T>
constexpr int kPair = 4 / sizeof(T);

inline Floats splat(float value) { return Floats{} + value; }
inline Ints splat(int32_t value) { return Ints{} + value; }

inline Floats load(const float* source) { return *reinterpret_cast<const UnalignedFloats*>(source); }
inline Ints load(const int32_t* source) { return *reinterpret_cast<const UnalignedInts*>(source); }

inline Floats load(const bf16* source) {
  Ints wide = __builtin_convertvector(*reinterpret_cast<const Halves*>(source), Ints);
  return reinterpret_cast<Floats>(wide << 16);
}

inline float widen(float value) { return value; }

inline float widen(bf16 value) {
  uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

inline Floats load(const int8_t* source) {
#ifdef __AVX512F__
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))));
#else
  return __builtin_convertvector(*reinterpret_cast<const Bytes*>(source), Floats);
#endif
}

inline void store(float* target, Floats values) { *reinterpret_cast<UnalignedFloats*>(target) = values; }

// Rounds to nearest, ties to even.
inline void store(bf16* target, Floats values) {
#ifdef __AVX512BF16__
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), (__m256i)_mm512_cvtneps_pbh((__m512)values));
#else
  Ints bits = reinterpret_cast<Ints>(values);
  bits = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *reinterpret_cast<Halves*>(target) = __builtin_convertvector(bits, Halves);
#endif
}

// Two inputs of sixteen outputs in the order of a tile.
inline void store_pairs(float* target, Floats even, Floats odd) {
  store(target, even);
  store(target + kLanes, odd);
}

inline void store_pairs(bf16* target, Floats even, Floats odd) {
#ifdef __AVX512BF16__
  const __m512i order = (__m512i)(kLaneNumbers | (kLaneNumbers + kLanes) << 16);
  __m512i apart = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
  _mm512_storeu_si512(target, _mm512_permutexvar_epi16(order, apart));
#else
  Ints low = reinterpret_cast<Ints>(even), high = reinterpret_cast<Ints>(odd);
  low = (low + 0x7fff + ((low >> 16) & 1)) >> 16 & 0xffff;
  high = (high + 0x7fff + ((high >> 16) & 1)) & ~0xffff;
  *reinterpret_cast<UnalignedInts*>(target) = low | high;
#endif
}

inline void store(float* target, float value) { *target = value; }

inline void store(bf16* target, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  target->bits = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline Floats max(Floats a, Floats b) {
#ifdef __AVX512F__
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
  return a > b ? a : b;
#endif
}

inline Floats min(Floats a, Floats b) { return -max(-a, -b); }

// Lane i of the result is lane indices[i] of the values.
inline Floats permute(Floats values, Ints indices) {
#ifdef __AVX512F__
  return (Floats)_mm512_permutexvar_ps((__m512i)indices, (__m512)values);
#else
  Floats result;
  for (int i = 0; i < kLanes; i++) result[i] = values[indices[i]];
  return result;
#endif
}

template <class Combine>
inline float reduce(Floats v, Combine combine) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] = combine(lanes[i], lanes[i + width]);
  return lanes[0];
}

inline float sum(Floats v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)v);
#else
  return reduce(v, [](float a, float b) { return a + b; });
#endif
}

inline float largest(Floats v) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)v);
#else
  return reduce(v, [](float a, float b) { return a > b ? a : b; });
#endif
}

// Infinities and NaN become 0.
inline Floats finite(Floats v) { return v - v == 0 ? v : Floats{}; }

// 2^x to about one unit in the last place; x below -126 gives 2^-126.
inline Floats exp2(Floats x) {
  x = max(min(x, splat(126.0f)), splat(-126.0f));
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  Floats rounded = x + shift;
  Ints exponent = reinterpret_cast<Ints>(rounded) << 23;
  Floats f = x - (rounded - shift);
  Floats p = splat(1.5403530e-4f);  // Taylor terms ln(2)^n / n!: |f| <= 1/2 leaves an error below 2e-7
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  return reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + exponent);
}

// The four-bit numbers i of all words, as floats.
inline Floats nibbles(Ints words, int i) {
#ifdef __AVX512F__
  // A permutation looks at the low four bits of its indices only: shift and look up.
  const Floats numbers = __builtin_convertvector(kLaneNumbers, Floats);
  return permute(numbers, (Ints)_mm512_srli_epi32((__m512i)words, 4 * i));
#else
  return __builtin_convertvector((words >> (4 * i)) & 15, Floats);
#endif
}

// IEEE half precision, which GGUF files keep their scales in.
inline Floats load_half(const uint16_t* source) {
#ifdef __AVX512F__
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
#else
  Floats values;
  for (int i = 0; i < kLanes; i++) {
    _Float16 half;
    std::memcpy(&half, source + i, 2);
    values[i] = half;
  }
  return values;
#endif
}

// Rounds to half precision; gives back what was kept.
inline Floats store_half(uint16_t* target, Floats values) {
  for (int i = 0; i < kLanes; i++) {
    _Float16 half = static_cast<_Float16>(values[i]);
    std::memcpy(target + i, &half, 2);
  }
  return load_half(target);
}

// The nearest whole numbers, ties to even.
inline Ints round_between(Floats values, float low, float high) {
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  return __builtin_convertvector(max(min(values, splat(high)), splat(low)) + shift - shift, Ints);
}

// accumulator + b * a for sixteen outputs, `a` being the inputs that lie side by side in b.
inline Floats multiply_add(Floats accumulator, const float* b, const float* a) {
  return accumulator + load(b) * *a;
}

inline Floats multiply_add(Floats accumulator, const bf16* b, const bf16* a) {
  int32_t pair;
  std::memcpy(&pair, a, 4);
  Ints weights = load(reinterpret_cast<const int32_t*>(b));
#ifdef __AVX512BF16__
  return (Floats)_mm512_dpbf16_ps((__m512)accumulator, (__m512bh)weights, (__m512bh)splat(pair));
#else
  accumulator += reinterpret_cast<Floats>(weights << 16) * reinterpret_cast<Floats>(splat(pair) << 16);
  return accumulator + reinterpret_cast<Floats>(weights & ~0xffff) * reinterpret_cast<Floats>(splat(pair) & ~0xffff);
#endif
}

}  // namespace midstream
