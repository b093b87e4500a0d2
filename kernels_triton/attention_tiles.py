"""Sizes of attention's tiles: per family of archs, kind of step, type and size of head. Nothing is measured here; every
entry is one that spills no register on its archs."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tile:
    """``rows``: of queries (token × head of a group), ``keys``: of one pass of the loop. ``chunk``: columns of
    queries and keys that products of scores take at a time, in a loop, where a head has more than that."""

    rows: int
    keys: int
    warps: int
    stages: int = 1
    chunk: int = 512


# Padded size of a head at most → tile.
Sizes = dict[int, Tile]


@dataclass(frozen=True, slots=True)
class Family:
    """``decode``: one new token per request; ``mixed``: some have more; ``prompt``: most rows of a 128-row tile are
    filled; ``exact``: float32, which not every matrix unit takes.
    ``units``: what runs programs side by side, of the smallest device of the family that is sold as a server's."""

    decode: Sizes
    mixed: Sizes
    prompt: Sizes
    exact: Sizes
    units: int


_EXACT = {64: Tile(16, 32, 4), 128: Tile(16, 16, 4), 256: Tile(16, 16, 8)}
_EXACT_NVIDIA = _EXACT | {256: Tile(16, 16, 4)}
_SMALL = Family(
    decode={64: Tile(16, 64, 4, 2), 128: Tile(16, 32, 4, 2), 256: Tile(16, 32, 4)},
    mixed={64: Tile(64, 64, 4), 128: Tile(64, 32, 4), 256: Tile(64, 32, 8)},
    prompt={64: Tile(128, 64, 8), 128: Tile(64, 32, 4), 256: Tile(64, 32, 8)},
    exact=_EXACT_NVIDIA,
    units=84,
)
_GEFORCE = replace(_SMALL, exact=_EXACT_NVIDIA | {256: Tile(16, 16, 4, chunk=32)})
_SERVER = Family(
    decode={64: Tile(16, 128, 4, 2), 128: Tile(16, 64, 4, 2), 256: Tile(16, 32, 4, 2)},
    mixed={64: Tile(64, 64, 4, 2), 128: Tile(64, 64, 4, 2), 256: Tile(64, 32, 8, 2)},
    prompt={64: Tile(128, 64, 8, 2), 128: Tile(128, 64, 8, 2), 256: Tile(64, 32, 8, 2)},
    exact=_EXACT_NVIDIA,
    units=132,
)
_AMPERE = replace(
    _SERVER,
    decode=_SERVER.decode | {128: Tile(16, 64, 8, 2)},
    mixed=_SERVER.mixed | {128: Tile(64, 32, 4, 2)},
    prompt=_SERVER.prompt | {128: Tile(128, 32, 8, 2)},
    units=108,
)
_BLACKWELL = replace(
    _SERVER,
    decode=_SERVER.decode | {256: Tile(16, 16, 4, 2)},
    mixed=_SERVER.mixed | {128: Tile(64, 64, 8, 2)},
)
_CDNA = Family(
    decode={64: Tile(16, 64, 4), 128: Tile(16, 64, 4), 256: Tile(16, 32, 4)},
    mixed={64: Tile(64, 64, 4), 128: Tile(64, 32, 4), 256: Tile(64, 32, 4)},
    prompt={64: Tile(128, 64, 4), 128: Tile(128, 32, 4), 256: Tile(64, 32, 4)},
    exact=_EXACT,
    units=256,
)
_RDNA4 = Family(
    decode={64: Tile(16, 32, 4), 128: Tile(16, 16, 4), 256: Tile(16, 16, 8)},
    mixed={64: Tile(64, 32, 4), 128: Tile(64, 16, 8), 256: Tile(64, 16, 8, chunk=64)},
    prompt={64: Tile(64, 32, 4), 128: Tile(64, 16, 8), 256: Tile(64, 16, 8, chunk=64)},
    exact={64: Tile(16, 32, 8, chunk=32), 128: Tile(16, 16, 4, chunk=32), 256: Tile(16, 16, 8, chunk=32)},
    units=64,
)
_RDNA3 = replace(
    _RDNA4,
    decode=_RDNA4.decode | {256: Tile(16, 32, 8, chunk=64)},
    mixed=_RDNA4.mixed | {128: Tile(64, 16, 8, chunk=64), 256: Tile(64, 16, 8, chunk=32)},
    prompt=_RDNA4.prompt | {128: Tile(64, 16, 8, chunk=64), 256: Tile(64, 16, 8, chunk=32)},
)
"""Of matrix operands its threads hold twice as much."""

FAMILIES = {
    "sm_80": _AMPERE,
    "sm_90": _SERVER,
    "sm_10": _BLACKWELL,
    "sm_12": _GEFORCE,
    "sm_": _SMALL,
    "gfx9": _CDNA,
    "gfx11": _RDNA3,
    "gfx": _RDNA4,
}
"""Arch, or what it begins with → its family; the first that fits. Others get the smallest tiles."""


def family(arch: str) -> Family:
    return next((sizes for start, sizes in FAMILIES.items() if arch.startswith(start)), _SMALL)
