// Attention of a step's new tokens over the paged cache. A request's keys are taken in spans of SPAN, counted from the
// first token; each span has a largest score, a sum of weights and a weighted sum of values, and spans are merged in
// their order. So what a request gets depends on itself alone, whoever makes which span.
#include "attention_cache.h"
#include "attention_tile.h"
#include "team.h"

namespace engine {
namespace {

constexpr int64_t SPAN = 128, QUERY_ROWS = 96, MOST_QUERIES = 48, PADDING = 16, LINES = 32;
constexpr float NOTHING = -INFINITY;

struct Job {
  const float* q;
  const char* cache;
  const int32_t *blocks, *starts, *lengths;
  float *parts, *out;
  int64_t tokens, requests, table, heads, kv_heads, dim, page, side, window, kind, q_stride, room;
  int64_t group, wide, query_block, part;
  float scale, cap, v_scale;
};

Job job_of(const Call& call) {
  Job job;
  job.q = call.at<float>(0), job.cache = call.at<char>(1), job.blocks = call.at<int32_t>(2);
  job.starts = call.at<int32_t>(3), job.lengths = call.at<int32_t>(4);
  job.parts = call.at<float>(7), job.out = call.at<float>(8);
  const int64_t* size = call.size;
  job.tokens = size[0], job.requests = size[1], job.table = size[2], job.heads = size[3], job.kv_heads = size[4];
  job.dim = size[5], job.page = size[6], job.side = size[7], job.window = size[8], job.kind = size[9];
  job.q_stride = size[10], job.room = size[11];
  job.group = job.heads / job.kv_heads;
  job.wide = (job.dim + LANES - 1) / LANES * LANES;
  job.part = (job.dim + 31) / 16 * 16;
  const int64_t many = QUERY_ROWS / job.group;
  job.query_block = many < 1 ? 1 : many > MOST_QUERIES ? MOST_QUERIES : many;
  job.scale = float(call.real[0] * (call.tensor[5] ? double(*call.at<float>(5)) : 1.0));
  job.cap = float(call.real[1]);
  job.v_scale = call.tensor[6] ? *call.at<float>(6) : 1.0f;
  return job;
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// The tasks of one request: its blocks of queries, or, where there is one block and room for parts, its spans; times kv
// heads. `slot`: of its first part, or -1.
struct Tasks {
  int64_t request = -1, end = 0, begin = 0, used = 0;
  int64_t row = 0, fresh = 0, length = 0, first = 0, count = 0, slot = -1;

  bool next(const Job& job) {
    while (++request < job.requests) {
      row = job.starts[request], fresh = job.starts[request + 1] - row, length = job.lengths[request];
      if (fresh <= 0 || length <= 0) continue;
      const int64_t oldest = length - fresh;
      slot = -1, first = 0;
      if (fresh <= job.query_block) {
        first = (job.window ? most(0, oldest - job.window + 1) : 0) / SPAN;
        count = (length + SPAN - 1) / SPAN - first;
        if (count > 1 && used + count * fresh <= job.room)
          slot = used, used += count * fresh;
        else
          count = 1;
      } else {
        count = (fresh + job.query_block - 1) / job.query_block;
      }
      begin = end, end += count * job.kv_heads;
      return true;
    }
    return false;
  }
};

// Of one span, or of several that were merged: sums of values [rows, wide], largest scores and sums of weights [rows].
struct Sums {
  float *values, *largest, *weight;
};

struct Work {
  float *q, *scores, *wide, *turned;
  const float *keys[SPAN + LANES], **columns;
  Sums all, one;
};

void lay_out(const Job& job, int64_t rows, char* scratch, Work& work) {
  float* at = reinterpret_cast<float*>(scratch);
  const auto take = [&](int64_t count) {
    float* const found = at;
    at += (count + 15) / 16 * 16;
    return found;
  };
  work.q = take(rows * job.wide), work.scores = take(rows * SPAN);
  work.wide = take(SPAN * job.wide), work.turned = take(job.wide * SPAN);
  Sums* const both[] = {&work.all, &work.one};
  for (Sums* sums : both)
    sums->values = take(rows * job.wide), sums->largest = take(rows), sums->weight = take(rows);
  work.columns = reinterpret_cast<const float**>(at);
}

// Keys (side 0) or values (side 1) `first` .. `first + count` of a head, as lines of `wide` floats: where they lie, if
// they are such lines, else in `room`, where zeros follow.
template <class Kind>
void lines_of(const Job& job, int64_t request, int64_t head, int64_t side, int64_t first, int64_t count, float* room,
              const float** lines) {
  typedef typename Kind::type type;
  const type* cache = reinterpret_cast<const type*>(job.cache) + side * job.side + head * job.dim;
  const int32_t* blocks = job.blocks + request * job.table;
  const int64_t step = job.kv_heads * job.dim, whole = job.dim / LANES * LANES;
  const bool there = sizeof(type) == sizeof(float) && whole == job.dim;
  int64_t block = first / job.page, offset = first - block * job.page;
  const type* row = cache + (blocks[block] * job.page + offset) * step;
  for (int64_t i = 0; i < count; ++i) {
    if (there) {
      lines[i] = reinterpret_cast<const float*>(row);
    } else {
      float* to = room + i * job.wide;
      for (int64_t c = 0; c < whole; c += LANES) store(to + c, Kind::widen(row + c));
      if (whole < job.dim) store(to + whole, widen_some<Kind>(row + whole, job.dim - whole));
      lines[i] = to;
    }
    row += step;
    if (++offset == job.page && i + 1 < count) offset = 0, row = cache + blocks[++block] * job.page * step;
  }
}

void lines_of(const Job& job, int64_t request, int64_t head, int64_t side, int64_t first, int64_t count, float* room,
              const float** lines) {
  with_kind(job.kind, [&](auto kind) {
    lines_of<decltype(kind)>(job, request, head, side, first, count, room, lines);
  });
}

inline float exp_of(float x) { return exp(broadcast(x))[0]; }

// Scores become weights. s [count], room for whole vectors.
void weigh(float* s, int64_t count, float cap, float& largest_score, float& weight) {
  const int64_t whole = (count + LANES - 1) / LANES * LANES;
  for (int64_t i = count; i < whole; ++i) s[i] = NOTHING;
  if (cap > 0)
    for (int64_t i = 0; i < whole; i += LANES) {
      const vf x = load(s + i), e = exp(abs(x) * (-2.0f / cap));
      const vf y = (1.0f - e) / (1.0f + e) * cap;
      store(s + i, x == NOTHING ? x : x < 0.0f ? -y : y);
    }
  vf high = load(s);
  for (int64_t i = LANES; i < whole; i += LANES) high = max(high, load(s + i));
  largest_score = largest(high);
  const float base = largest_score == NOTHING ? 0.0f : largest_score;
  vf total{};
  for (int64_t i = 0; i < whole; i += LANES) {
    const vf y = exp(load(s + i) - base);
    store(s + i, y);
    total += y;
  }
  weight = sum(total);
}

// One query over keys first .. first + count of one span; `rows` query heads share them.
void over_span(const Job& job, int64_t request, int64_t head, int64_t first, int64_t count, Work& work, Sums& to) {
  const int64_t rows = job.group;
  for (int64_t k = 0; k < count; k += LINES) {
    const int64_t many = least(LINES, count - k);
    lines_of(job, request, head, 0, first + k, many, work.wide, work.keys);
    for (int64_t i = many; i % SCORE_KEYS; ++i) work.keys[i] = work.keys[many - 1];
    scores(work.q, job.wide, rows, work.keys, many, work.scores + k, SPAN);
  }
  for (int64_t r = 0; r < rows; ++r) weigh(work.scores + r * SPAN, count, job.cap, to.largest[r], to.weight[r]);
  for (int64_t k = 0; k < count; k += LINES) {
    const int64_t many = least(LINES, count - k);
    lines_of(job, request, head, 1, first + k, many, work.wide, work.keys);
    product(work.scores + k, SPAN, rows, work.keys, job.wide / LANES, many, to.values, job.wide, k > 0);
  }
}

// Queries at positions `oldest` onward, `rows` of them times heads, over keys first .. first + count of one span.
void over_span(const Job& job, int64_t request, int64_t head, int64_t first, int64_t count, int64_t oldest,
               int64_t rows, Work& work, Sums& to) {
  lines_of(job, request, head, 0, first, count, work.wide, work.keys);
  const int64_t columns = (count + LANES - 1) / LANES;
  for (int64_t i = count; i < columns * LANES; ++i) work.keys[i] = work.keys[count - 1];
  for (int64_t k = 0; k < columns; ++k)
    for (int64_t c = 0; c < job.wide; c += LANES)
      turn(work.keys + k * LANES, c, work.turned + c * SPAN + k * LANES, SPAN);
  product(work.q, job.wide, rows, work.columns, columns, job.dim, work.scores, SPAN, false);
  for (int64_t r = 0; r < rows; ++r) {
    float* const s = work.scores + r * SPAN;
    const int64_t place = oldest + r / job.group - first;
    const int64_t low = job.window ? least(count, most(0, place - job.window + 1)) : 0;
    const int64_t high = most(0, least(count, place + 1));
    for (int64_t i = 0; i < low; ++i) s[i] = NOTHING;
    for (int64_t i = high; i < count; ++i) s[i] = NOTHING;
    weigh(s, count, job.cap, to.largest[r], to.weight[r]);
  }
  lines_of(job, request, head, 1, first, count, work.wide, work.keys);
  product(work.scores, SPAN, rows, work.keys, job.wide / LANES, count, to.values, job.wide, false);
}

void merge(float* values, float& largest_score, float& weight, const float* more, float more_largest,
           float more_weight, int64_t width) {
  const float high = largest_score > more_largest ? largest_score : more_largest;
  const float base = high == NOTHING ? 0.0f : high;
  const float own = exp_of(largest_score - base), other = exp_of(more_largest - base);
  largest_score = high;
  weight = weight * own + more_weight * other;
  for (int64_t i = 0; i < width; i += LANES)
    store(values + i, fma(load(more + i), broadcast(other), load(values + i) * own));
}

// values [wide] over their weight become one head of the result.
void finish(const Job& job, const float* values, float weight, float* out) {
  const float factor = job.v_scale / weight;
  int64_t i = 0;
  for (; i + LANES <= job.dim; i += LANES) store(out + i, load(values + i) * factor);
  for (; i < job.dim; ++i) out[i] = values[i] * factor;
}

inline float* part_of(const Job& job, const Tasks& own, int64_t span, int64_t query, int64_t head) {
  return job.parts + ((own.slot + span * own.fresh + query) * job.heads + head) * job.part;
}

// Queries of one block, of the heads that share a kv head, over their spans or over one of them.
void attend(const Job& job, const Tasks& own, int64_t task, char* scratch) {
  const int64_t head = task % job.kv_heads, at = task / job.kv_heads;
  const bool parted = own.slot >= 0;
  // The last blocks of queries have the most keys: they come first.
  const int64_t query = parted ? 0 : (own.count - 1 - at) * job.query_block;
  const int64_t queries = least(job.query_block, own.fresh - query), rows = queries * job.group;
  const int64_t oldest = own.length - own.fresh + query, last = oldest + queries;
  const int64_t lowest = job.window ? most(0, oldest - job.window + 1) : 0;
  Work work;
  lay_out(job, rows, scratch, work);
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = job.q + (own.row + query + r / job.group) * job.q_stride +
                        (head * job.group + r % job.group) * job.dim;
    float* to = work.q + r * job.wide;
    int64_t i = 0;
    for (; i + LANES <= job.dim; i += LANES) store(to + i, load(from + i) * job.scale);
    if (i < job.dim) store(to + i, widen_some<Float32>(from + i, job.dim - i) * job.scale);
  }
  if (own.fresh > 1)
    for (int64_t c = 0; c < job.dim; ++c) work.columns[c] = work.turned + c * SPAN;
  const int64_t first = parted ? own.first + at : lowest / SPAN, end = parted ? first + 1 : (last + SPAN - 1) / SPAN;
  for (int64_t span = first; span < end; ++span) {
    const int64_t from = most(span * SPAN, own.fresh > 1 ? 0 : lowest), count = least((span + 1) * SPAN, last) - from;
    Sums& to = span == first ? work.all : work.one;
    if (own.fresh > 1)
      over_span(job, own.request, head, from, count, oldest, rows, work, to);
    else
      over_span(job, own.request, head, from, count, work, to);
    if (span > first)
      for (int64_t r = 0; r < rows; ++r)
        merge(work.all.values + r * job.wide, work.all.largest[r], work.all.weight[r],
              work.one.values + r * job.wide, work.one.largest[r], work.one.weight[r], job.wide);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t place = query + r / job.group, own_head = head * job.group + r % job.group;
    const float* values = work.all.values + r * job.wide;
    if (parted) {
      float* part = part_of(job, own, at, place, own_head);
      std::memcpy(part, values, size_t(job.wide) * sizeof(float));
      part[job.part - 2] = work.all.largest[r], part[job.part - 1] = work.all.weight[r];
    } else {
      finish(job, values, work.all.weight[r], job.out + ((own.row + place) * job.heads + own_head) * job.dim);
    }
  }
}

}  // namespace
}  // namespace engine

