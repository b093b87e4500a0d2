// Products of int8 activations, in groups of 32 columns, with weights in strips of 16 output rows. A strip holds, group by
// group, a record of scales, minima, upper bits and codes; formats with super-blocks put their factors before each eight
// of them. Codes are unsigned and lie as the products read them: steps of [16 rows][4 columns].
//
// Activations are laid out anew for each call: tiles of a few tokens, of which a group is one record: codes, scales, and
// one number per scale of the weights that stands for the sum of the codes.
#pragma once
#include <cstring>

#include "team.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace engine {

constexpr int ROWS = 16, GROUP = 32, STEPS = 8, STEP = 64, FORMATS = 8;

// The order of engine.ops.blocks.FORMATS.
enum Format { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K };

struct Layout {
  int bits;    // of a code
  int head;    // bytes before each `span` records: fp16 factors of scales and, where there are minima, of these
  int span;    // records per head
  int upper;   // where in a record the upper bits lie: bit s of a byte belongs to step s; of Q6_K two bits of four steps
  int codes;   // where in a record the codes lie: steps 0..3 in low halves of bytes, 4..7 in high ones; 8 bits: all
  int record;  // bytes
  int zero;    // the code of 0, or 0 where groups have minima
  int parts;   // scales per row and group
};

constexpr Layout LAYOUTS[FORMATS] = {
    {4, 0, 1, 0, 32, 288, 8, 1},  {4, 0, 1, 0, 64, 320, 0, 1},  {5, 0, 1, 32, 96, 352, 16, 1},
    {5, 0, 1, 64, 128, 384, 0, 1}, {8, 0, 1, 0, 32, 544, 128, 1}, {4, 64, 8, 0, 32, 288, 0, 1},
    {5, 64, 8, 32, 96, 352, 0, 1}, {6, 32, 8, 32, 160, 416, 32, 2},
};

// Bytes of a strip before its group `groups`, a multiple of the span.
constexpr int64_t bytes_before(const Layout& own, int64_t groups) {
  return groups / own.span * own.head + groups * own.record;
}

// Bytes of a tile's record of one group.
constexpr int64_t tile_record(const Layout& own, int tokens) { return int64_t{tokens} * (GROUP + 4 + 4 * own.parts); }

