// Products of int8 activations with int8 weights, scaled block by block of columns. Weights are strips of 16 rows in
// steps of [16 rows][4 columns], each a value + 128; every block of columns is filled up to whole steps. Sums of a block
// are exact.
#include "simd.h"
#include "team.h"

namespace engine {
namespace {

constexpr int STRIP = 16, VECTORS = STRIP / LANES, STRIPS = 4, STEP = 64;
#if defined(ENGINE_AVX512) || defined(__aarch64__)
constexpr int ACCUMULATORS = 24;
#else
constexpr int ACCUMULATORS = 8;
#endif
constexpr int TOKENS = ACCUMULATORS / (VECTORS == 1 ? STRIPS : VECTORS);
constexpr int64_t DEPTH = 256;  // steps of all strips of a tile together, which stay in the first-level cache
constexpr int64_t CHUNK = 256;  // tiles whose sums are kept at a time
constexpr int64_t GRAIN = 32;   // strips

typedef int16_t vs __attribute__((vector_size(LANES * 4)));
typedef uint16_t vus __attribute__((vector_size(LANES * 4)));

// What a sum of codes is too large by, for each unit of the activations' sum.
constexpr int32_t EXCESS =
#if defined(__ARM_FEATURE_DOTPROD)
    0;
#else
    128;
#endif

// A step's codes and activations as the product of the instruction set takes them.
#if (defined(ENGINE_AVX512) && defined(__AVX512VNNI__)) || defined(__AVXVNNI__)
typedef vi Codes;
typedef vi Four;
inline Codes codes_of(vi raw) { return raw; }
inline Four four_of(vi raw) { return raw; }
inline vi dot(vi sum, Codes w, Four x) {
#if defined(ENGINE_AVX512)
  sum = (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#else
  sum = (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#endif
  KEEP(sum);
  return sum;
}
#elif defined(__ARM_FEATURE_DOTPROD)
typedef vi Codes;
typedef vi Four;
inline Codes codes_of(vi raw) { return raw ^ int32_t(0x80808080u); }
inline Four four_of(vi raw) { return raw; }
inline vi dot(vi sum, Codes w, Four x) { return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x); }
#else
// Bytes 0 and 2, and 1 and 3, as numbers of 16 bits.
struct Codes {
  vi even, odd;
};
typedef Codes Four;
inline Codes codes_of(vi raw) { return {raw & 0x00ff00ff, (vi)((vus)raw >> 8)}; }
inline Four four_of(vi raw) { return {(vi)((vs)((vus)raw << 8) >> 8), (vi)((vs)raw >> 8)}; }
inline vi pairs(vi a, vi b) {
#if defined(ENGINE_AVX512)
  return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(__AVX__)
  return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}
inline vi dot(vi sum, Codes w, Four x) {
  sum += pairs(w.even, x.even);
  KEEP(sum);
  sum += pairs(w.odd, x.odd);
  KEEP(sum);
  return sum;
}
#endif

// Tokens in tiles of nearly one size. Packed activations are [tile][step][tokens of the tile][4].
struct Tiles {
  int64_t tokens, count;
  explicit Tiles(int64_t given) : tokens(given), count((given + TOKENS - 1) / TOKENS) {}
  int64_t begin(int64_t tile) const { return tile * tokens / count; }
  int64_t largest() const { return (tokens + count - 1) / count; }
};

// w: S strips `stride` bytes apart; x [depth][T][4]; sums [T][S][16] are added to.
using Tile = void (*)(const uint8_t* w, int64_t stride, const int8_t* x, int64_t depth, int32_t* sums);

template <int S, int T>
void tile(const uint8_t* w, int64_t stride, const int8_t* x, int64_t depth, int32_t* sums) {
  constexpr int WIDTH = S * VECTORS;
  vi sum[T][WIDTH];
#pragma GCC unroll 24
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 24
    for (int v = 0; v < WIDTH; ++v) sum[t][v] = load_as<vi>(sums + (t * WIDTH + v) * LANES);
  for (int64_t k = 0; k < depth; ++k) {
    Codes row[WIDTH];
#pragma GCC unroll 24
    for (int v = 0; v < WIDTH; ++v)
      row[v] = codes_of(load_as<vi>(w + v / VECTORS * stride + k * STEP + v % VECTORS * LANES * 4));
#pragma GCC unroll 24
    for (int t = 0; t < T; ++t) {
      int32_t bits;
      std::memcpy(&bits, x + (k * T + t) * 4, 4);
      const Four four = four_of(bits - vi{});
#pragma GCC unroll 24
      for (int v = 0; v < WIDTH; ++v) sum[t][v] = dot(sum[t][v], row[v], four);
    }
  }
#pragma GCC unroll 24
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 24
    for (int v = 0; v < WIDTH; ++v) std::memcpy(sums + (t * WIDTH + v) * LANES, &sum[t][v], sizeof(vi));
}

template <int S, int T>
constexpr Tile fitting() {
  if constexpr (T <= TOKENS && (S == 1 || S * VECTORS * T <= ACCUMULATORS))
    return tile<S, T>;
  else
    return nullptr;
}

Tile tile_of(int strips, int64_t tokens) {
  static constexpr Tile ALL[3][6] = {
      {fitting<1, 1>(), fitting<1, 2>(), fitting<1, 3>(), fitting<1, 4>(), fitting<1, 5>(), fitting<1, 6>()},
      {fitting<2, 1>(), fitting<2, 2>(), fitting<2, 3>(), fitting<2, 4>(), fitting<2, 5>(), fitting<2, 6>()},
      {fitting<4, 1>(), fitting<4, 2>(), fitting<4, 3>(), fitting<4, 4>(), fitting<4, 5>(), fitting<4, 6>()},
  };
  return ALL[strips / 2][tokens - 1];
}

// Adds sums of a block, less what their codes are too large by, times the scales of the token and of the rows.
void add(const int32_t* sums, int32_t excess, float scale, const float* scales, float* total) {
  for (int v = 0; v < VECTORS; ++v) {
    const vf exact = to_float(load_as<vi>(sums + v * LANES) - excess);
    store(total + v * LANES, fma(exact, load(scales + v * LANES) * scale, load(total + v * LANES)));
  }
}

}  // namespace
}  // namespace engine

using namespace engine;

// x int8 [tokens, columns] -> packed, sums int32 [tokens, blocks]; size: tokens, columns, row stride of x, columns of a
// block, bytes of a packed row.
ENGINE_KERNEL(engine_int8_pack) {
  const int64_t tokens = call.size[0], columns = call.size[1], stride = call.size[2], block = call.size[3];
  if (tokens == 0) return;
  const Tiles tiles(tokens);
  const int64_t blocks = (columns + block - 1) / block;
  int64_t begin, end;
  while (member.next(tiles.count, grain_of(tiles.count, member, 2), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = tiles.begin(i), count = tiles.begin(i + 1) - first;
      for (int64_t t = 0; t < count; ++t) {
        const int8_t* x = call.at<int8_t>(0) + (first + t) * stride;
        int8_t* to = call.at<int8_t>(1) + first * call.size[4] + t * 4;
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t last = b * block + block < columns ? b * block + block : columns;
          int32_t sum = 0;
          for (int64_t k = b * block; k < last; k += 4, to += count * 4)
            for (int64_t j = 0; j < 4; ++j) sum += to[j] = k + j < last ? x[k + j] : int8_t{0};
          call.at<int32_t>(2)[(first + t) * blocks + b] = sum;
        }
      }
    }
}

// tensor: packed x, weight, scales of rows [blocks, strips * 16], bias or null, out [tokens, rows], sums of x, scales of
// x; size: tokens, bytes of a packed row, rows, blocks, packed bytes of a block, strides of scales of x by token and block.
ENGINE_KERNEL(engine_int8_product) {
  const int64_t tokens = call.size[0], depth = call.size[1], rows = call.size[2], blocks = call.size[3];
  const int64_t span = call.size[4], strips = (rows + STRIP - 1) / STRIP;
  if (tokens == 0) return;
  const Tiles tiles(tokens);
  const int32_t* x_sums = call.at<int32_t>(5);
  const float* x_scales = call.at<float>(6);
  const float* bias = call.at<float>(3);
  const bool past = passes(call.at<float>(4), tokens, rows);
  int most = STRIPS;
  while (most > 1 && most * VECTORS * tiles.largest() > ACCUMULATORS) most /= 2;
  const int64_t piece = DEPTH / most * 4;
  int32_t* sums = reinterpret_cast<int32_t*>(member.scratch);
  float* totals = reinterpret_cast<float*>(sums + CHUNK * TOKENS * STRIPS * STRIP);
  int64_t grain = grain_of(strips, member, 1), begin, end;
  if (grain > GRAIN) grain = GRAIN;
  while (member.next(strips, grain, begin, end))
    for (int64_t strip = begin; strip < end;) {
      int width = most;
      while (width > end - strip) width /= 2;
      const uint8_t* w = call.at<uint8_t>(1) + strip * STRIP * depth;
      for (int64_t first = 0, last; first < tiles.count; first = last) {
        last = first + CHUNK < tiles.count ? first + CHUNK : tiles.count;
        const int64_t from = tiles.begin(first), to = tiles.begin(last), each = int64_t{width} * STRIP;
        std::memset(totals, 0, size_t((to - from) * each) * 4);
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t stop = b * span + span < depth ? b * span + span : depth;
          std::memset(sums, 0, size_t((to - from) * each) * 4);
          for (int64_t at = b * span; at < stop; at += piece)
            for (int64_t i = first; i < last; ++i) {
              const int64_t token = tiles.begin(i), count = tiles.begin(i + 1) - token;
              tile_of(width, count)(w + at * STRIP, depth * STRIP, call.at<int8_t>(0) + token * depth + at * count,
                                    (stop - at < piece ? stop - at : piece) / 4, sums + (token - from) * each);
            }
          for (int64_t token = from; token < to; ++token)
            for (int s = 0; s < width; ++s)
              add(sums + (token - from) * each + s * STRIP, EXCESS * x_sums[token * blocks + b],
                  x_scales[token * call.size[5] + b * call.size[6]],
                  call.at<float>(2) + (b * strips + strip + s) * STRIP, totals + (token - from) * each + s * STRIP);
        }
        for (int64_t token = from; token < to; ++token) {
          const float* total = totals + (token - from) * each;
          float* out = call.at<float>(4) + token * rows;
          for (int64_t row = strip * STRIP, stop = row + each; past && row < stop; row += LANES, total += LANES)
            pass(out + row, bias == nullptr ? load(total) : load(total) + load(bias + row));
          for (int64_t row = strip * STRIP; !past && row < strip * STRIP + each && row < rows; ++row, ++total)
            out[row] = bias == nullptr ? *total : *total + bias[row];
        }
      }
      strip += width;
    }
  if (past) passed();
}
