// Cosines and sines of positions times frequencies.
#include "simd.h"
#include "team.h"

namespace engine {
namespace {

typedef double vd __attribute__((vector_size(LANES * 8)));

// Both of `angle`, each within 2 units in the last place of 1. Quarters of a turn are taken off in double, so that an
// angle of a million is as good as one of one; then Cephes' polynomials for sine and cosine up to pi / 4.
void both(vf angle, vf& cosine, vf& sine) {
  const vd wide = __builtin_convertvector(angle, vd);
  // A sum with 3 * 2^51 is rounded to a whole number.
  const vd quarters = (wide * 0.63661977236758134308 + 6755399441055744.0) - 6755399441055744.0;
  const vf r = __builtin_convertvector(wide - quarters * 1.57079632679489661923, vf);
  const vi n = __builtin_convertvector(quarters, vi) & 3;
  const vf z = r * r;
  vf s = fma(broadcast(-1.9515295891e-4f), z, broadcast(8.3321608736e-3f));
  s = fma(s, z, broadcast(-1.6666654611e-1f));
  s = fma(s * z, r, r);
  vf c = fma(broadcast(2.443315711809948e-5f), z, broadcast(-1.388731625493765e-3f));
  c = fma(c, z, broadcast(4.166664568298827e-2f));
  c = fma(c * z, z, fma(z, broadcast(-0.5f), broadcast(1.0f)));
  const vf across = (n & 1) != 0 ? c : s, along = (n & 1) != 0 ? s : c;
  sine = (n & 2) != 0 ? -across : across;
  cosine = ((n + 1) & 2) != 0 ? -along : along;
}

}  // namespace
}  // namespace engine

using namespace engine;

// positions [tokens] int64, frequencies [count] -> out [tokens, cosines | sines], times `factor`; size: tokens, count;
// real: factor.
ENGINE_KERNEL(engine_rotary_table) {
  const int64_t tokens = call.size[0], count = call.size[1];
  const vf factor = broadcast(float(call.real[0]));
  const float* frequencies = call.at<float>(1);
  int64_t begin, end;
  while (member.next(tokens, grain_of(tokens, member, 4), begin, end))
    for (int64_t token = begin; token < end; ++token) {
      const vf position = broadcast(float(call.at<int64_t>(0)[token]));
      float* out = call.at<float>(2) + token * 2 * count;
      for (int64_t i = 0; i < count; i += LANES) {
        const size_t some = size_t(count - i < LANES ? count - i : LANES) * sizeof(float);
        vf frequency{}, cosine, sine;
        std::memcpy(&frequency, frequencies + i, some);
        both(position * frequency, cosine, sine);
        cosine *= factor, sine *= factor;
        std::memcpy(out + i, &cosine, some);
        std::memcpy(out + count + i, &sine, some);
      }
    }
}
