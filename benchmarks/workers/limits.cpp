// What the machine gives right now: every line of input is answered by one JSON object.
// Reading: sums over a buffer far larger than the caches, huge pages where allowed. Arithmetic: independent
// accumulators in registers. Every thread runs the same work; the slowest ends the clock.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sys/mman.h>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

static double timed(int threads, const std::function<void(int)>& work) {
    auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    for (int i = 0; i < threads; i++) team.emplace_back(work, i);
    for (auto& one : team) one.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

static volatile uint64_t kept;
#define KEEP(x) asm volatile("" : "+w"(x))
#if defined(__x86_64__)
#undef KEEP
#define KEEP(x) asm volatile("" : "+v"(x))
#endif

typedef uint64_t words __attribute__((vector_size(64)));

static void read_through(const char* from, size_t nbytes) {
    words a = {}, b = {}, c = {}, d = {};
    for (const char* at = from; at < from + nbytes; at += 256) {
        const words* line = reinterpret_cast<const words*>(at);
        a += line[0], b += line[1], c += line[2], d += line[3];
    }
    a += b + c + d;
    kept = a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

#if defined(__AVX512F__)
constexpr int LANES = 16;
typedef __m512 vf;
static vf fused(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__FMA__)
constexpr int LANES = 8;
typedef __m256 vf;
static vf fused(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
#elif defined(__aarch64__)
constexpr int LANES = 4;
typedef float32x4_t vf;
static vf fused(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
#else
constexpr int LANES = 4;
typedef float vf __attribute__((vector_size(16)));
static vf fused(vf a, vf b, vf c) { return a * b + c; }
#endif

// 8-bit products summed into 32 bits, as an integer linear needs them. OPS: operations of one step (2 per product).
#if defined(__AVX512VNNI__)
constexpr int OPS = 128;
static const char* INT8 = "vpdpbusd, 512 bits";
typedef __m512i vi;
static vi dot(vi sum, vi a, vi b) { return _mm512_dpbusd_epi32(sum, a, b); }
static vi bytes() { return _mm512_set1_epi8(1); }
#elif defined(__AVXVNNI__) && defined(__AVX2__)
constexpr int OPS = 64;
static const char* INT8 = "vpdpbusd, 256 bits";
typedef __m256i vi;
static vi dot(vi sum, vi a, vi b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
static vi bytes() { return _mm256_set1_epi8(1); }
#elif defined(__AVX2__)
constexpr int OPS = 64;
static const char* INT8 = "vpmaddubsw + vpaddw, 256 bits";
typedef __m256i vi;
static vi dot(vi sum, vi a, vi b) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b)); }
static vi bytes() { return _mm256_set1_epi8(1); }
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int OPS = 32;
static const char* INT8 = "sdot, 128 bits";
typedef int32x4_t vi;
static vi dot(vi sum, vi a, vi b) { return vdotq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)); }
static vi bytes() { return vreinterpretq_s32_s8(vdupq_n_s8(1)); }
#else
constexpr int OPS = 0;
static const char* INT8 = "";
#endif

constexpr int CHAINS = 12;

static void multiply_floats(long steps) {
    vf sum[CHAINS] = {}, a = {}, b = {};
    KEEP(a);
    KEEP(b);
    for (long i = 0; i < steps; i++)
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) {
            sum[j] = fused(a, b, sum[j]);
            KEEP(sum[j]);
        }
}

#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
static void multiply_bytes(long steps) {
    vi sum[CHAINS] = {}, a = bytes(), b = bytes();
    KEEP(a);
    KEEP(b);
    for (long i = 0; i < steps; i++)
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) {
            sum[j] = dot(sum[j], a, b);
            KEEP(sum[j]);
        }
}
#else
static void multiply_bytes(long) {}
#endif

int main(int, char** argv) {
    const int threads = std::atoi(argv[1]);
    const size_t nbytes = size_t(std::atol(argv[2])) << 20, share = nbytes / threads / 256 * 256;
    const long steps = 20'000'000;
    void* found = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED) return 1;
#ifdef MADV_HUGEPAGE
    madvise(found, nbytes, MADV_HUGEPAGE);
#endif
    char* memory = static_cast<char*>(found);
    timed(threads, [&](int i) { std::fill_n(memory + i * share, share, char(i + 1)); });
    char line[256];
    while (std::fgets(line, sizeof line, stdin)) {
        double reading = 1e9;
        for (int repeat = 0; repeat < 3; repeat++)
            reading = std::min(reading, timed(threads, [&](int i) { read_through(memory + i * share, share); }));
        const double floats = timed(threads, [&](int) { multiply_floats(steps / 4); });
        const double integers = timed(threads, [&](int) { multiply_bytes(steps / 4); });
        const double did = double(threads) * CHAINS * double(steps / 4);
        std::printf("{\"read_gb_s\": %.2f, \"float32_gflop_s\": %.1f, \"int8_gop_s\": %.1f, \"int8\": \"%s\"}\n",
                    share * threads / reading / 1e9, did * LANES * 2 / floats / 1e9,
                    OPS ? did * OPS / integers / 1e9 : 0.0, INT8);
        std::fflush(stdout);
    }
}
