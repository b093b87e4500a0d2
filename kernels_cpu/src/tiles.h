// The tile registers of AMX, while a member of the team multiplies with them.
#pragma once
#include "simd.h"

#if defined(ENGINE_TILES)
namespace engine {

// Rows and bytes of a row of each register.
struct __attribute__((packed)) Shapes {
  uint8_t palette = 1, first = 0, reserved[14] = {};
  uint16_t columns[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t count, int64_t nbytes) {
    rows[tile] = uint8_t(count);
    columns[tile] = uint16_t(nbytes);
  }
};

struct Registers {
  explicit Registers(const Shapes& shapes) {
    // GCC takes the instruction to read eight bytes of it.
    asm volatile("" ::"m"(shapes));
    _tile_loadconfig(&shapes);
  }
  ~Registers() { _tile_release(); }
  Registers(const Registers&) = delete;
};

}  // namespace engine
#endif