inline int32_t sum_of_16(const int8_t* x) {
#if defined(__SSE2__)
  const __m128i biased = _mm_xor_si128(_mm_loadu_si128((const __m128i*)x), _mm_set1_epi8(-128));
  const __m128i sums = _mm_sad_epu8(biased, _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
#elif defined(__aarch64__)
  return vaddlvq_s8(vld1q_s8(x));
#else
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += x[i];
  return total;
#endif
}

struct Activations {
  const int8_t* codes;
  const float* scales;
  int64_t tokens, groups, stride, scale_stride;
};

// Tokens [begin, begin + filled) as a tile of `size`, whose others are zeros. Where a format has minima, the number that
// stands for a sum is the float that a minimum is multiplied with; else what a sum of products begins with: `bias` less
// what the zero point adds.
inline void make_tile(const Activations& from, int64_t begin, int64_t filled, int size, const Layout& own, int32_t bias,
                      uint8_t* to) {
  const int64_t record = tile_record(own, size);
  for (int64_t t = 0; t < size; ++t) {
    uint8_t* out = to;
    const int8_t* codes = from.codes + (begin + t) * from.stride;
    const float* scales = from.scales + (begin + t) * from.scale_stride;
    for (int64_t g = 0; g < from.groups; ++g, out += record) {
      uint8_t* const scale_at = out + size * GROUP + t * 4;
      uint8_t* const sum_at = out + size * (GROUP + 4) + t * 4;
      if (t >= filled) {
        std::memset(out + t * GROUP, 0, GROUP);
        std::memset(scale_at, 0, 4);
        for (int part = 0; part < own.parts; ++part) std::memset(sum_at + part * size * 4, 0, 4);
        continue;
      }
      const int8_t* const x = codes + g * GROUP;
      std::memcpy(out + t * GROUP, x, GROUP);
      std::memcpy(scale_at, scales + g, 4);
      const int32_t low = sum_of_16(x), high = sum_of_16(x + 16);
      if (own.zero == 0) {
        const float sum = scales[g] * float(low + high);
        std::memcpy(sum_at, &sum, 4);
      } else if (own.parts == 1) {
        const int32_t start = bias - own.zero * (low + high);
        std::memcpy(sum_at, &start, 4);
      } else {
        const int32_t starts[2] = {bias - own.zero * low, bias - own.zero * high};
        std::memcpy(sum_at, starts, 4);
        std::memcpy(sum_at + size * 4, starts + 1, 4);
      }
    }
  }
}

// Adds `groups` groups of strips and a tile to sums [products, minima][strip][token of the tile][ROWS].
typedef void (*Product)(const uint8_t* const* strips, const uint8_t* tile, int64_t groups, float* sums);

// x int8 [tokens, columns], scales [tokens, groups], strips, bias [out] or null, out [tokens, out], tiles or null; size:
// tokens, columns, out, format, row stride of x, row stride of scales.
struct Job {
  Activations x;
  const uint8_t* strips;
  const float* bias;
  float* out;
  uint8_t* tiles;
  int64_t rows;
  int format;
  const Layout& own;

  explicit Job(const Call& call)
      : x{call.at<int8_t>(0), call.at<float>(1), call.size[0], call.size[1] / GROUP, call.size[4], call.size[5]},
        strips(call.at<uint8_t>(2)),
        bias(call.at<float>(3)),
        out(call.at<float>(4)),
        tiles(call.at<uint8_t>(5)),
        rows(call.size[2]),
        format(int(call.size[3])),
        own(LAYOUTS[format]) {}
};

// How tokens are cut: `count` tiles of `size`, the last ones less full.
struct Tiling {
  int size;
  int64_t tokens, count, bytes;

  Tiling(const Job& job, int size)
      : size(size),
        tokens(job.x.tokens),
        count((tokens + size - 1) / size),
        bytes((job.x.groups * tile_record(job.own, size) + 63) / 64 * 64) {}
  int64_t begin(int64_t tile) const { return tile * size; }
  int64_t filled(int64_t tile) const { return tokens - begin(tile) < size ? tokens - begin(tile) : size; }
};

inline void make_tiles(const Job& job, const Tiling& cut, int32_t bias, Member& member) {
  int64_t begin, end;
  while (member.next(cut.count, grain_of(cut.count, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i)
      make_tile(job.x, cut.begin(i), cut.filled(i), cut.size, job.own, bias, job.tiles + i * cut.bytes);
}

// One sum of products, then one of minima, of each strip and token: the same order of steps for every token, however
// many there are.
inline void finish(const Job& job, const float* products, const float* minima, int64_t token, int64_t strip) {
  const int64_t first = strip * ROWS, count = job.rows - first < ROWS ? job.rows - first : ROWS;
  float* const out = job.out + token * job.rows + first;
  float sum[ROWS];
  for (int i = 0; i < ROWS; ++i) sum[i] = products[i];
  if (job.own.zero == 0)
    for (int i = 0; i < ROWS; ++i) sum[i] += minima[i];
  if (job.bias != nullptr)
    for (int64_t i = 0; i < count; ++i) sum[i] += job.bias[first + i];
  if (count == ROWS)
    std::memcpy(out, sum, sizeof(sum));
  else
    std::memcpy(out, sum, size_t(count) * sizeof(float));
}

// Activations of so many bytes stay in a second-level cache while strips go by.
constexpr int64_t NEAR = 512 << 10;

// Strips outside, `abreast` at a time, tokens inside.
struct Work {
  const Job& job;
  const Tiling& cut;
  const uint8_t* tiles;
  char* free;  // of the scratch, behind what is in use
  int64_t abreast, blocks, tiles_of_block, strips, record, each;

  Work(const Job& job, const Tiling& cut, int32_t bias, int abreast, Member& member)
      : job(job), cut(cut), tiles(job.tiles), free(member.scratch), abreast(abreast) {
    if (tiles == nullptr) {
      tiles = reinterpret_cast<uint8_t*>(free);
      for (int64_t i = 0; i < cut.count; ++i, free += cut.bytes)
        make_tile(job.x, cut.begin(i), cut.filled(i), cut.size, job.own, bias, reinterpret_cast<uint8_t*>(free));
    }
    const int64_t near = NEAR / cut.bytes > 0 ? NEAR / cut.bytes : 1;
    blocks = (cut.count + near - 1) / near;
    tiles_of_block = blocks > 0 ? (cut.count + blocks - 1) / blocks : 0;
    strips = (job.rows + ROWS - 1) / ROWS;
    record = tile_record(job.own, cut.size);
    each = 2 * abreast * cut.size * ROWS;
  }

  const uint8_t* tile(int64_t i, int64_t group) const { return tiles + i * cut.bytes + group * record; }

  // body(strips abreast, first tile, last tile). Where strips end there the last one stands in for those that lack.
  template <class Body>
  void run(Member& member, Body body) const {
    const int64_t runs = (strips + abreast - 1) / abreast, strip_bytes = bytes_before(job.own, job.x.groups);
    int64_t begin, end;
    while (member.next(blocks * runs, grain_of(runs, member, 4), begin, end))
      for (int64_t unit = begin; unit < end; ++unit) {
        const uint8_t* own[4];
        for (int64_t j = 0; j < abreast; ++j) {
          const int64_t strip = unit % runs * abreast + j;
          own[j] = job.strips + (strip < strips ? strip : strips - 1) * strip_bytes;
        }
        body(own, unit / runs * cut.count / blocks, (unit / runs + 1) * cut.count / blocks);
      }
  }

  // Where results of a tile go has to be there when they are.
  void announce(const uint8_t* const* own, int64_t tile) const {
    const int64_t strip = (own[0] - job.strips) / bytes_before(job.own, job.x.groups);
    for (int64_t t = 0; t < cut.filled(tile); ++t)
      for (int64_t j = 0; j < abreast && strip + j < strips; ++j)
        __builtin_prefetch(job.out + (cut.begin(tile) + t) * job.rows + (strip + j) * ROWS, 1);
  }

  // sums [products, minima][strip][token][ROWS] of a tile -> out.
  void finish(const uint8_t* const* own, const float* sums, int64_t tile) const {
    const int64_t strip = (own[0] - job.strips) / bytes_before(job.own, job.x.groups);
    for (int64_t t = 0; t < cut.filled(tile); ++t)
      for (int64_t j = 0; j < abreast && strip + j < strips; ++j) {
        const float* const at = sums + (j * cut.size + t) * ROWS;
        engine::finish(job, at, at + each / 2, cut.begin(tile) + t, strip + j);
      }
  }
};

// Groups that all tiles take before the next ones, out of the first-level cache.
constexpr int64_t TURN = 8;

template <int ABREAST>
void multiply(const Job& job, const Tiling& cut, Product product, int32_t bias, Member& member) {
  const Work work(job, cut, bias, ABREAST, member);
  float* const sums = reinterpret_cast<float*>(work.free);
  work.run(member, [&](const uint8_t* const* strips, int64_t first, int64_t last) {
    std::memset(sums, 0, size_t((last - first) * work.each) * sizeof(float));
    const int64_t turn = last - first > 1 ? TURN : job.x.groups;
    for (int64_t g = 0; g < job.x.groups; g += turn) {
      const int64_t now = job.x.groups - g < turn ? job.x.groups - g : turn, before = bytes_before(job.own, g);
      const uint8_t* from[ABREAST];
      for (int j = 0; j < ABREAST; ++j) from[j] = strips[j] + before;
      for (int64_t i = first; i < last; ++i) product(from, work.tile(i, g), now, sums + (i - first) * work.each);
    }
    for (int64_t i = first; i < last; ++i) work.finish(strips, sums + (i - first) * work.each, i);
  });
}

}  // namespace engine
