// Products of int8 or int16 activations, in groups of 32 columns, with weights in strips of 16 output rows. A strip holds, group by
// group, a record of scales, minima, upper bits and codes; formats with super-blocks put their factors before each eight
// of them. Codes are unsigned and lie as the products read them: steps of [16 rows][4 columns].
//
// Activations are laid out anew for each call: tiles of a few tokens, of which a group is one record: codes, scales, and
// one number per scale of the weights that stands for the sum of the codes. A token of int16 is two neighbours in a tile,
// planes of its digits to base 255, the upper first; their sums are added in the end.
#pragma once
#include <cstring>

#include "simd.h"
#include "team.h"

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
  const void* codes;
  const float* scales;
  int64_t tokens, groups, stride, scale_stride;  // tokens: planes of them
  int planes;
};

// Two digits from -127 to 127 make a value of int16.
constexpr int32_t BASE = 255;

// GROUP codes of a plane.
inline void digits(const Activations& from, int64_t token, int64_t group, int8_t* to) {
  const int64_t at = token / from.planes * from.stride + group * GROUP;
  if (from.planes == 1) {
    std::memcpy(to, static_cast<const int8_t*>(from.codes) + at, GROUP);
    return;
  }
  const int16_t* const x = static_cast<const int16_t*>(from.codes) + at;
  for (int i = 0; i < GROUP; ++i) {
    // Exact for the quotients of 16 bits by 255.
    const int32_t upper = int32_t(uint32_t(x[i] + 127 + 128 * BASE) * 0x8081u >> 23) - 128;
    to[i] = int8_t(token % 2 == 0 ? upper : x[i] - upper * BASE);
  }
}

