// Products of many queries whose sums lie in registers, for scores and for sums of values.
#pragma once
#include "simd.h"

namespace engine {

#if defined(ENGINE_AVX512) || defined(__aarch64__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#else
constexpr int TILE_ROWS = 6, TILE_VECTORS = 2;
#endif

typedef void (*Tile)(const float*, int64_t, const float* const*, int64_t, int64_t, float*, int64_t);

// out [R, V vectors] = a [R, depth] times columns `at` onward of `lines` [depth].
template <int R, int V>
void tile(const float* a, int64_t a_stride, const float* const* lines, int64_t at, int64_t depth, float* out,
          int64_t out_stride) {
  vf total[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) total[r][v] = vf{};
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
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
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

// out [rows, vectors] = a [rows, depth] times lines [depth, vectors]. Every element is one sum in the order of
// `depth`, whichever tile makes it.
inline void product(const float* a, int64_t a_stride, int64_t rows, const float* const* lines, int64_t vectors,
                    int64_t depth, float* out, int64_t out_stride) {
  for (int64_t v = 0; v < vectors; v += TILE_VECTORS) {
    const int wide = int(vectors - v < TILE_VECTORS ? vectors - v : TILE_VECTORS);
    for (int64_t r = 0, high; r < rows; r += high) {
      const int64_t left = (rows - r + TILE_ROWS - 1) / TILE_ROWS;
      high = (rows - r + left - 1) / left;
      tile_of(int(high), wide)(a + r * a_stride, a_stride, lines, v * LANES, depth, out + r * out_stride + v * LANES,
                               out_stride);
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
