// Strips in 512-bit registers: their codes, 64 at a time, and their factors.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operand of its own intrinsics for a mistake (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
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

inline __m512 begun(bool fresh, const float* sum) { return fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(sum); }

}  // namespace
}  // namespace engine