// Tokens [begin, begin + filled) as a tile of `size`, whose others are zeros. Where a format has minima, the number that
// stands for a sum is the float that a minimum is multiplied with; else what a sum of products begins with: `bias` less
// what the zero point adds.
inline void make_tile(const Activations& from, int64_t begin, int64_t filled, int size, const Layout& own, int32_t bias,
                      uint8_t* to) {
  const int64_t record = tile_record(own, size);
  for (int64_t t = 0; t < size; ++t) {
    uint8_t* out = to;
    const float* scales = from.scales + (begin + t) / from.planes * from.scale_stride;
    const float digit = from.planes == 2 && (begin + t) % 2 == 0 ? float(BASE) : 1.0f;
    for (int64_t g = 0; g < from.groups; ++g, out += record) {
      uint8_t* const scale_at = out + size * GROUP + t * 4;
      uint8_t* const sum_at = out + size * (GROUP + 4) + t * 4;
      if (t >= filled) {
        std::memset(out + t * GROUP, 0, GROUP);
        std::memset(scale_at, 0, 4);
        for (int part = 0; part < own.parts; ++part) std::memset(sum_at + part * size * 4, 0, 4);
        continue;
      }
      int8_t* const x = reinterpret_cast<int8_t*>(out) + t * GROUP;
      digits(from, begin + t, g, x);
      const float scale = scales[g] * digit;
      std::memcpy(scale_at, &scale, 4);
      const int32_t low = sum_of_16(x), high = sum_of_16(x + 16);
      if (own.zero == 0) {
        const float sum = scale * float(low + high);
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

// What is read next: `lines` of each of some strips that lie `gap` bytes apart, `each` of them in the time of a group.
// Where products of several tiles and reading would take turns, they go on together.
struct Ahead {
  const uint8_t* at;
  int64_t gap, lines, each;

  template <int STRIPS>
  void fetch() {
    for (int64_t i = 0; i < each && lines > 0; ++i, --lines, at += 64)
      for (int j = 0; j < STRIPS; ++j) __builtin_prefetch(at + j * gap);
  }
};

// One tile and `groups` groups of strips. sums: [products, minima][strip][token of the tile][ROWS], which begin here if
// `fresh`.
struct Share {
  const uint8_t* tile;
  int64_t groups;
  float* sums;
  bool fresh;
  Ahead ahead;
};
typedef void (*Product)(const uint8_t* const* strips, Share share);

// x int8 or int16 [tokens, columns], scales [tokens, groups], strips, bias [out] or null, out [tokens, out], tiles or null;
// size: tokens, columns, out, format, row stride of x, row stride of scales, bytes of a value of x.
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
      : x{call.at<void>(0), call.at<float>(1), call.size[0] * call.size[6], call.size[1] / GROUP, call.size[4],
          call.size[5], int(call.size[6])},
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
  int64_t tokens, count, record, bytes;

  Tiling(const Job& job, int size) : Tiling(job, size, tile_record(job.own, size)) {}
  Tiling(const Job& job, int size, int64_t record)
      : size(size),
        tokens(job.x.tokens),
        count((tokens + size - 1) / size),
        record(record),
        bytes((job.x.groups * record + 63) / 64 * 64) {}
  int64_t begin(int64_t tile) const { return tile * size; }
  int64_t filled(int64_t tile) const { return tokens - begin(tile) < size ? tokens - begin(tile) : size; }
};

inline void make_tiles(const Job& job, const Tiling& cut, int32_t bias, Member& member) {
  int64_t begin, end;
  while (member.next(cut.count, grain_of(cut.count, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i)
      make_tile(job.x, cut.begin(i), cut.filled(i), cut.size, job.own, bias, job.tiles + i * cut.bytes);
}

// Results of tiles that are done: of each strip and token one sum of products and one of minima, the same order of steps
// for every token, however many there are. Whoever multiplies the next tiles meanwhile writes a few tokens at a time: all
// at once, everybody would wait for the memory.
struct Results {
  const float *sums = nullptr, *bias = nullptr;
  float* out = nullptr;
  int64_t left = 0, each = 0;             // tokens, and those that are written at a time
  int64_t side = 0, low = 0, stride = 0;  // floats between strips, to the minima or 0, between tokens
  int64_t step = ROWS;                    // between tokens of sums
  int whole = 0, part = 0;                // strips, and rows of a last one that is not whole
  bool past = false;

  void some(int64_t count) {
    for (int64_t end = left > count ? left - count : 0; left > end; --left, sums += step, out += stride) {
      for (int j = 0; j < whole; ++j) {
        if (past)
          put<true>(sums + j * side, bias == nullptr ? nullptr : bias + j * ROWS, out + j * ROWS);
        else
          put<false>(sums + j * side, bias == nullptr ? nullptr : bias + j * ROWS, out + j * ROWS);
      }
      if (part > 0) {
        const size_t nbytes = size_t(part) * sizeof(float);
        float rows[ROWS], more[ROWS] = {};
        if (bias != nullptr) std::memcpy(more, bias + whole * ROWS, nbytes);
        put<false>(sums + whole * side, bias == nullptr ? nullptr : more, rows);
        std::memcpy(out + whole * ROWS, rows, nbytes);
      }
    }
  }
  void rest() { some(left); }

 private:
  template <bool PAST>
  void put(const float* from, const float* more, float* to) const {
    for (int i = 0; i < ROWS; i += LANES) {
      vf sum = load(from + i);
      if (low > 0) sum = sum + load(from + low + i);
      if (more != nullptr) sum = sum + load(more + i);
      if (PAST)
        pass(to + i, sum);
      else
        store(to + i, sum);
    }
  }
};

// Activations of so many bytes stay in a second-level cache while strips go by.
constexpr int64_t NEAR = 512 << 10;

// Some strips side by side with tiles [first, last). Where strips end there the last one stands in for those that lack.
struct Unit {
  const uint8_t* strips[4];
  int64_t strip, first, last;
  const uint8_t* after;  // what this member takes next if all are equally fast, or null
};

// Strips outside, `abreast` at a time, tokens inside.
struct Work {
  const Job& job;
  const Tiling& cut;
  const uint8_t* tiles;
  char* free;  // of the scratch, behind what is in use
  int64_t abreast, blocks, tiles_of_block, strips, strip_bytes, each;
  bool past;

  // `held`: bytes of results for each member that stay in its cache.
  Work(const Job& job, const Tiling& cut, int32_t bias, int abreast, Member& member, int64_t cached = NEAR,
       int64_t held = 0)
      : job(job), cut(cut), tiles(job.tiles), free(member.scratch), abreast(abreast) {
    if (tiles == nullptr) {
      tiles = reinterpret_cast<uint8_t*>(free);
      for (int64_t i = 0; i < cut.count; ++i, free += cut.bytes)
        make_tile(job.x, cut.begin(i), cut.filled(i), cut.size, job.own, bias, reinterpret_cast<uint8_t*>(free));
    }
    const int64_t near = cached / cut.bytes > 0 ? cached / cut.bytes : 1;
    blocks = (cut.count + near - 1) / near;
    tiles_of_block = blocks > 0 ? (cut.count + blocks - 1) / blocks : 0;
    strips = (job.rows + ROWS - 1) / ROWS;
    strip_bytes = bytes_before(job.own, job.x.groups);
    each = 2 * abreast * cut.size * ROWS;
    const int64_t tokens = cut.tokens / job.x.planes;
    past = passes(job.out, tokens, job.rows) && tokens * job.rows * int64_t(sizeof(float)) > member.count * held;
  }

  const uint8_t* tile(int64_t i, int64_t group) const { return tiles + i * cut.bytes + group * cut.record; }

  // body(unit)
  template <class Body>
  void run(Member& member, Body body) const {
    const int64_t runs = (strips + abreast - 1) / abreast, grain = grain_of(runs, member, 8);
    int64_t begin, end;
    while (member.next(blocks * runs, grain, begin, end))
      for (int64_t at = begin; at < end; ++at) {
        const int64_t first = at % runs * abreast, next = at + 1 < end ? at + 1 : begin + grain * member.count;
        Unit unit{{}, first, at / runs * cut.count / blocks, (at / runs + 1) * cut.count / blocks, nullptr};
        for (int64_t j = 0; j < abreast; ++j)
          unit.strips[j] = job.strips + (first + j < strips ? first + j : strips - 1) * strip_bytes;
        if (next < blocks * runs) unit.after = job.strips + next % runs * abreast * strip_bytes;
        body(unit);
      }
    if (past) passed();
  }

  // Equal turns of at most `most` groups that all `tiles` take before the next ones, out of the first-level cache.
  // turn(strips at the first group, that group, groups, what each tile asks for ahead)
  template <class Turn>
  void turns(const Unit& unit, int64_t most, Turn turn) const {
    const int64_t groups = job.x.groups, length = turn_of(most);
    for (int64_t g = 0; g < groups; g += length) {
      const int64_t now = groups - g < length ? groups - g : length, before = bytes_before(job.own, g);
      const uint8_t* from[4];
      for (int64_t j = 0; j < abreast; ++j) from[j] = unit.strips[j] + before;
      const int64_t next = g + now < groups ? g + now : 0, count = groups - next < length ? groups - next : length;
      const uint8_t* const at = next > 0 ? unit.strips[0] + bytes_before(job.own, next) : unit.after;
      const int64_t lines = at == nullptr ? 0 : (bytes_before(job.own, count) / (unit.last - unit.first) + 63) / 64;
      turn(from, g, now, Ahead{at, strip_bytes, lines, (lines + now - 1) / now});
    }
  }
  int64_t turn_of(int64_t most) const {
    const int64_t count = (job.x.groups + most - 1) / most, length = (job.x.groups + count - 1) / count;
    return (length + job.own.span - 1) / job.own.span * job.own.span;
  }

  // Of strips from `strip` on, without sums yet.
  Results results(int64_t strip) const {
    const int64_t row = strip * ROWS, there = job.rows - row < abreast * ROWS ? job.rows - row : abreast * ROWS;
    Results found;
    found.side = cut.size * ROWS, found.low = job.own.zero == 0 ? each / 2 : 0;
    found.stride = job.rows, found.step = job.x.planes * ROWS, found.past = past;
    found.whole = int(there / ROWS), found.part = int(there % ROWS);
    found.bias = job.bias == nullptr ? nullptr : job.bias + row;
    return found;
  }
  // Sums of a tile, those of planes added up.
  void take(Results& found, int64_t strip, float* sums, int64_t tile) const {
    const int planes = job.x.planes;
    for (int64_t i = 0; planes == 2 && i < (found.low > 0 ? each : each / 2); i += 2 * ROWS)
      for (int j = 0; j < ROWS; j += LANES) store(sums + i + j, load(sums + i + j) + load(sums + i + ROWS + j));
    found.sums = sums, found.left = (cut.filled(tile) + planes - 1) / planes;
    found.out = job.out + cut.begin(tile) / planes * job.rows + strip * ROWS;
  }
  void finish(int64_t strip, float* sums, int64_t tile) const {
    Results found = results(strip);
    take(found, strip, sums, tile);
    found.rest();
  }
};

// Groups of a turn: what two strips have of them, and twice that, stays in the first-level cache.
constexpr int64_t TURN = 18;

template <int ABREAST>
void multiply(const Job& job, const Tiling& cut, Product product, int32_t bias, Member& member) {
  const Work work(job, cut, bias, ABREAST, member);
  float* const sums = reinterpret_cast<float*>(work.free);
  work.run(member, [&](const Unit& unit) {
    const int64_t first = unit.first, last = unit.last, tiles = last - first;
    work.turns(unit, tiles > 1 ? TURN : job.x.groups,
               [&](const uint8_t* const* from, int64_t g, int64_t now, Ahead ahead) {
                 for (int64_t i = first; i < last; ++i, ahead.at += ahead.lines * 64)
                   product(from, {work.tile(i, g), now, sums + (i - first) * work.each, g == 0, ahead});
               });
    for (int64_t i = first; i < last; ++i) work.finish(unit.strip, sums + (i - first) * work.each, i);
  });
}

// What one strip and a tile are multiplied by where sums lie in memory: of every group
// group(head, record, codes and numbers of the tile, sums).
template <int F, int T, class Group>
inline __attribute__((always_inline)) void each_group(const uint8_t* strip, const Share& share, Group group) {
  constexpr Layout own = LAYOUTS[F];
  const uint8_t *head = strip, *tile = share.tile;
  Ahead ahead = share.ahead;
  if (share.fresh) std::memset(share.sums, 0, 2 * T * ROWS * sizeof(float));
  for (int64_t g = 0; g < share.groups; ++g, strip += own.record, tile += tile_record(own, T)) {
    ahead.fetch<1>();
    if (own.span > 1 && g % own.span == 0) {
      head = strip;
      strip += own.head;
    }
    group(head, strip, tile);
  }
}

// `Form<F, T>::product` for each format and tiles of one, two or four tokens.
template <template <int, int> class Form>
struct Forms {
  template <int F>
  static Product of(int size) {
    return size == 1 ? Form<F, 1>::product : size == 2 ? Form<F, 2>::product : Form<F, 4>::product;
  }
  static constexpr Product (*ALL[FORMATS])(int) = {of<Q4_0>, of<Q4_1>, of<Q5_0>, of<Q5_1>,
                                                   of<Q8_0>, of<Q4_K>, of<Q5_K>, of<Q6_K>};
  static Tiling cut(const Job& job) { return {job, job.x.tokens > 2 ? 4 : job.x.tokens > 1 ? 2 : 1}; }
  static void tiles(const Call& call, Member& member) {
    const Job job(call);
    make_tiles(job, cut(job), 0, member);
  }
  static void run(const Call& call, Member& member) {
    const Job job(call);
    const Tiling own = cut(job);
    multiply<1>(job, own, ALL[job.format](own.size), 0, member);
  }
};

}  // namespace engine
