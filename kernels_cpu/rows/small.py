"""Norms, gates, quantisation and what else goes once over its rows."""

from __future__ import annotations

from kernels_cpu.predicates import SINGLE, native
from platforms.contract import DeviceProfile, Facts, Kernel, Predicate, Verdict, all_of, any_of, fact

_INT16 = all_of(
    SINGLE,
    fact("storage", lambda name: name == "int16", "int16"),
    fact("power_of_two", lambda rounded: not rounded, "scales as they are"),
)
_INT8 = all_of(SINGLE, fact("storage", lambda name: name == "int8", "int8"))
_MOST_TOKENS = 340_000
"""Of a vocabulary whose order fits the memory that a member of the team works in."""
_KNOWN_GELU = fact("approximate", lambda name: name in ("none", "tanh"), "none or tanh")


def _sampled(profile: DeviceProfile, facts: Facts) -> Verdict:
    found = (*facts.get("call_shapes", ()), ())[0]
    count = found[1] if len(found) > 1 else None
    if not isinstance(count, int):
        return Verdict(False, "the size of the vocabulary is unknown")
    text = f"a vocabulary of {count} tokens"
    return Verdict(True, text) if count <= _MOST_TOKENS else Verdict(False, f"{text}, more than {_MOST_TOKENS}")


def _family(module: str, *ops: str, plain: Predicate = SINGLE, stored: Predicate = _INT8) -> tuple[Kernel, ...]:
    """Each op, alone and with the quantisations behind it."""
    quantised = [f"{op}_quantize_{kind}" for op in ops for kind in ("static", "dynamic")]
    return (
        *(native(op, "native", f"{module}:{op}", accepts=plain) for op in ops),
        *(native(op, "native", f"{module}:{op}", accepts=stored) for op in quantised),
    )


ROWS: tuple[Kernel, ...] = (
    native("add", "native", "norm:add", accepts=SINGLE),
    *_family("norm", "rms_norm", "add_rms_norm"),
    *_family("gate", "silu_and_mul"),
    *_family("gate", "gelu_and_mul", plain=all_of(SINGLE, _KNOWN_GELU), stored=all_of(_INT8, _KNOWN_GELU)),
    native("quantize_static", "native", "quant:quantize_static", accepts=_INT8),
    native("quantize_dynamic", "native", "quant:quantize_dynamic", accepts=any_of(_INT8, _INT16)),
    native("argmax", "native", "sampling:argmax", accepts=SINGLE),
    native("mask", "native", "sampling:mask", accepts=SINGLE),
    native("penalize", "native", "sampling:penalize", accepts=SINGLE),
    native("draw", "native", "sampling:draw", accepts=_sampled),
    native("select_rows", "native", "select:select_rows"),
    native("split", "native", "select:split"),
)
