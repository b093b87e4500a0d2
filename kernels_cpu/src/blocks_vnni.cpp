// Products of blocks by vpdpbusd in 512-bit registers: a step of 16 rows in one instruction, activations broadcast from
// memory.
#include "simd.h"

#if defined(ENGINE_AVX512) && defined(__AVX512VNNI__)
#include "blocks_avx512.h"

namespace engine {
namespace {

typedef int32_t __attribute__((may_alias, aligned(1))) Word;

// GCC 12 loads a broadcast by itself where the product could.
inline void dot(__m512i& sum, __m512i weights, const uint8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*(const Word*)four));
}

inline void dot(__m512i& sum, __m512i weights, __m512i four) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(four));
}

// A step of S strips for T tokens: one broadcast for both strips, or as operand of the only product.
template <int F, int T, int S, int STEP_AT>
inline void step(__m512i (&sums)[S][T], const uint8_t* const (&strips)[S], const uint8_t* tile) {
  __m512i weights[S];
#pragma GCC unroll 2
  for (int i = 0; i < S; ++i) weights[i] = codes<F, STEP_AT>(strips[i]);
#pragma GCC unroll 12
  for (int t = 0; t < T; ++t) {
    const uint8_t* const four = tile + t * GROUP + STEP_AT * 4;
    if constexpr (S == 1) {
      dot(sums[0][t], weights[0], four);
    } else {
      const __m512i both = word(four);
#pragma GCC unroll 2
      for (int i = 0; i < S; ++i) dot(sums[i][t], weights[i], both);
    }
  }
}

// Straight from strips.
template <int F, int T, int S>
void product(const uint8_t* const* given, Share share) {
  constexpr Layout own = LAYOUTS[F];
  const uint8_t *strips[S], *heads[S], *tile = share.tile;
  float* const sums = share.sums;
  for (int i = 0; i < S; ++i) heads[i] = strips[i] = given[i];
  __m512 total[S][T], low[S][T];
#pragma GCC unroll 2
  for (int i = 0; i < S; ++i)
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      total[i][t] = begun(share.fresh, sums + (i * T + t) * ROWS);
      if (own.zero == 0) low[i][t] = begun(share.fresh, sums + ((S + i) * T + t) * ROWS);
    }
  for (int64_t g = 0; g < share.groups; ++g) {
    share.ahead.fetch<S>();
    if (own.span > 1 && g % own.span == 0)
      for (int i = 0; i < S; ++i) {
        heads[i] = strips[i];
        strips[i] += own.head;
      }
#pragma GCC unroll 2
    for (int part = 0; part < own.parts; ++part) {
      const uint8_t* const starts = tile + T * (GROUP + 4 + 4 * part);
      __m512i sum[S][T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t)
#pragma GCC unroll 2
        for (int i = 0; i < S; ++i) sum[i][t] = own.zero == 0 ? _mm512_set1_epi32(MAGIC_BITS) : word(starts + t * 4);
      if (own.parts == 1) {
        step<F, T, S, 0>(sum, strips, tile);
        step<F, T, S, 4>(sum, strips, tile);
        step<F, T, S, 1>(sum, strips, tile);
        step<F, T, S, 5>(sum, strips, tile);
        step<F, T, S, 2>(sum, strips, tile);
        step<F, T, S, 6>(sum, strips, tile);
        step<F, T, S, 3>(sum, strips, tile);
        step<F, T, S, 7>(sum, strips, tile);
      } else if (part == 0) {
        step<F, T, S, 0>(sum, strips, tile);
        step<F, T, S, 1>(sum, strips, tile);
        step<F, T, S, 2>(sum, strips, tile);
        step<F, T, S, 3>(sum, strips, tile);
      } else {
        step<F, T, S, 4>(sum, strips, tile);
        step<F, T, S, 5>(sum, strips, tile);
        step<F, T, S, 6>(sum, strips, tile);
        step<F, T, S, 7>(sum, strips, tile);
      }
#pragma GCC unroll 2
      for (int i = 0; i < S; ++i) {
        const Factors by = factors<F>(heads[i], strips[i], part);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          const __m512 scaled = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[i][t]), by.scale, by.back);
          total[i][t] = _mm512_fmadd_ps(scaled, number(tile + T * GROUP + t * 4), total[i][t]);
          if (own.zero == 0) low[i][t] = _mm512_fmadd_ps(by.minimum, number(starts + t * 4), low[i][t]);
        }
      }
    }
    for (int i = 0; i < S; ++i) strips[i] += own.record;
    tile += tile_record(own, T);
  }
#pragma GCC unroll 2
  for (int i = 0; i < S; ++i)
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      _mm512_storeu_ps(sums + (i * T + t) * ROWS, total[i][t]);
      if (own.zero == 0) _mm512_storeu_ps(sums + ((S + i) * T + t) * ROWS, low[i][t]);
    }
}

