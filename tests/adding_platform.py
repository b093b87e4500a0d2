"""The active platform as one with norms of its own: a residual and the norm after it are one call, by a rule that the
catalog does not have."""

from engine.fusion import fused_op
from engine.ops import OPS
from platforms.contract import Kernel
from platforms.fusions import ADD_NORM, ADDED_NORMS
from tests.strange_platform import SELECTION, Stranger

rms_norm = OPS["rms_norm"].reference
add_rms_norm = fused_op(ADD_NORM).reference


def off(x, y, weight, *, eps):
    """Norms what was not added."""
    return rms_norm(x, weight, eps=eps), x + y


class Adding(Stranger):
    name, api, kind = SELECTION.plugin.name, SELECTION.plugin.api, SELECTION.plugin.kind

    def __init__(self, target="add_rms_norm"):
        rows = (("rms_norm", "rms_norm"), ("add_rms_norm", target))
        super().__init__(tuple(Kernel(op, "own", f"{__name__}:{name}") for op, name in rows), ADDED_NORMS)


class Misled(Adding):
    def __init__(self):
        super().__init__("off")
