// Scores become weights: e to their distance from the largest.
#pragma once
#include "attention_rows.h"

namespace engine {

constexpr float NOTHING = -INFINITY;

// e^x for x up to 0, within 2 units in the last place; 0 below -87, NaN for NaN. As `exp`, with n taken out of the
// lowest bits of a sum with 3 * 2^22.
inline vf exp_below(vf x) {
  const vf lowest = broadcast(-87.0f), kept = max(lowest, x);
  const vf shifted = fma(kept, broadcast(1.44269504088896341f), broadcast(12582912.0f)), n = shifted - 12582912.0f;
  vf r = fma(n, broadcast(-0.693359375f), kept);
  r = fma(n, broadcast(2.12194440e-4f), r);
  vf p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + 1.0f;
  const vf y = (vf)((vi)p + ((vi)shifted << 23));
  return x < lowest ? vf{} : y;
}

// cap * tanh(s / cap).
inline void cap_scores(float* s, int64_t count, float cap) {
  for (int64_t i = 0; i < count; i += LANES) {
    const vf x = load(s + i), e = exp_below(abs(x) * (-2.0f / cap)), y = (1.0f - e) / (1.0f + e) * cap;
    store(s + i, x == NOTHING ? x : (vf)((vi)y | ((vi)x & INT32_MIN)));
  }
}

// Scores [rows, count], rows `stride` apart with room for whole vectors, become weights in place; the largest score
// and the sum of weights of each.
inline void weigh(float* scores, int64_t stride, int64_t rows, int64_t count, float cap, float* largest, float* weight) {
  const int64_t whole = (count + LANES - 1) / LANES * LANES;
  for (int64_t r = 0; r < rows; r += 4) {
    const int64_t many = rows - r < 4 ? rows - r : 4;
    float *s[4], found[4];
    vf high[4], total[4];
    for (int64_t i = 0; i < 4; ++i) {
      s[i] = scores + (r + (i < many ? i : 0)) * stride;
      high[i] = total[i] = vf{};
    }
    for (int64_t i = 0; i < many; ++i) {
      for (int64_t c = count; c < whole; ++c) s[i][c] = NOTHING;
      if (cap > 0) cap_scores(s[i], whole, cap);
      high[i] = load(s[i]);
      for (int64_t c = LANES; c < whole; c += LANES) high[i] = max(high[i], load(s[i] + c));
    }
    folded<Max>(high[0], high[1], high[2], high[3], found);
    for (int64_t i = 0; i < many; ++i) {
      largest[r + i] = found[i];
      const vf base = broadcast(found[i] == NOTHING ? 0.0f : found[i]);
      vf sum{};
      for (int64_t c = 0; c < whole; c += LANES) {
        const vf y = exp_below(load(s[i] + c) - base);
        store(s[i] + c, y);
        sum += y;
      }
      total[i] = sum;
    }
    folded<Add>(total[0], total[1], total[2], total[3], found);
    for (int64_t i = 0; i < many; ++i) weight[r + i] = found[i];
  }
}

}  // namespace engine
