"""Who makes code of a program: what a device can serve of a compile mode, by which backend, and which ops leave their
reference in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from engine import compat
from engine.errors import UserError
from engine.models.config import ModelConfig
from engine.ops import Op
from engine.plan.kernels import REFERENCE
from engine.plan.ledger import Ledger
from engine.plan_values import Decision
from platforms.contract import DeviceProfile, Facts, Verdict, any_of, feature

MODE, GRAPHS = "compilation.mode", "compilation.graph_mode"
BACKEND, CUSTOM_OPS = "compilation.backend", "compilation.custom_ops"
GENERATOR, UNCOMPILED, NATIVE = "inductor", "eager", "native"
FEATURE = "compile."
PIECES, GENERATES = any_of(feature(FEATURE + GENERATOR), feature(FEATURE + NATIVE)), feature(FEATURE + GENERATOR)
CAPTURES = feature("graph.capture")
WHOLE: Mapping[str, str] = MappingProxyType(
    {
        "STOCK_TORCH_COMPILE": "torch.compile takes every run of plain calls, without cache and fusions of ours",
        "DYNAMO_TRACE_ONCE": "torch.compile traces every run of plain calls once and drops its guards, without cache "
        "and fusions of ours",
    }
)
"""Modes that cut nothing, and what they do."""


@dataclass(frozen=True, slots=True)
class Compilers:
    """``pieces``: whether pieces of a program can be made on a device; ``generator``: whether torch's code generator
    works there."""

    pieces: Verdict
    generator: Verdict

    @classmethod
    def of(cls, profile: DeviceProfile, facts: Facts) -> Compilers:
        generator = GENERATES(profile, facts)
        why = profile.evidence.get(f"features.{FEATURE}{GENERATOR}", "")
        if why and not generator:
            generator = Verdict(False, f"{generator.reason}: {why}")
        return cls(PIECES(profile, facts), generator)

    def serve(self, mode: str, asked: str | None) -> Verdict:
        """Whether a mode can be had. ``asked``: the backend that a user names."""
        if asked == GENERATOR or (mode in WHOLE and asked is None):
            return self.generator
        if mode in WHOLE or asked == UNCOMPILED:
            return Verdict(True, f"backend {asked} needs no code generator of the device")
        return self.pieces


def decide_custom_ops(
    ledger: Ledger, mode: str, model: ModelConfig, profile: DeviceProfile, compilers: Compilers
) -> tuple[str, ...]:
    """Which ops may leave their reference: canonical names behind ``all`` or ``none``. The decision keeps a user's own
    words."""
    backend = _decide_backend(ledger, mode, profile, compilers)
    generated = mode != "NONE" and backend == GENERATOR
    what = "pieces" if mode not in WHOLE else "program"
    why = f"a code generator compiles the {what}" if generated else f"no code generator compiles the {what}"
    wish = ledger.wish(CUSTOM_OPS, [])
    chosen = [name for word in wish.value for name in _canonical(word)]
    if not {"all", "none"} & set(chosen):
        chosen.insert(0, "none" if generated else "all")
    blocks = model.quantization is not None and model.quantization.weights == "block"
    if blocks and "none" in chosen and not {"+quantize_dynamic", "-quantize_dynamic"} & set(chosen):
        # No code generator knows the scale layouts that block-scaled products take.
        chosen.append("+quantize_dynamic")
        why += "; block-scaled products take their activations from a kernel"
    if wish.origin == "platform":
        wish = Decision(wish.key, chosen, wish.origin, f"{wish.reason}; {why}")
    elif ledger.user(wish.key) is None:
        wish = Decision(wish.key, chosen, "derived", why)
    ledger.settle(wish)
    return tuple(chosen)


def _decide_backend(ledger: Ledger, mode: str, profile: DeviceProfile, compilers: Compilers) -> str:
    """Raises ``UserError`` for a backend that cannot make what the mode needs. Those of torch are taken where torch
    compiles the whole program."""
    theirs = ledger.platform(BACKEND)
    named = [name.removeprefix(FEATURE) for name in sorted(profile.features) if name.startswith(FEATURE)]
    own = [name for name in (*named, theirs) if name and name != GENERATOR]
    usual = GENERATOR if compilers.generator or not own else own[0]
    reason = "the code generator of torch.compile" if usual == GENERATOR else "the device's own"
    wish = ledger.wish(BACKEND, usual, reason=reason)
    asked = ledger.user(BACKEND) is not None
    known = list(dict.fromkeys((*named, UNCOMPILED, *own, GENERATOR)))
    if asked and mode == "PIECEWISE" and wish.value not in known:
        raise UserError(
            f"{ledger.asked(BACKEND)} cannot be served in mode {mode}: pieces are compiled by {', '.join(known)}."
        )
    if mode in WHOLE and wish.value in own:
        if asked:
            raise UserError(
                f"{ledger.asked(BACKEND)} cannot be served in mode {mode}: {wish.value} makes pieces, and this mode "
                f"takes a backend of torch.compile, such as {GENERATOR}. Drop one of the two."
            )
        wish = Decision(BACKEND, GENERATOR, "derived", f"mode {mode} takes a backend of torch.compile")
    backend: str = ledger.settle(wish)
    return backend


def _canonical(word: str) -> list[str]:
    names = compat.OPERATIONS.get(word[1:], (word[1:],)) if word[0] in "+-" else ()
    return [word[0] + name for name in names] or [word]


def check_operations(ledger: Ledger, custom_ops: Sequence[str], ops: Mapping[str, Op], pins: Mapping[str, str]) -> None:
    """A warning for names that no op has. Raises ``UserError`` for an op that a user both holds to its reference and
    pins to a row."""
    for op, name in pins.items():
        if name != REFERENCE and f"-{op}" in custom_ops and ledger.user(CUSTOM_OPS) is not None:
            raise UserError(f"{ledger.asked(CUSTOM_OPS)} and --kernel {op}={name} contradict each other; drop one.")
    unknown = [name for name in custom_ops if name[1:] not in ops and name not in ("all", "none")]
    if unknown:
        have = ", ".join(sorted(ops))
        ledger.warnings.append(f"custom_ops names {', '.join(unknown)}: no such op; this engine has {have}")
