// Products of float32 activations with weights in strips of 16 rows: weights become floats a block of columns at a time,
// and a tile of strips and tokens takes them in. Every sum runs over the columns in order, in one accumulator, so that
// it does not depend on the tile.
#pragma once
#include "simd.h"
#include "team.h"

namespace engine {

constexpr int STRIP = 16;
constexpr int VECTORS = STRIP / LANES;

// What reads a weight: floats of columns [column, column + depth) of a strip, [depth][16], in the buffer or in place.
using Read = const float* (*)(const void* weight, int64_t columns, int64_t strip, int64_t column, int64_t depth,
                              float* buffer);

// A product with a weight that `read` reads. item: bytes of a value where a strip is [column][16] of them, or 0. tensor:
// packed x, weight, bias or null, out [tokens, rows]; size: tokens, columns, rows.
void multiply(const Call& call, Member& member, Read read, int64_t item = 0);

}  // namespace engine
