// Products of blocks by sdot: a quarter of a step of 16 rows in one, activations by lane.
#include "simd.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "blocks.h"

namespace engine {
namespace {

constexpr int QUARTERS = 4;

inline float32x4_t halves(const uint8_t* at) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}
inline float32x4_t small(const uint8_t* at, bool is_signed) {
  uint32_t four;
  std::memcpy(&four, at, 4);
  const uint8x8_t x = vcreate_u8(four);
  if (is_signed) return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(x)))));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(x))));
}
inline float number(const uint8_t* at) {
  float x;
  std::memcpy(&x, at, 4);
  return x;
}

template <int BY>
inline uint8x16_t shifted(uint8x16_t x) {
  if constexpr (BY > 0) return vshlq_n_u8(x, BY);
  if constexpr (BY < 0) return vshrq_n_u8(x, -BY);
  return x;
}

// Codes of step S for four rows, as signed numbers; those of 8 bits lose what they were raised by.
template <int F, int S>
inline int8x16_t codes(const uint8_t* record, int quarter) {
  constexpr Layout own = LAYOUTS[F];
  const uint8_t* const from = record + quarter * 16;
  if constexpr (own.bits == 8) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(from + own.codes + S * STEP), vdupq_n_u8(0x80)));
  } else {
    const uint8x16_t raw = vld1q_u8(from + own.codes + S % 4 * STEP);
    uint8x16_t code = S < 4 ? vandq_u8(raw, vdupq_n_u8(15)) : vshrq_n_u8(raw, 4);
    if constexpr (own.bits == 5)
      code = vorrq_u8(code, vandq_u8(shifted<4 - S>(vld1q_u8(from + own.upper)), vdupq_n_u8(0x10)));
    if constexpr (own.bits == 6) {
      const uint8x16_t upper = shifted<4 - S % 4 * 2>(vld1q_u8(from + own.upper + S / 4 * STEP));
      code = vorrq_u8(code, vandq_u8(upper, vdupq_n_u8(0x30)));
    }
    return vreinterpretq_s8_u8(code);
  }
}

template <int F, int T, int S>
inline void step(int32x4_t (&sums)[T][QUARTERS], const uint8_t* record, const int8x16_t (&x)[T]) {
#pragma GCC unroll 4
  for (int q = 0; q < QUARTERS; ++q) {
    const int8x16_t weights = codes<F, S>(record, q);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) sums[t][q] = vdotq_laneq_s32(sums[t][q], weights, x[t], S % 4);
  }
}

template <int F, int T>
struct Form {
  static void product(const uint8_t* const* strips, Share share) {
    constexpr Layout own = LAYOUTS[F];
    // Nothing has to be taken away from products of signed codes.
    constexpr bool STARTS = own.zero != 0 && own.bits != 8;
    float* const sums = share.sums;
    each_group<F, T>(*strips, share, [&](const uint8_t* head, const uint8_t* strip, const uint8_t* tile) {
#pragma GCC unroll 2
      for (int part = 0; part < own.parts; ++part) {
        const uint8_t* const starts = tile + T * (GROUP + 4 + 4 * part);
        int32x4_t sum[T][QUARTERS];
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          int32_t start = 0;
          if (STARTS) std::memcpy(&start, starts + t * 4, 4);
#pragma GCC unroll 4
          for (int q = 0; q < QUARTERS; ++q) sum[t][q] = vdupq_n_s32(start);
        }
        int8x16_t x[T];
        if (part == 0) {
#pragma GCC unroll 4
          for (int t = 0; t < T; ++t) x[t] = vreinterpretq_s8_u8(vld1q_u8(tile + t * GROUP));
          step<F, T, 0>(sum, strip, x);
          step<F, T, 1>(sum, strip, x);
          step<F, T, 2>(sum, strip, x);
          step<F, T, 3>(sum, strip, x);
        }
        if (part == own.parts - 1) {
#pragma GCC unroll 4
          for (int t = 0; t < T; ++t) x[t] = vreinterpretq_s8_u8(vld1q_u8(tile + t * GROUP + 16));
          step<F, T, 4>(sum, strip, x);
          step<F, T, 5>(sum, strip, x);
          step<F, T, 6>(sum, strip, x);
          step<F, T, 7>(sum, strip, x);
        }
#pragma GCC unroll 4
        for (int q = 0; q < QUARTERS; ++q) {
          float32x4_t scale, low = vdupq_n_f32(0);
          if (own.span == 1) {
            scale = halves(strip + q * 8);
            if (own.zero == 0) low = halves(strip + 2 * ROWS + q * 8);
          } else {
            scale = vmulq_f32(halves(head + q * 8), small(strip + part * ROWS + q * 4, own.parts == 2));
            if (own.zero == 0)
              low = vmulq_f32(vnegq_f32(halves(head + 2 * ROWS + q * 8)), small(strip + ROWS + q * 4, false));
          }
#pragma GCC unroll 4
          for (int t = 0; t < T; ++t) {
            float* const at = sums + t * ROWS + q * 4;
            const float32x4_t scaled = vmulq_f32(vcvtq_f32_s32(sum[t][q]), scale);
            vst1q_f32(at, vfmaq_n_f32(vld1q_f32(at), scaled, number(tile + T * GROUP + t * 4)));
            if (own.zero == 0)
              vst1q_f32(at + T * ROWS, vfmaq_n_f32(vld1q_f32(at + T * ROWS), low, number(starts + t * 4)));
          }
        }
      }
    });
  }
};

}  // namespace
}  // namespace engine

using namespace engine;

ENGINE_KERNEL(engine_block_tiles_neon) { Forms<Form>::tiles(call, member); }
ENGINE_KERNEL(engine_block_product_neon) { Forms<Form>::run(call, member); }
#endif
