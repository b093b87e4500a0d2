// Sums of residuals, normalisation of runs of a row, and both before a quantisation.
#include "rows.h"
#include "team.h"

using namespace engine;

// Rows between one that is worked on and one that is asked for.
static constexpr int64_t SOON = 2;

// x, y [rows, width] -> out [rows, width]; size: rows, width, row strides of x and y.
ENGINE_KERNEL(engine_add) {
  const int64_t rows = call.size[0], width = call.size[1];
  int64_t begin, end;
  while (member.next(rows, grain_of(rows, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i)
      add_row(call.at<float>(0) + i * call.size[2], call.at<float>(1) + i * call.size[3],
              call.at<float>(2) + i * width, width);
}

// x [rows, runs * width], y like it or null, weight [width], scale [1] or null
//   -> x + y, normalised or null, int8 or null [rows, runs * width], scales [rows, groups] or null;
// size: rows, runs, width, row strides of x and y, columns of a group, whether scales are powers of two; real: eps.
// A row of runs * width floats fits a member's scratch.
ENGINE_KERNEL(engine_norm) {
  const int64_t rows = call.size[0], runs = call.size[1], width = call.size[2], columns = call.size[5];
  const int64_t all = runs * width, groups = columns ? (all + columns - 1) / columns : 0;
  const float *y = call.at<float>(1), *weight = call.at<float>(2), *fixed = call.at<float>(3);
  float *sums = call.at<float>(4), *out = call.at<float>(5), *scales = call.at<float>(7);
  int8_t* stored = call.at<int8_t>(6);
  int64_t begin, end;
  while (member.next(rows, grain_of(rows, member, 4), begin, end))
    for (int64_t i = begin; i < end; ++i) {
      const float* from = call.at<float>(0) + i * call.size[3];
      if (i + SOON < end) ask(from + SOON * call.size[3], all);
      if (i + SOON < end && y != nullptr) ask(y + (i + SOON) * call.size[4], all);
      if (y != nullptr) {
        add_row(from, y + i * call.size[4], sums + i * all, all);
        from = sums + i * all;
      }
      float* normed = out != nullptr ? out + i * all : reinterpret_cast<float*>(member.scratch);
      for (int64_t run = 0; run < runs; ++run)
        norm_row(from + run * width, weight, normed + run * width, width, float(call.real[0]));
      if (fixed != nullptr)
        quantize_by(normed, stored + i * all, *fixed, all);
      else if (stored != nullptr)
        quantize_runs(normed, stored + i * all, scales + i * groups, all, columns, call.size[6] != 0);
    }
}
