// Rows that somebody names.
#include <cstring>

#include "team.h"

// from [.., bytes], ids [rows] int64 -> to [rows, bytes]; size: rows, bytes, row stride of `from` in bytes.
ENGINE_KERNEL(engine_select_rows) {
  const int64_t rows = call.size[0], bytes = call.size[1], stride = call.size[2];
  int64_t begin, end;
  while (member.next(rows, engine::grain_of(rows, member, 2), begin, end))
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(call.at<char>(2) + i * bytes, call.at<char>(0) + call.at<int64_t>(1)[i] * stride, size_t(bytes));
}
