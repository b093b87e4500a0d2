"""The core's state where any number of front ends can read it: a block of memory, written after every step."""

from __future__ import annotations

import multiprocessing
import zlib

import msgspec

from engine.batch import Stats

SLOT_BYTES = 1 << 15
TRIES = 1000
_HEAD = 8


class Board:
    """Made before the processes that share it. A reader sees a state as a whole, and never one that is older than what
    another reader has seen before. One writer, who never changes the state that is shown: it fills the other of two
    places and then shows that one."""

    def __init__(self) -> None:
        self._memory = multiprocessing.get_context("spawn").RawArray("B", 1 + 2 * SLOT_BYTES)
        self.write(Stats(0, 0, 0.0, 0, 0, 0, 0, 0, 0))

    def write(self, stats: Stats) -> None:
        body = msgspec.msgpack.encode(stats)
        other = 1 - self._memory[0]
        at = 1 + other * SLOT_BYTES
        head = len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little")
        memoryview(self._memory).cast("B")[at : at + _HEAD + len(body)] = head + body
        self._memory[0] = other

    def read(self) -> Stats:
        """The latest state."""
        memory = memoryview(self._memory).cast("B")
        for _ in range(TRIES):  # a reader that sleeps while two states are written starts again
            at = 1 + memory[0] * SLOT_BYTES
            length, check = (int.from_bytes(memory[at + word : at + word + 4], "little") for word in (0, 4))
            body = bytes(memory[at + _HEAD : at + _HEAD + length])
            if zlib.crc32(body) == check:
                return msgspec.msgpack.decode(body, type=Stats)
        raise RuntimeError("the core's state cannot be read")
