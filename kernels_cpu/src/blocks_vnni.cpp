// Products of blocks by vpdpbusd in 512-bit registers: a step of 16 rows in one instruction, activations broadcast from
// memory.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operand of its own intrinsics for a mistake (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "simd.h"

#if defined(ENGINE_AVX512) && defined(__AVX512VNNI__)
#include "blocks.h"

#ifndef PREFETCH
#define PREFETCH(x) _mm_prefetch((const char*)(x), _MM_HINT_T0)
#endif
namespace engine {
namespace {

// 1.5 * 2^23: as bits of a float, a sum of products that begins here is this number plus the sum, exactly. Times a scale
// of at most 21 bits it is exact, so one fused step takes it away again.
constexpr float MAGIC = 12582912.0f;
constexpr int32_t MAGIC_BITS = 0x4B400000;

inline __m512i bytes(const uint8_t* at) { return _mm512_loadu_si512(at); }
inline __m512 halves(const uint8_t* at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at)); }
inline __m512 small(const uint8_t* at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)at)));
}
inline __m512 small_signed(const uint8_t* at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)at)));
}
inline __m512i word(const uint8_t* at) {
  int32_t x;
  std::memcpy(&x, at, 4);
  return _mm512_set1_epi32(x);
}
typedef int32_t __attribute__((may_alias, aligned(1))) Word;

// GCC 12 loads a broadcast by itself where the product could.
inline void dot(__m512i& sum, __m512i weights, const uint8_t* four) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*(const Word*)four));
}

inline void dot(__m512i& sum, __m512i weights, __m512i four) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(four));
}

inline __m512 number(const uint8_t* at) { return _mm512_castsi512_ps(word(at)); }

template <int SHIFT>
inline __m512i shifted(__m512i x) {
  if constexpr (SHIFT > 0) return _mm512_slli_epi16(x, SHIFT);
  if constexpr (SHIFT < 0) return _mm512_srli_epi16(x, -SHIFT);
  return x;
}

// Codes of step S.
template <int F, int S>
inline __m512i codes(const uint8_t* record) {
  constexpr Layout own = LAYOUTS[F];
  if constexpr (own.bits == 8) return bytes(record + own.codes + S * STEP);
  const __m512i raw = bytes(record + own.codes + S % 4 * STEP);
  const __m512i low = _mm512_and_si512(shifted<S / 4 * -4>(raw), _mm512_set1_epi8(15));
  constexpr int OR_AND = 0xF8;
  if constexpr (own.bits == 5)
    return _mm512_ternarylogic_epi32(low, shifted<4 - S>(bytes(record + own.upper)), _mm512_set1_epi8(0x10), OR_AND);
  if constexpr (own.bits == 6) {
    const __m512i upper = shifted<4 - S % 4 * 2>(bytes(record + own.upper + S / 4 * STEP));
    return _mm512_ternarylogic_epi32(low, upper, _mm512_set1_epi8(0x30), OR_AND);
  }
  return low;
}

struct Factors {
  __m512 scale, back, minimum;
};

