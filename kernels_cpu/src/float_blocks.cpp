// Products of float32 activations with weights in blocks of GGUF. Packed: per strip of 16 rows and group of 32 columns
// the codes as [4 columns each] of the 16 rows side by side, low and high halves of bytes 16 columns apart; before them
// fifth bits (or fifth and sixth) of a row together, and factors. Formats `_k` have a head before each eight groups.
#include "dense.h"

namespace engine {
namespace {

enum Format { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

constexpr bool super(Format f) { return f >= Q4_K; }
constexpr bool minima(Format f) { return f == Q4_1 || f == Q5_1 || f == Q4_K || f == Q5_K; }
constexpr bool fifth(Format f) { return f == Q5_0 || f == Q5_1 || f == Q5_K; }
constexpr int zero(Format f) { return f == Q4_0 ? 8 : f == Q5_0 ? 16 : f == Q6_K ? 32 : 0; }
constexpr int GROUP = 32;
constexpr int64_t head_bytes(Format f) { return super(f) ? (minima(f) ? 64 : 32) : 0; }
constexpr int64_t factor_bytes(Format f) { return super(f) || !minima(f) ? 32 : 64; }
constexpr int64_t high_bytes(Format f) { return fifth(f) ? 64 : f == Q6_K ? 128 : 0; }
constexpr int64_t group_bytes(Format f) { return factor_bytes(f) + high_bytes(f) + (f == Q8_0 ? 512 : 256); }
constexpr int64_t strip_bytes(Format f, int64_t columns) {
  return columns / GROUP * group_bytes(f) + (super(f) ? columns / 256 * head_bytes(f) : 0);
}
constexpr int64_t place_of(Format f, int64_t group) {
  return group * group_bytes(f) + (super(f) ? (group / 8 + 1) * head_bytes(f) : 0);
}

inline vf bytes_to_float(const uint8_t* from) { return to_float(__builtin_convertvector(load_as<vb>(from), vi)); }

// The codes of a column and their factor, for LANES rows of a strip.
inline void put(float* out, vi code, int zero, vf factor) { store(out, to_float(code - zero) * factor); }
inline void put(float* out, vi code, vf factor, vf least) { store(out, fma(to_float(code), factor, least)); }

// Bytes as they lie below the exponent of 2^15: a byte's neighbour is loaded so that it lies in bits 8..15, and a float
// of 32768 + its value is there, its sign bit turned.
inline void read_bytes(const uint8_t* group, float* out) {
  for (int v = 0; v < VECTORS; ++v) {
    const vf factor = from_half(load_as<vh>(group + v * LANES * 2));
    const uint8_t* codes = group + 32 + v * LANES * 4;
#if !defined(ENGINE_SCALAR_HALF)
    const vf offset = factor * -32896.0f;
#endif
#pragma GCC unroll 4
    for (int k = 0; k < GROUP; ++k) {
      const vi raw = load_as<vi>(codes + k / 4 * 64 + k % 4 - 1);
      const vf value = (vf)((raw & 0xff00) ^ 0x47008000);
#if defined(ENGINE_SCALAR_HALF)
      store(out + k * STRIP + v * LANES, (value - 32896.0f) * factor);
#else
      store(out + k * STRIP + v * LANES, fma(value, factor, offset));
#endif
    }
  }
}

template <Format F>
void read_group(const uint8_t* group, const uint8_t* head, int v, float* out) {
  vf factor[2], least{};
  if constexpr (super(F)) {
    const vf whole = from_half(load_as<vh>(head + v * LANES * 2));
    factor[0] = whole * bytes_to_float(group + v * LANES);
    if constexpr (F == Q6_K) {
      factor[1] = whole * bytes_to_float(group + 16 + v * LANES);
    } else {
      factor[1] = factor[0];
      least = from_half(load_as<vh>(head + 32 + v * LANES * 2)) * -bytes_to_float(group + 16 + v * LANES);
    }
  } else {
    factor[0] = factor[1] = from_half(load_as<vh>(group + v * LANES * 2));
    if constexpr (minima(F)) least = from_half(load_as<vh>(group + 32 + v * LANES * 2));
  }
  const uint8_t* high = group + factor_bytes(F) + v * LANES * 4;
  const uint8_t* codes = group + factor_bytes(F) + high_bytes(F) + v * LANES * 4;
  for (int half = 0; half < 2; ++half) {
    vi upper{};
    if constexpr (fifth(F)) upper = load_as<vi>(high) >> (16 * half) << 4;
    if constexpr (F == Q6_K) upper = load_as<vi>(high + 64 * half);
    for (int step = 0; step < 4; ++step) {
      const vi raw = load_as<vi>(codes + step * 64) >> (4 * half);
      float* to = out + (half * 16 + step * 4) * STRIP + v * LANES;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        vi code = raw >> (8 * j) & 15;
        if constexpr (fifth(F)) code |= upper >> (4 * step + j) & 16;
        if constexpr (F == Q6_K) code |= (upper >> (8 * step + 2 * j) & 3) << 4;
        if constexpr (minima(F))
          put(to + j * STRIP, code, factor[half], least);
        else
          put(to + j * STRIP, code, zero(F), factor[half]);
      }
    }
  }
}

template <Format F>
const float* read(const void* weight, int64_t columns, int64_t strip, int64_t column, int64_t depth, float* buffer) {
  const uint8_t* own = static_cast<const uint8_t*>(weight) + strip * strip_bytes(F, columns);
  for (int64_t at = 0; at < depth; at += GROUP) {
    const int64_t group = (column + at) / GROUP;
    const uint8_t* place = own + place_of(F, group);
    if constexpr (F == Q8_0) {
      read_bytes(place, buffer + at * STRIP);
    } else {
      const uint8_t* head = super(F) ? own + place_of(F, group / 8 * 8) - head_bytes(F) : nullptr;
      for (int v = 0; v < VECTORS; ++v) read_group<F>(place, head, v, buffer + at * STRIP);
    }
  }
  return buffer;
}

constexpr Read READERS[] = {read<Q4_0>, read<Q4_1>, read<Q5_0>, read<Q5_1>, read<Q8_0>, read<Q4_K>, read<Q5_K>, read<Q6_K>};

}  // namespace
}  // namespace engine

using namespace engine;

// See multiply(); size[3]: the format's place among q4_0 q4_1 q5_0 q5_1 q8_0 q4_k q5_k q6_k.
ENGINE_KERNEL(engine_float_blocks) { multiply(call, member, READERS[call.size[3]]); }
