"""For which sizes of steps graphs are captured, and what becomes of those that could not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.levels import PERFORMANCE_MODES
from engine.plan.backend import GRAPHS
from engine.plan.capture_sizes import DEFAULT_CAP, capture_sizes
from engine.plan.drafting import decode_tokens
from engine.plan.graph_modes import PARTS, kinds
from engine.plan.ledger import Ledger
from engine.plan.pieces import SIZES as COMPILED
from engine.plan.uncaptured import Failed, Left, left, listed, told
from engine.plan_values import LEANING, Decision

SIZES, LARGEST = "compilation.capture_sizes", "compilation.max_capture_size"
CAP, STEP = "compilation.capture_cap", "compilation.capture_step"


def decide_captures(ledger: Ledger, graphs: Decision, failed: Failed) -> tuple[int, ...]:
    """Settles graph mode and sizes; the sizes are decided even where nothing is captured, so that the reason can be
    read. Returns the sizes that are wanted, those of failed graphs among them. ``graphs``: what device and
    kernels can serve; ``failed``: what could not be captured at start. Raises ``UserError`` for sizes that no step has
    or that contradict each other, and where what a user asked for could not be captured."""
    _check(ledger)
    found, reason, origin = _wanted(ledger, graphs.value)
    _check_served(ledger, graphs, found)
    wanted = tuple(found) if graphs.value != "NONE" else ()
    if wanted and failed:
        rest = left(graphs.value, found, _requests(ledger), failed)
        graphs, reason = _without_failed(ledger, graphs, rest, reason)
        found = list(rest.sizes)
    mode = ledger.settle(graphs)
    asked = [key for key in (SIZES, LARGEST) if ledger.user(key) is not None]
    idle = f"graph mode {mode}: none is captured" if mode == "NONE" else ""
    if idle and asked:
        ledger.warnings.append(f"capture sizes were given, but nothing is captured: {idle}.")
    values: tuple[object, ...] = (found if asked or not idle else [], max(found, default=0) if asked or not idle else 0)
    for key, value, why in zip((SIZES, LARGEST), values, (reason, "the largest capture size"), strict=True):
        if key in asked:
            wish = ledger.wish(key)
            ledger.settle(Decision(key, wish.value if key == LARGEST else value, wish.origin, idle or "asked for"))
        else:
            ledger.settle(Decision(key, value, origin if key == SIZES and not idle else "derived", idle or why))
    _check_padding(ledger, mode, found)
    return wanted


def _check_served(ledger: Ledger, graphs: Decision, sizes: Sequence[int]) -> None:
    """Raises ``UserError`` for sizes that a user named and the graph mode has no graph for."""
    beyond = [size for size in sizes if not _kinds(ledger, graphs.value, size)]
    if graphs.value == "NONE" or ledger.user(SIZES) is None or not beyond:
        return
    mode = ledger.asked(GRAPHS) if ledger.user(GRAPHS) is not None else f"graph mode {graphs.value} ({graphs.reason})"
    raise UserError(
        f"{ledger.asked(SIZES)} cannot be served for {listed(beyond)} beside {mode}, which captures decode steps "
        f"alone, of at most {_requests(ledger)} tokens (max_num_seqs). Leave them out, or raise --max-num-seqs."
    )


def _kinds(ledger: Ledger, mode: str, size: int) -> tuple[str, ...]:
    return kinds(mode, size, _requests(ledger))


def _requests(ledger: Ledger) -> int:
    requests: int = ledger.decisions["scheduler.max_num_seqs"].value
    return requests


def _check(ledger: Ledger) -> None:
    tokens = ledger.decisions["scheduler.max_num_batched_tokens"].value
    sizes, maximum = ledger.user(SIZES), ledger.user(LARGEST)
    for key, size in ((LARGEST, maximum), (SIZES, max(sizes or [0]))):
        if size and size > tokens:
            raise UserError(
                f"{ledger.asked(key)} cannot be served: a step has at most {tokens} tokens "
                "(max_num_batched_tokens). Lower it, or raise --max-num-batched-tokens."
            )
    if sizes and maximum and max(sizes) != maximum:
        raise UserError(
            f"{ledger.asked(SIZES)} and {ledger.asked(LARGEST)} contradict each other: the largest size must be the "
            "maximum."
        )


def _wanted(ledger: Ledger, mode: str) -> tuple[list[int], str, str]:
    """Sizes, why these, and who says so."""
    sizes, maximum, requests = ledger.user(SIZES), ledger.user(LARGEST), _requests(ledger)
    cap, step = ledger.wish(CAP, DEFAULT_CAP), ledger.wish(STEP)
    tokens = ledger.decisions["scheduler.max_num_batched_tokens"].value
    if sizes:
        return sorted(set(sizes)), "asked for", ledger.wish(SIZES).origin
    leaning, query = ledger.decisions["performance_mode"].value, decode_tokens(ledger.decisions)
    every = PERFORMANCE_MODES[leaning].every
    found = capture_sizes(requests, tokens, maximum, cap.value, query, step.value, every)
    reason, origin = "from max_capture_size" if maximum else "from max_num_seqs", "derived"
    if query > 1 and not maximum:
        reason = f"{reason} of {query} tokens, drafts included"
    if step.value:
        reason, origin = f"{reason}: {step.reason}", step.origin
    if every:
        reason, origin = f"{leaning}: {PERFORMANCE_MODES[leaning].purpose}; the rest {reason}", LEANING
    served = [size for size in found if _kinds(ledger, mode, size)]
    return served or found, reason, origin


def _without_failed(ledger: Ledger, graphs: Decision, rest: Left, reason: str) -> tuple[Decision, str]:
    """The mode that is left and why these sizes. Never silent, and a user's own wish is served or refused."""
    if rest.gone:
        lost = "; ".join(f"no {kind} graph could be captured ({told(why)})" for kind, why in rest.gone.items())
        if ledger.user(GRAPHS) is not None:
            raise UserError(
                f"{ledger.asked(GRAPHS)} cannot be served: {lost}. Use {BY_KEY[GRAPHS].flag}={rest.mode}, or drop the "
                "flag to take what can be captured."
            )
        asked = graphs.reason if graphs.origin == "derived" else f"{graphs.reason} asks for {graphs.value}"
        graphs = Decision(GRAPHS, rest.mode, "derived", f"{asked}; {lost}")
    _check_asked_sizes(ledger, rest)
    if rest.dropped:
        reason += f"; could not be captured: {told({size: _kinds_told(why) for size, why in rest.dropped.items()})}"
    ledger.warnings += [
        f"{kind} graphs could not be captured for steps of {told(why)}. Such steps run the next larger {kind} graph, a "
        "lesser kind where there is none, or no graph."
        for kind, why in rest.partly.items()
    ]
    return graphs, reason


