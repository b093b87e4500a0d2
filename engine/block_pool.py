"""The physical blocks of one cache group: who holds them, what they contain, which to reuse first."""

from __future__ import annotations

from collections import OrderedDict


class BlockPool:
    """Blocks ``0 .. size - 1`` with reference counts. Every operation is O(1).

    An idle block that carries a digest stays findable until it is reused. Idle blocks are reused in this order:
    those without a digest, then the least recently used.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._references = [0] * size
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(size))
        self._digests: dict[int, bytes] = {}
        self._blocks: dict[bytes, int] = {}

    @property
    def idle(self) -> int:
        """Blocks nobody holds."""
        return len(self._idle)

    def find(self, digest: bytes) -> int | None:
        """The block with this content, held or idle."""
        return self._blocks.get(digest)

    def is_idle(self, block: int) -> bool:
        return self._references[block] == 0

    def share(self, block: int) -> None:
        """One more holder of a block found by its digest."""
        if self.is_idle(block):
            del self._idle[block]
        self._references[block] += 1

    def take(self) -> int:
        """A block for new content; what it held is forgotten. The caller has checked ``idle``."""
        block, _ = self._idle.popitem(last=False)
        self._forget(block)
        self._references[block] = 1
        return block

    def spoil(self, block: int) -> None:
        """Nobody may find this block any more, held or idle."""
        if self._forget(block) and self.is_idle(block):
            self._idle.move_to_end(block, last=False)

    def give_back(self, block: int) -> None:
        """One holder less. Give back a table from its end, so that the start of a prefix outlives its end."""
        self._references[block] -= 1
        if self._references[block] == 0:
            self._idle[block] = None
            if block not in self._digests:
                self._idle.move_to_end(block, last=False)

    def register(self, block: int, digest: bytes) -> None:
        """Make a held block findable. A second block of equal content stays without a digest."""
        if digest not in self._blocks:
            self._blocks[digest] = block
            self._digests[block] = digest

    def _forget(self, block: int) -> bool:
        digest = self._digests.pop(block, None)
        if digest is None:
            return False
        del self._blocks[digest]
        return True