template <int F>
inline Factors factors(const uint8_t* head, const uint8_t* record, int part) {
  constexpr Layout own = LAYOUTS[F];
  Factors found{};
  if constexpr (own.span == 1)
    found.scale = halves(record);
  else if constexpr (own.parts == 2)
    found.scale = _mm512_mul_ps(halves(head), small_signed(record + part * ROWS));
  else
    found.scale = _mm512_mul_ps(halves(head), small(record));
  found.back = _mm512_mul_ps(found.scale, _mm512_set1_ps(-MAGIC));
  if constexpr (own.zero == 0 && own.span == 1) found.minimum = halves(record + 2 * ROWS);
  if constexpr (own.zero == 0 && own.span > 1) {
    const __m512 factor = _mm512_sub_ps(_mm512_setzero_ps(), halves(head + 2 * ROWS));
    found.minimum = _mm512_mul_ps(factor, small(record + ROWS));
  }
  return found;
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

// Straight from strips. sums: [S][T][ROWS] of products, then as many of minima.
template <int F, int T, int S>
void product(const uint8_t* const* given, const uint8_t* tile, int64_t groups, float* sums) {
  constexpr Layout own = LAYOUTS[F];
  const uint8_t *strips[S], *heads[S];
  for (int i = 0; i < S; ++i) heads[i] = strips[i] = given[i];
  __m512 total[S][T], low[S][T];
#pragma GCC unroll 2
  for (int i = 0; i < S; ++i)
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      total[i][t] = _mm512_loadu_ps(sums + (i * T + t) * ROWS);
      if (own.zero == 0) low[i][t] = _mm512_loadu_ps(sums + ((S + i) * T + t) * ROWS);
    }
  for (int64_t g = 0; g < groups; ++g) {
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

template <int F>
void unpack(const uint8_t* const* given, int64_t groups, uint8_t* panel) {
  constexpr Layout own = LAYOUTS[F];
  constexpr int RECORD = panel_record(own.parts);
  for (int i = 0; i < WIDE; ++i) {
    const uint8_t *strip = given[i], *head = strip;
    uint8_t* to = panel + i * RECORD;
    uint8_t* low = panel + WIDE * groups * RECORD + i * STEP;
    for (int64_t g = 0; g < groups; ++g) {
      if (own.span > 1 && g % own.span == 0) {
        head = strip;
        strip += own.head;
      }
      const __m512i all[STEPS] = {codes<F, 0>(strip), codes<F, 1>(strip), codes<F, 2>(strip), codes<F, 3>(strip),
                                  codes<F, 4>(strip), codes<F, 5>(strip), codes<F, 6>(strip), codes<F, 7>(strip)};
      Factors by[own.parts];
      for (int part = 0; part < own.parts; ++part) by[part] = factors<F>(head, strip, part);
#pragma GCC unroll 8
      for (int s = 0; s < STEPS; ++s) _mm512_store_si512(to + s * STEP, all[s]);
      for (int part = 0; part < own.parts; ++part) {
        _mm512_store_ps(to + (STEPS + 2 * part) * STEP, by[part].scale);
        _mm512_store_ps(to + (STEPS + 2 * part + 1) * STEP, by[part].back);
        if (own.zero == 0) _mm512_store_ps(low, by[part].minimum);
      }
      strip += own.record;
      to += WIDE * RECORD;
      low += WIDE * STEP;
    }
  }
}

// As `product`, with a panel of WIDE strips and a tile of TALL tokens.
template <int PARTS, bool MINIMA>
void panel_product(const uint8_t* panel, const uint8_t* tile, int64_t groups, float* sums) {
  constexpr int RECORD = panel_record(PARTS), TILE = TALL * (GROUP + 4 + 4 * PARTS);
  __m512 total[WIDE][TALL];
#pragma GCC unroll 3
  for (int i = 0; i < WIDE; ++i)
#pragma GCC unroll 4
    for (int t = 0; t < TALL; ++t) total[i][t] = _mm512_loadu_ps(sums + (i * TALL + t) * ROWS);
  const uint8_t *from = panel, *x = tile;
  for (int64_t g = 0; g < groups; ++g) {
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; ++part) {
      __m512i sum[WIDE][TALL];
#pragma GCC unroll 4
      for (int t = 0; t < TALL; ++t)
#pragma GCC unroll 3
        for (int i = 0; i < WIDE; ++i)
          sum[i][t] = MINIMA ? _mm512_set1_epi32(MAGIC_BITS) : word(x + TALL * (GROUP + 4 + 4 * part) + t * 4);
#pragma GCC unroll 8
      for (int s = part * STEPS / PARTS; s < (part + 1) * STEPS / PARTS; ++s) {
        __m512i weights[WIDE];
#pragma GCC unroll 3
        for (int i = 0; i < WIDE; ++i) weights[i] = bytes(from + i * RECORD + s * STEP);
#pragma GCC unroll 4
        for (int t = 0; t < TALL; ++t) {
          const __m512i four = word(x + t * GROUP + s * 4);
#pragma GCC unroll 3
          for (int i = 0; i < WIDE; ++i) dot(sum[i][t], weights[i], four);
        }
      }
      __m512 scales[TALL];
#pragma GCC unroll 4
      for (int t = 0; t < TALL; ++t) scales[t] = number(x + TALL * GROUP + t * 4);
#pragma GCC unroll 3
      for (int i = 0; i < WIDE; ++i) {
        const uint8_t* const at = from + i * RECORD + (STEPS + 2 * part) * STEP;
        const __m512 scale = _mm512_load_ps(at), back = _mm512_load_ps(at + STEP);
#pragma GCC unroll 4
        for (int t = 0; t < TALL; ++t) {
          const __m512 scaled = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[i][t]), scale, back);
          total[i][t] = _mm512_fmadd_ps(scaled, scales[t], total[i][t]);
        }
      }
    }
    from += WIDE * RECORD;
    x += TILE;
  }
#pragma GCC unroll 3
  for (int i = 0; i < WIDE; ++i)
