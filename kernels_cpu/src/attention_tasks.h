// What a call of attention asks for, and the tasks that it is cut into.
#pragma once
#include "simd.h"
#include "team.h"

namespace engine {
namespace {

#if defined(ENGINE_TILES_BF16)
constexpr int64_t QUERY_ROWS = 192;
#else
constexpr int64_t QUERY_ROWS = 96;
#endif
constexpr int64_t SPAN = 128, MOST_QUERIES = QUERY_ROWS / 2, MOST_ROWS = 256, PADDING = 16, KEYS = 16, RUNS = 4;

struct Job {
  const float* q;
  const char* cache;
  const int32_t *blocks, *starts, *lengths;
  float *parts, *out;
  int64_t tokens, requests, table, heads, kv_heads, dim, page, side, window, q_stride, room;
  int64_t group, wide, query_block, part, step, head_bytes, side_bytes;
  const struct Kept* kept;
  float scale, cap, v_scale;
  bool alike;    // a single query sums as one among others does
  bool rounded;  // to bfloat16
};

Job job_of(const Call& call) {
  Job job;
  job.q = call.at<float>(0), job.cache = call.at<char>(1), job.blocks = call.at<int32_t>(2);
  job.starts = call.at<int32_t>(3), job.lengths = call.at<int32_t>(4);
  job.parts = call.at<float>(7), job.out = call.at<float>(8);
  const int64_t* size = call.size;
  job.tokens = size[0], job.requests = size[1], job.table = size[2], job.heads = size[3], job.kv_heads = size[4];
  job.dim = size[5], job.page = size[6], job.side = size[7], job.window = size[8];
  job.q_stride = size[10], job.room = size[11], job.alike = size[12] == 1, job.rounded = size[12] == 2;
  job.group = job.heads / job.kv_heads;
  job.wide = (job.dim + LANES - 1) / LANES * LANES;
  job.part = (job.dim + 31) / 16 * 16;
  const int64_t many = QUERY_ROWS / job.group;
  job.query_block = many < 1 ? 1 : many > MOST_QUERIES ? MOST_QUERIES : many;
  job.scale = float(call.real[0] * (call.tensor[5] ? double(*call.at<float>(5)) : 1.0));
  job.cap = float(call.real[1]);
  job.step = 1;
  job.v_scale = call.tensor[6] ? *call.at<float>(6) : 1.0f;
  return job;
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// The tasks of one request: its blocks of queries, or, where there is one block and room for parts, its spans; times
// runs of `step` kv heads. `slot`: of its first part, or -1.
struct Tasks {
  int64_t request = -1, end = 0, begin = 0, used = 0;
  int64_t row = 0, fresh = 0, length = 0, first = 0, count = 0, slot = -1, step = 1, runs = 1;

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
      step = fresh == 1 && !job.alike ? job.step : 1, runs = (job.kv_heads + step - 1) / step;
      begin = end, end += count * runs;
      return true;
    }
    return false;
  }
};

// How many kv heads a task of one query takes: all of them, since their keys lie side by side, unless that leaves too
// few tasks.
int64_t step_of(const Job& job, int64_t members) {
  Tasks tasks;
  int64_t found = 0;
  while (found < RUNS * members && tasks.next(job)) found += tasks.count;
  const int64_t fits = most(1, MOST_ROWS / job.group);
  return least(least(job.kv_heads, fits), most(1, job.kv_heads * found / (RUNS * members)));
}

}  // namespace
}  // namespace engine
