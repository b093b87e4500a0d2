// From logits to tokens: the best one, penalties, and a draw that sorts no more than it keeps.
#include <algorithm>

#include "rows.h"
#include "team.h"

namespace engine {
namespace {

// Columns that one member takes at a time: what its first cache holds.
constexpr int64_t PIECE = 4096;

// The largest value; NaN where there is one.
float peak_of(const float* x, int64_t width) {
  vf most[4];
  vi size[4] = {};
  for (vf& one : most) one = broadcast(-INFINITY);
  int64_t i = 0;
  for (; i + 4 * LANES <= width; i += 4 * LANES)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const vf v = load(x + i + j * LANES);
      most[j] = max(most[j], v);
      size[j] = larger(size[j], (vi)v & 0x7fffffff);
    }
  float found = largest(max(max(most[0], most[1]), max(most[2], most[3])));
  int32_t above = largest(larger(larger(size[0], size[1]), larger(size[2], size[3])));
  for (; i < width; ++i) {
    found = x[i] > found ? x[i] : found;
    above = std::max(above, bits_as<int32_t>(x[i]) & 0x7fffffff);
  }
  return above > 0x7f800000 ? NAN : found;
}

// The first place of `value`, NaN being equal to NaN; `width` where it is not found.
int64_t place_of(float value, const float* x, int64_t width) {
  const bool odd = value != value;
  const vf wanted = broadcast(value);
  int64_t i = 0;
  for (; i + 4 * LANES <= width; i += 4 * LANES) {
    vi found{};
    for (int j = 0; j < 4; ++j) {
      const vf v = load(x + i + j * LANES);
      found |= odd ? v != v : v == wanted;
    }
    if (largest(-found) != 0) break;
  }
  while (i < width && !(odd ? x[i] != x[i] : x[i] == value)) ++i;
  return i;
}

// Ascending numbers for falling logits, ties by lower id.
uint64_t place_in_order(float logit, int64_t id) {
  const int32_t bits = bits_as<int32_t>(logit + 0.0f);
  const uint32_t rising = uint32_t(bits ^ ((bits >> 31) & 0x7fffffff)) ^ 0x80000000u;
  return uint64_t(~rising) << 32 | uint64_t(id);
}

// Whole units of 2**-32 of the most likely token's probability.
int64_t units(float weight) { return int64_t(weight * 4294967296.0f); }

// u_i of engine/ops/sampling.py.
double chance(int64_t id, int64_t key) {
  uint64_t bits = (uint64_t(id) * 0x9E3779B97F4A7C15u + uint64_t(key)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ bits >> 32) * 0x94D049BB133111EBu;
  return double(int64_t(bits)) * 0x1p-64 + (0.5 + 0x1p-54);
}

// An exponential race. Few take part in it with a logarithm: -ln u is 1 - u at least, and most come too late by that.
struct Race {
  double time = INFINITY;
  int64_t winner = 0;

