// What a paged cache keeps of a value: float32, float16, bfloat16, the 8-bit float e4m3 without infinities, or whole
// numbers of 8 bits with a scale for each head of a token, a float32 behind them. Each kind widens LANES values and
// narrows them, to the nearest, ties to even. `room`: bytes behind a head; `limbs`: bfloat16 whose sum is a value.
#pragma once
#include "simd.h"

namespace engine {

template <class V, class T>
inline void store_as(T* to, V x) {
  std::memcpy(to, &x, sizeof(V));
}

// Held to `most` and its negative; NaN stays.
inline vf clamped(vf x, float most) {
  x = x > most ? broadcast(most) : x;
  return x < -most ? broadcast(-most) : x;
}

// Whole numbers of LANES bytes or words, and back. GCC takes a conversion of whole vectors apart lane by lane.
#if defined(ENGINE_AVX512)
inline vi wider(const uint8_t* from) { return (vi)_mm512_cvtepu8_epi32(load_as<__m128i>(from)); }
inline vi wider(const int8_t* from) { return (vi)_mm512_cvtepi8_epi32(load_as<__m128i>(from)); }
inline vi wider(const uint16_t* from) { return (vi)_mm512_cvtepu16_epi32(load_as<__m256i>(from)); }
inline void store_low(uint8_t* to, vi x) { store_as(to, _mm512_cvtepi32_epi8((__m512i)x)); }
inline void store_low(uint16_t* to, vi x) { store_as(to, _mm512_cvtepi32_epi16((__m512i)x)); }
#elif defined(__AVX2__)
inline vi wider(const uint8_t* from) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from)); }
inline vi wider(const int8_t* from) { return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)); }
inline vi wider(const uint16_t* from) { return (vi)_mm256_cvtepu16_epi32(load_as<__m128i>(from)); }
#else
template <class T>
inline vi wider(const T* from) {
  vi x{};
  for (int i = 0; i < LANES; ++i) x[i] = from[i];
  return x;
}
#endif
#if !defined(ENGINE_AVX512)
template <class T>
inline void store_low(T* to, vi x) {
  for (int i = 0; i < LANES; ++i) to[i] = T(x[i]);
}
#endif

struct Float32 {
  typedef float type;
  static constexpr int limbs = 3;
  static constexpr int64_t room = 0;
  static vf widen(const float* from) { return load(from); }
  static void narrow(float* to, vf x) { store(to, x); }
};

struct Float16 {
  typedef uint16_t type;
  static constexpr int limbs = 2;
  static constexpr int64_t room = 0;
  static vf widen(const uint16_t* from) { return from_half(load_as<vh>(from)); }
  static void narrow(uint16_t* to, vf x) { store_as(to, to_half(x)); }
};

struct Bfloat16 {
  typedef uint16_t type;
  static constexpr int limbs = 1;
  static constexpr int64_t room = 0;
  static vf widen(const uint16_t* from) { return (vf)(wider(from) << 16); }
  static void narrow(uint16_t* to, vf x) {
    const vi bits = (vi)x, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    store_low(to, (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
};

// Sign, four bits of exponent (bias 7), three of mantissa; all ones are NaN; 448 is the largest value.
struct Float8 {
  typedef uint8_t type;
  static constexpr int limbs = 1;
  static constexpr int64_t room = 0;
  static vf widen(const uint8_t* from) {
    const vi x = wider(from), rest = x & 0x7f;
    vi bits = (rest << 20) + (120 << 23);
    bits = rest < 8 ? (vi)(to_float(rest) * 0x1p-9f) : bits;
    bits = rest == 0x7f ? (vi{} + 0x7fc00000) : bits;
    return (vf)(bits | (x & 0x80) << 24);
  }
  static void narrow(uint8_t* to, vf given) {
    const vi sign = (vi)given >> 24 & 0x80;
    const vf x = abs(clamped(given, 448.0f));
    const vi bits = (vi)x;
    vi y = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
    y = x < 0x1p-6f ? whole(min(x, broadcast(1.0f)) * 512.0f) : y;
    y = x == x ? y : (vi{} + 0x7f);
    store_low(to, y | sign);
  }
};

struct Int8 {
  typedef int8_t type;
  static constexpr int limbs = 3;
  static constexpr int64_t room = sizeof(float);
  static vf widen(const int8_t* from) { return to_float(wider(from)); }
  static void narrow(int8_t* to, vf x) {
    store_low(reinterpret_cast<uint8_t*>(to), whole(clamped(x == x ? x : vf{}, 127.0f)));
  }
};

// Of a head's whole numbers.
inline float scale_behind(const void* values, int64_t dim) {
  float scale;
  std::memcpy(&scale, static_cast<const char*>(values) + dim, sizeof(scale));
  return scale;
}

// Calls `body` with the kind that kernels_cpu/native/attention.py counts.
template <class Body>
inline void with_kind(int64_t kind, Body body) {
  switch (kind) {
    case 0: return body(Float32{});
    case 1: return body(Float16{});
    case 2: return body(Bfloat16{});
    case 3: return body(Float8{});
    default: return body(Int8{});
  }
}

// `count` < LANES values; zeros behind them.
template <class Kind>
inline vf widen_some(const typename Kind::type* from, int64_t count) {
  typename Kind::type lane[LANES] = {};
  std::memcpy(lane, from, size_t(count) * sizeof(lane[0]));
  return Kind::widen(lane);
}
template <class Kind>
inline void narrow_some(typename Kind::type* to, vf x, int64_t count) {
  typename Kind::type lane[LANES];
  Kind::narrow(lane, x);
  std::memcpy(to, lane, size_t(count) * sizeof(lane[0]));
}

}  // namespace engine
