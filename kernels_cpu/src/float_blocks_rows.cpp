// Rows of tables: as they are, and out of blocks of GGUF as a file stores them. Every bit of a value is what ggml makes
// of it: products and sums of float32, each rounded.
#include "simd.h"
#include "team.h"

namespace engine {
namespace {

float half_at(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return half_to_float(bits);
}

// Each takes one block and writes its columns: 32, or 256 for `_k`.
using Expand = void (*)(const uint8_t* block, float* out);

template <int ZERO>
void nibbles(const uint8_t* codes, float factor, float offset, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = factor * float((codes[i] & 15) - ZERO) + offset;
    out[i + 16] = factor * float((codes[i] >> 4) - ZERO) + offset;
  }
}

template <int ZERO>
void fives(const uint8_t* high, const uint8_t* codes, float factor, float offset, float* out) {
  uint32_t bits;
  std::memcpy(&bits, high, 4);
  for (int i = 0; i < 16; ++i) {
    out[i] = factor * float(int((codes[i] & 15) | (bits >> i << 4 & 16)) - ZERO) + offset;
    out[i + 16] = factor * float(int((codes[i] >> 4) | (bits >> (i + 16) << 4 & 16)) - ZERO) + offset;
  }
}

void q4_0(const uint8_t* b, float* out) { nibbles<8>(b + 2, half_at(b), 0.0f, out); }
void q4_1(const uint8_t* b, float* out) { nibbles<0>(b + 4, half_at(b), half_at(b + 2), out); }
void q5_0(const uint8_t* b, float* out) { fives<16>(b + 2, b + 6, half_at(b), 0.0f, out); }
void q5_1(const uint8_t* b, float* out) { fives<0>(b + 4, b + 8, half_at(b), half_at(b + 2), out); }
void q8_0(const uint8_t* b, float* out) {
  const float factor = half_at(b);
  for (int i = 0; i < 32; ++i) out[i] = factor * float(int8_t(b[i + 2]));
}

// b: factor and offset of the block, 12 bytes of scales and minima, fifth bits if FIFTH, halves of bytes.
template <bool FIFTH>
void long_block(const uint8_t* b, float* out) {
  const float whole = half_at(b), least = half_at(b + 2);
  const uint8_t *packed = b + 4, *high = b + 16, *codes = FIFTH ? b + 48 : b + 16;
  for (int group = 0; group < 8; ++group) {
    const int k = group & 3;
    const int scale = group < 4 ? packed[k] & 63 : (packed[k + 8] & 15) | (packed[k] >> 2 & 48);
    const int minimum = group < 4 ? packed[k + 4] & 63 : (packed[k + 8] >> 4) | (packed[k + 4] >> 2 & 48);
    const float factor = whole * float(scale), offset = least * float(minimum);
    for (int i = 0; i < 32; ++i) {
      int code = codes[group / 2 * 32 + i] >> (group % 2 * 4) & 15;
      if constexpr (FIFTH) code |= (high[i] >> group & 1) << 4;
      out[group * 32 + i] = factor * float(code) - offset;
    }
  }
}

void q6_k(const uint8_t* b, float* out) {
  const float whole = half_at(b + 208);
  for (int half = 0; half < 2; ++half)
    for (int quarter = 0; quarter < 4; ++quarter)
      for (int i = 0; i < 32; ++i) {
        const int low = b[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
        const int high = b[128 + half * 32 + i] >> (quarter * 2) & 3;
        const float factor = whole * float(int8_t(b[192 + half * 8 + quarter * 2 + i / 16]));
        out[half * 128 + quarter * 32 + i] = factor * float((low | high << 4) - 32);
      }
}

struct Form {
  Expand expand;
  int64_t columns, nbytes;
};
constexpr Form FORMS[] = {
    {q4_0, 32, 18},  {q4_1, 32, 20},  {q5_0, 32, 22},  {q5_1, 32, 24},
    {q8_0, 32, 34},  {long_block<false>, 256, 144},  {long_block<true>, 256, 176},  {q6_k, 256, 210},
};

}  // namespace
}  // namespace engine

using namespace engine;

// ids int64 [tokens], table -> out [tokens, bytes]; size: tokens, bytes, row stride of the table in bytes.
ENGINE_KERNEL(engine_embedding) {
  const int64_t tokens = call.size[0], bytes = call.size[1], stride = call.size[2];
  int64_t begin, end;
  while (member.next(tokens, grain_of(tokens, member, 2), begin, end))
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(call.at<char>(2) + i * bytes, call.at<char>(1) + call.at<int64_t>(0)[i] * stride, size_t(bytes));
}

// ids int64 [tokens], table uint8 -> out [tokens, columns]; size: tokens, columns, row stride of the table, the format's
// place among q4_0 q4_1 q5_0 q5_1 q8_0 q4_k q5_k q6_k.
ENGINE_KERNEL(engine_block_embedding) {
  const int64_t tokens = call.size[0], columns = call.size[1], stride = call.size[2];
  const Form form = FORMS[call.size[3]];
  int64_t begin, end;
  while (member.next(tokens, grain_of(tokens, member, 2), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const uint8_t* block = call.at<uint8_t>(1) + call.at<int64_t>(0)[i] * stride;
      float* out = call.at<float>(2) + i * columns;
      for (int64_t at = 0; at < columns; at += form.columns, block += form.nbytes) form.expand(block, out + at);
    }
}