  void join(int64_t id, double u, int64_t mass) {
    if ((1.0 - u) * (1.0 - 1e-9) > time * double(mass)) return;
    const double own = -std::log(u) / double(mass);
    if (own < time || (own == time && id < winner)) {
      time = own;
      winner = id;
    }
  }
};

struct Wanted {
  float temperature, min_p;
  int64_t top_k;
  double top_p;
  int64_t key;
};

int64_t race_of_all(const float* weights, int64_t vocab, const Wanted& wanted) {
  constexpr int64_t SOME = 256;
  double u[SOME];
  Race race;
  for (int64_t begin = 0; begin < vocab; begin += SOME) {
    const int64_t count = std::min(SOME, vocab - begin);
    for (int64_t i = 0; i < count; ++i) u[i] = chance(begin + i, wanted.key);
    for (int64_t i = 0; i < count; ++i) {
      const float weight = weights[begin + i];
      const int64_t mass = units(weight);
      if (mass > 0 && weight >= wanted.min_p) race.join(begin + i, u[i], mass);
    }
  }
  return race.winner;
}

int64_t mass_of(const uint64_t* order, int64_t count, const float* weights) {
  int64_t total = 0;
  for (int64_t i = 0; i < count; ++i) total += units(weights[order[i] & 0xffffffff]);
  return total;
}

// Puts those first that have less than `target` before them in the order, and says how many: by halves whose weight
// tells on which side the edge is, so that nothing is sorted but a few around it.
int64_t first_of(uint64_t* order, int64_t count, const float* weights, int64_t target) {
  constexpr int64_t FEW = 48;
  int64_t low = 0, high = count, before = 0;
  while (high - low > FEW) {
    const int64_t middle = low + (high - low) / 2;
    std::nth_element(order + low, order + middle, order + high);
    const int64_t half = mass_of(order + low, middle - low, weights);
    if (before + half >= target) {
      high = middle;
    } else {
      before += half;
      low = middle;
    }
  }
  std::sort(order + low, order + high);
  for (; low < high && before < target; ++low) before += mass_of(order + low, 1, weights);
  return low;
}

// Only tokens within some distance of the best, further away until all that top_k and top_p keep are among them.
int64_t race_of_best(
    const float* x, const float* weights, uint64_t* order, int64_t vocab, float peak, const Wanted& wanted) {
  const bool limited = wanted.top_k > 0 && wanted.top_k < vocab;
  const auto share = [&](int64_t whole) {
    const double part = std::ceil(wanted.top_p * double(whole));
    return std::min(std::max(int64_t(part), int64_t{1}), whole);
  };
  int64_t target = 0, count = 0;
  if (!limited) {
    for (int64_t i = 0; i < vocab; ++i) target += units(weights[i]);
    target = share(target);
  }
  for (const float distance : {3.0f, 6.0f, 10.0f, INFINITY}) {
    const float floor = peak - distance * wanted.temperature;
    count = 0;
    for (int64_t i = 0; i < vocab; ++i) {
      order[count] = place_in_order(x[i], i);
      count += x[i] >= floor;
    }
    if (limited ? count >= wanted.top_k : mass_of(order, count, weights) >= target) break;
  }
  if (limited) {
    if (count > wanted.top_k) std::nth_element(order, order + wanted.top_k, order + count);
    count = std::min(count, wanted.top_k);
    target = share(mass_of(order, count, weights));
  }
  Race race;
  const int64_t kept = first_of(order, count, weights, target);
  for (int64_t i = 0; i < kept; ++i) {
    const int64_t id = int64_t(order[i] & 0xffffffff), mass = units(weights[id]);
    if (mass > 0 && weights[id] >= wanted.min_p) race.join(id, chance(id, wanted.key), mass);
  }
  return race.winner;
}

int64_t draw(const float* x, int64_t vocab, const Wanted& wanted, char* scratch) {
  uint64_t* order = reinterpret_cast<uint64_t*>(scratch);
  float* weights = reinterpret_cast<float*>(order + vocab);
  const float peak = peak_of(x, vocab);
  if (!(std::fabs(peak) < INFINITY)) return 0;
  const vf far = broadcast(-87.0f);
  int64_t i = 0;
  for (; i + LANES <= vocab; i += LANES)
    store(weights + i, exp_near(max(far, (load(x + i) - peak) / wanted.temperature)));
  if (i < vocab) {
    float rest[LANES] = {};
    const size_t bytes = size_t(vocab - i) * sizeof(float);
    std::memcpy(rest, x + i, bytes);
    store(rest, exp_near(max(far, (load(rest) - peak) / wanted.temperature)));
    std::memcpy(weights + i, rest, bytes);
  }
  if (wanted.top_k < 1 && wanted.top_p >= 1.0) return race_of_all(weights, vocab, wanted);
  return race_of_best(x, weights, order, vocab, peak, wanted);
}

}  // namespace
}  // namespace engine

using namespace engine;

