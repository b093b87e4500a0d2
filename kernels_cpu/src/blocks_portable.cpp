// Products of blocks by plain loops, for processors that none of the other forms is for.
#include "blocks.h"
#include "simd.h"

namespace engine {
namespace {

inline float half_at(const uint8_t* at) {
  uint16_t x;
  std::memcpy(&x, at, 2);
  return half_to_float(x);
}

// Codes of a group as signed numbers, [ROWS][GROUP].
template <int F>
void decode(const uint8_t* record, int8_t (&codes)[ROWS][GROUP]) {
  constexpr Layout own = LAYOUTS[F];
  for (int s = 0; s < STEPS; ++s)
    for (int i = 0; i < STEP; ++i) {
      int code;
      if (own.bits == 8) {
        code = record[own.codes + s * STEP + i];
      } else {
        code = record[own.codes + s % 4 * STEP + i] >> s / 4 * 4 & 15;
        if (own.bits == 5) code |= (record[own.upper + i] >> s & 1) << 4;
        if (own.bits == 6) code |= (record[own.upper + s / 4 * STEP + i] >> s % 4 * 2 & 3) << 4;
      }
      codes[i / 4][s * 4 + i % 4] = int8_t(code - own.zero);
    }
}

template <int F, int T>
struct Form {
  static void product(const uint8_t* const* strips, Share share) {
    constexpr Layout own = LAYOUTS[F];
    constexpr int WIDTH = GROUP / own.parts;
    float* const sums = share.sums;
    each_group<F, T>(*strips, share, [&](const uint8_t* head, const uint8_t* strip, const uint8_t* tile) {
      int8_t codes[ROWS][GROUP];
      decode<F>(strip, codes);
      for (int part = 0; part < own.parts; ++part)
        for (int row = 0; row < ROWS; ++row) {
          float scale, low = 0.0f;
          if (own.span == 1) {
            scale = half_at(strip + row * 2);
            if (own.zero == 0) low = half_at(strip + 2 * ROWS + row * 2);
          } else {
            const uint8_t small = strip[part * ROWS + row];
            scale = half_at(head + row * 2) * (own.parts == 2 ? float(int8_t(small)) : float(small));
            if (own.zero == 0) low = -half_at(head + 2 * ROWS + row * 2) * float(strip[ROWS + row]);
          }
          for (int t = 0; t < T; ++t) {
            const int8_t* const x = reinterpret_cast<const int8_t*>(tile) + t * GROUP + part * WIDTH;
            int32_t sum = 0;
            for (int k = 0; k < WIDTH; ++k) sum += int32_t(x[k]) * codes[row][part * WIDTH + k];
            float by, total;
            std::memcpy(&by, tile + T * GROUP + t * 4, 4);
            std::memcpy(&total, tile + T * (GROUP + 4) + t * 4, 4);
            sums[t * ROWS + row] += float(sum) * scale * by;
            if (own.zero == 0) sums[(T + t) * ROWS + row] += low * total;
          }
        }
    });
  }
};

}  // namespace
}  // namespace engine

using namespace engine;

ENGINE_KERNEL(engine_block_tiles_portable) { Forms<Form>::tiles(call, member); }
ENGINE_KERNEL(engine_block_product_portable) { Forms<Form>::run(call, member); }
