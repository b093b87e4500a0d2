// Activations in eight bits.
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

// x / scale, correctly rounded: a remainder corrects the product with the rounded reciprocal (Markstein, "Computation
// of elementary functions on the IBM RISC System/6000 processor", 1990). For quotients up to 128, never out of range.
inline __attribute__((always_inline)) void divide(const float* x, float scale, int8_t* out, int64_t width) {
#if defined(__FMA__) || defined(__aarch64__)
  const vf by = broadcast(1.0f / scale), from = broadcast(-scale);
#endif
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const vf v = load(x + i);
#if defined(__FMA__) || defined(__aarch64__)
    const vf near = v * by, quotient = fma(fma(near, from, v), by, near);
#else
    const vf quotient = v / scale;
#endif
    const vb stored = __builtin_convertvector(whole(quotient), vb);
    std::memcpy(out + i, &stored, sizeof(stored));
  }
  for (; i < width; ++i) {
    const float quotient = x[i] / scale;
    out[i] = quotient == quotient ? int8_t(std::nearbyintf(quotient)) : int8_t(0);
  }
}

// The least largest magnitude that a scale is made from: SMALLEST of engine/ops/quant.py.
constexpr float SMALLEST = 1e-10f;

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

void quantize_by(const float* x, int8_t* out, float scale, int64_t width) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const vf kept = min(broadcast(127.0f), max(broadcast(-128.0f), load(x + i) / scale));
    const vb stored = __builtin_convertvector(whole(kept), vb);
    std::memcpy(out + i, &stored, sizeof(stored));
  }
  for (; i < width; ++i) {
    const float quotient = x[i] / scale;
    const float kept = quotient < -128.0f ? -128.0f : quotient > 127.0f ? 127.0f : quotient;
    out[i] = kept == kept ? int8_t(std::nearbyintf(kept)) : int8_t(0);
  }
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
