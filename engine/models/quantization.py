"""How quantised checkpoints are stored: one value, whoever wrote the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the linear layers of a checkpoint are stored. ``storage``: dtype of the stored weights, in the checkpoint's
    own flavour (``float8_e4m3fn``, ``int8``), or their four bits (``int4``, ``mxfp4``). ``weights``: one scale per
    ``tensor``, per output ``channel``, per ``block`` of ``block`` (rows, columns), or per ``group``, a block of one
    row. ``activations``: ``static`` (a scale in the checkpoint), ``token`` or ``group`` (of ``block[1]`` columns; made
    per step), or ``none`` (weights alone are quantised). ``ignored``: modules that are stored dense, by name or by
    ``re:`` pattern, as the checkpoint lists them. ``power_of_two``: scales are powers of two, those made per step too.
    ``kv_cache``: dtype for which the checkpoint brings scales of keys and values, or ``""``.

    ``weight``, ``scale`` and ``zero``: what these tensors are called behind their module's name; no zeros are ``""``.
    ``layout``: how values of four bits lie in whole numbers, ``plain`` where each has its own; see
    ``engine.weights.four_bits``. ``one_less``: stored zeros are one less than what they mean. ``ordered``: columns may
    lie in order of activation, so that the checkpoint has to say which group each is of."""

    method: str
    storage: str
    weights: Literal["tensor", "channel", "block", "group"]
    activations: Literal["none", "static", "token", "group"]
    block: tuple[int, int] | None = None
    ignored: tuple[str, ...] = ()
    power_of_two: bool = False
    scale: str = "weight_scale"
    kv_cache: str = ""
    layout: Literal["plain", "awq", "gptq", "rows", "pairs"] = "plain"
    weight: str = "weight"
    zero: str = ""
    one_less: bool = False
    ordered: bool = False

    @property
    def kind(self) -> str:
        """``float8``, ``int8``, ``int4`` or ``mxfp4``, whatever the flavour."""
        return self.storage.partition("_")[0]

    @property
    def packed(self) -> bool:
        """Whether several values share a whole number."""
        return self.layout != "plain"

    def group(self, columns: int) -> int:
        """Of ``columns`` in a row, how many share a scale."""
        return self.block[1] if self.block else columns

    def ignores(self, module: str) -> bool:
        """Whether ``module`` (``model.layers.0.mlp.down_proj``) is stored dense: some run of the parts of its name is
        listed (``lm_head``, ``mlp.gate``), or a pattern matches from the start of its name."""
        return _listed(self.ignored)(module)


@cache
def _listed(ignored: tuple[str, ...]) -> Callable[[str], bool]:
    patterns = [re.compile(entry[3:]) for entry in ignored if entry.startswith("re:")]
    listed = {entry for entry in ignored if not entry.startswith("re:")}

    @cache
    def check(module: str) -> bool:
        parts = module.split(".")
        ends = range(1, len(parts) + 1)
        runs = (".".join(parts[first:end]) for end in ends for first in range(end))
        return any(run in listed for run in runs) or any(pattern.match(module) for pattern in patterns)

    return check
