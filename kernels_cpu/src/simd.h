// Vectors of floats as wide as the instruction set has them, and what kernels do with them. LANES is a fact of the
// target, so results of sums differ between instruction sets in the last bits, never between thread counts.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)
// It warns about its own headers of AVX-512: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105593
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define ENGINE_AVX512 1
#endif
#if defined(ENGINE_AVX512) && defined(__AVX512VNNI__) && defined(__AMX_INT8__)
#define ENGINE_TILES 1
#endif
#if defined(ENGINE_TILES) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define ENGINE_TILES_BF16 1
#endif

// GCC reassociates vector sums and spills what it then holds; an accumulator named here stays where it is.
#if defined(__x86_64__)
#define KEEP(x) asm("" : "+x"(x))
#if defined(ENGINE_AVX512)
#undef KEEP
#define KEEP(x) asm("" : "+v"(x))
#endif
#elif defined(__aarch64__)
#define KEEP(x) asm("" : "+w"(x))
#else
#define KEEP(x) asm("" : "+r"(x))
#endif

namespace engine {

#if defined(ENGINE_AVX512)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
typedef int8_t vb __attribute__((vector_size(LANES)));

template <class V, class T>
inline V load_as(const T* from) {
  V x;
  std::memcpy(&x, from, sizeof(V));
  return x;
}
inline vf load(const float* from) { return load_as<vf>(from); }
inline void store(float* to, vf x) { std::memcpy(to, &x, sizeof(x)); }
// Past the caches, to where a line begins or goes on; `passed` before others read it.
#if defined(ENGINE_AVX512)
inline void pass(float* to, vf x) { _mm512_stream_ps(to, (__m512)x); }
#elif defined(__AVX2__)
inline void pass(float* to, vf x) { _mm256_stream_ps(to, (__m256)x); }
#else
inline void pass(float* to, vf x) { store(to, x); }
#endif
inline void passed() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}
// Whether results [count, width] are: so many are not in a cache any more when they are read, and to fetch lines that are
// written next costs more than all the sums behind them.
inline bool passes(const float* to, int64_t count, int64_t width) {
  return count * width >= 65536 && width % 16 == 0 && reinterpret_cast<uintptr_t>(to) % 64 == 0;
}
// Floats that are read soon, by lines: where rows are short, nobody else asks for the next ones in time.
inline void ask(const float* at, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / int64_t(sizeof(float))) __builtin_prefetch(at + i);
}
inline vf broadcast(float x) { return x - vf{}; }

#if defined(ENGINE_AVX512)
inline vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline vf max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
inline vf min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
inline vf sqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
// To the nearest whole number, ties to even.
inline vi whole(vf a) { return (vi)_mm512_cvtps_epi32((__m512)a); }
inline vf from_half(vh x) { return (vf)_mm512_cvtph_ps((__m256i)x); }
inline vh to_half(vf x) { return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
inline vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline vf max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
inline vf min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
inline vf sqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
inline vi whole(vf a) { return (vi)_mm256_cvtps_epi32((__m256)a); }
inline vf from_half(vh x) { return (vf)_mm256_cvtph_ps((__m128i)x); }
inline vh to_half(vf x) { return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
#elif defined(__aarch64__)
inline vf fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
inline vf max(vf a, vf b) { return a > b ? a : b; }
inline vf min(vf a, vf b) { return a < b ? a : b; }
inline vf sqrt(vf a) { return (vf)vsqrtq_f32((float32x4_t)a); }
inline vi whole(vf a) { return (vi)vcvtnq_s32_f32((float32x4_t)a); }
inline vf from_half(vh x) { return (vf)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)x)); }
inline vh to_half(vf x) { return (vh)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)); }
#else
inline vf fma(vf a, vf b, vf c) { return a * b + c; }
inline vf max(vf a, vf b) { return a > b ? a : b; }
inline vf min(vf a, vf b) { return a < b ? a : b; }
inline vf sqrt(vf a) {
  for (int i = 0; i < LANES; ++i) a[i] = std::sqrt(a[i]);
  return a;
}
#if defined(__SSE2__) && !defined(__AVX__)
inline vi whole(vf a) { return (vi)_mm_cvtps_epi32((__m128)a); }
#else
inline vi whole(vf a) {
  vi x{};
  for (int i = 0; i < LANES; ++i) x[i] = int32_t(std::nearbyintf(a[i]));
  return x;
}
#endif
#define ENGINE_SCALAR_HALF 1
#endif

// IEEE half precision without instructions for it: by exponent and mantissa, ties to even.
inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7fff;
  uint32_t bits;
  if (rest >= 0x7c00) {
    bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
  } else if (rest >= 0x400) {
    bits = sign | ((rest << 13) + 0x38000000);
  } else {
    const float small = float(rest) * 0x1p-24f;
    std::memcpy(&bits, &small, 4);
    bits |= sign;
  }
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline uint16_t float_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return uint16_t(sign | 0x7e00);
  if (bits >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (bits < 0x38800000) {
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    return uint16_t(sign | uint16_t(std::nearbyintf(magnitude * 0x1p24f)));
  }
  bits += 0xfff + (bits >> 13 & 1);
  return uint16_t(sign | (bits - 0x38000000) >> 13);
}
#if defined(ENGINE_SCALAR_HALF)
inline vf from_half(vh x) {
  vf y{};
  for (int i = 0; i < LANES; ++i) y[i] = half_to_float(x[i]);
  return y;
}
inline vh to_half(vf x) {
  vh y{};
  for (int i = 0; i < LANES; ++i) y[i] = float_to_half(x[i]);
  return y;
}
#endif

inline vf to_float(vi x) { return __builtin_convertvector(x, vf); }
inline vf abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
inline vf from_bfloat(vh x) { return (vf)(__builtin_convertvector(x, vi) << 16); }

// Halves of the lanes are added until one is left: the same tree for every caller.
inline float sum(vf x) {
  float lane[LANES];
  store(lane, x);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}
inline float largest(vf x) {
  float most = x[0];
  for (int i = 1; i < LANES; ++i) most = x[i] > most ? x[i] : most;
  return most;
}

// e^x = result * 2^n within 2 units in the last place, for magnitudes up to 88.7. Cephes' expf: x = n ln 2 + r, ln 2 in
// two parts, a polynomial of degree 5 in r.
inline vf exp_parts(vf x, vi& n) {
  n = whole(x * 1.44269504088896341f);
  vf r = fma(to_float(n), broadcast(-0.693359375f), x);
  r = fma(to_float(n), broadcast(2.12194440e-4f), r);
  vf p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  return fma(p, r * r, r) + 1.0f;
}

// The same for magnitudes up to 87; NaN for NaN.
inline vf exp_near(vf x) {
  vi n;
  const vf p = exp_parts(x, n);
  return p * (vf)((n + 127) << 23);
}

// The same for every x: 0 below -87.3, infinity above 88.7.
inline vf exp(vf x) {
  vi n;
  const vf p = exp_parts(min(max(x, broadcast(-87.3365f)), broadcast(88.7228f)), n);
  // 2^n in two factors, since n = 128 has no float of its own.
  const vi half = n >> 1;
  vf y = p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
  y = x < -87.3365f ? vf{} : y;
  y = x > 88.7228f ? broadcast(INFINITY) : y;
  return x == x ? y : x;
}

}  // namespace engine
