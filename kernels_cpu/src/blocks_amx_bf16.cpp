// Products of blocks by tiles of AMX in bfloat16, summed over all columns in the tiles: activations times their scales
// and weights are rounded to it, so that a result is near the exact one and no more. Few tokens are left to
// blocks_amx.cpp, which is exact: unpacking weights takes as long as multiplying five tiles.
#include "simd.h"

#if defined(ENGINE_TILES_BF16)
#include "blocks_avx512.h"
#include "tiles.h"

namespace engine {
namespace {

// Strips and tiles of tokens side by side; tokens that are left to others.
constexpr int ABREAST = 2, DEEP = 2, FEW = 32;

// Groups of a turn: weights of a turn stay in the first-level cache while activations go by.
constexpr int64_t TURN = 9;

// Activations that stay in a second-level cache.
constexpr int64_t NEAR_BYTES = 1 << 20;

// Tile registers. Intrinsics want them as figures.
constexpr int SUMS = 0, X = 4, WEIGHTS = 6;

// Bytes of a tile of weights: 16 pairs of columns, of each the two values of 16 rows.
constexpr int64_t WEIGHT_TILE = ROWS * STEP;

// Bytes of a tile's record of one group: 32 values of a token side by side.
constexpr int64_t x_record(int tokens) { return int64_t{tokens} * GROUP * 2; }

inline __m512i rounded(__m512 first, __m512 second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }

// Tokens [begin, begin + filled) as a tile of `size`, whose others are zeros.
void round_tile(const Activations& from, int64_t begin, int64_t filled, int size, uint8_t* to) {
  const int8_t* x = static_cast<const int8_t*>(from.codes) + begin * from.stride;
  const float* scales = from.scales + begin * from.scale_stride;
  for (int64_t t = 0; t < size; ++t, x += from.stride, scales += from.scale_stride, to += GROUP * 2) {
    uint8_t* out = to;
    for (int64_t g = 0; g < from.groups; ++g, out += x_record(size)) {
      if (t >= filled) {
        _mm512_storeu_si512(out, _mm512_setzero_si512());
        continue;
      }
      const __m512 scale = _mm512_set1_ps(scales[g]);
      const auto values = [&](int at) {
        const __m128i few = _mm_loadu_si128((const __m128i*)(x + g * GROUP + at));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(few)), scale);
      };
      _mm512_storeu_si512(out, rounded(values(0), values(ROWS)));
    }
  }
}

// Groups of a strip -> tiles of weights.
template <int F>
struct Panel {
  static constexpr Layout own = LAYOUTS[F];

  // What makes values of codes in the lowest bytes of words, and in the next two.
  struct By {
    __m512 scale[3], offset;

    explicit By(const Factors& by) {
      scale[0] = by.scale;
      scale[1] = _mm512_mul_ps(by.scale, _mm512_set1_ps(0x1p-8f));
      scale[2] = _mm512_mul_ps(by.scale, _mm512_set1_ps(0x1p-16f));
      offset = own.zero == 0 ? by.minimum : _mm512_mul_ps(by.scale, _mm512_set1_ps(float(-own.zero)));
    }
    __m512 of(__m512i code, int at) const { return _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scale[at], offset); }
  };

  // Four columns.
  template <int S>
  static void step(const uint8_t* strip, const By& by, __m512i order, uint8_t* to) {
    const __m512i found = codes<F, S>(strip);
    const auto value = [&](int at) { return by.of(_mm512_and_si512(found, _mm512_set1_epi32(0xff << 8 * at)), at); };
    const __m512i low = rounded(value(0), value(1));
    const __m512i high = rounded(value(2), by.of(_mm512_srli_epi32(found, 24), 0));
    _mm512_store_si512(to + 2 * S * STEP, _mm512_permutexvar_epi16(order, low));
    _mm512_store_si512(to + (2 * S + 1) * STEP, _mm512_permutexvar_epi16(order, high));
  }

  static void unpack(const uint8_t* strip, int64_t groups, uint8_t* to) {
    // Values of two columns in turns.
    alignas(64) uint16_t turns[2 * ROWS];
    for (int i = 0; i < ROWS; ++i) turns[2 * i] = uint16_t(i), turns[2 * i + 1] = uint16_t(ROWS + i);
    const __m512i order = _mm512_load_si512(turns);
    const uint8_t* head = strip;
    for (int64_t g = 0; g < groups; ++g, strip += own.record, to += WEIGHT_TILE) {
      if (own.span > 1 && g % own.span == 0) {
        head = strip;
        strip += own.head;
      }
      const By first(factors<F>(head, strip, 0)), last = own.parts == 1 ? first : By(factors<F>(head, strip, own.parts - 1));
      step<0>(strip, first, order, to);
      step<1>(strip, first, order, to);
      step<2>(strip, first, order, to);
      step<3>(strip, first, order, to);
      step<4>(strip, last, order, to);
      step<5>(strip, last, order, to);
      step<6>(strip, last, order, to);
      step<7>(strip, last, order, to);
    }
  }
};

