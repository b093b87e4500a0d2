// Rows of bytes.
#include <cstring>

#include "team.h"

// from [rows, bytes] -> to [rows, bytes]; size: rows, bytes, row stride of `from` in bytes.
ENGINE_KERNEL(engine_copy_rows) {
  const int64_t rows = call.size[0], bytes = call.size[1], stride = call.size[2];
  int64_t begin, end;
  while (member.next(rows, engine::grain_of(rows, member, 2), begin, end))
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(call.at<char>(1) + i * bytes, call.at<char>(0) + i * stride, size_t(bytes));
}
