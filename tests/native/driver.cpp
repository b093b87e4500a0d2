// Replays a recording without Python: driver LIBRARY RECORDING THREADS TIMES [TOLERANCE]. 0 where every byte of every
// buffer is as it was recorded after the first run and after the last one; with a tolerance only values that the
// recording names are compared, by the largest of them. driver LIBRARY KERNEL THREADS: one kernel of the library alone.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "team.h"

// As tests/native/recording.py writes it: the head, buffers, calls, outputs, and what lies in buffers before and after.
struct Head {
  char magic[8];
  int64_t buffers, calls, outputs;
};
struct Place {
  int64_t buffer, offset;
};
struct Stored {
  int64_t size, start;  // start: where it lay, modulo 4096
};
struct Line {
  char symbol[64];
  Place tensor[12];
  int64_t size[16];
  double real[4];
};
struct Output {
  Place place;
  int64_t count;
};

namespace {

constexpr int64_t PAGE = 4096;

void* need(void* found, const char* what) {
  if (found == nullptr) {
    std::fprintf(stderr, "%s: %s\n", what, dlerror());
    std::exit(3);
  }
  return found;
}

std::vector<char> contents(const char* path) {
  std::FILE* file = static_cast<std::FILE*>(need(std::fopen(path, "rb"), path));
  std::vector<char> all;
  std::fseek(file, 0, SEEK_END);
  all.resize(size_t(std::ftell(file)));
  std::rewind(file);
  if (std::fread(all.data(), 1, all.size(), file) != all.size()) std::exit(3);
  std::fclose(file);
  return all;
}

template <class T>
std::vector<T> take(const char*& from, int64_t count) {
  std::vector<T> found(static_cast<size_t>(count));
  if (count > 0) std::memcpy(found.data(), from, sizeof(T) * size_t(count));
  from += sizeof(T) * size_t(count);
  return found;
}

struct Recording {
  std::vector<char> file;
  std::vector<Stored> stored;
  std::vector<Line> lines;
  std::vector<Output> outputs;
  std::vector<char*> buffers;
  std::vector<const char*> after;

  explicit Recording(const char* path) : file(contents(path)) {
    const char* at = file.data();
    const Head head = take<Head>(at, 1)[0];
    if (std::memcmp(head.magic, "replay 1", 8) != 0) std::exit(3);
    stored = take<Stored>(at, head.buffers);
    lines = take<Line>(at, head.calls);
    outputs = take<Output>(at, head.outputs);
    for (const Stored& one : stored) {
      // An allocation of its own that ends where the buffer ends, at the same place within a page.
      char* memory = static_cast<char*>(std::aligned_alloc(PAGE, size_t(one.start + one.size + PAGE - 1) / PAGE * PAGE));
#if defined(__SANITIZE_ADDRESS__)
      void* exact = nullptr;
      if (posix_memalign(&exact, PAGE, size_t(one.start + one.size)) != 0) std::exit(3);
      std::free(memory);
      memory = static_cast<char*>(exact);
#endif
      std::memcpy(memory + one.start, at, size_t(one.size));
      buffers.push_back(memory + one.start);
      at += one.size;
    }
    for (const Stored& one : stored) {
      after.push_back(at);
      at += one.size;
    }
  }

  char* at(const Place& place) const {
    return place.buffer < 0 ? nullptr : buffers[size_t(place.buffer)] + place.offset;
  }

  // Who wrote the byte last.
  const char* writer(size_t buffer, int64_t offset) const {
    const char* found = "nobody";
    for (const Line& line : lines)
      for (const Place& place : line.tensor)
        if (place.buffer == int64_t(buffer) && place.offset <= offset) found = line.symbol;
    return found;
  }

  bool same() const {
    for (size_t i = 0; i < buffers.size(); ++i)
      for (int64_t j = 0; j < stored[i].size; ++j)
        if (buffers[i][j] != after[i][j]) {
          std::fprintf(stderr, "buffer %zu differs at byte %lld, after %s\n", i, static_cast<long long>(j), writer(i, j));
          return false;
        }
    return true;
  }

  bool near(double tolerance) const {
    for (const Output& output : outputs) {
      const float* const found = reinterpret_cast<const float*>(at(output.place));
      const char* const from = after[size_t(output.place.buffer)] + output.place.offset;
      double most = 0, missed = 0;
      for (int64_t i = 0; i < output.count; ++i) {
        float wanted;
        std::memcpy(&wanted, from + i * 4, 4);
        most = std::fmax(most, std::fabs(wanted));
        const double miss = std::fabs(double(found[i]) - double(wanted));
        missed = miss <= missed ? missed : miss;  // NaN stays
      }
      std::printf("largest value %g, largest difference %g\n", most, missed);
      if (!(most > 0 && missed <= tolerance * most)) return false;
    }
    return !outputs.empty();
  }
};

typedef void (*Run)(const engine::Call*, int64_t);
typedef int (*Team)(int, const int*);
typedef void (*Body)(const engine::Call&, engine::Member&);

}  // namespace

int main(int count, char** words) {
  if (count < 4) return 3;
  void* const library = need(dlopen(words[1], RTLD_NOW | RTLD_GLOBAL), words[1]);
  const Run run = reinterpret_cast<Run>(need(dlsym(library, "engine_run"), "engine_run"));
  const Team team = reinterpret_cast<Team>(need(dlsym(library, "engine_team"), "engine_team"));
  if (team(std::atoi(words[3]), nullptr) != 0) return 3;
  if (count == 4) {
    std::vector<float> values(40);
    engine::Call call{};
    call.body = reinterpret_cast<Body>(need(dlsym(library, words[2]), words[2]));
    call.tensor[0] = values.data();
    call.size[0] = 40;
    for (int i = 0; i < 100; ++i) run(&call, 1);
    return team(0, nullptr);
  }
  const Recording recording(words[2]);
  std::vector<engine::Call> calls;
  for (const Line& line : recording.lines) {
    engine::Call call{};
    call.body = reinterpret_cast<Body>(need(dlsym(library, line.symbol), line.symbol));
    for (int i = 0; i < 12; ++i) call.tensor[i] = recording.at(line.tensor[i]);
    std::memcpy(call.size, line.size, sizeof(call.size));
    std::memcpy(call.real, line.real, sizeof(call.real));
    calls.push_back(call);
  }
  const int times = std::atoi(words[4]);
  const double tolerance = count > 5 ? std::atof(words[5]) : 0;
  bool good = true;
  for (int i = 0; i < times && good; ++i) {
    run(calls.data(), int64_t(calls.size()));
    if (i == 0 || i == times - 1) good = tolerance > 0 ? recording.near(tolerance) : recording.same();
  }
  team(0, nullptr);
  std::printf("%zu calls over %zu buffers, %d times: %s\n", calls.size(), recording.buffers.size(), times,
              good ? "as recorded" : "not as recorded");
  return good ? 0 : 1;
}
