"""Where a program is cut into pieces, and the settings that act on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.errors import UserError
from engine.fusion import parse
from engine.plan.backend import BACKEND, GENERATOR, GRAPHS, MODE, WHOLE, Compilers
from engine.plan.graph_modes import PARTS
from engine.plan.kernels import Chooser
from engine.plan.ledger import Ledger
from engine.plan_values import Decision, KernelChoice
from platforms.contract import FusionRule

SPLITTING, ENDPOINTS = "compilation.splitting_ops", "compilation.compile_ranges_endpoints"
SIZES, CACHE, DUMP = "compilation.compile_sizes", "compilation.cache_dir", "compilation.debug_dump_path"
BUNDLE = "compilation.kernel_bundle"
PIECE_KEYS = (BACKEND, SPLITTING, SIZES, ENDPOINTS, CACHE)
IDLE = "nothing is compiled"
REQUESTS = "starts"
"""Tensor that only ops take which look at requests: attention, between the pieces."""


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
    return tuple(ledger.user(ENDPOINTS) or ()) if mode == "PIECEWISE" else ()


def decide_pieces(
    ledger: Ledger,
    mode: str,
    compilers: Compilers,
    ends: Sequence[int],
    kernels: Sequence[KernelChoice],
    chooser: Chooser,
    rules: Sequence[FusionRule],
) -> tuple[str, ...]:
    """Settings that act on compiled pieces only; returns the ops that stand between pieces, a fused one where one of
    its parts does. Raises ``UserError`` where a setting was given and no compiler is there; where a user chose to
    compile nothing, a warning says that it has no effect."""
    _check_idle(ledger, mode, compilers)
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
    ledger.decide(CACHE, None, "default", "below ENGINE_CACHE_ROOT")
    ledger.decide(DUMP, None, "default", "nothing is written")
    ledger.own(BUNDLE, None, "kernels are compiled when first used")
    return tuple(sorted(between))


def _check_idle(ledger: Ledger, mode: str, compilers: Compilers) -> None:
    backend = ledger.decisions[BACKEND].value
    for key in PIECE_KEYS:
        if ledger.user(key) is None:
            continue
        refusal = compilers.serve("PIECEWISE", ledger.user(BACKEND))
        if mode == "NONE" and not refusal and ledger.user(MODE) is None:
            raise UserError(f"{ledger.asked(key)} cannot be served: {IDLE} ({refusal.reason}).")
        why = ""
        if mode == "NONE":
            why = IDLE
        elif mode in WHOLE and key != BACKEND:
            why = f"mode {mode} cuts no pieces" + (" and keeps none" if key == CACHE else "")
        elif mode == "PIECEWISE" and backend != GENERATOR and key in (SIZES, ENDPOINTS, CACHE):
            why = f"backend {backend} generates no code"
        if why:
            ledger.warnings.append(f"{ledger.asked(key)} has no effect: {why}.")


def _decide_splitting(
    ledger: Ledger, mode: str, kernels: Sequence[KernelChoice], chooser: Chooser, rules: Sequence[FusionRule]
) -> frozenset[str]:
    called = {row.op for row in kernels}
    ends = sorted(op for op in called if looks_at_requests(op, chooser)) if mode == "PIECEWISE" else []
    why = "ops that look at requests" if ends else f"mode {mode} cuts no pieces"
    wish = ledger.wish(SPLITTING, ends, "derived", why)
    between = _holding(wish.value, called, rules) if mode == "PIECEWISE" else frozenset()
    if wish.origin == "platform" and "PIECEWISE" in PARTS.get(ledger.user(GRAPHS), ()) and not set(ends) <= between:
        wish, between = Decision(SPLITTING, ends, "derived", f"{ledger.asked(GRAPHS)} needs them"), frozenset(ends)
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
