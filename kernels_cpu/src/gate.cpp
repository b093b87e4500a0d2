// Gated activations, and their quantisation.
#include "rows.h"
#include "team.h"

namespace engine {
namespace {

constexpr float FAR = 87.0f;

// 1 / (1 + e^-x) for x from -FAR on, 1 beyond FAR.
vf logistic(vf x) {
  const vf below = exp_near(min(broadcast(FAR), max(broadcast(-FAR), -x))) + 1.0f;
#if defined(ENGINE_AVX512)
  // A division takes as long as all the rest; one step of Newton's method makes 14 bits 24.
  const vf near = (vf)_mm512_rcp14_ps((__m512)below);
  return fma(fma(-below, near, broadcast(1.0f)), near, near);
#else
  return 1.0f / below;
#endif
}

// Bounds stand first, where a comparison with NaN does not take them.
vf silu(vf x) {
  const vf kept = max(broadcast(-FAR), x);
  return kept * logistic(kept);
}

// tanh's own range cancels: (1 + tanh u) / 2 = 1 / (1 + e^-2u).
vf gelu_tanh(vf x) {
  const vf twice = x * fma(x * x, broadcast(0.0713548162726f), broadcast(1.59576912161f));
  return max(broadcast(-FAR), x) * logistic(max(broadcast(-FAR), twice));
}

// Half of erfc from |x| / sqrt 2 on: e^(-x * x / 2) / (z + 2.5) times a polynomial in (z - 2.5) / (z + 2.5), fitted to
// (z + 2.5) erfcx(z) with a relative error of 2e-7.
vf gelu(vf x) {
  const vf z = min(abs(x) * 0.70710678118654752f, broadcast(1e4f)), above = broadcast(1.0f) / (z + 2.5f);
  const vf t = (z - 2.5f) * above;
  vf p = broadcast(4.8388413484e-04f);
  p = fma(p, t, broadcast(-3.5315473117e-04f));
  p = fma(p, t, broadcast(-4.6438747676e-03f));
  p = fma(p, t, broadcast(8.3375510248e-03f));
  p = fma(p, t, broadcast(2.8301857627e-02f));
  p = fma(p, t, broadcast(-1.7123682520e-01f));
  p = fma(p, t, broadcast(4.5392137876e-01f));
  p = fma(p, t, broadcast(-8.0465287856e-01f));
  p = fma(p, t, broadcast(1.0540316776e+00f));
  const vf tail = p * above * exp(x * x * -0.5f) * 0.5f;
  return x * (x > vf{} ? 1.0f - tail : tail);
}

// Columns between those that are worked on and those that are asked for, a line of them at a time.
constexpr int64_t SOON = 256, LINE = 16;

template <vf (*act)(vf)>
void gate_row(const float* gate, const float* up, float* out, int64_t width) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    if (i % LINE == 0) ask(gate + i + SOON, LINE), ask(up + i + SOON, LINE);
    store(out + i, act(load(gate + i)) * load(up + i));
  }
  if (i < width) {
    float rest[2][LANES] = {};
    const size_t bytes = size_t(width - i) * sizeof(float);
    std::memcpy(rest[0], gate + i, bytes);
    std::memcpy(rest[1], up + i, bytes);
    store(rest[0], act(load(rest[0])) * load(rest[1]));
    std::memcpy(out + i, rest[0], bytes);
  }
}

// Columns that one member takes at a time, where nothing asks for more.
constexpr int64_t PIECE = 512;

}  // namespace
}  // namespace engine

using namespace engine;

// x [rows, gate | up], scale [1] or null -> product or null, int8 or null [rows, width], scales [rows, groups] or null;
// size: rows, width, row stride of x, columns of a group, whether scales are powers of two, 0 silu 1 gelu by tanh 2 gelu.
// A row of width floats fits a member's scratch.
ENGINE_KERNEL(engine_gate) {
  const int64_t rows = call.size[0], width = call.size[1], stride = call.size[2], columns = call.size[3];
  const float* fixed = call.at<float>(1);
  float *out = call.at<float>(2), *scales = call.at<float>(4);
  int8_t* stored = call.at<int8_t>(3);
  const bool runs = stored != nullptr && fixed == nullptr;
  const int64_t piece = !runs || columns < 1 ? PIECE : columns < PIECE ? PIECE / columns * columns : columns;
  const int64_t pieces = (width + piece - 1) / piece, groups = runs ? (width + columns - 1) / columns : 0;
  void (*const apply[3])(const float*, const float*, float*, int64_t) = {gate_row<silu>, gate_row<gelu_tanh>,
                                                                         gate_row<gelu>};
  int64_t begin, end;
  while (member.next(rows * pieces, grain_of(rows * pieces, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / pieces, first = i % pieces * piece;
      const int64_t count = width - first < piece ? width - first : piece;
      const float* x = call.at<float>(0) + row * stride + first;
      float* made = stored == nullptr ? out + row * width + first : reinterpret_cast<float*>(member.scratch);
      apply[call.size[5]](x, x + width, made, count);
      if (fixed != nullptr)
        quantize_by(made, stored + row * width + first, *fixed, count);
      else if (runs)
        quantize_runs(made, stored + row * width + first, scales + row * groups + first / columns, count, columns,
                      call.size[4] != 0);
    }
}
