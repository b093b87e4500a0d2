// What kernels do to one row of floats. A fused kernel and those it stands for call the same functions here, so that
// both give the same bits; sums have one order for each width.
#pragma once
#include "simd.h"

namespace engine {

#if defined(ENGINE_AVX512)
inline vi larger(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
inline vi larger(vi a, vi b) { return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b); }
#else
inline vi larger(vi a, vi b) { return a > b ? a : b; }
#endif

inline int32_t largest(vi x) {
#if defined(ENGINE_AVX512)
  return _mm512_reduce_max_epi32((__m512i)x);
#elif defined(__AVX2__)
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
#else
  int32_t most = x[0];
  for (int i = 1; i < LANES; ++i) most = x[i] > most ? x[i] : most;
  return most;
#endif
}

template <class To, class From>
inline To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To y;
  std::memcpy(&y, &x, sizeof(y));
  return y;
}

inline void add_row(const float* x, const float* y, float* out, int64_t width) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) store(out + i, load(x + i) + load(y + i));
  for (; i < width; ++i) out[i] = x[i] + y[i];
}

// 1 / sqrt(mean(x * x) + eps).
inline float rms_scale(const float* x, int64_t width, float eps) {
  vf total[4] = {};
  int64_t i = 0;
  for (; i + 4 * LANES <= width; i += 4 * LANES)
    for (int j = 0; j < 4; ++j) {
      const vf v = load(x + i + j * LANES);
      total[j] = fma(v, v, total[j]);
    }
  for (; i + LANES <= width; i += LANES) {
    const vf v = load(x + i);
    total[0] = fma(v, v, total[0]);
  }
  float squares = sum((total[0] + total[1]) + (total[2] + total[3]));
  for (; i < width; ++i) squares = std::fmaf(x[i], x[i], squares);
  return 1.0f / std::sqrt(squares / float(width) + eps);
}

inline void norm_row(const float* x, const float* weight, float* out, int64_t width, float eps) {
  const float scale = rms_scale(x, width, eps);
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
  for (; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

// Runs of `columns` (the last may be shorter) in steps of their largest magnitude / 127, which are the scales; `power`:
// rounded up to powers of two.
void quantize_runs(const float* x, int8_t* out, float* scales, int64_t width, int64_t columns, bool power);

// By one scale that somebody chose: what lies beyond int8 is its limit.
void quantize_by(const float* x, int8_t* out, float scale, int64_t width);

}  // namespace engine
