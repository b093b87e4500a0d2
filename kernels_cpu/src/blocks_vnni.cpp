// Products of blocks by vpdpbusd in 512-bit registers: a step of 16 rows in one instruction, activations broadcast from
// memory.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operand of its own intrinsics for a mistake (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "simd.h"

#if defined(ENGINE_AVX512) && defined(__AVX512VNNI__)
#include "blocks.h"

namespace engine {
namespace {

// 1.5 * 2^23: as bits of a float, a sum of products that begins here is this number plus the sum, exactly. Times a scale
// of at most 21 bits it is exact, so one fused step takes it away again.
constexpr float MAGIC = 12582912.0f;
constexpr int32_t MAGIC_BITS = 0x4B400000;

inline __m512i bytes(const uint8_t* at) { return _mm512_loadu_si512(at); }
inline __m512 halves(const uint8_t* at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at)); }
inline __m512 small(const uint8_t* at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at)));
}
inline __m512 small_signed(const uint8_t* at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)at)));
}
inline __m512i word(const uint8_t* at) {
  int32_t x;
  std::memcpy(&x, at, 4);
  return _mm512_set1_epi32(x);
}
typedef int32_t __attribute__((may_alias, aligned(1))) Word;

// GCC 12 loads a broadcast by itself where the product could.
inline void dot(__m512i& sum, __m512i weights, const uint8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*(const Word*)four));
}

inline __m512 number(const uint8_t* at) { return _mm512_castsi512_ps(word(at)); }

template <int SHIFT>
inline __m512i shifted(__m512i x) {
  if constexpr (SHIFT > 0) return _mm512_slli_epi16(x, SHIFT);
  if constexpr (SHIFT < 0) return _mm512_srli_epi16(x, -SHIFT);
  return x;
}

// Codes of step S.
template <int F, int S>
inline __m512i codes(const uint8_t* record) {
  constexpr Layout own = LAYOUTS[F];
  if constexpr (own.bits == 8) return bytes(record + own.codes + S * STEP);
  const __m512i raw = bytes(record + own.codes + S % 4 * STEP);
  const __m512i low = _mm512_and_si512(shifted<S / 4 * -4>(raw), _mm512_set1_epi8(15));
  constexpr int OR_AND = 0xF8;
  if constexpr (own.bits == 5)
    return _mm512_ternarylogic_epi32(low, shifted<4 - S>(bytes(record + own.upper)), _mm512_set1_epi8(0x10), OR_AND);
  if constexpr (own.bits == 6) {
    const __m512i upper = shifted<4 - S % 4 * 2>(bytes(record + own.upper + S / 4 * STEP));
    return _mm512_ternarylogic_epi32(low, upper, _mm512_set1_epi8(0x30), OR_AND);
  }
  return low;
}

struct Factors {
  __m512 scale, back, minimum;
};

template <int F>
inline Factors factors(const uint8_t* head, const uint8_t* record, int part) {
  constexpr Layout own = LAYOUTS[F];
  Factors found{};
  if constexpr (own.span == 1)
    found.scale = halves(record);
  else if constexpr (own.parts == 2)
    found.scale = _mm512_mul_ps(halves(head), small_signed(record + part * ROWS));
  else
    found.scale = _mm512_mul_ps(halves(head), small(record));
  found.back = _mm512_mul_ps(found.scale, _mm512_set1_ps(-MAGIC));
  if constexpr (own.zero == 0 && own.span == 1) found.minimum = halves(record + 2 * ROWS);
  if constexpr (own.zero == 0 && own.span > 1) {
    const __m512 factor = _mm512_sub_ps(_mm512_setzero_ps(), halves(head + 2 * ROWS));
    found.minimum = _mm512_mul_ps(factor, small(record + ROWS));
  }
  return found;
}

template <int T>
inline void step(__m512i (&sums)[T], __m512i weights, const uint8_t* tile) {
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) dot(sums[t], weights, tile + t * GROUP);
}

template <int F, int T>
void product(const uint8_t* strip, const uint8_t* tile, int64_t groups, float* sums) {
  constexpr Layout own = LAYOUTS[F];
  const uint8_t* head = strip;
  __m512 total[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) total[t] = _mm512_loadu_ps(sums + t * ROWS);
  for (int64_t g = 0; g < groups; ++g) {
    if (own.span > 1 && g % own.span == 0) {
      head = strip;
      strip += own.head;
    }
#pragma GCC unroll 2
    for (int part = 0; part < own.parts; ++part) {
      const uint8_t* const starts = tile + T * (GROUP + 4 + 4 * part);
      __m512i sum[T];
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[t] = own.zero == 0 ? _mm512_set1_epi32(MAGIC_BITS) : word(starts + t * 4);
      if (part == 0) {
        step<T>(sum, codes<F, 0>(strip), tile + 0);
        step<T>(sum, codes<F, 1>(strip), tile + 4);
        step<T>(sum, codes<F, 2>(strip), tile + 8);
        step<T>(sum, codes<F, 3>(strip), tile + 12);
      }
      if (part == own.parts - 1) {
        step<T>(sum, codes<F, 4>(strip), tile + 16);
        step<T>(sum, codes<F, 5>(strip), tile + 20);
        step<T>(sum, codes<F, 6>(strip), tile + 24);
        step<T>(sum, codes<F, 7>(strip), tile + 28);
      }
      const Factors own_factors = factors<F>(head, strip, part);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512 scaled = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[t]), own_factors.scale, own_factors.back);
        total[t] = _mm512_fmadd_ps(scaled, number(tile + T * GROUP + t * 4), total[t]);
        if (own.zero == 0) total[t] = _mm512_fmadd_ps(own_factors.minimum, number(starts + t * 4), total[t]);
      }
    }
    strip += own.record;
    tile += tile_record(own, T);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) _mm512_storeu_ps(sums + t * ROWS, total[t]);
}

template <int F>
Product product_of(int size) {
  return size == 1 ? product<F, 1> : size == 2 ? product<F, 2> : size == 4 ? product<F, 4> : product<F, 8>;
}
constexpr Product (*PRODUCTS[FORMATS])(int) = {
    product_of<Q4_0>, product_of<Q4_1>, product_of<Q5_0>, product_of<Q5_1>,
    product_of<Q8_0>, product_of<Q4_K>, product_of<Q5_K>, product_of<Q6_K>,
};

int size_for(int64_t tokens) { return tokens > 4 ? 8 : tokens > 2 ? 4 : int(tokens); }

}  // namespace
}  // namespace engine

using namespace engine;

ENGINE_KERNEL(engine_block_tiles_vnni) {
  const Job job(call);
  make_tiles(job, Tiling(job, size_for(job.x.tokens)), MAGIC_BITS, member);
}

ENGINE_KERNEL(engine_block_product_vnni) {
  const Job job(call);
  const Tiling cut(job, size_for(job.x.tokens));
  multiply(job, cut, PRODUCTS[job.format](cut.size), MAGIC_BITS, member);
}
#endif
