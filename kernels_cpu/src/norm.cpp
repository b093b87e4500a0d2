// Normalisation of runs of a row.
#include "simd.h"
#include "team.h"

namespace engine {
namespace {

float scale_of(const float* x, int64_t width, float eps) {
  vf total{};
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const vf v = load(x + i);
    total = fma(v, v, total);
  }
  float squares = sum(total);
  for (; i < width; ++i) squares = std::fmaf(x[i], x[i], squares);
  return 1.0f / std::sqrt(squares / float(width) + eps);
}

void scaled(const float* x, const float* weight, float scale, float* out, int64_t width) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
  for (; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace
}  // namespace engine

using namespace engine;

// x [rows, runs * width], weight [width] -> out [rows, runs * width]; size: rows, runs, width, row stride of x.
ENGINE_KERNEL(engine_rms_norm) {
  const int64_t rows = call.size[0], runs = call.size[1], width = call.size[2], stride = call.size[3];
  const float eps = float(call.real[0]);
  int64_t begin, end;
  while (member.next(rows * runs, grain_of(rows * runs, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const float* x = call.at<float>(0) + i / runs * stride + i % runs * width;
      scaled(x, call.at<float>(1), scale_of(x, width, eps), call.at<float>(2) + i * width, width);
    }
}