def _check_asked_sizes(ledger: Ledger, rest: Left) -> None:
    """Raises ``UserError`` where a size that a user named is captured for nothing, or not for a graph mode that the
    user named too."""
    lost = {size: dict(why) for size, why in rest.dropped.items()}
    if ledger.user(GRAPHS) is not None:
        for kind, why in rest.partly.items():
            for size, text in why.items():
                lost.setdefault(size, {})[kind] = text
    key = SIZES if ledger.user(SIZES) is not None else LARGEST
    named = set(lost) if key == SIZES else {size for size in lost if size == ledger.user(LARGEST)}
    if ledger.user(key) is None or not named:
        return
    size = max(named)
    beside = f" with {ledger.asked(GRAPHS)}" if ledger.user(GRAPHS) is not None else ""
    raise UserError(
        f"{ledger.asked(key)}{beside} cannot be served: steps of {listed([size])} could not be captured "
        f"({_kinds_told(lost[size])}). Leave {size} out, or drop the flag to capture what can be."
    )


def _kinds_told(reasons: Mapping[str, str]) -> str:
    return ", ".join(f"{kind}: {why}" for kind, why in reasons.items())


def _check_padding(ledger: Ledger, graphs: str, captured: Sequence[int]) -> None:
    """Compiled sizes that steps never have, since they are padded to a captured one: a warning, and ``UserError`` where
    a user named the captured ones too."""
    if "NONE" in PARTS[graphs] or not captured:
        return
    padded = [size for size in ledger.user(COMPILED) or () if isinstance(size, int)]
    padded = [size for size in padded if size <= captured[-1] and size not in captured]
    if not padded:
        return
    why = f"no step has {', '.join(map(str, padded))} tokens, as steps are padded to the next of capture_sizes"
    if ledger.user(SIZES) is not None:
        raise UserError(
            f"{ledger.asked(COMPILED)} and {ledger.asked(SIZES)} contradict each other: {why}. Name the same sizes, or "
            "drop one of the two."
        )
    ledger.warnings.append(f"{ledger.asked(COMPILED)}: {why}.")
