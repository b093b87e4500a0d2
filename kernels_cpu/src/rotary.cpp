// Rotation of queries and keys, their normalisation before it, and the write into the paged cache after it.
#include "attention_cache.h"
#include "team.h"

namespace engine {
namespace {

struct Heads {
  const float *q, *k, *v, *table, *q_weight, *k_weight;
  float *q_out, *k_out;
  const int64_t* slots;
  int64_t tokens, heads, kv_heads, dim, turned, q_stride, k_stride, v_stride, table_stride, side;
  float k_scale, v_scale, eps;
  char* cache;
};

Heads heads_of(const Call& call) {
  Heads own;
  own.q = call.at<float>(0), own.k = call.at<float>(1), own.v = call.at<float>(2), own.table = call.at<float>(3);
  own.q_weight = call.at<float>(4), own.k_weight = call.at<float>(5);
  own.q_out = call.at<float>(6), own.k_out = call.at<float>(7);
  own.cache = call.at<char>(8), own.slots = call.at<int64_t>(9);
  const float *k_scale = call.at<float>(10), *v_scale = call.at<float>(11);
  own.k_scale = k_scale ? *k_scale : 1.0f, own.v_scale = v_scale ? *v_scale : 1.0f;
  const int64_t* size = call.size;
  own.tokens = size[0], own.heads = size[1], own.kv_heads = size[2], own.dim = size[3], own.turned = size[4];
  own.q_stride = size[5], own.k_stride = size[6], own.v_stride = size[7], own.table_stride = size[8];
  own.side = size[9];
  own.eps = float(call.real[0]);
  return own;
}

inline vf load_some(const float* from, int64_t count) { return widen_some<Float32>(from, count); }
inline void store_some(float* to, vf x, int64_t count) { narrow_some<Float32>(to, x, count); }

float scale_of(const float* x, int64_t dim, float eps) {
  vf total{};
  int64_t i = 0;
  for (; i + LANES <= dim; i += LANES) total = fma(load(x + i), load(x + i), total);
  if (i < dim) {
    const vf v = load_some(x + i, dim - i);
    total = fma(v, v, total);
  }
  return 1.0f / std::sqrt(sum(total) / float(dim) + eps);
}

void normed(const float* x, const float* weight, int64_t dim, float eps, float* out) {
  const float scale = scale_of(x, dim, eps);
  int64_t i = 0;
  for (; i + LANES <= dim; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
  if (i < dim) store_some(out + i, load_some(x + i, dim - i) * scale * load_some(weight + i, dim - i), dim - i);
}

// Halves of the first `width` elements are turned as pairs (i, i + width / 2); the rest stays. Products and sums are
// rounded one by one, as the op's are.
void turned(const float* x, const float* table, int64_t width, int64_t dim, float* out) {
  const int64_t half = width / 2;
  int64_t i = 0;
  for (; i + LANES <= half; i += LANES) {
    const vf first = load(x + i), second = load(x + half + i), cos = load(table + i), sin = load(table + half + i);
    store(out + i, first * cos - second * sin);
    store(out + half + i, second * cos + first * sin);
  }
  if (const int64_t n = half - i; n > 0) {
    const vf first = load_some(x + i, n), second = load_some(x + half + i, n);
    const vf cos = load_some(table + i, n), sin = load_some(table + half + i, n);
    store_some(out + i, first * cos - second * sin, n);
    store_some(out + half + i, second * cos + first * sin, n);
  }
  if (width < dim && out != x) std::memcpy(out + width, x + width, size_t(dim - width) * sizeof(float));
}

// The largest magnitude of a head over 127, NaN for one that holds NaN.
float whole_scale(const float* x, int64_t dim) {
  vf most{}, strange{};
  int64_t i = 0;
  for (; i + LANES <= dim; i += LANES) most = max(most, abs(load(x + i))), strange += load(x + i) * 0.0f;
  if (i < dim) {
    const vf v = load_some(x + i, dim - i);
    most = max(most, abs(v)), strange += v * 0.0f;
  }
  const float found = largest(most);
  return (found > 1e-10f ? found : 1e-10f) / 127.0f + sum(strange);
}

template <class Kind>
void kept(const float* x, typename Kind::type* to, int64_t dim, float scale, bool scaled) {
  if (Kind::room) {
    scale = whole_scale(x, dim), scaled = true;
    std::memcpy(to + dim, &scale, sizeof(scale));
  }
  int64_t i = 0;
  for (; i + LANES <= dim; i += LANES) {
    const vf v = load(x + i);
    Kind::narrow(to + i, scaled ? v / scale : v);
  }
  if (i < dim) {
    const vf v = load_some(x + i, dim - i);
    narrow_some<Kind>(to + i, scaled ? v / scale : v, dim - i);
  }
}

// Heads that are normalised (where there is a weight) and turned (where there is a table). `x` where neither is.
inline const float* made(const Heads& own, const float* x, const float* weight, const float* table, float* work) {
  if (weight) normed(x, weight, own.dim, own.eps, work), x = work;
  if (table) turned(x, table, own.turned, own.dim, work + (weight ? own.dim : 0)), x = work + (weight ? own.dim : 0);
  return x;
}

// Tokens between one that is worked on and one that is asked for.
constexpr int64_t SOON = 2;

void queries(const Heads& own, int64_t token, float* work) {
  const float* table = own.table + token * own.table_stride;
  for (int64_t head = 0; head < own.heads; ++head) {
    const float* x = own.q + token * own.q_stride + head * own.dim;
    float* out = own.q_out + (token * own.heads + head) * own.dim;
    if (own.q_weight) normed(x, own.q_weight, own.dim, own.eps, work), x = work;
    turned(x, table, own.turned, own.dim, out);
  }
}

void keys(const Heads& own, int64_t token, float* work) {
  const float* table = own.table + token * own.table_stride;
  for (int64_t head = 0; head < own.kv_heads; ++head) {
    const float* x = own.k + token * own.k_stride + head * own.dim;
    float* out = own.k_out + (token * own.kv_heads + head) * own.dim;
    if (own.k_weight) normed(x, own.k_weight, own.dim, own.eps, work), x = work;
    turned(x, table, own.turned, own.dim, out);
  }
}

template <class Kind>
void written(const Heads& own, int64_t token, bool k_scaled, bool v_scaled, float* work) {
  typedef typename Kind::type type;
  const int64_t slot = own.slots[token];
  if (slot < 0) return;
  const float* table = own.table ? own.table + token * own.table_stride : nullptr;
  const int64_t wide = own.dim + Kind::room / int64_t(sizeof(type));
  type* to = reinterpret_cast<type*>(own.cache) + slot * own.kv_heads * wide;
  for (int64_t head = 0; head < own.kv_heads; ++head) {
    const float* k = made(own, own.k + token * own.k_stride + head * own.dim, own.k_weight, table, work);
    kept<Kind>(k, to + head * wide, own.dim, own.k_scale, k_scaled);
  }
  for (int64_t head = 0; head < own.kv_heads; ++head) {
    const float* v = own.v + token * own.v_stride + head * own.dim;
    kept<Kind>(v, to + own.side + head * wide, own.dim, own.v_scale, v_scaled);
  }
}

}  // namespace
}  // namespace engine

using namespace engine;

// tensor: q, k, v, table, q weight, k weight, new q, new k, cache, slots, scale of keys, scale of values, each null
// where the op has none; size: tokens, heads, kv heads, head_dim, columns of the table, row strides of q, k, v, table,
// elements between keys and values of the cache, kind of the cache; real: eps.
ENGINE_KERNEL(engine_rotary) {
  const Heads own = heads_of(call);
  const int64_t kind = call.size[10];
  float* work = reinterpret_cast<float*>(member.scratch);
  int64_t begin, end;
  while (member.next(own.tokens, grain_of(own.tokens, member, 4), begin, end)) {
    for (int64_t token = begin; token < end; ++token) {
      if (own.q && token + SOON < end) ask(own.q + (token + SOON) * own.q_stride, own.heads * own.dim);
      if (own.q) queries(own, token, work);
      if (own.k_out) keys(own, token, work);
    }
    if (own.cache)
      with_kind(kind, [&](auto known) {
        for (int64_t token = begin; token < end; ++token) {
          if (token + SOON < end) {
            ask(own.k + (token + SOON) * own.k_stride, own.kv_heads * own.dim);
            ask(own.v + (token + SOON) * own.v_stride, own.kv_heads * own.dim);
          }
          written<decltype(known)>(own, token, call.tensor[10] != nullptr, call.tensor[11] != nullptr, work);
        }
      });
  }
}