// Strips of a panel, and tokens of the tiles that it is multiplied with.
constexpr int WIDE = 3, TALL = 4;

// Bytes of a panel's strip and group: unpacked codes, scales and what takes MAGIC away; minima lie behind all groups.
constexpr int panel_record(int parts) { return STEPS * STEP + parts * 2 * STEP; }

// As `product`, WIDE strips and a tile of TALL tokens. The first tile of some strips leaves a panel of them behind, and
// all others read it; codes of eight bits are as good where they lie.
template <int F, bool FIRST>
struct Panel {
  static constexpr Layout own = LAYOUTS[F];
  static constexpr bool LEFT = own.bits < 8;
  static constexpr int RECORD = panel_record(own.parts), TILE = int(tile_record(own, TALL));

  template <int S>
  static void step(__m512i (&sum)[WIDE][TALL], const uint8_t* const (&strips)[WIDE], uint8_t* panel, const uint8_t* x) {
    __m512i weights[WIDE];
#pragma GCC unroll 3
    for (int i = 0; i < WIDE; ++i) {
      uint8_t* const at = panel + i * RECORD + S * STEP;
      weights[i] = FIRST ? codes<F, S>(strips[i]) : bytes(at);
      if (FIRST && LEFT) _mm512_store_si512(at, weights[i]);
    }
#pragma GCC unroll 4
    for (int t = 0; t < TALL; ++t) {
      const __m512i four = word(x + t * GROUP + S * 4);
#pragma GCC unroll 3
      for (int i = 0; i < WIDE; ++i) dot(sum[i][t], weights[i], four);
    }
  }

  static void begin(__m512 (&total)[WIDE][TALL], bool fresh, const float* sums) {
#pragma GCC unroll 3
    for (int i = 0; i < WIDE; ++i)
#pragma GCC unroll 4
      for (int t = 0; t < TALL; ++t) total[i][t] = begun(fresh, sums + (i * TALL + t) * ROWS);
  }
  static void end(const __m512 (&total)[WIDE][TALL], float* sums) {
#pragma GCC unroll 3
    for (int i = 0; i < WIDE; ++i)
#pragma GCC unroll 4
      for (int t = 0; t < TALL; ++t) _mm512_storeu_ps(sums + (i * TALL + t) * ROWS, total[i][t]);
  }

  static void product(const uint8_t* const* given, uint8_t* panel, Share share) {
    __m512 total[WIDE][TALL];
    begin(total, share.fresh, share.sums);
    const uint8_t *strips[WIDE], *heads[WIDE], *x = share.tile;
    for (int i = 0; i < WIDE; ++i) heads[i] = strips[i] = given[i];
    uint8_t* const minima = panel + WIDE * share.groups * RECORD;
    for (int64_t g = 0; g < share.groups; ++g, panel += WIDE * RECORD, x += TILE) {
      share.ahead.fetch<WIDE>();
      if (FIRST && own.span > 1 && g % own.span == 0)
        for (int i = 0; i < WIDE; ++i) {
          heads[i] = strips[i];
          strips[i] += own.head;
        }
#pragma GCC unroll 2
      for (int part = 0; part < own.parts; ++part) {
        const uint8_t* const starts = x + TALL * (GROUP + 4 + 4 * part);
        __m512i sum[WIDE][TALL];
#pragma GCC unroll 4
        for (int t = 0; t < TALL; ++t)
#pragma GCC unroll 3
          for (int i = 0; i < WIDE; ++i) sum[i][t] = own.zero == 0 ? _mm512_set1_epi32(MAGIC_BITS) : word(starts + t * 4);
        if (part == 0) {
          step<0>(sum, strips, panel, x);
          step<1>(sum, strips, panel, x);
          step<2>(sum, strips, panel, x);
          step<3>(sum, strips, panel, x);
        }
        if (part == own.parts - 1) {
          step<4>(sum, strips, panel, x);
          step<5>(sum, strips, panel, x);
          step<6>(sum, strips, panel, x);
          step<7>(sum, strips, panel, x);
        }
        __m512 scales[TALL];
#pragma GCC unroll 4
        for (int t = 0; t < TALL; ++t) scales[t] = number(x + TALL * GROUP + t * 4);
#pragma GCC unroll 3
        for (int i = 0; i < WIDE; ++i) {
          uint8_t* const at = panel + i * RECORD + (STEPS + 2 * part) * STEP;
          __m512 scale, back;
          if (FIRST) {
            const Factors by = factors<F>(heads[i], strips[i], part);
            scale = by.scale;
            back = by.back;
            if (LEFT) _mm512_store_ps(at, scale);
            if (LEFT) _mm512_store_ps(at + STEP, back);
            if (own.zero == 0) _mm512_store_ps(minima + (g * WIDE + i) * STEP, by.minimum);
          } else {
            scale = _mm512_load_ps(at);
            back = _mm512_load_ps(at + STEP);
          }
#pragma GCC unroll 4
          for (int t = 0; t < TALL; ++t) {
            const __m512 scaled = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[i][t]), scale, back);
            total[i][t] = _mm512_fmadd_ps(scaled, scales[t], total[i][t]);
          }
        }
      }
      if (FIRST)
        for (int i = 0; i < WIDE; ++i) strips[i] += own.record;
    }
    end(total, share.sums);
    if (own.zero == 0) add_minima(minima, share);
  }

  static void add_minima(const uint8_t* minima, const Share& share) {
    __m512 total[WIDE][TALL];
    float* const sums = share.sums + WIDE * TALL * ROWS;
    begin(total, share.fresh, sums);
    const uint8_t* x = share.tile + TALL * (GROUP + 4);
    for (int64_t g = 0; g < share.groups; ++g, minima += WIDE * STEP, x += TILE) {
      __m512 low[WIDE];
#pragma GCC unroll 3
      for (int i = 0; i < WIDE; ++i) low[i] = _mm512_load_ps(minima + i * STEP);
#pragma GCC unroll 4
      for (int t = 0; t < TALL; ++t) {
        const __m512 weight = number(x + t * 4);
#pragma GCC unroll 3
        for (int i = 0; i < WIDE; ++i) total[i][t] = _mm512_fmadd_ps(low[i], weight, total[i][t]);
      }
    }
    end(total, sums);
  }
};

