// Products of many queries by tiles of bfloat16, exact to float32: a float is a sum of three limbs of 8 bits, a float16
// of two. Products of limbs are exact, and those that are left out are at most 2^-23 of the whole.
#pragma once
#include "attention_rows.h"
#include "attention_tile.h"
#include "tiles.h"

#if defined(ENGINE_TILES_BF16)
namespace engine {

// Columns of a step of depth, rows and bytes of a tile, limbs of a float.
constexpr int64_t DEPTH = 32, TALL = 16, TILE = 1024;
constexpr int MOST_LIMBS = 3;

struct Words {
  alignas(LINE) uint16_t at[32] = {};
};
// Of two vectors of words: upper halves of floats, one vector behind the other or by turns; all words by turns.
enum Order { BEHIND, TURNS, ALL };
constexpr Words words_in(Order order) {
  Words found;
  for (int i = 0; i < 32; ++i)
    found.at[i] = uint16_t(order == BEHIND ? 2 * i + 1 : i / 2 * (order == TURNS ? 2 : 1) + i % 2 * (order == TURNS ? 32 : 16) + (order == TURNS));
  return found;
}
constexpr Words BEHIND_WORDS = words_in(BEHIND), TURNS_WORDS = words_in(TURNS), ALL_WORDS = words_in(ALL);

// To the nearest, ties away from zero, as a float.
inline __m512 first_limb(__m512 x) {
  const __m512i bits = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(int32_t(0xffff0000))));
}

// Limbs of x and y: put(number, words). The last one takes what is left, and NaN.
template <int COUNT, bool BY_TURNS, class Put>
inline __attribute__((always_inline)) void limbs_of(__m512 x, __m512 y, Put put) {
  const __m512i order = _mm512_load_si512(BY_TURNS ? TURNS_WORDS.at : BEHIND_WORDS.at);
#pragma GCC unroll 4
  for (int i = 0; i + 1 < COUNT; ++i) {
    const __m512 a = first_limb(x), b = first_limb(y);
    put(i, _mm512_permutex2var_epi16(_mm512_castps_si512(a), order, _mm512_castps_si512(b)));
    x = _mm512_sub_ps(x, a), y = _mm512_sub_ps(y, b);
  }
  const __m512i last = (__m512i)_mm512_cvtne2ps_pbh(y, x);
  put(COUNT - 1, BY_TURNS ? _mm512_permutexvar_epi16(_mm512_load_si512(ALL_WORDS.at), last) : last);
}

inline __m512 floats(const float* from, int64_t at, int64_t width) {
  return at < width ? _mm512_loadu_ps(from + at) : _mm512_setzero_ps();
}

// Limbs of rows: those of one number lie `apart` of them behind those of the one before, rows `line` apart.
struct Rows {
  uint16_t* at;
  int64_t line, apart;
};

// Rows of floats, `width` of them a multiple of LANES, zeros behind them up to `deep`.
template <int LIMBS>
void limbs_of_rows(const float* from, int64_t stride, int64_t rows, int64_t width, int64_t deep, const Rows& to) {
  for (int64_t r = 0; r < rows; ++r, from += stride)
    for (int64_t c = 0; c < deep; c += DEPTH)
      limbs_of<LIMBS, false>(floats(from, c, width), floats(from, c + LANES, width), [&](int i, __m512i words) {
        _mm512_storeu_si512(to.at + i * to.apart + r * to.line + c, words);
      });
}

// Tiles of limbs beside each other, of which each has `steps` of depth behind each other: [beside][step][limb]. They are
// multiplied with rows of MOST limbs.
template <int MOST, int LIMBS>
struct Tiles {
  static constexpr int64_t STEP = LIMBS * TILE;

  // Lines as columns, LANES of them beside each other: a tile is [pair of their columns][line].
  static void turned(const float* const* lines, int64_t count, int64_t width, int64_t deep, char* tiles) {
    alignas(LINE) float words[LIMBS][LANES][LANES];
    const float* rows[LANES];
    for (int64_t n = 0; n < count; n += LANES)
      for (int64_t c = 0; c < deep; c += DEPTH, tiles += STEP) {
        for (int j = 0; j < LANES; ++j)
          limbs_of<LIMBS, false>(floats(lines[n + j], c, width), floats(lines[n + j], c + LANES, width),
                                 [&](int i, __m512i found) { _mm512_store_si512(words[i][j], found); });
        for (int i = 0; i < LIMBS; ++i) {
          for (int j = 0; j < LANES; ++j) rows[j] = words[i][j];
          turn(rows, 0, reinterpret_cast<float*>(tiles + i * TILE), LANES);
        }
      }
  }