#pragma GCC unroll 4
    for (int t = 0; t < TALL; ++t) {
      _mm512_storeu_ps(sums + (i * TALL + t) * ROWS, total[i][t]);
      if (MINIMA) total[i][t] = _mm512_loadu_ps(sums + ((WIDE + i) * TALL + t) * ROWS);
    }
  if (!MINIMA) return;
  x = tile + TALL * (GROUP + 4);
  for (int64_t g = 0; g < groups; ++g, from += WIDE * STEP, x += TILE) {
    __m512 low[WIDE];
#pragma GCC unroll 3
    for (int i = 0; i < WIDE; ++i) low[i] = _mm512_load_ps(from + i * STEP);
#pragma GCC unroll 4
    for (int t = 0; t < TALL; ++t) {
      const __m512 weight = number(x + t * 4);
#pragma GCC unroll 3
      for (int i = 0; i < WIDE; ++i) total[i][t] = _mm512_fmadd_ps(low[i], weight, total[i][t]);
    }
  }
#pragma GCC unroll 3
  for (int i = 0; i < WIDE; ++i)
#pragma GCC unroll 4
    for (int t = 0; t < TALL; ++t) _mm512_storeu_ps(sums + ((WIDE + i) * TALL + t) * ROWS, total[i][t]);
}

typedef void (*Unpack)(const uint8_t* const* strips, int64_t groups, uint8_t* panel);
typedef void (*PanelProduct)(const uint8_t* panel, const uint8_t* tile, int64_t groups, float* sums);

// What a format is multiplied by: straight from strips one, two or four tokens at a time, or from panels.
struct Form {
  Product straight[3];
  Unpack unpack;
  PanelProduct panel;
};
template <int F>
constexpr Form FORM = {{product<F, 1, 2>, product<F, 2, 2>, product<F, TALL, 2>},
                       unpack<F>,
                       panel_product<LAYOUTS[F].parts, LAYOUTS[F].zero == 0>};
constexpr Form FORMS[FORMATS] = {FORM<Q4_0>, FORM<Q4_1>, FORM<Q5_0>, FORM<Q5_1>,
                                 FORM<Q8_0>, FORM<Q4_K>, FORM<Q5_K>, FORM<Q6_K>};

int size_for(int64_t tokens) { return tokens > 2 ? TALL : int(tokens); }

// Tiles for which it pays to unpack strips first, and groups of a panel: as many as stay in the first-level cache, fewer
// where unpacking and multiplying take turns with reading.
constexpr int64_t MANY = 4, FEW = 8, SHORT = 9, LONG = 18;

void multiply_panels(const Job& job, const Tiling& cut, Member& member) {
  const Form& form = FORMS[job.format];
  const Layout& own = job.own;
  const Work work(job, cut, MAGIC_BITS, WIDE, member);
  const int64_t most = work.tiles_of_block <= FEW ? SHORT : LONG, groups = job.x.groups;
  const int64_t turns = (groups + most - 1) / most;
  const int64_t turn = ((groups + turns - 1) / turns + own.span - 1) / own.span * own.span;
  uint8_t* const panel = reinterpret_cast<uint8_t*>(work.free);
  float* const sums = reinterpret_cast<float*>(panel + WIDE * turn * (panel_record(own.parts) + STEP));
  work.run(member, [&](const uint8_t* const* strips, int64_t first, int64_t last) {
    for (int64_t g = 0; g < groups; g += turn) {
      const int64_t now = groups - g < turn ? groups - g : turn, before = bytes_before(own, g);
      const uint8_t* const from[WIDE] = {strips[0] + before, strips[1] + before, strips[2] + before};
      form.unpack(from, now, panel);
      const int64_t ahead = bytes_before(own, now);
      for (int64_t i = first; i < last; ++i) {
        for (int64_t line = (i - first) * ahead / (last - first) / 64; line < (i + 1 - first) * ahead / (last - first) / 64;
             ++line)
          for (int j = 0; j < WIDE; ++j) PREFETCH(from[j] + ahead + line * 64);
        float* const own_sums = sums + (turns > 1 ? i - first : 0) * work.each;
        if (g == 0) std::memset(own_sums, 0, size_t(work.each) * sizeof(float));
        if (g + now == groups) work.announce(strips, i);
        form.panel(panel, work.tile(i, g), now, own_sums);
        if (g + now == groups) work.finish(strips, own_sums, i);
      }
    }
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
  if (cut.count >= MANY)
    multiply_panels(job, cut, member);
  else
    multiply<2>(job, cut, FORMS[job.format].straight[cut.size / 2], MAGIC_BITS, member);
}
#endif