using namespace engine;

// tensor: q, cache, blocks, starts, lengths, scale of keys, scale of values (null without), parts, out; size: tokens,
// requests, row stride of blocks, heads, kv heads, head_dim, page, elements between keys and values, window (0: none),
// kind of the cache, row stride of q, rows of parts; real: scale, softcap.
ENGINE_KERNEL(engine_attention) {
  const Job job = job_of(call);
  Tasks tasks;
  bool left = tasks.next(job);
  int64_t begin, end;
  // Nobody knows the number of tasks before going through the requests.
  while (member.next(INT64_MAX / 2, 1, begin, end)) {
    while (left && begin >= tasks.end) left = tasks.next(job);
    if (!left) {
      const int64_t row = job.starts[job.requests] + (begin - tasks.end) * PADDING, width = job.heads * job.dim;
      if (row >= job.tokens) return;
      std::memset(job.out + row * width, 0, size_t(least(PADDING, job.tokens - row) * width) * sizeof(float));
    } else {
      attend(job, tasks, begin - tasks.begin, member.scratch);
    }
  }
}

// Parts of requests whose spans were spread, merged in order. The same call.
ENGINE_KERNEL(engine_attention_merge) {
  const Job job = job_of(call);
  Tasks tasks;
  int64_t before = 0, begin, end;
  bool left = tasks.next(job);
  while (left && member.next(INT64_MAX / 2, 1, begin, end)) {
    while (left && (tasks.slot < 0 || begin >= before + tasks.fresh * job.heads)) {
      before += tasks.slot < 0 ? 0 : tasks.fresh * job.heads;
      left = tasks.next(job);
    }
    if (!left) return;
    const int64_t query = (begin - before) / job.heads, head = (begin - before) % job.heads;
    float* all = part_of(job, tasks, 0, query, head);
    for (int64_t span = 1; span < tasks.count; ++span) {
      const float* one = part_of(job, tasks, span, query, head);
      merge(all, all[job.part - 2], all[job.part - 1], one, one[job.part - 2], one[job.part - 1], job.wide);
    }
    finish(job, all, all[job.part - 1], job.out + ((tasks.row + query) * job.heads + head) * job.dim);
  }
}
