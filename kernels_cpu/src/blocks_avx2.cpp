// Products of blocks in 256-bit registers: half a step of 16 rows in one. With AVX-VNNI by vpdpbusd, else by vpmaddubsw
// into 16-bit sums, which hold |activation| <= 127 times codes of 4 bits for eight steps, of 5 bits for four, of 6 bits
// for two; codes of 8 bits are multiplied by magnitude and sign and take no sum of 16 bits at all.
#include "simd.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "blocks.h"

namespace engine {
namespace {

constexpr int HALF = STEP / 2;

#if defined(__AVXVNNI__)
constexpr bool SUMS_32 = true;
inline __m256i dot(__m256i sum, __m256i weights, __m256i four) { return _mm256_dpbusd_avx_epi32(sum, weights, four); }
#else
constexpr bool SUMS_32 = false;
inline __m256i dot(__m256i sum, __m256i, __m256i) { return sum; }
#endif

inline __m256i bytes(const uint8_t* at) { return _mm256_loadu_si256((const __m256i*)at); }
inline __m256 halves(const uint8_t* at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)at)); }
inline __m256 small(const uint8_t* at) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)at)));
}
inline __m256 small_signed(const uint8_t* at) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)at)));
}
inline __m256i word(const uint8_t* at) {
  int32_t x;
  std::memcpy(&x, at, 4);
  return _mm256_set1_epi32(x);
}
inline __m256 number(const uint8_t* at) { return _mm256_castsi256_ps(word(at)); }

inline __m256i shifted(__m256i x, int by) { return by > 0 ? _mm256_slli_epi16(x, by) : _mm256_srli_epi16(x, -by); }

// Codes of a step for rows 0..7, or 8..15. `s` is a constant wherever this is called.
template <int F>
inline __m256i codes(const uint8_t* record, int s, int half) {
  constexpr Layout own = LAYOUTS[F];
  const uint8_t* const from = record + half * HALF;
  if (own.bits == 8) return bytes(from + own.codes + s * STEP);
  const __m256i raw = bytes(from + own.codes + s % 4 * STEP);
  const __m256i low = _mm256_and_si256(s < 4 ? raw : _mm256_srli_epi16(raw, 4), _mm256_set1_epi8(15));
  if (own.bits == 5) {
    const __m256i upper = shifted(bytes(from + own.upper), 4 - s);
    return _mm256_or_si256(low, _mm256_and_si256(upper, _mm256_set1_epi8(0x10)));
  }
  if (own.bits == 6) {
    const __m256i upper = shifted(bytes(from + own.upper + s / 4 * STEP), 4 - s % 4 * 2);
    return _mm256_or_si256(low, _mm256_and_si256(upper, _mm256_set1_epi8(0x30)));
  }
  return low;
}

struct Factors {
  __m256 scale, minimum;
};

template <int F>
inline Factors factors(const uint8_t* head, const uint8_t* record, int part, int half) {
  constexpr Layout own = LAYOUTS[F];
  Factors found{};
  const uint8_t* const at = record + half * ROWS / 2;
  if constexpr (own.span == 1) {
    found.scale = halves(record + half * ROWS);
    if constexpr (own.zero == 0) found.minimum = halves(record + 2 * ROWS + half * ROWS);
  } else {
    const __m256 factor = halves(head + half * ROWS);
    found.scale = _mm256_mul_ps(factor, own.parts == 2 ? small_signed(at + part * ROWS) : small(at));
    if constexpr (own.zero == 0) {
      const __m256 other = _mm256_sub_ps(_mm256_setzero_ps(), halves(head + 2 * ROWS + half * ROWS));
      found.minimum = _mm256_mul_ps(other, small(at + ROWS));
    }
  }
  return found;
}

// Adds the products of steps [begin, begin + STEPS) to 32-bit sums.
template <int F, int T, int COUNT>
inline void steps(__m256i (&sum)[T][2], const uint8_t* record, const uint8_t* tile, int begin) {
  constexpr Layout own = LAYOUTS[F];
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i near[T][2];
#pragma GCC unroll 8
  for (int s = begin; s < begin + COUNT; ++s) {
    __m256i weights[2] = {codes<F>(record, s, 0), codes<F>(record, s, 1)}, sizes[2];
    if (own.bits == 8 && !SUMS_32)
      for (int half = 0; half < 2; ++half) {
        weights[half] = _mm256_xor_si256(weights[half], _mm256_set1_epi8(-128));
        sizes[half] = _mm256_abs_epi8(weights[half]);
      }
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const __m256i four = word(tile + t * GROUP + s * 4);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        if (SUMS_32) {
          sum[t][half] = dot(sum[t][half], weights[half], four);
        } else if (own.bits == 8) {
          const __m256i pairs = _mm256_maddubs_epi16(sizes[half], _mm256_sign_epi8(four, weights[half]));
          sum[t][half] = _mm256_add_epi32(sum[t][half], _mm256_madd_epi16(pairs, ones));
          KEEP(sum[t][half]);
        } else {
          const __m256i pairs = _mm256_maddubs_epi16(weights[half], four);
          near[t][half] = s == begin ? pairs : _mm256_add_epi16(near[t][half], pairs);
          KEEP(near[t][half]);
        }
      }
    }
  }
  if (!SUMS_32 && own.bits != 8)
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        sum[t][half] = _mm256_add_epi32(sum[t][half], _mm256_madd_epi16(near[t][half], ones));
        KEEP(sum[t][half]);
      }
}

template <int F, int T>
struct Form {
  static void product(const uint8_t* const* strips, Share share) {
    constexpr Layout own = LAYOUTS[F];
    constexpr int COUNT = SUMS_32 || own.bits == 8 ? STEPS / own.parts : own.bits == 4 ? 8 : own.bits == 5 ? 4 : 2;
    // By magnitude and sign nothing has to be taken away again.
    constexpr bool STARTS = own.zero != 0 && (SUMS_32 || own.bits != 8);
    float* const sums = share.sums;
    each_group<F, T>(*strips, share, [&](const uint8_t* head, const uint8_t* strip, const uint8_t* tile) {
#pragma GCC unroll 2
      for (int part = 0; part < own.parts; ++part) {
        const uint8_t* const starts = tile + T * (GROUP + 4 + 4 * part);
        __m256i sum[T][2];
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sum[t][0] = sum[t][1] = STARTS ? word(starts + t * 4) : _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int s = 0; s < STEPS / own.parts; s += COUNT)
          steps<F, T, COUNT>(sum, strip, tile, part * STEPS / own.parts + s);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const Factors by = factors<F>(head, strip, part, half);
#pragma GCC unroll 4
          for (int t = 0; t < T; ++t) {
            float* const at = sums + t * ROWS + half * ROWS / 2;
            __m256 total = _mm256_loadu_ps(at);
            const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[t][half]), by.scale);
            total = _mm256_fmadd_ps(scaled, number(tile + T * GROUP + t * 4), total);
            _mm256_storeu_ps(at, total);
            if (own.zero == 0) {
              const __m256 low = _mm256_loadu_ps(at + T * ROWS);
              _mm256_storeu_ps(at + T * ROWS, _mm256_fmadd_ps(by.minimum, number(starts + t * 4), low));
            }
          }
        }
      }
    });
  }
};

}  // namespace
}  // namespace engine

using namespace engine;

ENGINE_KERNEL(engine_block_tiles_avx2) { Forms<Form>::tiles(call, member); }
ENGINE_KERNEL(engine_block_product_avx2) { Forms<Form>::run(call, member); }
#endif