// x [rows, width] -> the largest of each piece [rows, pieces], NaN where there is one; size: rows, width, row stride.
ENGINE_KERNEL(engine_peaks) {
  const int64_t rows = call.size[0], width = call.size[1], pieces = (width + PIECE - 1) / PIECE;
  int64_t begin, end;
  while (member.next(rows * pieces, grain_of(rows * pieces, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces * PIECE;
      call.at<float>(1)[i] =
          peak_of(call.at<float>(0) + i / pieces * call.size[2] + first, std::min(PIECE, width - first));
    }
}

// x [rows, width], the peaks of its pieces -> the first place of the largest [rows] int64, what stands there [rows];
// size: as for the peaks.
ENGINE_KERNEL(engine_argmax) {
  const int64_t rows = call.size[0], width = call.size[1], pieces = (width + PIECE - 1) / PIECE;
  int64_t begin, end;
  while (member.next(rows, grain_of(rows, member, 2), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const float *x = call.at<float>(0) + i * call.size[2], *peaks = call.at<float>(1) + i * pieces;
      const int64_t piece = place_of(peak_of(peaks, pieces), peaks, pieces), first = piece * PIECE;
      const int64_t at = first + place_of(peaks[piece], x + first, std::min(PIECE, width - first));
      call.at<int64_t>(2)[i] = at;
      call.at<float>(3)[i] = x[at];
    }
}

// logits [rows, vocab], allowed [rows, words] int32 of 32 tokens each -> the logits, -INFINITY where a bit is 0; size:
// rows, vocab, row strides of both.
ENGINE_KERNEL(engine_mask) {
  static_assert(PIECE % 32 == 0 && 32 % LANES == 0);
  const int64_t rows = call.size[0], vocab = call.size[1], pieces = (vocab + PIECE - 1) / PIECE;
  const vf none = broadcast(-INFINITY);
  vi bit;
  for (int j = 0; j < LANES; ++j) bit[j] = int32_t(1u << j);
  int64_t begin, end;
  while (member.next(rows * pieces, grain_of(rows * pieces, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / pieces, first = i % pieces * PIECE, last = std::min(first + PIECE, vocab);
      float* x = call.at<float>(0) + row * call.size[2];
      const int32_t* allowed = call.at<int32_t>(1) + row * call.size[3];
      for (int64_t at = first; at < last; at += 32) {
        const uint32_t word = uint32_t(allowed[at / 32]);
        if (word == ~0u) continue;
        if (at + 32 <= last)
          for (int j = 0; j < 32; j += LANES) {
            const vi here = (vi{} + int32_t(word >> j)) & bit;
            store(x + at + j, here != 0 ? load(x + at + j) : none);
          }
        else
          for (int64_t j = at; j < last; ++j)
            if ((word >> (j - at) & 1) == 0) x[j] = -INFINITY;
      }
    }
}

// logits [rows, vocab], seen [slots, vocab] bytes, counts [slots, vocab] int32, slots [rows] int64, repetition,
// frequency, presence [rows] -> [rows, vocab]; size: rows, vocab, row stride of the logits.
ENGINE_KERNEL(engine_penalize) {
  const int64_t rows = call.size[0], vocab = call.size[1], pieces = (vocab + PIECE - 1) / PIECE;
  int64_t begin, end;
  while (member.next(rows * pieces, grain_of(rows * pieces, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / pieces, first = i % pieces * PIECE, count = std::min(PIECE, vocab - first);
      const int64_t slot = call.at<int64_t>(3)[row] * vocab + first;
      const float* __restrict x = call.at<float>(0) + row * call.size[2] + first;
      const uint8_t* __restrict seen = call.at<uint8_t>(1) + slot;
      const int32_t* __restrict made = call.at<int32_t>(2) + slot;
      float* __restrict out = call.at<float>(7) + row * vocab + first;
      const float repetition = call.at<float>(4)[row], frequency = call.at<float>(5)[row];
      const float presence = call.at<float>(6)[row];
      for (int64_t j = 0; j < count; ++j) {
        const float again = x[j] > 0.0f ? x[j] / repetition : x[j] * repetition;
        const float found = (seen[j] != 0 ? again : x[j]) - frequency * float(made[j]);
        out[j] = found - (made[j] > 0 ? presence : 0.0f);
      }
    }
}

// logits [rows, vocab], temperature [rows], top_k [rows] int64, top_p [rows] double, min_p [rows], keys [rows] int64
//   -> tokens [rows] int64; size: rows, vocab, row stride of the logits. Twelve bytes a token fit a member's scratch.
ENGINE_KERNEL(engine_draw) {
  const int64_t rows = call.size[0];
  int64_t begin, end;
  while (member.next(rows, 1, begin, end)) {
    const Wanted wanted = {call.at<float>(1)[begin], call.at<float>(4)[begin], call.at<int64_t>(2)[begin],
                           call.at<double>(3)[begin], call.at<int64_t>(5)[begin]};
    call.at<int64_t>(6)[begin] = draw(call.at<float>(0) + begin * call.size[2], call.size[1], wanted, member.scratch);
  }
}
