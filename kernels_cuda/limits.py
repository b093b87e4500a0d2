"""How much one fused all-reduce may carry, by architecture and group size. Standard library only.

The figures are those users know from vLLM 0.32, measured there: above them a plain all-reduce with a norm behind it is
faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MIB = 1 << 20

ALL_REDUCE_BYTES: Mapping[tuple[str, int], int] = MappingProxyType(
    {
        ("sm_90", 2): 64 * MIB,
        ("sm_90", 4): 2 * MIB,
        ("sm_90", 8): MIB // 2,
        ("sm_100", 2): 64 * MIB,
        ("sm_100", 4): 32 * MIB,
        ("sm_100", 8): MIB,
        ("sm_100", 16): 64 * MIB,
        ("sm_103", 2): 64 * MIB,
        ("sm_103", 4): 64 * MIB,
        ("sm_103", 8): 4 * MIB,
        ("sm_103", 16): 64 * MIB,
    }
)
"""Architecture and ranks → bytes of the tensor that is summed. A pair that is not here has no fused form."""

ONE_SHOT_BYTES: Mapping[tuple[str, int], int] = MappingProxyType(
    {
        ("sm_90", 2): 32 * MIB,
        ("sm_90", 4): 2 * MIB,
        ("sm_90", 8): MIB // 2,
        ("sm_100", 2): 32 * MIB,
        ("sm_100", 4): 4 * MIB,
        ("sm_100", 8): MIB,
        ("sm_103", 2): 32 * MIB,
        ("sm_103", 4): 4 * MIB,
        ("sm_103", 8): 2 * MIB,
    }
)
"""Up to here every rank reads all the others in one pass; above, each sums a part and hands it out."""