typedef void (*PanelProduct)(const uint8_t* const* strips, uint8_t* panel, Share share);

// What a format is multiplied by: straight from strips one, two or four tokens at a time, or with panels. Panels of like
// formats are alike.
struct Form {
  Product straight[3];
  PanelProduct first, other;
};
template <int F>
constexpr int LIKE = F == Q8_0 ? Q8_0 : LAYOUTS[F].parts == 2 ? Q6_K : LAYOUTS[F].zero == 0 ? Q4_1 : Q4_0;
template <int F>
constexpr Form FORM = {{product<F, 1, 2>, product<F, 2, 2>, product<F, TALL, 2>},
                       Panel<F, true>::product,
                       Panel<LIKE<F>, F == Q8_0>::product};
constexpr Form FORMS[FORMATS] = {FORM<Q4_0>, FORM<Q4_1>, FORM<Q5_0>, FORM<Q5_1>,
                                 FORM<Q8_0>, FORM<Q4_K>, FORM<Q5_K>, FORM<Q6_K>};

int size_for(int64_t tokens) { return tokens > 2 ? TALL : tokens > 1 ? 2 : 1; }

// Groups of a panel: as many as stay in the first-level cache, fewer where they are soon done with.
constexpr int64_t FEW = 8, SHORT = 9, LONG = 18;

void multiply_panels(const Job& job, const Tiling& cut, Member& member) {
  const Form& form = FORMS[job.format];
  const Work work(job, cut, MAGIC_BITS, WIDE, member);
  const int64_t most = work.tiles_of_block <= FEW ? SHORT : LONG, turn = work.turn_of(most);
  uint8_t* const panel = reinterpret_cast<uint8_t*>(work.free);
  float* const sums = reinterpret_cast<float*>(panel + WIDE * turn * (panel_record(job.own.parts) + STEP));
  work.run(member, [&](const Unit& unit) {
    const int64_t first = unit.first, last = unit.last;
    work.turns(unit, most, [&](const uint8_t* const* from, int64_t g, int64_t now, Ahead ahead) {
      for (int64_t i = first; i < last; ++i, ahead.at += ahead.lines * 64) {
        float* const tile_sums = sums + (turn < job.x.groups ? i - first : 0) * work.each;
        (i == first ? form.first : form.other)(from, panel, {work.tile(i, g), now, tile_sums, g == 0, ahead});
        if (g + now == job.x.groups) work.finish(unit.strip, tile_sums, i);
      }
    });
  });
}

}  // namespace
}  // namespace engine

using namespace engine;

ENGINE_KERNEL(engine_block_tiles_vnni) {
  const Job job(call);
  make_tiles(job, Tiling(job, size_for(job.x.tokens)), MAGIC_BITS, member);
}

ENGINE_KERNEL(engine_block_product_vnni) {
  const Job job(call);
  const Tiling cut(job, size_for(job.x.tokens));
  if (cut.count > 2)
    multiply_panels(job, cut, member);
  else
    multiply<2>(job, cut, FORMS[job.format].straight[cut.size / 2], MAGIC_BITS, member);
}
#endif
