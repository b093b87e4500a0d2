// What a paged cache keeps of a value: float32, float16, bfloat16, the 8-bit float e4m3 without infinities, or whole
// numbers of 8 bits. Each kind widens LANES values and narrows them, to the nearest, ties to even.
#pragma once
#include "simd.h"

namespace engine {

typedef uint8_t vu __attribute__((vector_size(LANES)));

template <class V, class T>
inline void store_as(T* to, V x) {
  std::memcpy(to, &x, sizeof(V));
}

// The lesser of both; `x` where `most` is NaN is not asked.
inline vf clamped(vf x, float most) {
  x = x > most ? broadcast(most) : x;
  return x < -most ? broadcast(-most) : x;
}

struct Float32 {
  typedef float type;
  static vf widen(const float* from) { return load(from); }
  static void narrow(float* to, vf x) { store(to, x); }
};

struct Float16 {
  typedef uint16_t type;
  static vf widen(const uint16_t* from) { return from_half(load_as<vh>(from)); }
  static void narrow(uint16_t* to, vf x) { store_as(to, to_half(x)); }
};

struct Bfloat16 {
  typedef uint16_t type;
  static vf widen(const uint16_t* from) { return from_bfloat(load_as<vh>(from)); }
  static void narrow(uint16_t* to, vf x) {
    const vi bits = (vi)x, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    store_as(to, __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded, vh));
  }
};

// Sign, four bits of exponent (bias 7), three of mantissa; all ones are NaN; 448 is the largest value.
struct Float8 {
  typedef uint8_t type;
  static vf widen(const uint8_t* from) {
    const vi x = __builtin_convertvector(load_as<vu>(from), vi), rest = x & 0x7f;
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
    store_as(to, __builtin_convertvector(y | sign, vu));
  }
};

struct Int8 {
  typedef int8_t type;
  static vf widen(const int8_t* from) { return to_float(__builtin_convertvector(load_as<vb>(from), vi)); }
  static void narrow(int8_t* to, vf x) {
    x = x > 127.0f ? broadcast(127.0f) : x;
    x = x < -128.0f ? broadcast(-128.0f) : x;
    x = x == x ? x : vf{};
    store_as(to, __builtin_convertvector(whole(x), vb));
  }
};

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
