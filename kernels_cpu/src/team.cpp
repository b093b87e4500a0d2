// One persistent team of threads, the caller among them. Members spin between calls and for a bounded time after a run,
// then sleep in the kernel until the next one.
#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "simd.h"

namespace engine {
namespace {

// A member that waits asks so often, then gives way to whoever wants its CPU between questions, then sleeps. Giving way
// costs about half a microsecond where nobody wants it; the sum lasts longer than what a server does between two steps.
constexpr int SPINS = 256, YIELDS = 1024, PAUSES = 8;

// Between so many calls a member gives way, when it holds no work that others wait for: whoever wants its CPU then takes
// it at a time that costs the team least, rather than in the middle of a piece.
constexpr int CALLS = 4;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A number that members wait for to change: spinning, then giving way, then asleep.
struct alignas(64) Signal {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  void change() {
    value.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0)
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  void wait_past(uint32_t seen) {
    for (int i = 0; i < SPINS + YIELDS * PAUSES; ++i) {
      if (value.load(std::memory_order_acquire) != seen) return;
      pause();
      if (i >= SPINS && i % PAUSES == 0) sched_yield();
    }
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (value.load(std::memory_order_seq_cst) == seen)
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
};

struct Team {
  // Where a run is: the number of its call, how many members are inside that, and whether the run is over. A call is
  // over when the last member leaves it, and a member leaves it when no work is left to take; so one that was kept from
  // its CPU is waited for only while it holds a piece of work, and passes over the calls that went on without it.
  static constexpr uint64_t CALL = uint64_t{1} << 32, CLOSED = uint64_t{1} << 31, INSIDE = CLOSED - 1;
  alignas(64) std::atomic<uint64_t> gate{CLOSED};
  Signal begun, met;
  struct alignas(64) {
    std::atomic<int64_t> next{0};
  } tickets[2];  // of calls with even and with odd numbers
  const Call* calls = nullptr;
  uint32_t first = 0, count = 0;  // numbers of the calls of this run
  std::atomic<bool> stopping{false};
  bool lost = false;
  std::vector<Member> members;
  std::vector<pthread_t> threads;
  std::vector<int> cpus;

  bool change(uint64_t& seen, uint64_t next) {
    return gate.compare_exchange_weak(seen, next, std::memory_order_acq_rel, std::memory_order_acquire);
  }

  void open(const Call* own, uint32_t total) {
    calls = own;
    count = total;
    first = uint32_t(gate.load(std::memory_order_relaxed) / CALL);
    gate.store(first * CALL, std::memory_order_release);
  }

  // Until the run is over.
  void work(Member& member) {
    uint64_t now = gate.load(std::memory_order_acquire);
    int done = 0;
    while (!(now & CLOSED)) {
      if (!change(now, now + 1)) continue;
      const uint32_t number = uint32_t(now / CALL);
      const Call& call = calls[uint32_t(number - first)];
      member.ticket = &tickets[number % 2].next;
      call.body(call, member);
      now = leave(number);
      if (++done % CALLS == 0 && members.size() > 1) sched_yield();
    }
  }

  // The state once the call is over.
  uint64_t leave(uint32_t number) {
    uint64_t now = gate.load(std::memory_order_acquire);
    while (true) {
      if ((now & INSIDE) > 1) {
        const uint32_t seen = met.value.load(std::memory_order_acquire);
        if (!change(now, now - 1)) continue;
        return past(number, seen);
      }
      tickets[(number + 1) % 2].next.store(0, std::memory_order_relaxed);
      const uint32_t next = number + 1;
      const uint64_t then = next * CALL | (uint32_t(next - first) == count ? CLOSED : 0);
      if (!change(now, then)) continue;
      met.change();
      return then;
    }
  }

  // Waits for those who are still inside. `seen`: of `met`, before this member left.
  uint64_t past(uint32_t number, uint32_t seen) {
    while (true) {
      const uint64_t now = gate.load(std::memory_order_acquire);
      if (uint32_t(now / CALL) != number) return now;
      met.wait_past(seen);
      seen = met.value.load(std::memory_order_acquire);
    }
  }
};

Team* team = nullptr;
std::mutex running;

// Behind the memory that a member works in, so that whoever goes beyond it is stopped.
constexpr size_t FENCE = size_t{64} << 10;

constexpr int MOST_CPUS = 8192;

struct Mask {
  unsigned long words[MOST_CPUS / 64] = {};
  cpu_set_t* set() { return reinterpret_cast<cpu_set_t*>(words); }
};

void bind(int cpu) {
  Mask mask;
  CPU_SET_S(cpu, sizeof(mask.words), mask.set());
  sched_setaffinity(0, sizeof(mask.words), mask.set());
}

// The caller keeps to its CPU while it works for the team: beside another member on one CPU it would halve the speed.
// Afterwards it may run where it might before, and so may processes that it starts.
struct Visit {
  Mask before;
  bool bound;

