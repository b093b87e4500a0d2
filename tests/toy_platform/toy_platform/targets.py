"""The chips that were made, from their data sheet."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from platforms.contract import DeviceProfile

_SHEET = "Toy data sheet"
_KIB, _MIB = 1 << 10, 1 << 20


def _chip(generation: int, scratch: int, head_dim: int, memory: int, *features: str) -> DeviceProfile:
    return DeviceProfile(
        platform="toy",
        arch=f"gen{generation}",
        family=f"toy-gen{generation}",
        product=f"Toy {generation}000",
        memory_bytes=memory,
        origin="described",
        features=frozenset({"dtype.float32", *features}),
        limits={"scratch_bytes": scratch, "tile_rows": 12, "head_dim": head_dim},
        libraries={"torch": "2.13.0"},
        evidence={
            "features": f"{_SHEET}, table 1",
            "limits": f"{_SHEET}, table 2",
            "memory_bytes": f"{_SHEET}, page 1",
            "libraries": "assumed installed",
        },
    )


TARGETS: Mapping[str, DeviceProfile] = MappingProxyType(
    {
        "gen1": _chip(1, 24 * _KIB, 64, 1536 * _MIB),
        "gen2": _chip(2, 96 * _KIB, 128, 3072 * _MIB, "graph.capture"),
    }
)
