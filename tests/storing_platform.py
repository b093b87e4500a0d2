"""The active platform as one whose device multiplies 8-bit weights as they are stored: every fused op is its
reference."""

from dataclasses import replace

from engine.fusion import RULES, all_ops
from platforms.contract import FusionOffer, Kernel, always
from tests.strange_platform import SELECTION, Stranger

FUSED = sorted({rule.op for rule in RULES if rule.name in ("fuse_norm_quant", "fuse_act_quant")})
OFFERED = ("fuse_norm_quant", "fuse_act_quant")
_OPS = all_ops(RULES)
globals().update({op: _OPS[op].reference for op in FUSED})


def _able(profile):
    return replace(profile, features=profile.features | {"dtype.fp8_e4m3fn", "dtype.int8"})


class Storing(Stranger):
    name, api, kind = SELECTION.plugin.name, SELECTION.plugin.api, SELECTION.plugin.kind

    def __init__(self):
        rows = tuple(Kernel(op, "composed", f"{__name__}:{op}") for op in FUSED)
        super().__init__(rows, tuple(FusionOffer(name, always("yes")) for name in OFFERED))

    def probe(self):
        found = SELECTION.plugin.probe()
        return replace(found, profiles=tuple(map(_able, found.profiles)))

    def open(self, index):
        opened = super().open(index)
        profile, kind = _able(opened.profile), type(opened)
        opened.__class__ = type(kind.__name__, (kind,), {"profile": profile})
        return opened