  explicit Visit(const std::vector<int>& cpus)
      : bound(!cpus.empty() && sched_getaffinity(0, sizeof(before.words), before.set()) == 0) {
    if (bound) bind(cpus[0]);
  }
  ~Visit() {
    if (bound) sched_setaffinity(0, sizeof(before.words), before.set());
  }
};

void* life(void* given) {
  Member& member = *static_cast<Member*>(given);
  Team& own = *team;
  if (!own.cpus.empty()) bind(own.cpus[member.index]);
  uint32_t seen = 0;
  while (true) {
    own.begun.wait_past(seen);
    seen = own.begun.value.load(std::memory_order_acquire);
    if (own.stopping) return nullptr;
    own.work(member);
  }
}

void stop() {
  if (team == nullptr) return;
  team->stopping = true;
  team->begun.change();
  if (!team->lost)
    for (pthread_t thread : team->threads) pthread_join(thread, nullptr);
  for (Member& member : team->members) munmap(member.scratch, SCRATCH + FENCE);
  delete team;
  team = nullptr;
}

// The system keeps tile registers for processes that asked.
int ask_for_tiles() {
#if defined(ENGINE_TILES)
  constexpr int REQUEST = 0x1023, TILES = 18;
  if (syscall(SYS_arch_prctl, REQUEST, TILES) != 0) return errno;
#endif
  return 0;
}

int start(int count, const int* cpus) {
  if (const int error = ask_for_tiles()) return error;
  team = new Team;
  if (cpus != nullptr) team->cpus.assign(cpus, cpus + count);
  team->members.resize(count);
  for (int i = 0; i < count; ++i) {
    void* scratch = mmap(nullptr, SCRATCH + FENCE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (scratch == MAP_FAILED || mprotect(scratch, SCRATCH, PROT_READ | PROT_WRITE) != 0) {
      team->members.resize(i);
      stop();
      return ENOMEM;
    }
    team->members[i] = {i, count, static_cast<char*>(scratch), nullptr};
  }
  for (int i = 1; i < count; ++i) {
    pthread_t thread;
    if (const int error = pthread_create(&thread, nullptr, life, &team->members[i])) {
      stop();
      return error;
    }
    team->threads.push_back(thread);
  }
  return 0;
}

// A child of fork has none of the threads, and begins with a team of its own once it needs one: the same, or the
// caller alone where it may have no threads.
void renew() {
  const std::vector<int> cpus = team->cpus;
  const int count = int(team->members.size()), *places = cpus.empty() ? nullptr : cpus.data();
  stop();
  if (start(count, places) != 0 && start(1, places) != 0) abort();
}

// Nobody is inside a run while a process forks, so that the child finds the lock and the team whole.
void survive_fork() {
  static const int once = pthread_atfork([] { running.lock(); }, [] { running.unlock(); },
                                         [] {
                                           if (team != nullptr) team->lost = true;
                                           running.unlock();
                                         });
  (void)once;
}

}  // namespace
}  // namespace engine

// A team of `count` members in place of the one there is. `cpus`: of each member, the first of whom is whoever calls
// engine_run, or null. Returns 0 or an errno.
extern "C" int engine_team(int count, const int* cpus) {
  std::lock_guard<std::mutex> alone(engine::running);
  engine::survive_fork();
  engine::stop();
  return count > 0 ? engine::start(count, cpus) : 0;
}

// New memory of the caller and of threads that it starts comes from the nodes of `mask`, as long as they have some; on
// kernels before 5.15, which know no such wish, always. Returns 0 or an errno.
extern "C" int engine_nodes(uint64_t mask) {
  constexpr int PREFERRED_MANY = 5, BIND = 2;
  for (const int mode : {PREFERRED_MANY, BIND}) {
    const unsigned long nodes[2] = {static_cast<unsigned long>(mask), 0};
    if (syscall(SYS_set_mempolicy, mode, nodes, 64ul + 1) == 0) return 0;
    if (errno != EINVAL) break;
  }
  return errno;
}

// Every call in order, each by the whole team; returns when all is done.
extern "C" void engine_run(const engine::Call* calls, int64_t count) {
  if (count <= 0) return;
  std::lock_guard<std::mutex> alone(engine::running);
  if (engine::team->lost) engine::renew();
  engine::Team& team = *engine::team;
  team.open(calls, uint32_t(count));
  const engine::Visit visit(team.cpus);
  if (team.members.size() > 1) team.begun.change();
  team.work(team.members[0]);
}
