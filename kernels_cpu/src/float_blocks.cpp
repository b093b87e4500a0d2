// Products of float32 activations with weights in strips of blocks (blocks.h), which become floats a group at a time.
#include "blocks.h"
#include "dense.h"

namespace engine {
namespace {

constexpr bool minima(Format f) { return LAYOUTS[f].zero == 0; }

inline vf bytes_to_float(const uint8_t* from) { return to_float(__builtin_convertvector(load_as<vb>(from), vi)); }

// A byte in bits 8..15 below the exponent of 2^15 is the float 32768 + byte; 32768 + 128 times a factor of half precision
// is exact.
inline void read_bytes(const uint8_t* record, float* out) {
  for (int v = 0; v < VECTORS; ++v) {
    const vf factor = from_half(load_as<vh>(record + v * LANES * 2));
    const uint8_t* codes = record + LAYOUTS[Q8_0].codes + v * LANES * 4;
    float* to = out + v * LANES;
#if defined(ENGINE_SCALAR_HALF)
    const auto put = [&](int k, vi raw) {
      store(to + k * STRIP, ((vf)((raw & 0xff00) | 0x47000000) - 32896.0f) * factor);
    };
#else
    const vf offset = factor * -32896.0f;
    const auto put = [&](int k, vi raw) {
      store(to + k * STRIP, fma((vf)((raw & 0xff00) | 0x47000000), factor, offset));
    };
#endif
#pragma GCC unroll 8
    for (int step = 0; step < STEPS; ++step) {
      vi raw = load_as<vi>(codes + step * STEP);
      KEEP(raw);
      put(step * 4, raw << 8);
      put(step * 4 + 1, raw);
      put(step * 4 + 2, raw >> 8);
      put(step * 4 + 3, raw >> 16);
    }
  }
}

template <Format F>
void read_record(const uint8_t* record, const uint8_t* head, int v, float* out) {
  constexpr const Layout& own = LAYOUTS[F];
  vf factor[2], least{};
  if constexpr (own.head != 0) {
    const vf whole = from_half(load_as<vh>(head + v * LANES * 2));
    factor[0] = factor[1] = whole * bytes_to_float(record + v * LANES);
    if constexpr (own.parts == 2) factor[1] = whole * bytes_to_float(record + ROWS + v * LANES);
    if constexpr (minima(F))
      least = from_half(load_as<vh>(head + 2 * ROWS + v * LANES * 2)) * -bytes_to_float(record + ROWS + v * LANES);
  } else {
    factor[0] = factor[1] = from_half(load_as<vh>(record + v * LANES * 2));
    if constexpr (minima(F)) least = from_half(load_as<vh>(record + 2 * ROWS + v * LANES * 2));
  }
  const uint8_t* upper = record + own.upper + v * LANES * 4;
  const uint8_t* codes = record + own.codes + v * LANES * 4;
  vi high{};
  if constexpr (own.bits == 5) high = load_as<vi>(upper);
  for (int half = 0; half < 2; ++half) {
    if constexpr (own.bits == 6) high = load_as<vi>(upper + half * STEP);
    for (int step = 0; step < STEPS / 2; ++step) {
      const vi raw = load_as<vi>(codes + step * STEP) >> (4 * half);
      float* to = out + (half * 16 + step * 4) * STRIP + v * LANES;
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        vi code = raw >> (8 * j) & 15;
        if constexpr (own.bits == 5) code |= (high >> (8 * j + half * 4 + step) & 1) << 4;
        if constexpr (own.bits == 6) code |= (high >> (8 * j + 2 * step) & 3) << 4;
        if constexpr (minima(F))
          store(to + j * STRIP, fma(to_float(code), factor[half], least));
        else
          store(to + j * STRIP, to_float(code - own.zero) * factor[half]);
      }
    }
  }
}

template <Format F>
const float* read(const void* weight, int64_t columns, int64_t strip, int64_t column, int64_t depth, float* buffer) {
  constexpr const Layout& own = LAYOUTS[F];
  const int64_t bytes = bytes_before(own, columns / GROUP);
  const uint8_t* from = static_cast<const uint8_t*>(weight) + strip * bytes;
  for (int64_t at = 0; at < depth; at += GROUP) {
    const int64_t group = (column + at) / GROUP;
    const uint8_t* head = from + bytes_before(own, group / own.span * own.span);
    const uint8_t* record = head + own.head + group % own.span * own.record;
    // The next strip: a tenth of the time where the weight comes from memory.
    for (int i = 0; i < own.record; i += 64) __builtin_prefetch(record + bytes + i);
    if constexpr (F == Q8_0)
      read_bytes(record, buffer + at * STRIP);
    else
      for (int v = 0; v < VECTORS; ++v) read_record<F>(record, head, v, buffer + at * STRIP);
  }
  return buffer;
}

constexpr Read READERS[FORMATS] = {read<Q4_0>, read<Q4_1>, read<Q5_0>, read<Q5_1>,
                                   read<Q8_0>, read<Q4_K>, read<Q5_K>, read<Q6_K>};

}  // namespace
}  // namespace engine

using namespace engine;

// See multiply(const Call&, ...); size[3]: the format.
ENGINE_KERNEL(engine_float_blocks) { multiply(call, member, READERS[call.size[3]]); }
