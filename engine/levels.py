"""What each ``-O`` level asks for, as data: no value of the table is a callable. Standard library only.

A level is a set of defaults: each of its values can be given by hand, and a value given by hand is never overwritten.
Whether a rule that a level turns on acts on a device is for the platform's predicates to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Level:
    """One row. ``mode`` and ``graph_mode``: what is requested, before the device and the model have their say.
    ``rules``: fusion rules whose own level is at most this one are on. ``tuning``: ``library`` lets kernel libraries
    tune themselves, ``measured`` also chooses between kernels by measuring. ``rounding``: kernels that round their
    operands to narrower types are taken."""

    number: int
    mode: str
    graph_mode: str
    rules: int
    tuning: Literal["none", "library", "measured"]
    purpose: str
    rounding: bool = False

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Canonical key → value for every setting that a level decides, fusion rules aside."""
        return {
            "compilation.mode": self.mode,
            "compilation.graph_mode": self.graph_mode,
            "kernel_config.autotune": self.tuning != "none",
            "kernel_config.rounding": self.rounding,
        }


LEVELS: tuple[Level, ...] = (
    Level(0, "NONE", "NONE", 0, "none", "start at once; debugging"),
    Level(1, "PIECEWISE", "PIECEWISE", 1, "library", "quick start with the local fusions"),
    Level(2, "PIECEWISE", "FULL_AND_PIECEWISE", 2, "library", "serving"),
    Level(
        3,
        "PIECEWISE",
        "FULL_AND_PIECEWISE",
        3,
        "measured",
        "long runs: slower start, kernels chosen by measuring, those that round among them",
        rounding=True,
    ),
)

DEFAULT_LEVEL = 2


@dataclass(frozen=True, slots=True)
class PerformanceMode:
    """What defaults lean to, whatever the level. ``factor``: of requests and tokens in a step. ``every``: graphs are
    captured for every size up to this."""

    factor: int
    every: int
    purpose: str


PERFORMANCE_MODES: Mapping[str, PerformanceMode] = MappingProxyType(
    {
        "balanced": PerformanceMode(1, 0, "defaults as they are"),
        "interactivity": PerformanceMode(1, 32, "a graph for every step of up to 32 tokens"),
        "throughput": PerformanceMode(2, 0, "twice the requests and tokens in a step"),
    }
)
TUNING: Mapping[str, str] = MappingProxyType(
    {
        "none": "kernels keep the tiles of their tables",
        "library": "kernels that can choose their own tiles by measuring do so at start",
        "measured": "kernels choose their own tiles, and rows of an op are measured beside each other, at start",
    }
)
"""What each kind of tuning does."""

FUSIONS: tuple[str, ...] = (
    "fuse_norm_quant",
    "fuse_act_quant",
    "fuse_act_padding",
    "fuse_mla_dual_rms_norm",
    "fuse_allreduce_rms",
    "fuse_rope_kvcache",
    "fuse_qk_norm_rope_kvcache",
    "fuse_rope_kvcache_cat_mla",
    "fuse_attn_quant",
    "enable_qk_norm_rope_fusion",
    "enable_sp",
    "fuse_gemm_comms",
)
"""Names users know, in ``compilation.pass_config``: by level, then those that only a user turns on, then those that are
not built."""

USER_ONLY: Mapping[str, str] = MappingProxyType(
    {
        "fuse_attn_quant": "it takes attention out of the pieces and so trades piecewise graphs for one saved pass",
        "enable_qk_norm_rope_fusion": "faster on some shapes only; no measurement of ours makes it worth a level",
    }
)
"""Rule → why no level turns it on."""

NOT_BUILT: Mapping[str, str] = MappingProxyType(
    {
        "enable_sp": "not built: programs are cut over ranks by heads and columns, none by tokens",
        "fuse_gemm_comms": "not built: no product is cut so that its parts could travel while the next is computed",
    }
)
"""Names that users know, without a rule: refused where a user turns one on → why."""


def describe(rules: Mapping[str, int | None]) -> list[dict[str, str]]:
    """The table of documentation and help, one row per level: ``level mode graph_mode fusions tuning purpose``, and two
    last rows for the rules that only a user turns on and for names without a rule. ``rules``: name → its level, or
    ``None``."""
    rows = []
    for level in LEVELS:
        added = ", ".join(name for name, lowest in rules.items() if lowest == level.number)
        above = "as above" if level.number > 1 else ""
        rows.append(
            {
                "level": f"-O{level.number}" + (" (default)" if level.number == DEFAULT_LEVEL else ""),
                "mode": level.mode,
                "graph_mode": level.graph_mode,
                "fusions": ", and ".join(part for part in (above, added) if part) or "none",
                "tuning": level.tuning,
                "purpose": level.purpose,
            }
        )
    by_hand = ", ".join(name for name, lowest in rules.items() if lowest is None and name not in NOT_BUILT)
    others = {"only by hand": by_hand, "not built": ", ".join(name for name in rules if name in NOT_BUILT)}
    return [*rows, *(dict.fromkeys(rows[0], "") | {"level": who, "fusions": names} for who, names in others.items())]
