// Dense weights, and what all products of float32 share.
#include "dense.h"

#include <array>
#include <utility>

namespace engine {
namespace {

constexpr int STRIPS = 4;
#if defined(ENGINE_AVX512) || defined(__aarch64__)
constexpr int ACCUMULATORS = 24;
#else
constexpr int ACCUMULATORS = 12;
#endif
// Tokens of the largest tile: of four strips of one vector, or of one strip.
constexpr int TOKENS = ACCUMULATORS / (VECTORS == 2 ? 2 : 4);
constexpr int64_t BLOCK = 256;  // columns of all strips of a tile together, which stay in the first-level cache
constexpr int64_t CHUNK = 256;  // tiles whose sums are kept at a time
constexpr int64_t GRAIN = 32;   // strips
constexpr int64_t FETCHED = 8;  // tiles, with fewer of which fetching the next block costs more than it gains

// Tokens in tiles of nearly one size. Packed activations are [tile][columns][tokens of the tile].
struct Tiles {
  int64_t tokens, count;
  explicit Tiles(int64_t given) : tokens(given), count((given + TOKENS - 1) / TOKENS) {}
  int64_t begin(int64_t tile) const { return tile * tokens / count; }
  int largest() const { return int((tokens + count - 1) / count); }
};

// w: strips `stride` floats apart, [depth][16] each; x [depth][tokens]; sums [tokens][strips][16] are added to.
using Tile = void (*)(const float* w, int64_t stride, const float* x, int64_t depth, float* sums);

template <int S, int T>
void tile(const float* w, int64_t stride, const float* x, int64_t depth, float* sums) {
  constexpr int WIDTH = S * VECTORS;
  vf sum[T][WIDTH];
#pragma GCC unroll 24
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 24
    for (int v = 0; v < WIDTH; ++v) sum[t][v] = load(sums + (t * WIDTH + v) * LANES);
  if (depth <= 0) __builtin_unreachable();
  for (int64_t k = 0; k < depth; ++k) {
    vf row[WIDTH];
#pragma GCC unroll 24
    for (int v = 0; v < WIDTH; ++v) row[v] = load(w + v / VECTORS * stride + k * STRIP + v % VECTORS * LANES);
#pragma GCC unroll 24
    for (int t = 0; t < T; ++t) {
      const vf each = broadcast(x[k * T + t]);
#pragma GCC unroll 24
      for (int v = 0; v < WIDTH; ++v) sum[t][v] = fma(row[v], each, sum[t][v]);
    }
  }
#pragma GCC unroll 24
  for (int t = 0; t < T; ++t)
#pragma GCC unroll 24
    for (int v = 0; v < WIDTH; ++v) store(sums + (t * WIDTH + v) * LANES, sum[t][v]);
}

template <int S, int T>
constexpr Tile fitting() {
  if constexpr (T <= TOKENS && (S == 1 || S * VECTORS * T <= ACCUMULATORS))
    return tile<S, T>;
  else
    return nullptr;
}

template <int S, int... T>
constexpr std::array<Tile, sizeof...(T)> row_of(std::integer_sequence<int, T...>) {
  return {fitting<S, T + 1>()...};
}
using All = std::make_integer_sequence<int, TOKENS>;
constexpr std::array<Tile, TOKENS> ONE = row_of<1>(All()), TWO = row_of<2>(All()), FOUR = row_of<4>(All());

const float* unchanged(const void* weight, int64_t columns, int64_t strip, int64_t column, int64_t, float*) {
  return static_cast<const float*>(weight) + (strip * columns + column) * STRIP;
}

// Of 16 bits, widened by WIDEN.
template <vf (*WIDEN)(vh)>
const float* narrow(const void* weight, int64_t columns, int64_t strip, int64_t column, int64_t depth, float* buffer) {
  const uint16_t* from = static_cast<const uint16_t*>(weight) + (strip * columns + column) * STRIP;
  for (int64_t i = 0; i < depth * STRIP; i += LANES) store(buffer + i, WIDEN(load_as<vh>(from + i)));
  return buffer;
}

// Writes [columns][tokens] of each tile; `value(token, column)`.
template <class Value>
void pack(const Call& call, Member& member, const Value& value) {
  if (call.size[0] == 0) return;
  const Tiles tiles(call.size[0]);
  const int64_t columns = call.size[1], blocks = (columns + 31) / 32;
  float* packed = call.at<float>(1);
  int64_t begin, end;
  while (member.next(tiles.count * blocks, grain_of(tiles.count * blocks, member, 2), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = tiles.begin(i / blocks), count = tiles.begin(i / blocks + 1) - first;
      const int64_t from = i % blocks * 32, to = from + 32 < columns ? from + 32 : columns;
      float* tile = packed + first * columns;
      for (int64_t t = 0; t < count; ++t)
        for (int64_t k = from; k < to; ++k) tile[k * count + t] = value(first + t, k);
    }
}

// Tokens of a step's tiles, and strips that go with them.
int strips_for(int tokens) {
  int strips = STRIPS;
  while (strips > 1 && strips * VECTORS * tokens > ACCUMULATORS) strips /= 2;
  return strips;
}

void fetch(const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

void finish(const float* sums, const float* bias, float* out, int64_t left, bool past) {
  if (past) {
    for (int i = 0; i < STRIP; i += LANES)
      pass(out + i, bias == nullptr ? load(sums + i) : load(sums + i) + load(bias + i));
    return;
  }
  if (left > STRIP) left = STRIP;
  if (bias == nullptr) {
    std::memcpy(out, sums, size_t(left) * 4);
    return;
  }
  for (int64_t r = 0; r < left; ++r) out[r] = sums[r] + bias[r];
}

}  // namespace

void multiply(const Call& call, Member& member, Read read, int64_t item) {
  if (call.size[0] == 0) return;
  const Tiles tiles(call.size[0]);
  const int64_t columns = call.size[1], rows = call.size[2], strips = (rows + STRIP - 1) / STRIP;
  const float *x = call.at<float>(0), *bias = call.at<float>(2);
  float* out = call.at<float>(3);
  const bool past = passes(out, tiles.tokens, rows);
  float* buffer = reinterpret_cast<float*>(member.scratch);
  float* sums = buffer + BLOCK * STRIP;
  const int most = strips_for(tiles.largest());
  const int64_t block = read == unchanged && tiles.count == 1 ? columns : BLOCK / most;
  int64_t grain = grain_of(strips, member, 1), begin, end;
  if (grain > GRAIN) grain = GRAIN;
  while (member.next(strips, grain, begin, end))
    for (int64_t strip = begin; strip < end;) {
      int width = most;
      while (width > end - strip) width /= 2;
      const auto& fit = width == 1 ? ONE : width == 2 ? TWO : FOUR;
      for (int64_t first = 0, last; first < tiles.count; first = last) {
        last = first + CHUNK < tiles.count ? first + CHUNK : tiles.count;
        const int64_t from = tiles.begin(first), to = tiles.begin(last);
        std::memset(sums, 0, size_t(to - from) * width * STRIP * 4);
        for (int64_t column = 0; column < columns; column += block) {
          const int64_t depth = column + block < columns ? block : columns - column;
          const float* w = read(call.tensor[1], columns, strip, column, depth, buffer);
          const float* next = w;
          for (int s = 1; s < width; ++s)
            next = read(call.tensor[1], columns, strip + s, column, depth, buffer + s * block * STRIP);
          const int64_t stride = width > 1 ? (next - w) / (width - 1) : 0;
          const bool more = last - first >= FETCHED && column + block < columns;
          for (int64_t i = first; i < last; ++i) {
            if (more) {
              const int64_t bytes = item * STRIP * block, from_byte = bytes * (i - first) / (last - first);
              for (int s = 0; s < width; ++s)
                fetch(call.at<char>(1) + ((strip + s) * columns + column + block) * STRIP * item + from_byte,
                      bytes * (i - first + 1) / (last - first) - from_byte);
            }
            const int64_t at = tiles.begin(i), count = tiles.begin(i + 1) - at;
            fit[size_t(count - 1)](w, stride, x + at * columns + column * count, depth,
                                   sums + (at - from) * width * STRIP);
          }
        }
        for (int64_t token = from; token < to; ++token)
          for (int64_t s = 0, row = strip * STRIP; s < width; ++s, row += STRIP)
            finish(sums + ((token - from) * width + s) * STRIP, bias == nullptr ? bias : bias + row,
                   out + token * rows + row, rows - row, past);
      }
      strip += width;
    }
  if (past) passed();
}

}  // namespace engine

using namespace engine;

// x [tokens, columns] -> packed [tokens * columns]; size: tokens, columns, row stride of x.
ENGINE_KERNEL(engine_dense_pack) {
  const float* x = call.at<float>(0);
  const int64_t stride = call.size[2];
  pack(call, member, [=](int64_t token, int64_t column) { return x[token * stride + column]; });
}

// x int8 [tokens, columns] -> packed [tokens * columns], times scales [tokens, columns / 32]; size: tokens, columns, row
// stride of x, of scales. tensor: x, packed, scales.
ENGINE_KERNEL(engine_dense_pack_scaled) {
  const int8_t* x = call.at<int8_t>(0);
  const float* scales = call.at<float>(2);
  const int64_t stride = call.size[2], between = call.size[3];
  pack(call, member, [=](int64_t token, int64_t column) {
    return float(x[token * stride + column]) * scales[token * between + column / 32];
  });
}

// Weight [strip][column][16]; see multiply().
ENGINE_KERNEL(engine_dense_float) { multiply(call, member, unchanged, 4); }
ENGINE_KERNEL(engine_dense_half) { multiply(call, member, narrow<from_half>, 2); }
ENGINE_KERNEL(engine_dense_bfloat) { multiply(call, member, narrow<from_bfloat>, 2); }
