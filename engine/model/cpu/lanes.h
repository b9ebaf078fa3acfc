// Sixteen numbers at a time: one register where the processor has AVX-512, otherwise pairs of what it has. GCC would take
// vectors wider than its registers as well, but keeps them in memory.
#pragma once

#include <cstdint>
#include <type_traits>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace midstream {

constexpr int kLanes = 16;

template <class Half>
struct Pair {
  Half low, high;
};

template <class T>
struct IsPair : std::false_type {};
template <class Half>
struct IsPair<Pair<Half>> : std::true_type {};

#if defined(__AVX512F__)
constexpr int kRegister = 64;
template <class Register>
using Sixteen = Register;
#elif defined(__AVX__)
constexpr int kRegister = 32;
template <class Register>
using Sixteen = Pair<Register>;
#else
constexpr int kRegister = 16;
template <class Register>
using Sixteen = Pair<Pair<Register>>;
#endif

constexpr int kPartLanes = kRegister / 4;
typedef float FloatPart __attribute__((vector_size(kRegister)));
typedef int32_t IntPart __attribute__((vector_size(kRegister)));
typedef float UnalignedFloatPart __attribute__((vector_size(kRegister), aligned(4), may_alias));
typedef int32_t UnalignedIntPart __attribute__((vector_size(kRegister), aligned(4), may_alias));
typedef Sixteen<FloatPart> Floats;
typedef Sixteen<IntPart> Ints;

// A value from the parts that make(first lane) gives.
template <class V, class Make>
inline V build(Make make, int first = 0) {
  if constexpr (IsPair<V>::value) {
    typedef decltype(V::low) Half;
    return {build<Half>(make, first), build<Half>(make, first + static_cast<int>(sizeof(Half) / 4))};
  } else {
    return make(first);
  }
}

// use(part, first lane) for each part of a value.
template <class V, class Use>
inline void each(const V& value, Use use, int first = 0) {
  if constexpr (IsPair<V>::value) {
    each(value.low, use, first);
    each(value.high, use, first + static_cast<int>(sizeof(value.low) / 4));
  } else {
    use(value, first);
  }
}

// map(part, part of other, ...) for each part.
template <class V, class Map, class... Others>
inline auto transform(Map map, const V& value, const Others&... others) {
  if constexpr (IsPair<V>::value) {
    auto low = transform(map, value.low, others.low...);
    return Pair<decltype(low)>{low, transform(map, value.high, others.high...)};
  } else {
    return map(value, others...);
  }
}

// Lane by lane, and with one scalar for all lanes.
#define MIDSTREAM_OPERATOR(op)                                                                      \
  template <class H>                                                                                \
  inline auto operator op(const Pair<H>& a, const Pair<H>& b) {                                     \
    auto low = a.low op b.low;                                                                      \
    return Pair<decltype(low)>{low, a.high op b.high};                                              \
  }                                                                                                 \
  template <class H, class S, class = std::enable_if_t<std::is_arithmetic<S>::value>>              \
  inline auto operator op(const Pair<H>& a, S b) {                                                  \
    auto low = a.low op b;                                                                          \
    return Pair<decltype(low)>{low, a.high op b};                                                   \
  }

MIDSTREAM_OPERATOR(+)
MIDSTREAM_OPERATOR(-)
MIDSTREAM_OPERATOR(*)
MIDSTREAM_OPERATOR(/)
MIDSTREAM_OPERATOR(&)
MIDSTREAM_OPERATOR(|)
MIDSTREAM_OPERATOR(<<)
MIDSTREAM_OPERATOR(>>)
MIDSTREAM_OPERATOR(>)
MIDSTREAM_OPERATOR(<)
MIDSTREAM_OPERATOR(==)
#undef MIDSTREAM_OPERATOR

template <class H>
inline Pair<H> operator-(const Pair<H>& a) {
  return {-a.low, -a.high};
}

template <class H>
inline Pair<H>& operator+=(Pair<H>& a, const Pair<H>& b) {
  return a = a + b;
}

template <class H>
inline Pair<H>& operator|=(Pair<H>& a, const Pair<H>& b) {
  return a = a | b;
}

inline Floats splat(float value) {
  return build<Floats>([&](int) { return FloatPart{} + value; });
}

inline Ints splat(int32_t value) {
  return build<Ints>([&](int) { return IntPart{} + value; });
}

// The same bits, and the nearest numbers.
inline Ints bits(const Floats& values) {
  return transform([](FloatPart part) { return reinterpret_cast<IntPart>(part); }, values);
}

inline Floats from_bits(const Ints& values) {
  return transform([](IntPart part) { return reinterpret_cast<FloatPart>(part); }, values);
}

inline Floats to_floats(const Ints& values) {
  return transform([](IntPart part) { return __builtin_convertvector(part, FloatPart); }, values);
}

inline Ints to_ints(const Floats& values) {
  return transform([](FloatPart part) { return __builtin_convertvector(part, IntPart); }, values);
}

// Lanes of `yes` where the comparison held, of `no` elsewhere.
inline Floats select(const Ints& held, const Floats& yes, const Floats& no) {
  return transform([](IntPart h, FloatPart y, FloatPart n) { return h ? y : n; }, held, yes, no);
}

inline Floats max(const Floats& a, const Floats& b) {
  return transform(
      [](FloatPart x, FloatPart y) {
#if defined(__AVX512F__)
        return (FloatPart)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX__)
        return (FloatPart)_mm256_max_ps((__m256)x, (__m256)y);
#else
        return x > y ? x : y;
#endif
      },
      a, b);
}

inline Floats load(const float* source) {
  return build<Floats>([&](int first) -> FloatPart { return *reinterpret_cast<const UnalignedFloatPart*>(source + first); });
}

inline Ints load(const int32_t* source) {
  return build<Ints>([&](int first) -> IntPart { return *reinterpret_cast<const UnalignedIntPart*>(source + first); });
}

inline void store(float* target, const Floats& values) {
  each(values, [&](FloatPart part, int first) { *reinterpret_cast<UnalignedFloatPart*>(target + first) = part; });
}

inline void store(int32_t* target, const Ints& values) {
  each(values, [&](IntPart part, int first) { *reinterpret_cast<UnalignedIntPart*>(target + first) = part; });
}

inline float first(const Floats& values) {
  float lanes[kLanes];
  store(lanes, values);
  return lanes[0];
}

constexpr int32_t kLaneOrder[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
inline Ints lane_numbers() { return load(kLaneOrder); }

}  // namespace midstream
