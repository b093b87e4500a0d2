"""Faults of a kernel table: the platforms. The kernels lie beside it."""

from __future__ import annotations

import itertools
from typing import Any

from broken_platform.base import Broken
from platforms.contract import DeviceProfile, Facts, Kernel, Verdict

_CALLS = itertools.count()


def _float32(profile: DeviceProfile, facts: Facts) -> Verdict:
    found = sorted({name for name in facts.get("call_dtypes", ()) if "float" in name})
    return Verdict(found == ["float32"], f"floating inputs are {found}")


def _anything(profile: DeviceProfile, facts: Facts) -> Verdict:
    return Verdict(True, "any call")


def _plain_yes(profile: DeviceProfile, facts: Facts) -> Any:
    return True


def _fickle(profile: DeviceProfile, facts: Facts) -> Verdict:
    return Verdict(next(_CALLS) % 2 == 0, "it depends")


def _plugin(function: str, op: str = "rms_norm", module: str = "broken_platform.kernels", **more: Any) -> type[Broken]:
    row = Kernel(op, "broken", f"{module}:{function}", **{"accepts": _float32, "priority": 10, **more})

    class Faulty(Broken):
        def kernels(self) -> tuple[Kernel, ...]:
            return (row,)

    return Faulty


Wrong = _plugin("wrong")
WrongBeyond2048 = _plugin("wrong_beyond_2048")
WrongAt64 = _plugin("wrong_at_64")
WrongFused = _plugin("forgets_values", "rotary_kv_write")
Missing = _plugin("wrong", module="broken_platform.nowhere")
OtherSignature = _plugin("other_signature")
PlainYes = _plugin("right", accepts=_plain_yes)
Fickle = _plugin("right", accepts=_fickle)
TakesTooMuch = _plugin("right", accepts=_anything)
WritesBeside = _plugin("writes_beside")
ChangesInput = _plugin("changes_input")
NotTwice = _plugin("not_twice")
Packed = _plugin("packed")
PackChanges = _plugin("right", pack="broken_platform.kernels:pack")
LooksInGraph = _plugin("looks")
