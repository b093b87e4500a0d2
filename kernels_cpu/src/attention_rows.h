// One query of a few heads over rows of a cache as they lie: what decoding does.
#pragma once
#include "attention_cache.h"

namespace engine {

#if defined(ENGINE_AVX512) || defined(__aarch64__)
constexpr int ROW_HEADS = 4, ROW_VECTORS = 4;
#else
constexpr int ROW_HEADS = 3, ROW_VECTORS = 2;
#endif
constexpr int ROW_KEYS = 4;
typedef float v4 __attribute__((vector_size(ROW_KEYS * 4)));
constexpr int64_t LINE = 64;

// A line that will be wanted soon starts on its way. Only what the memory takes without waiting is of use, so it goes
// line by line between sums.
inline void fetch(const char* at) { __builtin_prefetch(at, 0, 2); }

struct Add {
  template <class V>
  static V of(V a, V b) {
    return a + b;
  }
};
struct Max {
  template <class V>
  static V of(V a, V b) {
    return a > b ? a : b;
  }
};

// Each of four vectors folded to one value, by the same tree.
template <class Fold>
inline void folded(vf x, vf y, vf z, vf w, float* out) {
#if defined(ENGINE_AVX512)
  const auto low = [](vf a, vf b) {
    return __builtin_shuffle(a, b, vi{0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29});
  };
  const auto high = [](vf a, vf b) {
    return __builtin_shuffle(a, b, vi{2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31});
  };
  const vf xy = Fold::of(low(x, y), high(x, y)), zw = Fold::of(low(z, w), high(z, w));
  const vf all = Fold::of(__builtin_shuffle(xy, zw, vi{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29}),
                          __builtin_shuffle(xy, zw, vi{2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31}));
  const __m256 half = Fold::of(_mm512_castps512_ps256((__m512)all), (__m256)_mm512_extractf32x8_ps((__m512)all, 1));
  _mm_storeu_ps(out, Fold::of(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(__AVX2__)
  const __m256 a = (__m256)x, b = (__m256)y, c = (__m256)z, d = (__m256)w;
  const __m256 ab = Fold::of(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const __m256 cd = Fold::of(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  const __m256 all = Fold::of(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  _mm_storeu_ps(out, Fold::of(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
  const vf four[] = {x, y, z, w};
  for (int i = 0; i < 4; ++i) {
    float lane[LANES];
    store(lane, four[i]);
    for (int width = LANES / 2; width > 0; width /= 2)
      for (int j = 0; j < width; ++j) lane[j] = Fold::of(lane[j], lane[j + width]);
    out[i] = lane[0];
  }
#endif
}

// out [H, keys] = q [H, dim] times the columns from byte `at` onward of `rows` [keys, dim]; keys a multiple of
// ROW_KEYS, dim one of LANES. What lies `ahead` bytes behind those columns is fetched.
template <class Kind, int H>
void scores(const float* q, int64_t dim, const char* const* rows, int64_t at, int64_t ahead, int64_t keys, float* out,
            int64_t out_stride) {
  typedef typename Kind::type type;
  for (int64_t k = 0; k < keys; k += ROW_KEYS) {
    for (int64_t b = 0; b < dim * int64_t(sizeof(type)); b += LINE)
#pragma GCC unroll 4
      for (int i = 0; i < ROW_KEYS; ++i) fetch(rows[k + i] + at + ahead + b);
    const type* line[ROW_KEYS];
    vf total[H][ROW_KEYS];
#pragma GCC unroll 4
    for (int i = 0; i < ROW_KEYS; ++i) line[i] = reinterpret_cast<const type*>(rows[k + i] + at);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < ROW_KEYS; ++i) total[h][i] = vf{};
    for (int64_t c = 0; c < dim; c += LANES) {
      vf y[H];
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) y[h] = load(q + h * dim + c);
#pragma GCC unroll 4
      for (int i = 0; i < ROW_KEYS; ++i) {
        const vf x = Kind::widen(line[i] + c);
#pragma GCC unroll 4
        for (int h = 0; h < H; ++h) total[h][i] = fma(y[h], x, total[h][i]);
      }
    }
    const v4 scale = Kind::room ? v4{scale_behind(line[0], dim), scale_behind(line[1], dim),
                                     scale_behind(line[2], dim), scale_behind(line[3], dim)}
                                : v4{};
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      float* const found = out + h * out_stride + k;
      folded<Add>(total[h][0], total[h][1], total[h][2], total[h][3], found);
      if (Kind::room) store_as(found, load_as<v4>(found) * scale);
    }
  }
}

template <class Kind, int H, int V>
inline void some_values(const float* weights, int64_t stride, const char* const* rows, int64_t at, int64_t scale_at,
                        const char* const* coming, int64_t coming_at, int64_t keys, float* out, int64_t dim) {
  typedef typename Kind::type type;
  vf total[H][V];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) total[h][v] = vf{};
  for (int64_t k = 0; k < keys; ++k) {
    const type* line = reinterpret_cast<const type*>(rows[k] + at);
    const float scale = Kind::room ? scale_behind(rows[k] + scale_at, 0) : 1.0f;
    vf x[V];
#pragma GCC unroll 4
    for (int64_t b = 0; b < int64_t(V * LANES * sizeof(type)); b += LINE) fetch(coming[k] + coming_at + b);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) x[v] = Kind::widen(line + v * LANES);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const float weight = weights[h * stride + k];
      const vf y = broadcast(Kind::room ? weight * scale : weight);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) total[h][v] = fma(y, x[v], total[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(out + h * dim + v * LANES, total[h][v]);
}

// out [H, dim] = weights [H, keys] times the columns from byte `at` onward of `rows` [keys, dim]; dim a multiple of
// LANES. The same columns from byte `coming_at` onward of `coming` [keys] are fetched.
template <class Kind, int H>
void values(const float* weights, int64_t stride, const char* const* rows, int64_t at, const char* const* coming,
            int64_t coming_at, int64_t keys, float* out, int64_t dim) {
  constexpr int64_t item = sizeof(typename Kind::type);
  int64_t c = 0;
  for (; c + ROW_VECTORS * LANES <= dim; c += ROW_VECTORS * LANES)
    some_values<Kind, H, ROW_VECTORS>(weights, stride, rows, at + c * item, at + dim, coming, coming_at + c * item, keys,
                                      out + c, dim);
  for (; c < dim; c += LANES)
    some_values<Kind, H, 1>(weights, stride, rows, at + c * item, at + dim, coming, coming_at + c * item, keys, out + c, dim);
}

// Both for the heads of one kv head, in groups that fit the registers.
struct RowKernels {
  typedef void (*Scores)(const float*, int64_t, const char* const*, int64_t, int64_t, int64_t, float*, int64_t);
  typedef void (*Values)(const float*, int64_t, const char* const*, int64_t, const char* const*, int64_t, int64_t,
                         float*, int64_t);
  Scores scores[ROW_HEADS];
  Values values[ROW_HEADS];
};

template <class Kind>
constexpr RowKernels row_kernels = {
#if defined(ENGINE_AVX512) || defined(__aarch64__)
    {scores<Kind, 1>, scores<Kind, 2>, scores<Kind, 3>, scores<Kind, 4>},
    {values<Kind, 1>, values<Kind, 2>, values<Kind, 3>, values<Kind, 4>}};
#else
    {scores<Kind, 1>, scores<Kind, 2>, scores<Kind, 3>},
    {values<Kind, 1>, values<Kind, 2>, values<Kind, 3>}};
#endif

}  // namespace engine
