// Products of blocks by tiles of AMX: up to 16 tokens with a strip of 16 rows, a group of 32 columns at a time. Sums of a
// group are exact and are scaled as in blocks_vnni.cpp, so results are the same bit for bit. Tiles give sums to memory
// alone: half of the time goes into that and into scales, and few tokens are better off without.
#include "simd.h"

#if defined(ENGINE_TILES)
#include "blocks_avx512.h"
#include "tiles.h"

namespace engine {
namespace {

// Strips side by side, and tokens that are left to vpdpbusd.
constexpr int ABREAST = 2, FEW = 16;

// Groups of a turn: their sums, panels and activations stay in the first-level cache.
constexpr int64_t TURN = 9;

// Bytes of results for each member that stay in a second-level cache.
constexpr int64_t HELD = 1 << 20;

// Tile registers: activations; sums and codes of each strip. Intrinsics want them as figures.
constexpr int X = 0, SUMS[ABREAST] = {1, 3}, CODES[ABREAST] = {2, 4};

Shapes shapes_of(int tokens, int run) {
  Shapes shapes;
  shapes.set(X, tokens, run);
  for (int i = 0; i < ABREAST; ++i) {
    shapes.set(SUMS[i], tokens, ROWS * 4);
    shapes.set(CODES[i], run / 4, ROWS * 4);
  }
  return shapes;
}

// Bytes of a panel for a strip and a group: unpacked codes, scales, and minima or, by parts, what takes MAGIC away.
constexpr int CODED = STEPS * STEP;
constexpr int panel_record(int parts) { return CODED + 2 * parts * STEP; }

// Groups of a strip -> a panel.
template <int F>
void unpack(const uint8_t* strip, int64_t groups, uint8_t* panel) {
  constexpr Layout own = LAYOUTS[F];
  const uint8_t* head = strip;
  for (int64_t g = 0; g < groups; ++g, strip += own.record, panel += panel_record(own.parts)) {
    if (own.span > 1 && g % own.span == 0) {
      head = strip;
      strip += own.head;
    }
    _mm512_store_si512(panel, codes<F, 0>(strip));
    _mm512_store_si512(panel + STEP, codes<F, 1>(strip));
    _mm512_store_si512(panel + 2 * STEP, codes<F, 2>(strip));
    _mm512_store_si512(panel + 3 * STEP, codes<F, 3>(strip));
    _mm512_store_si512(panel + 4 * STEP, codes<F, 4>(strip));
    _mm512_store_si512(panel + 5 * STEP, codes<F, 5>(strip));
    _mm512_store_si512(panel + 6 * STEP, codes<F, 6>(strip));
    _mm512_store_si512(panel + 7 * STEP, codes<F, 7>(strip));
    for (int part = 0; part < own.parts; ++part) {
      const Factors by = factors<F>(head, strip, part);
      _mm512_store_ps(panel + CODED + 2 * part * STEP, by.scale);
      _mm512_store_ps(panel + CODED + (2 * part + 1) * STEP, own.zero == 0 ? by.minimum : by.back);
    }
  }
}

// Sums of T tokens and of two strips' groups, whose panels lie `gap` bytes apart: [strip][group][part][T][ROWS].
template <int T, int PARTS>
void sum_up(const uint8_t* panel, int64_t gap, const Share& share, int32_t* to, Results& results) {
  constexpr int RUN = GROUP / PARTS, EACH = T * ROWS;
  const uint8_t* x = share.tile;
  const int64_t beside = share.groups * PARTS * EACH;
  Ahead ahead = share.ahead;
  for (int64_t g = 0; g < share.groups; ++g, x += T * (GROUP + 4 + 4 * PARTS), panel += panel_record(PARTS)) {
    ahead.fetch<ABREAST>();
    for (int part = 0; part < PARTS; ++part, to += EACH) {
      const uint8_t* const codes = panel + part * RUN / 4 * STEP;
      _tile_loadd(0, x + part * RUN, GROUP);
      _tile_zero(1);
      _tile_loadd(2, codes, STEP);
      _tile_dpbsud(1, 0, 2);
      _tile_zero(3);
      _tile_loadd(4, codes + gap, STEP);
      _tile_dpbsud(3, 0, 4);
      _tile_stored(1, to, ROWS * 4);
      _tile_stored(3, to + beside, ROWS * 4);
    }
    results.some(results.each);
  }
}

template <int T>
inline __attribute__((always_inline)) void begin(__m512 (&total)[T], bool fresh, const float* sums) {
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) total[t] = begun(fresh, sums + t * ROWS);
}
template <int T>
inline __attribute__((always_inline)) void end(const __m512 (&total)[T], float* sums) {
#pragma GCC unroll 16
  for (int t = 0; t < T; ++t) _mm512_storeu_ps(sums + t * ROWS, total[t]);
}

// What was summed up, times the scales, in the order of groups. MINIMA: of the format, times what stands for sums of
// codes -> `low`.
template <int T, int PARTS, bool MINIMA>
void scale(const int32_t* found, const uint8_t* panel, const Share& share, float* sums, float* low) {
  constexpr int RECORD = panel_record(PARTS), TILE = T * (GROUP + 4 + 4 * PARTS);
  __m512 total[T];
  begin(total, share.fresh, sums);
  const uint8_t *x = share.tile + T * GROUP, *at = panel + CODED;
  for (int64_t g = 0; g < share.groups; ++g, x += TILE, at += RECORD)
    for (int part = 0; part < PARTS; ++part, found += T * ROWS) {
      const __m512 scale = _mm512_load_ps(at + 2 * part * STEP), back = _mm512_load_ps(at + (2 * part + 1) * STEP);
#pragma GCC unroll 16
      for (int t = 0; t < T; ++t) {
        const __m512i sum = _mm512_load_si512(found + t * ROWS);
        __m512 scaled;
        if (MINIMA)
          scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
        else
          scaled = _mm512_fmadd_ps(
              _mm512_castsi512_ps(_mm512_add_epi32(sum, word(x + T * 4 * (1 + part) + t * 4))), scale, back);
        total[t] = _mm512_fmadd_ps(scaled, number(x + t * 4), total[t]);
      }
    }
  end(total, sums);
  if (!MINIMA) return;
  begin(total, share.fresh, low);
  x = share.tile + T * (GROUP + 4);
  at = panel + CODED + STEP;
  for (int64_t g = 0; g < share.groups; ++g, x += TILE, at += RECORD) {
    const __m512 minimum = _mm512_load_ps(at);
#pragma GCC unroll 16
    for (int t = 0; t < T; ++t) total[t] = _mm512_fmadd_ps(minimum, number(x + t * 4), total[t]);
  }
  end(total, low);
}

// As `Product`, of two panels `gap` bytes apart. found: room for their sums.
template <int T, int PARTS, bool MINIMA>
void product(const uint8_t* panel, int64_t gap, Share share, int32_t* found, Results& results) {
  sum_up<T, PARTS>(panel, gap, share, found, results);
  results.rest();
  for (int64_t j = 0; j < ABREAST; ++j)
    scale<T, PARTS, MINIMA>(found + j * share.groups * PARTS * T * ROWS, panel + j * gap, share,
                            share.sums + j * T * ROWS, share.sums + (ABREAST + j) * T * ROWS);
}

typedef void (*Unpack)(const uint8_t* strip, int64_t groups, uint8_t* panel);
typedef void (*PanelProduct)(const uint8_t* panel, int64_t gap, Share share, int32_t* found, Results& results);

constexpr Unpack UNPACK[FORMATS] = {unpack<Q4_0>, unpack<Q4_1>, unpack<Q5_0>, unpack<Q5_1>,
                                    unpack<Q8_0>, unpack<Q4_K>, unpack<Q5_K>, unpack<Q6_K>};

template <int T>
PanelProduct product_for(const Layout& own) {
  return own.parts == 2 ? product<T, 2, false> : own.zero == 0 ? product<T, 1, true> : product<T, 1, false>;
}

// Tiles are equally full.
int size_for(int64_t tokens) {
  const int64_t tiles = (tokens + ROWS - 1) / ROWS;
  return (tokens + tiles - 1) / tiles > 12 ? 16 : 12;
}

void multiply(const Job& job, Member& member) {
  const Tiling cut(job, size_for(job.x.tokens));
  const Work work(job, cut, MAGIC_BITS, ABREAST, member, NEAR, HELD);
  const Registers registers(shapes_of(cut.size, GROUP / job.own.parts));
  const Unpack unpack = UNPACK[job.format];
  const PanelProduct product = cut.size == 12 ? product_for<12>(job.own) : product_for<16>(job.own);
  const int64_t turn = work.turn_of(TURN), gap = turn * panel_record(job.own.parts);
  uint8_t* const panel = reinterpret_cast<uint8_t*>(work.free);
  int32_t* const found = reinterpret_cast<int32_t*>(panel + ABREAST * gap);
  float* const sums = reinterpret_cast<float*>(found + ABREAST * turn * job.own.parts * cut.size * ROWS);
  work.run(member, [&](const Unit& unit) {
    const int64_t first = unit.first, last = unit.last;
    Results results = work.results(unit.strip);
    work.turns(unit, TURN, [&](const uint8_t* const* from, int64_t g, int64_t now, Ahead ahead) {
      results.each = (cut.size + now - 1) / now;
      for (int j = 0; j < ABREAST; ++j) unpack(from[j], now, panel + j * gap);
      for (int64_t i = first; i < last; ++i, ahead.at += ahead.lines * 64) {
        float* const tile_sums = sums + (turn < job.x.groups ? i - first : (i - first) % 2) * work.each;
        product(panel, gap, {work.tile(i, g), now, tile_sums, g == 0, ahead}, found, results);
        if (g + now == job.x.groups) work.take(results, unit.strip, tile_sums, i);
      }
    });
    results.rest();
  });
}

}  // namespace
}  // namespace engine

using namespace engine;

ENGINE_KERNEL(engine_block_tiles_vnni);
ENGINE_KERNEL(engine_block_product_vnni);

ENGINE_KERNEL(engine_block_tiles_amx) {
  const Job job(call);
  if (job.x.tokens <= FEW) return engine_block_tiles_vnni(call, member);
  make_tiles(job, Tiling(job, size_for(job.x.tokens)), MAGIC_BITS, member);
}

ENGINE_KERNEL(engine_block_product_amx) {
  const Job job(call);
  if (job.x.tokens <= FEW) return engine_block_product_vnni(call, member);
  multiply(job, member);
}
#endif
