// Small products whose sums lie in registers, for scores and for sums of values.
#pragma once
#include "simd.h"

namespace engine {

#if defined(ENGINE_AVX512) || defined(__aarch64__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4, SCORE_HEADS = 4;
#else
constexpr int TILE_ROWS = 6, TILE_VECTORS = 2, SCORE_HEADS = 3;
#endif
constexpr int SCORE_KEYS = 4;

typedef void (*Tile)(const float*, int64_t, const float* const*, int64_t, int64_t, float*, int64_t, bool);

// out [R, V vectors] = or += a [R, depth] times columns `at` onward of `lines` [depth].
template <int R, int V>
void tile(const float* a, int64_t a_stride, const float* const* lines, int64_t at, int64_t depth, float* out,
          int64_t out_stride, bool more) {
  vf total[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) total[r][v] = more ? load(out + r * out_stride + v * LANES) : vf{};
  for (int64_t k = 0; k < depth; ++k) {
    const float* line = lines[k] + at;
    vf x[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) x[v] = load(line + v * LANES);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const vf y = broadcast(a[r * a_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) total[r][v] = fma(y, x[v], total[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(out + r * out_stride + v * LANES, total[r][v]);
}

template <int V>
inline Tile tile_of(int rows) {
  static constexpr Tile known[] = {tile<1, V>, tile<2, V>, tile<3, V>, tile<4, V>, tile<5, V>, tile<6, V>};
  return known[rows - 1];
}

inline Tile tile_of(int rows, int vectors) {
#if defined(ENGINE_AVX512) || defined(__aarch64__)
  if (vectors == 4) return tile_of<4>(rows);
  if (vectors == 3) return tile_of<3>(rows);
#endif
  return vectors == 2 ? tile_of<2>(rows) : tile_of<1>(rows);
}

// out [rows, vectors] = or += a [rows, depth] times lines [depth, vectors]. Every element is one sum in the order of
// `depth`, whichever tile makes it.
inline void product(const float* a, int64_t a_stride, int64_t rows, const float* const* lines, int64_t vectors,
                    int64_t depth, float* out, int64_t out_stride, bool more) {
  for (int64_t v = 0; v < vectors; v += TILE_VECTORS) {
    const int wide = int(vectors - v < TILE_VECTORS ? vectors - v : TILE_VECTORS);
    for (int64_t r = 0, high; r < rows; r += high) {
      const int64_t left = (rows - r + TILE_ROWS - 1) / TILE_ROWS;
      high = (rows - r + left - 1) / left;
      tile_of(int(high), wide)(a + r * a_stride, a_stride, lines, v * LANES, depth, out + r * out_stride + v * LANES,
                               out_stride, more);
    }
  }
}

// Sums of four vectors, each by the same tree.
inline void sums(const vf* x, float* out) {
#if defined(ENGINE_AVX512)
  const __m512 a = (__m512)x[0], b = (__m512)x[1], c = (__m512)x[2], d = (__m512)x[3];
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(__AVX2__)
  const __m256 a = (__m256)x[0], b = (__m256)x[1], c = (__m256)x[2], d = (__m256)x[3];
  const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#elif defined(__aarch64__)
  const float32x4_t ab = vpaddq_f32((float32x4_t)x[0], (float32x4_t)x[1]);
  vst1q_f32(out, vpaddq_f32(ab, vpaddq_f32((float32x4_t)x[2], (float32x4_t)x[3])));
#else
  for (int i = 0; i < 4; ++i) out[i] = sum(x[i]);
#endif
}

// out [H, 4] = q [H, vectors] times the four `lines` [vectors].
template <int H>
inline void scores_of(const float* q, int64_t wide, const float* const* lines, float* out, int64_t out_stride) {
  vf total[H][SCORE_KEYS] = {};
  for (int64_t i = 0; i < wide; i += LANES) {
    vf x[SCORE_KEYS];
#pragma GCC unroll 4
    for (int k = 0; k < SCORE_KEYS; ++k) x[k] = load(lines[k] + i);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const vf y = load(q + h * wide + i);
#pragma GCC unroll 4
      for (int k = 0; k < SCORE_KEYS; ++k) total[h][k] = fma(y, x[k], total[h][k]);
    }
  }
  for (int h = 0; h < H; ++h) sums(total[h], out + h * out_stride);
}

template <int H>
void scores(const float* q, int64_t wide, const float* const* lines, int64_t keys, float* out, int64_t out_stride) {
  for (int64_t k = 0; k < keys; k += SCORE_KEYS) scores_of<H>(q, wide, lines + k, out + k, out_stride);
}

inline void scores(const float* q, int64_t wide, int64_t heads, const float* const* lines, int64_t keys, float* out,
                   int64_t out_stride) {
  for (int64_t h = 0, many; h < heads; h += many) {
    const int64_t left = (heads - h + SCORE_HEADS - 1) / SCORE_HEADS;
    many = (heads - h + left - 1) / left;
    const float* from = q + h * wide;
    float* to = out + h * out_stride;
    switch (many) {
      case 1: scores<1>(from, wide, lines, keys, to, out_stride); break;
      case 2: scores<2>(from, wide, lines, keys, to, out_stride); break;
#if defined(ENGINE_AVX512) || defined(__aarch64__)
      case 4: scores<4>(from, wide, lines, keys, to, out_stride); break;
#endif
      default: scores<3>(from, wide, lines, keys, to, out_stride);
    }
  }
}

// Lower and upper halves of two vectors, lane by lane in turns.
#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, vi{__VA_ARGS__})
#endif
#if defined(ENGINE_AVX512)
#define LOWER(a, b) SHUFFLED(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define UPPER(a, b) SHUFFLED(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif defined(__AVX__)
#define LOWER(a, b) SHUFFLED(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define UPPER(a, b) SHUFFLED(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOWER(a, b) SHUFFLED(a, b, 0, 4, 1, 5)
#define UPPER(a, b) SHUFFLED(a, b, 2, 6, 3, 7)
#endif

// LANES lines from column `at` onward become LANES columns of `out`.
inline void turn(const float* const* lines, int64_t at, float* out, int64_t out_stride) {
  vf x[LANES], y[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) x[i] = load(lines[i] + at);
#pragma GCC unroll 4
  for (int step = 1; step < LANES; step *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES / 2; ++i) {
      y[2 * i] = LOWER(x[i], x[i + LANES / 2]);
      y[2 * i + 1] = UPPER(x[i], x[i + LANES / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; ++i) store(out + i * out_stride, x[i]);
}

}  // namespace engine
