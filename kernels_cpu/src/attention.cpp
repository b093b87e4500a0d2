// Attention of a step's new tokens over the paged cache. A request's keys are taken in spans of SPAN, counted from the
// first token; each span has a largest score, a sum of weights and a weighted sum of values, and spans are merged in
// their order. So what a request gets depends on itself alone, whoever makes which span.
#include "attention_cache.h"
#include "attention_limbs.h"
#include "attention_rows.h"
#include "attention_tasks.h"
#include "attention_tile.h"
#include "attention_weights.h"

namespace engine {
namespace {

// Of one span, or of several that were merged: sums of values [rows, wide], largest scores and sums of weights [rows].
struct Sums {
  float *values, *largest, *weight;
};

struct Work {
  float *q, *scores, *wide, *turned;
  const char *rows[SPAN + ROW_KEYS], *coming[SPAN];
  int64_t expected = 0;
  const float *keys[SPAN + LANES], **columns;
  Sums all, one;
#if defined(ENGINE_TILES_BF16)
  Rows query, weights;
  char *key_tiles, *value_tiles;
#endif
};

// Rows of floats that the products make.
inline int64_t held(int64_t rows) { return (rows + 15) / 16 * 16; }
// Columns that they read.
inline int64_t deep(int64_t width) { return (width + 31) / 32 * 32; }

void lay_out(const Job& job, int64_t rows, char* scratch, Work& work) {
  float* at = reinterpret_cast<float*>(scratch);
  const auto take = [&](int64_t count) {
    float* const found = at;
    at += (count + 15) / 16 * 16;
    return found;
  };
  work.q = take(rows * job.wide), work.scores = take(held(rows) * SPAN);
  work.wide = take(SPAN * job.wide), work.turned = take(job.wide * SPAN);
  Sums* const both[] = {&work.all, &work.one};
  for (Sums* sums : both)
    sums->values = take(held(rows) * job.wide), sums->largest = take(rows), sums->weight = take(rows);
#if defined(ENGINE_TILES_BF16)
  const auto limbs = [&](int64_t count, int64_t width) {
    return Rows{reinterpret_cast<uint16_t*>(take(count * width * MOST_LIMBS / 2)), width, count * width};
  };
  work.query = limbs(held(rows), deep(job.wide)), work.weights = limbs(2 * TALL, SPAN);
  work.key_tiles = reinterpret_cast<char*>(take(SPAN * deep(job.wide) * MOST_LIMBS / 2));
  work.value_tiles = reinterpret_cast<char*>(take(SPAN * job.wide * MOST_LIMBS / 2));
#endif
  work.columns = reinterpret_cast<const float**>(at);
}

// Byte of a row from which the columns of a kv head are its keys or, with `values`, its values.
inline int64_t column(const Job& job, int64_t head, bool values) {
  return head * job.head_bytes + (values ? job.side_bytes : 0);
}

// Where the keys `first` .. `first + count` of a request lie, those of all heads of a token side by side.
void rows_of(const Job& job, int64_t request, int64_t first, int64_t count, const char** rows) {
  const int32_t* blocks = job.blocks + request * job.table;
  const int64_t step = job.kv_heads * job.head_bytes;
  int64_t block = first / job.page, offset = first - block * job.page;
  for (int64_t i = 0; i < count; ++block, offset = 0) {
    const char* row = job.cache + (blocks[block] * job.page + offset) * step;
    for (; i < count && offset < job.page; ++i, ++offset, row += step) rows[i] = row;
  }
}

// Columns from byte `at` onward of `rows`, as lines of `wide` floats: where they lie, if they are such lines, else in
// `room`, zeros behind them.
template <class Kind>
void lines_of(const Job& job, const char* const* rows, int64_t at, int64_t count, float* room, const float** lines) {
  typedef typename Kind::type type;
  const int64_t whole = job.dim / LANES * LANES;
  const bool there = sizeof(type) == sizeof(float) && whole == job.dim;
  for (int64_t i = 0; i < count; ++i) {
    const type* row = reinterpret_cast<const type*>(rows[i] + at);
    if (there) {
      lines[i] = reinterpret_cast<const float*>(row);
      continue;
    }
    float* to = room + i * job.wide;
    const float scale = Kind::room ? scale_behind(row, job.dim) : 1.0f;
    const auto wide = [scale](vf x) { return Kind::room ? x * scale : x; };
    for (int64_t c = 0; c < whole; c += LANES) store(to + c, wide(Kind::widen(row + c)));
    if (whole < job.dim) store(to + whole, wide(widen_some<Kind>(row + whole, job.dim - whole)));
    lines[i] = to;
  }
}

// What depends on the kind of the cache.
struct Kept {
  int64_t item, room;
  void (*lines)(const Job&, const char* const*, int64_t, int64_t, float*, const float**);
  RowKernels kernels;
#if defined(ENGINE_TILES_BF16)
  TileKernels tiles[2];  // exact, and rounded
#endif
};

template <class Kind>
constexpr Kept kept_as = {sizeof(typename Kind::type), Kind::room, lines_of<Kind>, row_kernels<Kind>,
#if defined(ENGINE_TILES_BF16)
                          {tile_kernels<MOST_LIMBS, Kind::limbs>, tile_kernels<1, 1>},
#endif
};

// What heads whose kv head's columns start at byte `at` take from rows k .. k + count.
struct Source {
  const char* const* rows;
  int64_t at, ahead;
};

// Rows that are no whole vectors are widened first, those of one head at a time.
Source source_of(const Job& job, Work& work, int64_t k, int64_t count, int64_t at) {
  if (job.dim == job.wide) return {work.rows + k, at, column(job, 0, true)};
  job.kept->lines(job, work.rows + k, at, count, work.wide, work.keys);
  return {reinterpret_cast<const char* const*>(work.keys), 0, 0};
}

// One query over keys first .. first + count of one span, for kv heads `head` .. `head + heads`.
void over_rows(const Job& job, int64_t request, int64_t head, int64_t heads, int64_t first, int64_t count, Work& work,
               Sums& to) {
  const RowKernels& own = job.dim == job.wide ? job.kept->kernels : row_kernels<Float32>;
  const int64_t rows = heads * job.group, many = (job.group + ROW_HEADS - 1) / ROW_HEADS;
  const auto each = [&](auto body) {
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t g = 0, i = 0; i < many; ++i) {
        const int64_t next = job.group * (i + 1) / many;
        body(h, h * job.group + g, next - g - 1, g == 0);
        g = next;
      }
  };
  rows_of(job, request, first, count, work.rows);
  for (int64_t i = count; i % ROW_KEYS; ++i) work.rows[i] = work.rows[count - 1];
  Source from{};
  for (int64_t k = 0; k < count; k += KEYS) {
    const int64_t keys = (least(KEYS, count - k) + ROW_KEYS - 1) / ROW_KEYS * ROW_KEYS;
    each([&](int64_t h, int64_t row, int64_t size, bool fresh) {
      if (fresh) from = source_of(job, work, k, keys, column(job, head + h, false));
      own.scores[size](work.q + row * job.wide, job.wide, from.rows, from.at, fresh ? from.ahead : 0, keys,
                       work.scores + row * SPAN + k, SPAN);
    });
  }
  weigh(work.scores, SPAN, rows, count, job.cap, to.largest, to.weight);
  const char* const* coming = work.expected ? work.coming : work.rows;
  for (int64_t i = work.expected; i && i < count; ++i) work.coming[i] = work.coming[0];
  each([&](int64_t h, int64_t row, int64_t size, bool fresh) {
    if (fresh) from = source_of(job, work, 0, count, column(job, head + h, true));
    own.values[size](work.scores + row * SPAN, SPAN, from.rows, from.at, coming, column(job, head + h, false), count,
                     to.values + row * job.wide, job.wide);
  });
}

// Scores of rows `r` .. `r + rows` of `count` keys, where the first query is at key `place`: what a query does not see
// is nothing.
void hide(const Job& job, float* scores, int64_t r, int64_t rows, int64_t count, int64_t place) {
  for (int64_t end = r + rows; r < end; ++r, scores += SPAN) {
    const int64_t own = place + r / job.group, low = job.window ? least(count, most(0, own - job.window + 1)) : 0;
    for (int64_t i = 0; i < low; ++i) scores[i] = NOTHING;
    for (int64_t i = most(0, least(count, own + 1)); i < count; ++i) scores[i] = NOTHING;
  }
}

// Queries at positions `oldest` onward, `rows` of them times heads, over keys first .. first + count of one span.
void over_lines(const Job& job, int64_t request, int64_t head, int64_t first, int64_t count, int64_t oldest,
                int64_t rows, Work& work, Sums& to) {
  rows_of(job, request, first, count, work.rows);
  job.kept->lines(job, work.rows, column(job, head, false), count, work.wide, work.keys);
  const int64_t columns = (count + LANES - 1) / LANES;
  for (int64_t i = count; i < columns * LANES; ++i) work.keys[i] = work.keys[count - 1];
#if defined(ENGINE_TILES_BF16)
  const TileKernels& own = job.kept->tiles[job.rounded];
  const int64_t width = deep(job.wide), place = oldest - first;
  own.turned(work.keys, columns * LANES, job.wide, width, work.key_tiles);
  job.kept->lines(job, work.rows, column(job, head, true), count, work.wide, work.keys);
  own.plain(work.keys, count, job.wide, SPAN / DEPTH, work.value_tiles);
  const Registers registers(whole_tiles());
  for (int64_t r = 0; r < rows; r += 2 * TALL) {
    const int64_t some = least(2 * TALL, rows - r), tiles = (some + TALL - 1) / TALL;
    // Keys that the last of these queries sees.
    const int64_t seen = most(1, least(count, place + (r + some - 1) / job.group + 1));
    const Rows query{work.query.at + r * width, width, work.query.apart};
    own.product(tiles, query, work.key_tiles, width / DEPTH, width / DEPTH, held(seen) / LANES, work.scores, SPAN);
    hide(job, work.scores, r, some, seen, place);
    weigh(work.scores, SPAN, some, seen, job.cap, to.largest + r, to.weight + r);
    own.rows(work.scores, SPAN, some, held(seen), deep(seen), work.weights);
    own.product(tiles, work.weights, work.value_tiles, SPAN / DEPTH, deep(seen) / DEPTH, job.wide / LANES,
                to.values + r * job.wide, job.wide);
  }
#else
  for (int64_t k = 0; k < columns; ++k)
    for (int64_t c = 0; c < job.wide; c += LANES)
      turn(work.keys + k * LANES, c, work.turned + c * SPAN + k * LANES, SPAN);
  product(work.q, job.wide, rows, work.columns, columns, job.dim, work.scores, SPAN);
  hide(job, work.scores, 0, rows, count, oldest - first);
  weigh(work.scores, SPAN, rows, count, job.cap, to.largest, to.weight);
  job.kept->lines(job, work.rows, column(job, head, true), count, work.wide, work.keys);
  product(work.scores, SPAN, rows, work.keys, job.wide / LANES, count, to.values, job.wide);
#endif
}

inline float exp_of(float x) { return exp_below(broadcast(x))[0]; }

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

// Queries of one block, of the heads that share a run of kv heads, over their spans or over one of them.
void attend(const Job& job, const Tasks& own, int64_t task, const Tasks& later, int64_t later_task, char* scratch) {
  const int64_t head = task % own.runs * own.step, at = task / own.runs, heads = least(own.step, job.kv_heads - head);
  const bool parted = own.slot >= 0, single = own.fresh == 1 && !job.alike;
  // The last blocks of queries have the most keys: they come first.
  const int64_t query = parted ? 0 : (own.count - 1 - at) * job.query_block;
  const int64_t queries = least(job.query_block, own.fresh - query), each = heads * job.group, rows = queries * each;
  const int64_t oldest = own.length - own.fresh + query, last = oldest + queries;
  const int64_t lowest = job.window ? most(0, oldest - job.window + 1) : 0;
  Work work;
  lay_out(job, rows, scratch, work);
  float* to = work.q;
  for (int64_t q = 0; q < queries; ++q) {
    const float* from = job.q + (own.row + query + q) * job.q_stride + head * job.group * job.dim;
    for (int64_t h = 0; h < each; ++h, from += job.dim, to += job.wide) {
      int64_t i = 0;
      for (; i + LANES <= job.dim; i += LANES) store(to + i, load(from + i) * job.scale);
      if (i < job.dim) store(to + i, widen_some<Float32>(from + i, job.dim - i) * job.scale);
    }
  }
#if defined(ENGINE_TILES_BF16)
  if (!single) job.kept->tiles[job.rounded].rows(work.q, job.wide, rows, job.wide, deep(job.wide), work.query);
#else
  if (!single)
    for (int64_t c = 0; c < job.dim; ++c) work.columns[c] = work.turned + c * SPAN;
#endif
  const int64_t first = parted ? own.first + at : lowest / SPAN, end = parted ? first + 1 : (last + SPAN - 1) / SPAN;
  for (int64_t span = first; span < end; ++span) {
    const int64_t from = most(span * SPAN, single ? lowest : 0), count = least((span + 1) * SPAN, last) - from;
    Sums& sums = span == first ? work.all : work.one;
    if (single && span + 1 == end && later.fresh == 1) {
      // Another member may be faster and take the task; then the rows are of no use here.
      const int64_t begin = later.slot >= 0 ? (later.first + later_task / later.runs) * SPAN : later.first * SPAN;
      work.expected = least(SPAN, later.length - begin);
      rows_of(job, later.request, begin, work.expected, work.coming);
    }
    if (single)
      over_rows(job, own.request, head, heads, from, count, work, sums);
    else
      over_lines(job, own.request, head, from, count, oldest, rows, work, sums);
    if (span > first)
      for (int64_t r = 0; r < rows; ++r)
        merge(work.all.values + r * job.wide, work.all.largest[r], work.all.weight[r],
              work.one.values + r * job.wide, work.one.largest[r], work.one.weight[r], job.wide);
  }
  const float* values = work.all.values;
  for (int64_t q = 0, r = 0; q < queries; ++q)
    for (int64_t h = 0; h < each; ++h, ++r, values += job.wide) {
      const int64_t place = query + q, own_head = head * job.group + h;
      if (parted) {
        float* part = part_of(job, own, at, place, own_head);
        std::memcpy(part, values, size_t(job.wide) * sizeof(float));
        part[job.part - 2] = work.all.largest[r], part[job.part - 1] = work.all.weight[r];
      } else {
        finish(job, values, work.all.weight[r], job.out + ((own.row + place) * job.heads + own_head) * job.dim);
      }
    }
}

void attend_all(const Job& job, Member& member) {
  Tasks tasks, later;
  bool left = tasks.next(job), more = later.next(job);
  int64_t begin, end;
  // Nobody knows the number of tasks before going through the requests.
  while (member.next(INT64_MAX / 2, 1, begin, end)) {
    while (left && begin >= tasks.end) left = tasks.next(job);
    if (!left) {
      const int64_t row = job.starts[job.requests] + (begin - tasks.end) * PADDING, width = job.heads * job.dim;
      if (row >= job.tokens) return;
      std::memset(job.out + row * width, 0, size_t(least(PADDING, job.tokens - row) * width) * sizeof(float));
    } else {
      const int64_t next = begin + member.count;
      while (more && next >= later.end) more = later.next(job);
      if (!more) later.fresh = 0;
      attend(job, tasks, begin - tasks.begin, later, next - later.begin, member.scratch);
    }
  }
}

}  // namespace
}  // namespace engine

using namespace engine;

// tensor: q, cache, blocks, starts, lengths, scale of keys, scale of values (null without), parts, out; size: tokens,
// requests, row stride of blocks, heads, kv heads, head_dim, page, elements between keys and values, window (0: none),
// kind of the cache, row stride of q, rows of parts, 1: a single query sums as one among others, 2:
// many are rounded to bfloat16 with their keys and values; real: scale, cap.
ENGINE_KERNEL(engine_attention) {
  Job job = job_of(call);
  job.step = step_of(job, member.count);
  with_kind(call.size[9], [&](auto kind) { job.kept = &kept_as<decltype(kind)>; });
  job.head_bytes = job.dim * job.kept->item + job.kept->room, job.side_bytes = job.side * job.kept->item;
  attend_all(job, member);
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