  // Lines as they are, DEPTH of them a step, LANES columns beside each other: a tile is [pair of lines][column]. What
  // lies from `count` on is zeros.
  static void plain(const float* const* lines, int64_t count, int64_t width, int64_t steps, char* tiles) {
    for (int64_t k = 0; k < count; k += DEPTH)
      for (int64_t c = 0; c < width; c += LANES)
        for (int j = 0; j < TALL; ++j) {
          const int64_t at = k + 2 * j;
          char* const to = tiles + (c / LANES * steps + k / DEPTH) * STEP + j * LINE;
          limbs_of<LIMBS, true>(at < count ? _mm512_loadu_ps(lines[at] + c) : _mm512_setzero_ps(),
                                at + 1 < count ? _mm512_loadu_ps(lines[at + 1] + c) : _mm512_setzero_ps(),
                                [&](int i, __m512i found) { _mm512_store_si512(to + i * TILE, found); });
        }
  }

  // out [R tiles, N tiles] = rows times tiles that have `steps` of depth, of which `deep` are multiplied.
  template <int R, int N>
  static void part(const Rows& rows, const char* tiles, int64_t steps, int64_t deep, float* out, int64_t out_stride) {
    const int64_t line = rows.line * 2, stride = out_stride * int64_t(sizeof(float));
    _tile_zero(0);
    if (N == 2) _tile_zero(1);
    if (R == 2) _tile_zero(2);
    if (R == 2 && N == 2) _tile_zero(3);
    for (int64_t k = 0; k < deep; ++k, tiles += STEP) {
#pragma GCC unroll 4
      for (int j = LIMBS - 1; j >= 0; --j) {
        _tile_loadd(6, tiles + j * TILE, LINE);
        if (N == 2) _tile_loadd(7, tiles + j * TILE + steps * STEP, LINE);
#pragma GCC unroll 4
        for (int i = MOST - 1 - j; i >= 0; --i) {
          const uint16_t* const row = rows.at + i * rows.apart + k * DEPTH;
          _tile_loadd(4, row, line);
          _tile_dpbf16ps(0, 4, 6);
          if (N == 2) _tile_dpbf16ps(1, 4, 7);
          if (R == 2) _tile_loadd(5, row + TALL * rows.line, line);
          if (R == 2) _tile_dpbf16ps(2, 5, 6);
          if (R == 2 && N == 2) _tile_dpbf16ps(3, 5, 7);
        }
      }
    }
    float* const more = out + TALL * out_stride;
    _tile_stored(0, out, stride);
    if (N == 2) _tile_stored(1, out + LANES, stride);
    if (R == 2) _tile_stored(2, more, stride);
    if (R == 2 && N == 2) _tile_stored(3, more + LANES, stride);
  }

  // As `part`, of one tile of rows or two and `count` tiles beside each other.
  static void product(int64_t high, const Rows& rows, const char* tiles, int64_t steps, int64_t deep, int64_t count,
                      float* out, int64_t out_stride) {
    for (int64_t n = 0; n < count; n += 2) {
      const auto own = high == 2 ? (n + 1 < count ? part<2, 2> : part<2, 1>) : (n + 1 < count ? part<1, 2> : part<1, 1>);
      own(rows, tiles + n * steps * STEP, steps, deep, out + n * LANES, out_stride);
    }
  }
};

// What queries, keys and values are made into, and multiplied by.
struct TileKernels {
  void (*rows)(const float*, int64_t, int64_t, int64_t, int64_t, const Rows&);
  void (*turned)(const float* const*, int64_t, int64_t, int64_t, char*);
  void (*plain)(const float* const*, int64_t, int64_t, int64_t, char*);
  void (*product)(int64_t, const Rows&, const char*, int64_t, int64_t, int64_t, float*, int64_t);
};
template <int MOST, int LIMBS>
constexpr TileKernels tile_kernels = {limbs_of_rows<MOST>, Tiles<MOST, LIMBS>::turned, Tiles<MOST, LIMBS>::plain,
                                      Tiles<MOST, LIMBS>::product};

inline Shapes whole_tiles() {
  Shapes shapes;
  for (int i = 0; i < 8; ++i) shapes.set(i, TALL, LINE);
  return shapes;
}

}  // namespace engine
#endif
