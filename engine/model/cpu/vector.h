// What the kernels do with sixteen numbers: conversions, rounding, products. AVX-512 and AVX2 where the processor has
// them, right everywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "lanes.h"

namespace midstream {

typedef int8_t BytePart __attribute__((vector_size(kPartLanes), aligned(1), may_alias));
typedef uint16_t HalfPart __attribute__((vector_size(2 * kPartLanes), aligned(2), may_alias));

struct bf16 {
  uint16_t bits;
};

// How many consecutive inputs of one output lie side by side in a tile: a bfloat16 product takes two at a time.
template <class T>
constexpr int kPair = 4 / sizeof(T);

inline Floats load(const bf16* source) {
  return build<Floats>([&](int first) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + first)));
#else
    const IntPart wide = __builtin_convertvector(*reinterpret_cast<const HalfPart*>(source + first), IntPart);
#endif
    return reinterpret_cast<FloatPart>((IntPart)wide << 16);
  });
}

inline float widen(float value) { return value; }

inline float widen(bf16 value) {
  uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  std::memcpy(&wide, &bits, 4);
  return wide;
}

inline Floats load(const int8_t* source) {
  return build<Floats>([&](int first) {
#if defined(__AVX512F__)
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + first));
    return (FloatPart)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source + first));
    return (FloatPart)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
#else
    return __builtin_convertvector(*reinterpret_cast<const BytePart*>(source + first), FloatPart);
#endif
  });
}

inline Ints rounded_up_half(const Ints& bits) { return bits + ((bits >> 16) & 1) + 0x7fff; }

// Rounds to nearest, ties to even.
inline void store(bf16* target, const Floats& values) {
#ifdef __AVX512BF16__
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), (__m256i)_mm512_cvtneps_pbh((__m512)values));
#else
  each(rounded_up_half(bits(values)) >> 16, [&](IntPart part, int first) {
    *reinterpret_cast<HalfPart*>(target + first) = __builtin_convertvector(part, HalfPart);
  });
#endif
}

// Two inputs of sixteen outputs in the order of a tile.
inline void store_pairs(float* target, const Floats& even, const Floats& odd) {
  store(target, even);
  store(target + kLanes, odd);
}

inline void store_pairs(bf16* target, const Floats& even, const Floats& odd) {
#ifdef __AVX512BF16__
  const __m512i order = (__m512i)(lane_numbers() | (lane_numbers() + kLanes) << 16);
  __m512i apart = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
  _mm512_storeu_si512(target, _mm512_permutexvar_epi16(order, apart));
#else
  const Ints low = rounded_up_half(bits(even)) >> 16 & 0xffff, high = rounded_up_half(bits(odd)) & ~0xffff;
  store(reinterpret_cast<int32_t*>(target), low | high);
#endif
}

inline void store(float* target, float value) { *target = value; }

inline void store(bf16* target, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  target->bits = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline Floats min(const Floats& a, const Floats& b) { return -max(-a, -b); }

// Lane i of the result is lane indices[i] of the values.
inline Floats permute(const Floats& values, const Ints& indices) {
#ifdef __AVX512F__
  return (Floats)_mm512_permutexvar_ps((__m512i)indices, (__m512)values);
#else
  float from[kLanes], to[kLanes];
  int32_t places[kLanes];
  store(from, values);
  store(places, indices);
  for (int i = 0; i < kLanes; i++) to[i] = from[places[i]];
  return load(to);
#endif
}

template <class Combine>
inline float reduce(const Floats& v, Combine combine) {
  float lanes[kLanes];
  store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] = combine(lanes[i], lanes[i + width]);
  return lanes[0];
}

inline float sum(const Floats& v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps((__m512)v);
#else
  return reduce(v, [](float a, float b) { return a + b; });
#endif
}

inline float largest(const Floats& v) {
#ifdef __AVX512F__
  return _mm512_reduce_max_ps((__m512)v);
#else
  return reduce(v, [](float a, float b) { return a > b ? a : b; });
#endif
}

// Infinities and NaN become 0.
inline Floats finite(const Floats& v) { return select(v - v == 0.0f, v, Floats{}); }

// 2^x to about one unit in the last place; x below -126 gives 2^-126.
inline Floats exp2(Floats x) {
  x = max(min(x, splat(126.0f)), splat(-126.0f));
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  Floats rounded = x + shift;
  Ints exponent = bits(rounded) << 23;
  Floats f = x - (rounded - shift);
  Floats p = splat(1.5403530e-4f);  // Taylor terms ln(2)^n / n!: |f| <= 1/2 leaves an error below 2e-7
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  return from_bits(bits(p) + exponent);
}

inline float exp2(float x) { return first(exp2(splat(x))); }

// The four-bit numbers i of all words, as floats.
inline Floats nibbles(const Ints& words, int i) {
#ifdef __AVX512F__
  // A permutation looks at the low four bits of its indices only: shift and look up.
  return permute(to_floats(lane_numbers()), (Ints)_mm512_srli_epi32((__m512i)words, 4 * i));
#else
  return to_floats((words >> (4 * i)) & 15);
#endif
}

// IEEE half precision, which GGUF files keep their scales in.
inline Floats load_half(const uint16_t* source) {
#ifdef __AVX512F__
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
#elif defined(__F16C__)
  return build<Floats>([&](int first) {
    return (FloatPart)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + first)));
  });
#else
  float values[kLanes];
  for (int i = 0; i < kLanes; i++) {
    _Float16 half;
    std::memcpy(&half, source + i, 2);
    values[i] = half;
  }
  return load(values);
#endif
}

// Rounds to half precision; gives back what was kept.
inline Floats store_half(uint16_t* target, const Floats& values) {
  float given[kLanes];
  store(given, values);
  for (int i = 0; i < kLanes; i++) {
    _Float16 half = static_cast<_Float16>(given[i]);
    std::memcpy(target + i, &half, 2);
  }
  return load_half(target);
}

// The nearest whole numbers, ties to even.
inline Ints round_between(const Floats& values, float low, float high) {
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  return to_ints(max(min(values, splat(high)), splat(low)) + shift - shift);
}

// accumulator + b * a for sixteen outputs, `a` being the inputs that lie side by side in b.
inline Floats multiply_add(const Floats& accumulator, const float* b, const float* a) {
  return accumulator + load(b) * *a;
}

inline Floats multiply_add(const Floats& accumulator, const bf16* b, const bf16* a) {
  int32_t pair;
  std::memcpy(&pair, a, 4);
  Ints weights = load(reinterpret_cast<const int32_t*>(b));
#ifdef __AVX512BF16__
  return (Floats)_mm512_dpbf16_ps((__m512)accumulator, (__m512bh)weights, (__m512bh)splat(pair));
#else
  const Floats sum = accumulator + from_bits(weights << 16) * from_bits(splat(pair) << 16);
  return sum + from_bits(weights & ~0xffff) * from_bits(splat(pair) & ~0xffff);
#endif
}

}  // namespace midstream