typedef void (*Unpack)(const uint8_t* strip, int64_t groups, uint8_t* to);

constexpr Unpack UNPACK[FORMATS] = {Panel<Q4_0>::unpack, Panel<Q4_1>::unpack, Panel<Q5_0>::unpack, Panel<Q5_1>::unpack,
                                    Panel<Q8_0>::unpack, Panel<Q4_K>::unpack, Panel<Q5_K>::unpack, Panel<Q6_K>::unpack};

// `tile` bytes between two tiles of activations, `record` between groups of one; `gap` between weights of two strips.
struct Operands {
  const uint8_t* x;
  int64_t tile, record;
  const uint8_t* weights;
  int64_t gap, groups;
};

// Where sums of two strips and two tiles lie: `line` bytes between tokens, `side` floats between strips, `each` between
// tiles.
struct Place {
  float* at;
  int64_t line, side, each;
};

// Two strips and one tile of tokens, or two. Sums begin with zeros, or with what lies at `begin`. All is in registers:
// what is stored and read again at once would wait for the stores before it, which are many.
template <int TILES>
inline __attribute__((always_inline)) void product(Operands from, Place begin, Place end, Ahead ahead, Results& results) {
  if (begin.at == nullptr) {
    _tile_zero(0);
    _tile_zero(1);
    if (TILES == 2) _tile_zero(2);
    if (TILES == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, begin.at, begin.line);
    _tile_loadd(1, begin.at + begin.side, begin.line);
    if (TILES == 2) _tile_loadd(2, begin.at + begin.each, begin.line);
    if (TILES == 2) _tile_loadd(3, begin.at + begin.each + begin.side, begin.line);
  }
  for (int64_t g = 0; g < from.groups; ++g, from.x += from.record, from.weights += WEIGHT_TILE) {
    ahead.fetch<ABREAST>();
    _tile_loadd(4, from.x, STEP);
    _tile_loadd(6, from.weights, STEP);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, from.weights + from.gap, STEP);
    _tile_dpbf16ps(1, 4, 7);
    if (TILES == 2) {
      _tile_loadd(5, from.x + from.tile, STEP);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (results.left > 0) results.some(results.each);
  }
  if (results.left > 0) results.rest();
  _tile_stored(0, end.at, end.line);
  _tile_stored(1, end.at + end.side, end.line);
  if (TILES == 2) _tile_stored(2, end.at + end.each, end.line);
  if (TILES == 2) _tile_stored(3, end.at + end.each + end.side, end.line);
}

// Tiles are equally full.
int size_for(int64_t tokens) {
  const int64_t tiles = (tokens + ROWS - 1) / ROWS;
  return int((tokens + tiles - 1) / tiles);
}

Tiling cut_of(const Job& job) {
  const int size = size_for(job.x.tokens);
  return {job, size, x_record(size)};
}

Shapes shapes_of(int tokens) {
  Shapes shapes;
  for (int i = 0; i < ABREAST * DEEP; ++i) shapes.set(SUMS + i, tokens, STEP);
  for (int i = 0; i < DEEP; ++i) shapes.set(X + i, tokens, GROUP * 2);
  for (int i = 0; i < ABREAST; ++i) shapes.set(WEIGHTS + i, ROWS, STEP);
  return shapes;
}

