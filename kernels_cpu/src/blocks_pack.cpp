// From the blocks of GGUF to strips. Layouts of blocks: ggml-common.h.
#include "blocks.h"

namespace engine {
namespace {

inline uint32_t word(const uint8_t* from) {
  uint32_t x;
  std::memcpy(&x, from, 4);
  return x;
}
inline void put(uint8_t* to, uint32_t x) { std::memcpy(to, &x, 4); }
inline void half(uint8_t* to, const uint8_t* from) { std::memcpy(to, from, 2); }

// Each of four bits in a byte of its own.
inline uint32_t spread(uint32_t bits) {
  return (bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21;
}

constexpr uint32_t LOW = 0x0f0f0f0f;

// Where blocks hold 32 columns. `row`: of the 16 in the strip.
void pack_group(int format, const uint8_t* block, uint8_t* record, int row) {
  const Layout& own = LAYOUTS[format];
  const bool minima = own.zero == 0;
  const uint8_t* from = block;
  half(record + row * 2, from);
  from += 2;
  if (minima) {
    half(record + 2 * ROWS + row * 2, from);
    from += 2;
  }
  uint8_t* const codes = record + own.codes + row * 4;
  if (own.bits == 8) {
    for (int s = 0; s < STEPS; ++s) put(codes + s * STEP, word(from + s * 4) ^ 0x80808080u);
    return;
  }
  if (own.bits == 5) {
    const uint32_t fifth = word(from);
    uint32_t upper = 0;
    for (int s = 0; s < STEPS; ++s) upper |= spread(fifth >> (4 * s) & 15) << s;
    put(record + own.upper + row * 4, upper);
    from += 4;
  }
  for (int s = 0; s < STEPS / 2; ++s) put(codes + s * STEP, word(from + s * 4));
}

// Q4_K, Q5_K: 256 columns.
void pack_k(int format, const uint8_t* block, uint8_t* head, int row) {
  const Layout& own = LAYOUTS[format];
  half(head + row * 2, block);
  half(head + 2 * ROWS + row * 2, block + 2);
  const uint8_t* const packed = block + 4;
  const uint8_t* const fifth = block + 16;
  const uint8_t* const nibbles = fifth + (own.bits == 5 ? GROUP : 0);
  for (int g = 0; g < own.span; ++g) {
    uint8_t* const record = head + own.head + g * own.record;
    if (g < 4) {
      record[row] = packed[g] & 63;
      record[ROWS + row] = packed[g + 4] & 63;
    } else {
      record[row] = uint8_t((packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4);
      record[ROWS + row] = uint8_t((packed[g + 4] >> 4) | (packed[g] >> 6) << 4);
    }
    const uint8_t* const from = nibbles + g / 2 * GROUP;
    const int shift = g % 2 * 4;
    for (int s = 0; s < STEPS / 2; ++s)
      put(record + own.codes + s * STEP + row * 4,
          (word(from + s * 4) >> shift & LOW) | (word(from + 16 + s * 4) >> shift & LOW) << 4);
    if (own.bits == 5) {
      uint32_t upper = 0;
      for (int s = 0; s < STEPS; ++s) upper |= (word(fifth + s * 4) >> g & 0x01010101u) << s;
      put(record + own.upper + row * 4, upper);
    }
  }
}

// 256 columns.
void pack_q6_k(const uint8_t* block, uint8_t* head, int row) {
  const Layout& own = LAYOUTS[Q6_K];
  half(head + row * 2, block + 208);
  for (int g = 0; g < own.span; ++g) {
    uint8_t* const record = head + own.head + g * own.record;
    record[row] = block[192 + 2 * g];
    record[ROWS + row] = block[192 + 2 * g + 1];
    const uint8_t* const from = block + g / 4 * 64 + g % 2 * 32;
    const uint8_t* const upper = block + 128 + g / 4 * 32;
    const int shift = g % 4 / 2 * 4, up = g % 4 * 2;
    for (int s = 0; s < STEPS / 2; ++s)
      put(record + own.codes + s * STEP + row * 4,
          (word(from + s * 4) >> shift & LOW) | (word(from + 16 + s * 4) >> shift & LOW) << 4);
    for (int part = 0; part < 2; ++part) {
      uint32_t bits = 0;
      for (int s = 0; s < STEPS / 2; ++s) bits |= (word(upper + part * 16 + s * 4) >> up & 0x03030303u) << (2 * s);
      put(record + own.upper + part * STEP + row * 4, bits);
    }
  }
}

}  // namespace
}  // namespace engine

using namespace engine;

// Blocks [rows, bytes per row] -> strips; size: rows, groups, format, row stride in bytes, bytes of a block. Rows that the
// last strip lacks stay as the memory is, zero.
ENGINE_KERNEL(engine_block_pack) {
  const int64_t rows = call.size[0], groups = call.size[1], stride = call.size[3], block = call.size[4];
  const int format = int(call.size[2]);
  const Layout& own = LAYOUTS[format];
  const int64_t strips = (rows + ROWS - 1) / ROWS, bytes = bytes_before(own, groups);
  int64_t begin, end;
  while (member.next(strips, grain_of(strips, member, 8), begin, end))
    for (int64_t strip = begin; strip < end; ++strip) {
      uint8_t* const to = call.at<uint8_t>(1) + strip * bytes;
      for (int64_t g = 0; g < groups; g += own.span)
        for (int64_t row = strip * ROWS; row < rows && row < (strip + 1) * ROWS; ++row) {
          const uint8_t* const from = call.at<uint8_t>(0) + row * stride + g / own.span * block;
          uint8_t* const head = to + bytes_before(own, g);
          if (format == Q6_K)
            pack_q6_k(from, head, int(row % ROWS));
          else if (own.span > 1)
            pack_k(format, from, head, int(row % ROWS));
          else
            pack_group(format, from, head, int(row % ROWS));
        }
    }
}
