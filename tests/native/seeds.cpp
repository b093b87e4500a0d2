// Kernels with the faults that the tests look for, to see that they are found.
#include <sched.h>

#include "team.h"

ENGINE_KERNEL(seed_beyond) {
  float* const values = call.at<float>(0);
  values[call.size[0]] = float(member.index);
}

ENGINE_KERNEL(seed_scratch) { member.scratch[engine::SCRATCH] = 1; }

ENGINE_KERNEL(seed_shift) { *call.at<int>(0) = 1 << call.size[0]; }

// Every member takes a piece and goes on once all have one.
ENGINE_KERNEL(seed_race) {
  int64_t begin, end;
  if (!member.next(member.count, 1, begin, end)) return;
  while (member.ticket->load(std::memory_order_relaxed) < member.count) sched_yield();
  for (int64_t i = 0; i < call.size[0]; ++i) call.at<float>(0)[i] += float(member.index);
}