bool taken(const Job& job) { return job.x.tokens > FEW && job.x.planes == 1 && job.tiles != nullptr; }

void multiply(const Job& job, Member& member) {
  const Tiling cut = cut_of(job);
  const Work work(job, cut, 0, ABREAST, member, NEAR_BYTES, NEAR_BYTES);
  const Registers registers(shapes_of(cut.size));
  const Unpack unpack = UNPACK[job.format];
  const int64_t turn = work.turn_of(TURN), gap = turn * WEIGHT_TILE, each = int64_t{cut.size} * ROWS;
  const int64_t side = DEEP * each, pair = ABREAST * side, rows = job.rows;
  uint8_t* const weights = reinterpret_cast<uint8_t*>(work.free);
  float* const apart = reinterpret_cast<float*>(weights + ABREAST * gap);
  float bias[ABREAST * ROWS] = {};
  float* const first_sums = job.bias == nullptr ? nullptr : bias;
  work.run(member, [&](const Unit& unit) {
    const int64_t first = unit.first, last = unit.last, row = unit.strip * ROWS;
    const int64_t there = rows - row < ABREAST * ROWS ? rows - row : ABREAST * ROWS;
    Results results = work.results(unit.strip);
    results.side = side, results.low = 0, results.bias = nullptr;
    if (job.bias != nullptr) std::memcpy(bias, job.bias + row, size_t(there) * sizeof(float));
    work.turns(unit, TURN, [&](const uint8_t* const* from, int64_t g, int64_t now, Ahead ahead) {
      for (int j = 0; j < ABREAST; ++j) unpack(from[j], now, weights + j * gap);
      const bool begins = g == 0, ends = g + now == job.x.groups;
      results.each = (DEEP * cut.size + now - 1) / now;
      for (int64_t i = first, at = 0, tiles; i < last; i += tiles, ++at) {
        tiles = last - i < DEEP ? last - i : DEEP;
        float* const out = job.out + cut.begin(i) * rows + row;
        const int64_t tokens = (tiles - 1) * cut.size + cut.filled(i + tiles - 1);
        const bool direct = !work.past && there == ABREAST * ROWS && tokens == tiles * cut.size;
        // Where one turn is all, what the pair before left is still being written.
        float* const own = apart + (turn < job.x.groups ? at : at % 2) * pair;
        const bool put = ends && direct;
        const Place start{begins ? first_sums : own, begins ? 0 : STEP, begins ? ROWS : side, begins ? 0 : each};
        const Place end{put ? out : own, put ? rows * int64_t(sizeof(float)) : STEP, put ? ROWS : side,
                        put ? cut.size * rows : each};
        const Ahead both{ahead.at, ahead.gap, tiles * ahead.lines, tiles * ahead.each};
        const Operands operands{work.tile(i, g), cut.bytes, cut.record, weights, gap, now};
        if (tiles == 2)
          product<2>(operands, start, end, both, results);
        else
          product<1>(operands, start, end, both, results);
        ahead.at += both.lines * 64;
        if (ends && !direct) results.sums = own, results.out = out, results.left = tokens;
      }
    });
    results.rest();
  });
}

}  // namespace
}  // namespace engine

using namespace engine;

ENGINE_KERNEL(engine_block_tiles_amx);
ENGINE_KERNEL(engine_block_product_amx);

ENGINE_KERNEL(engine_block_tiles_amx_bf16) {
  const Job job(call);
  if (!taken(job)) return engine_block_tiles_amx(call, member);
  const Tiling cut = cut_of(job);
  int64_t begin, end;
  while (member.next(cut.count, grain_of(cut.count, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i)
      round_tile(job.x, cut.begin(i), cut.filled(i), cut.size, job.tiles + i * cut.bytes);
}

ENGINE_KERNEL(engine_block_product_amx_bf16) {
  const Job job(call);
  if (!taken(job)) return engine_block_product_amx(call, member);
  multiply(job, member);
}
#endif
