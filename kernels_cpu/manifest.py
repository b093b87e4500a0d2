"""The host platform's table of kernels, and the fusions they make worth offering. Standard library only."""

from __future__ import annotations

from platforms.contract import DeviceProfile, Facts, FusionOffer, Kernel, Predicate, Verdict, all_of, always

_FLOATING = ("float32", "bfloat16", "float16")


def _floats(*known: str, alike: bool) -> Predicate:
    """Every floating input has one of the ``known`` types; ``alike``: all of them the same one."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        found = sorted({name for name in facts.get("call_dtypes", ()) if "float" in name})
        text = f"floating inputs are {' and '.join(found) or 'none'}"
        if not found or not set(found) <= set(known):
            return Verdict(False, f"{text}, needs {' or '.join(known)}")
        if alike and len(found) > 1:
            return Verdict(False, f"{text}, needs one type for all")
        return Verdict(True, text)

    return check


def _unscaled(inputs: int) -> Predicate:
    """The call has no scales of keys and values behind its ``inputs``."""

    def check(profile: DeviceProfile, facts: Facts) -> Verdict:
        given = len(facts.get("call_dtypes", ()))
        return Verdict(given <= inputs, "no scales of keys and values" if given <= inputs else "scales keys and values")

    return check


def _uncapped(profile: DeviceProfile, facts: Facts) -> Verdict:
    cap = facts.get("softcap", 0.0)
    return Verdict(not cap, f"scores are capped at {cap}" if cap else "scores are not capped")


_ALIKE, _MIXED, _SINGLE = (
    _floats(*_FLOATING, alike=True),
    _floats(*_FLOATING, alike=False),
    _floats("float32", alike=True),
)


def _row(op: str, name: str, module: str, **more: object) -> Kernel:
    return Kernel(op, name, f"kernels_cpu.{module}:{op}", priority=10, **more)  # type: ignore[arg-type]


KERNELS: tuple[Kernel, ...] = (
    _row("attention", "torch_grouped", "attention", accepts=all_of(_ALIKE, _unscaled(5), _uncapped)),
    _row("linear", "torch_transposed", "linear", accepts=_ALIKE, pack="kernels_cpu.linear:pack"),
    _row("rms_norm", "torch_fused", "norm", accepts=_SINGLE),
    _row("rotary_kv_write", "torch_inplace", "rotary", accepts=all_of(_MIXED, _unscaled(6))),
    _row("silu_and_mul", "torch_inplace", "activation", accepts=_SINGLE),
    _row("gelu_and_mul", "torch_inplace", "activation", accepts=_SINGLE),
)

OFFERS: tuple[FusionOffer, ...] = (FusionOffer("fuse_rope_kvcache", always("one pass over keys instead of two")),)
