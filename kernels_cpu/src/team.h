// What a kernel sees: one recorded call, and the member of the thread team that runs its share of it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace engine {

struct Member;

// Kept by the recorder in Python (kernels_cpu/record.py), which knows this layout.
struct Call {
  void (*body)(const Call&, Member&);
  void* tensor[12];
  int64_t size[16];
  double real[4];

  template <class T>
  T* at(int i) const {
    return static_cast<T*>(tensor[i]);
  }
};

constexpr size_t SCRATCH = size_t{4} << 20;

struct Member {
  int index;
  int count;
  char* scratch;  // SCRATCH bytes of its own, aligned to a page, only paid for once written
  std::atomic<int64_t>* ticket;

  // The next run [begin, end) of at most `grain` of `total` equal units of work; false once none are left. Who gets
  // which run is chance, so no result may depend on it.
  bool next(int64_t total, int64_t grain, int64_t& begin, int64_t& end) {
    if (count == 1) {
      begin = ticket->load(std::memory_order_relaxed);
      if (begin >= total) return false;
      end = begin + grain < total ? begin + grain : total;
      ticket->store(end, std::memory_order_relaxed);
      return true;
    }
    begin = ticket->fetch_add(grain, std::memory_order_relaxed);
    if (begin >= total) return false;
    end = begin + grain < total ? begin + grain : total;
    return true;
  }
};

// Units of work per run, so that each member gets about `runs` of them.
inline int64_t grain_of(int64_t total, const Member& member, int64_t runs) {
  const int64_t grain = total / (member.count * runs);
  return grain > 0 ? grain : 1;
}

}  // namespace engine

#define ENGINE_KERNEL(name) extern "C" void name(const engine::Call& call, engine::Member& member)
