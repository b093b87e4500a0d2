// Activations in eight bits, and in sixteen.
#include "rows.h"
#include "team.h"

namespace engine {
namespace {

// The largest magnitude as the bits of a float: NaN is above all others.
inline __attribute__((always_inline)) int32_t magnitude(const float* x, int64_t width) {
  vi most{};
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) most = larger(most, load_as<vi>(x + i) & 0x7fffffff);
  int32_t found = largest(most);
  for (; i < width; ++i) {
    const int32_t bits = bits_as<int32_t>(x[i]) & 0x7fffffff;
    found = bits > found ? bits : found;
  }
  return found;
}

constexpr int BLOCK = 32, PARTS = BLOCK / LANES;

// Low bytes of BLOCK whole numbers from -128 to 127.
inline __attribute__((always_inline)) void narrow(const vi* x, int8_t* out) {
#if defined(ENGINE_AVX512) || !defined(__SSE4_1__)
  for (int j = 0; j < PARTS; ++j) {
    const vb stored = __builtin_convertvector(x[j], vb);
    std::memcpy(out + j * LANES, &stored, sizeof(stored));
  }
#elif defined(__AVX2__)
  const __m256i low = _mm256_packs_epi32((__m256i)x[0], (__m256i)x[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)x[2], (__m256i)x[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i stored = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  std::memcpy(out, &stored, sizeof(stored));
#else
  for (int j = 0; j < PARTS; j += 4) {
    const __m128i low = _mm_packs_epi32((__m128i)x[j], (__m128i)x[j + 1]);
    const __m128i high = _mm_packs_epi32((__m128i)x[j + 2], (__m128i)x[j + 3]);
    const __m128i stored = _mm_packs_epi16(low, high);
    std::memcpy(out + j * LANES, &stored, sizeof(stored));
  }
#endif
}

// Each of x through `quotient`, to the nearest whole number, ties to even. What is left after whole blocks is the same
// by one lane at a time.
template <class Quotient>
inline __attribute__((always_inline)) void rounded(const float* x, int8_t* out, int64_t width, Quotient quotient) {
  int64_t i = 0;
  for (; i + BLOCK <= width; i += BLOCK) {
    vi parts[PARTS];
#pragma GCC unroll 8
    for (int j = 0; j < PARTS; ++j) parts[j] = whole(quotient(load(x + i + j * LANES)));
    narrow(parts, out + i);
  }
  if (i < width) {
    float rest[BLOCK] = {};
    std::memcpy(rest, x + i, size_t(width - i) * sizeof(float));
    int8_t stored[BLOCK];
    vi parts[PARTS];
    for (int j = 0; j < PARTS; ++j) parts[j] = whole(quotient(load(rest + j * LANES)));
    narrow(parts, stored);
    std::memcpy(out + i, stored, size_t(width - i));
  }
}

// A run by its own scale, correctly rounded: a remainder corrects the product with the rounded reciprocal (Markstein,
// "Computation of elementary functions on the IBM RISC System/6000 processor", 1990). Quotients are at most 127.
inline __attribute__((always_inline)) void divide(const float* x, float scale, int8_t* out, int64_t width) {
  if (!(scale < INFINITY)) {
    std::memset(out, 0, size_t(width));
    return;
  }
#if defined(__FMA__) || defined(__aarch64__)
  const vf by = broadcast(1.0f / scale), from = broadcast(-scale);
  rounded(x, out, width, [=](vf v) {
    const vf near = v * by;
    return fma(fma(near, from, v), by, near);
  });
#else
  rounded(x, out, width, [=](vf v) { return v / scale; });
#endif
}

// The least largest magnitude that a scale is made from: SMALLEST of engine/ops/quant.py.
constexpr float SMALLEST = 1e-10f;
// LARGEST of engine/ops/quant.py.
constexpr float WIDEST = 32512.0f;

}  // namespace

void quantize_runs(const float* x, int8_t* out, float* scales, int64_t width, int64_t columns, bool power) {
  const int64_t runs = (width + columns - 1) / columns, full = columns == 32 ? width / 32 : 0;
  for (int64_t g = 0; g < full; ++g) scales[g] = bits_as<float>(magnitude(x + g * 32, 32));
  for (int64_t g = full; g < runs; ++g) {
    const int64_t left = width - g * columns;
    scales[g] = bits_as<float>(magnitude(x + g * columns, left < columns ? left : columns));
  }
  for (int64_t g = 0; g < runs; ++g) scales[g] = (scales[g] < SMALLEST ? SMALLEST : scales[g]) / 127.0f;
  for (int64_t g = 0; power && g < runs; ++g)
    if (scales[g] == scales[g]) scales[g] = bits_as<float>((bits_as<int32_t>(scales[g]) + 0x7fffff) & 0x7f800000);
  for (int64_t g = 0; g < full; ++g) divide(x + g * 32, scales[g], out + g * 32, 32);
  for (int64_t g = full; g < runs; ++g) {
    const int64_t left = width - g * columns;
    divide(x + g * columns, scales[g], out + g * columns, left < columns ? left : columns);
  }
}

// As `quantize_runs`, to int16.
void quantize_wide(const float* x, int16_t* out, float* scales, int64_t width, int64_t columns) {
  for (int64_t at = 0; at < width; at += columns, ++scales) {
    const int64_t count = width - at < columns ? width - at : columns;
    const float most = bits_as<float>(magnitude(x + at, count));
    *scales = (most < SMALLEST ? SMALLEST : most) / WIDEST;
    float rest[LANES];
    for (int64_t i = at; i < at + count; i += LANES) {
      const int64_t left = at + count - i, filled = left < LANES ? left : LANES;
      std::memset(rest, 0, sizeof(rest));
      std::memcpy(rest, x + i, size_t(filled) * sizeof(float));
      const vi found = whole(*scales < INFINITY ? load(rest) / *scales : vf{});
      for (int64_t j = 0; j < filled; ++j) out[i + j] = int16_t(found[j]);
    }
  }
}

void quantize_by(const float* x, int8_t* out, float scale, int64_t width) {
  rounded(x, out, width, [=](vf v) {
    const vf quotient = v / scale, kept = min(broadcast(127.0f), max(broadcast(-128.0f), quotient));
    return quotient == quotient ? kept : vf{};
  });
}

}  // namespace engine

using namespace engine;

// x [rows, width], scale [1] or null -> int8 [rows, width], scales [rows, groups] or null;
// size: rows, width, row stride of x, columns of a group, whether scales are powers of two.
ENGINE_KERNEL(engine_quantize) {
  const int64_t rows = call.size[0], width = call.size[1], stride = call.size[2], columns = call.size[3];
  const int64_t groups = columns ? (width + columns - 1) / columns : 0;
  const float* fixed = call.at<float>(1);
  int64_t begin, end;
  while (member.next(rows, grain_of(rows, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const float* x = call.at<float>(0) + i * stride;
      int8_t* out = call.at<int8_t>(2) + i * width;
      if (fixed != nullptr)
        quantize_by(x, out, *fixed, width);
      else
        quantize_runs(x, out, call.at<float>(3) + i * groups, width, columns, call.size[4] != 0);
    }
}

// x [rows, width] -> int16 [rows, width], scales [rows, groups]; size: rows, width, row stride of x, columns of a group.
ENGINE_KERNEL(engine_quantize_wide) {
  const int64_t rows = call.size[0], width = call.size[1], columns = call.size[3];
  const int64_t groups = (width + columns - 1) / columns;
  int64_t begin, end;
  while (member.next(rows, grain_of(rows, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i)
      quantize_wide(call.at<float>(0) + i * call.size[2], call.at<int16_t>(1) + i * width,
                    call.at<float>(2) + i * groups, width, columns);
}
