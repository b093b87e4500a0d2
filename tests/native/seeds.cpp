// Kernels with the faults that the tests look for, to see that they are found.
#include "team.h"

ENGINE_KERNEL(seed_beyond) {
  float* const values = call.at<float>(0);
  values[call.size[0]] = float(member.index);
}

ENGINE_KERNEL(seed_scratch) { member.scratch[engine::SCRATCH] = 1; }

ENGINE_KERNEL(seed_shift) { *call.at<int>(0) = 1 << call.size[0]; }

ENGINE_KERNEL(seed_race) {
  for (int64_t i = 0; i < call.size[0]; ++i) call.at<float>(0)[i] += float(member.index);
}
