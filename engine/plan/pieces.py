"""Pieces of a program that are compiled: which ops leave their reference in them, where they end, for which sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from engine import compat
from engine.errors import UserError
from engine.fusion import parse
from engine.models.config import ModelConfig
from engine.ops import Op
from engine.plan.graph_modes import PARTS
from engine.plan.kernels import REFERENCE, Chooser
from engine.plan.ledger import Ledger
from engine.plan_values import Decision, KernelChoice
from platforms.contract import DeviceProfile, FusionRule, Verdict

MODE, GRAPHS, SPLITTING = "compilation.mode", "compilation.graph_mode", "compilation.splitting_ops"
BACKEND, ENDPOINTS = "compilation.backend", "compilation.compile_ranges_endpoints"
SIZES, CUSTOM_OPS = "compilation.compile_sizes", "compilation.custom_ops"
PIECE_KEYS = (BACKEND, SPLITTING, SIZES, ENDPOINTS, "compilation.debug_dump_path")
GENERATOR, UNCOMPILED = "inductor", "eager"
IDLE = "nothing is compiled"
REQUESTS = "starts"
"""Tensor that only ops take which look at requests: attention, between the pieces."""


def decide_custom_ops(ledger: Ledger, mode: str, model: ModelConfig, profile: DeviceProfile) -> tuple[str, ...]:
    """Which ops may leave their reference: canonical names behind ``all`` or ``none``. The decision keeps a user's own
    words."""
    backend = _decide_backend(ledger, mode, profile)
    generated = mode != "NONE" and backend == GENERATOR
    why = "a code generator compiles the pieces" if generated else "no code generator compiles the pieces"
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


def _decide_backend(ledger: Ledger, mode: str, profile: DeviceProfile) -> str:
    """Raises ``UserError`` for a code generator of pieces that nobody has. The other modes take what torch knows."""
    theirs = ledger.platform(BACKEND)
    backend = ledger.decide(BACKEND, GENERATOR, reason="the code generator of torch.compile")
    known = [*(name[8:] for name in sorted(profile.features) if name.startswith("compile.")), UNCOMPILED]
    known += [name for name in (theirs, GENERATOR) if name and name not in known]
    if mode == "PIECEWISE" and ledger.user(BACKEND) is not None and backend not in known:
        raise UserError(
            f"{ledger.asked(BACKEND)} cannot be served in mode {mode}: pieces are compiled by {', '.join(known)}."
        )
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


def check_sizes(ledger: Ledger, most: int) -> None:
    """Raises ``UserError`` for a compiled size that no step has. ``most``: tokens of the largest step."""
    for key in (SIZES, ENDPOINTS):
        beyond = [size for size in ledger.user(key) or () if isinstance(size, int) and size > most]
        if beyond:
            raise UserError(
                f"{ledger.asked(key)} cannot be served: a step has at most {most} tokens (max_num_batched_tokens). "
                "Lower it, or raise --max-num-batched-tokens."
            )


def user_ends(ledger: Ledger, mode: str) -> tuple[int, ...]:
    """Where a user wants ranges of compiled sizes to end."""
    return tuple(ledger.user(ENDPOINTS) or ()) if mode != "NONE" else ()


def decide_pieces(
    ledger: Ledger,
    mode: str,
    compiler: Verdict,
    ends: Sequence[int],
    kernels: Sequence[KernelChoice],
    chooser: Chooser,
    rules: Sequence[FusionRule],
) -> frozenset[str]:
    """Settings that act on compiled pieces only; returns the ops that stand between pieces, a fused one where one of
    its parts does. Raises ``UserError`` where a setting was given and no compiler is there; where a user chose to
    compile nothing, a warning says that it has no effect."""
    _check_idle(ledger, mode, compiler)
    between = _decide_splitting(ledger, mode, kernels, chooser, rules)
    if mode == "NONE":
        reason = IDLE
    else:
        reason = "steps of these sizes run different programs" if len(ends) > 1 else "one program for every size"
    if ledger.user(ENDPOINTS) is None:
        ledger.settle(Decision(ENDPOINTS, list(ends) if mode != "NONE" else [], "derived", reason))
    for key in (ENDPOINTS, SIZES):
        if key not in ledger.decisions:
            ledger.decide(key, [], "derived", IDLE if mode == "NONE" else "default")
    ledger.decide("compilation.debug_dump_path", None, "derived", IDLE if mode == "NONE" else "default")
    return between


def _check_idle(ledger: Ledger, mode: str, compiler: Verdict) -> None:
    for key in PIECE_KEYS:
        if ledger.user(key) is None or mode == "PIECEWISE":
            continue
        if mode == "NONE" and not compiler and key != "compilation.debug_dump_path" and ledger.user(MODE) is None:
            raise UserError(f"{ledger.asked(key)} cannot be served: {IDLE} ({compiler.reason}).")
        if mode == "NONE" or key == SPLITTING:
            why = IDLE if mode == "NONE" else f"mode {mode} cuts no pieces"
            ledger.warnings.append(f"{ledger.asked(key)} has no effect: {why}.")


def _decide_splitting(
    ledger: Ledger, mode: str, kernels: Sequence[KernelChoice], chooser: Chooser, rules: Sequence[FusionRule]
) -> frozenset[str]:
    called = {row.op for row in kernels}
    cut = sorted(op for op in called if looks_at_requests(op, chooser)) if mode == "PIECEWISE" else []
    wish = ledger.wish(SPLITTING, cut, "derived", "ops that look at requests" if cut else f"mode {mode} cuts no pieces")
    between = _holding(wish.value, called, rules) if mode == "PIECEWISE" else frozenset()
    if wish.origin == "platform" and "PIECEWISE" in PARTS.get(ledger.user(GRAPHS), ()) and not set(cut) <= between:
        wish, between = Decision(SPLITTING, cut, "derived", f"{ledger.asked(GRAPHS)} needs them"), frozenset(cut)
    ledger.settle(wish)
    parts = {op for op in called} | {step.op for rule in rules if rule.op in called for step in parse(rule)}
    unknown = [name for name in wish.value if name not in parts]
    if unknown and mode == "PIECEWISE":
        ledger.warnings.append(f"splitting_ops names {', '.join(unknown)}: the plan has no call of that name")
    return between


def _holding(names: Collection[str], called: Collection[str], rules: Sequence[FusionRule]) -> frozenset[str]:
    """Those of ``called`` that are among ``names``, or that were made of one that is."""
    made = {rule.op for rule in rules if any(step.op in names for step in parse(rule))}
    return frozenset(op for op in called if op in names or op in made)


def looks_at_requests(op: str, chooser: Chooser) -> bool:
    return REQUESTS in chooser.ops[op].tensors
