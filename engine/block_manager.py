"""Paged KV bookkeeping: block tables, one pool per cache group, prefix sharing. No tensors here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine.block_pool import BlockPool
from engine.prefix_cache import ROOT, block_digest


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table: ``num_blocks`` blocks of ``block_size`` tokens."""

    num_blocks: int
    block_size: int


@dataclass(slots=True)
class BlockTable:
    """What one request holds: per cache group the physical blocks in logical order. A list of them only grows: a
    release puts a new one in its place.

    ``keys``: its encoded extra keys. ``digests`` name the full blocks of its token history, computed when needed; they
    outlive a release because a history only grows.
    """

    keys: bytes
    blocks: tuple[list[int], ...]
    digests: tuple[list[bytes], ...]
    registered: list[int] = field(default_factory=list)


class BlockManager:
    """Hands out KV blocks. Every allocation is all or nothing, over all groups.

    ``groups``: a tuple of ``CacheGroup``, or a number of groups that are all ``num_blocks`` of ``block_size``.
    ``queries`` and ``hits`` count tokens looked up and found in the prefix cache.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        groups: int | tuple[CacheGroup, ...] = 1,
    ) -> None:
        self.groups = groups if isinstance(groups, tuple) else (CacheGroup(num_blocks, block_size),) * groups
        self.enable_prefix_caching = enable_prefix_caching
        self.queries = 0
        self.hits = 0
        self._pools = tuple(BlockPool(group.num_blocks) for group in self.groups)
        self._unit = math.lcm(*(group.block_size for group in self.groups))

    @property
    def capacity(self) -> int:
        """Tokens that the whole cache can hold for one request."""
        return min(group.num_blocks * group.block_size for group in self.groups)

    @property
    def free_blocks(self) -> int:
        """Blocks nobody holds, in the group that has fewest."""
        return min(pool.idle for pool in self._pools)

    @property
    def usage(self) -> float:
        """Share of all blocks that are held, 0 to 1."""
        return 1 - sum(pool.idle for pool in self._pools) / sum(pool.size for pool in self._pools)

    def new_table(self, keys: bytes) -> BlockTable:
        """An empty table; ``keys`` from ``prefix_cache.encode_keys``."""
        return BlockTable(keys, tuple([] for _ in self.groups), tuple([] for _ in self.groups), [0] * len(self.groups))

    def find_cached(self, table: BlockTable, tokens: list[int]) -> int:
        """How many leading tokens are in the prefix cache: whole blocks, and at most ``len(tokens) - 1``, because the
        last token must be computed to have its logits. Changes nothing but ``table.digests``."""
        found = len(tokens) - 1 if self.enable_prefix_caching else 0
        for index, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            hits, limit = 0, found // group.block_size
            while hits < limit and pool.find(self._digest(table, index, tokens, hits)) is not None:
                hits += 1
            found = min(found, hits * group.block_size)
        return found // self._unit * self._unit

    def admit(self, table: BlockTable, tokens: list[int], cached: int, spare: int = 0) -> bool:
        """Fill an empty table with blocks for all of ``tokens``, the first ``cached`` of them shared.

        ``cached`` is what ``find_cached`` has just answered, or 0. False, and nothing taken, unless ``spare`` blocks
        would stay free.
        """
        shared: list[list[int]] = []
        for index, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            hits = [pool.find(digest) for digest in table.digests[index][: cached // group.block_size]]
            blocks = [block for block in hits if block is not None]
            assert len(blocks) * group.block_size == cached
            fresh = _ceil(len(tokens), group.block_size) - len(blocks)
            if fresh + spare > pool.idle - sum(pool.is_idle(block) for block in blocks):
                return False
            shared.append(blocks)
        for index, (pool, blocks) in enumerate(zip(self._pools, shared, strict=True)):
            for block in blocks:
                pool.share(block)
            table.blocks[index].extend(blocks)
            table.registered[index] = len(blocks)
        return self.extend(table, len(tokens))

    def extend(self, table: BlockTable, total: int, spare: int = 0) -> bool:
        """Lengthen a table to hold ``total`` tokens. False, and nothing taken, unless ``spare`` blocks would stay
        free."""
        for group, blocks in zip(self.groups, table.blocks, strict=True):
            if len(blocks) * group.block_size < total:
                break
        else:
            return True
        missing = [
            max(_ceil(total, group.block_size) - len(blocks), 0)
            for group, blocks in zip(self.groups, table.blocks, strict=True)
        ]
        if any(count + spare > pool.idle for count, pool in zip(missing, self._pools, strict=True)):
            return False
        for count, pool, blocks in zip(missing, self._pools, table.blocks, strict=True):
            blocks.extend(pool.take() for _ in range(count))
        return True

    def register(self, table: BlockTable, tokens: list[int], computed: int) -> None:
        """Make the full blocks among the first ``computed`` of ``tokens`` findable by other requests."""
        if not self.enable_prefix_caching:
            return
        for index, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            full = computed // group.block_size
            for block in range(table.registered[index], full):
                pool.register(table.blocks[index][block], self._digest(table, index, tokens, block))
            table.registered[index] = max(full, table.registered[index])

    def release(self, table: BlockTable) -> None:
        """Give back every block of a table. Full registered blocks stay findable until they are reused."""
        for index, pool in enumerate(self._pools):
            for block in reversed(table.blocks[index]):
                pool.give_back(block)
            table.registered[index] = 0
        table.blocks = tuple([] for _ in self.groups)

    def spoil(self, blocks: tuple[list[int], ...]) -> None:
        """What these blocks (per group, held or idle) contain may be wrong: nobody finds them from now on."""
        for pool, several in zip(self._pools, blocks, strict=True):
            for block in several:
                pool.spoil(block)

    def held(self, table: BlockTable) -> int:
        """Tokens that the table has room for."""
        return min(len(blocks) * group.block_size for group, blocks in zip(self.groups, table.blocks, strict=True))

    def count_lookup(self, queried: int, found: int) -> None:
        """Add one lookup to the counters, in tokens."""
        self.queries += queried
        self.hits += found

    def _digest(self, table: BlockTable, index: int, tokens: list[int], block: int) -> bytes:
        digests, size = table.digests[index], self.groups[index].block_size
        while len(digests) <= block:
            start = len(digests) * size
            parent = digests[-1] if digests else ROOT
            digests.append(block_digest(parent, tokens[start : start + size], table.keys))
        return digests[block]


def _ceil(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
