"""Compile mode and graph mode: what is requested, and what device and kernels can serve of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.levels import Level
from engine.plan.backend import BACKEND, CUSTOM_OPS, GRAPHS, MODE, WHOLE, Compilers
from engine.plan.graph_modes import PARTS, Support, Surroundings, effective, least, without_pieces
from engine.plan.kernels import REFERENCE, Chooser
from engine.plan.ledger import Ledger
from engine.plan.pieces import SPLITTING, looks_at_requests
from engine.plan_values import Decision, KernelChoice
from platforms.contract import Verdict


def decide_mode(ledger: Ledger, level: Level, compilers: Compilers) -> Decision:
    """Settles eager and the compile mode; returns the graph mode asked for, before kernels are known. Where one rules
    the other out, the one of higher precedence stands. Raises ``UserError`` naming both flags where two explicit ones
    contradict each other, or one cannot be served."""
    ledger.own("enforce_eager")
    mode, graphs = _requested(ledger, level, ledger.decisions["enforce_eager"])
    compiler = compilers.serve(mode.value, ledger.user(BACKEND))
    if mode.value in WHOLE:
        mode = replace(mode, reason=f"{mode.reason}: {WHOLE[mode.value]}")
    ledger.settle(_served(ledger, mode, compiler))
    if ledger.decisions[MODE].value == "PIECEWISE" or "PIECEWISE" not in PARTS[graphs.value]:
        return graphs
    if ledger.user(GRAPHS) is not None:
        raise UserError(
            f"{ledger.asked(GRAPHS)} cannot be served: it needs compiled pieces, and {compiler.reason}. Use "
            f"{BY_KEY[GRAPHS].flag}=NONE, or drop the flag to take what the device offers."
        )
    reason = f"{graphs.reason} asks for {graphs.value}; {compiler.reason}"
    return Decision(GRAPHS, without_pieces(graphs.value), "derived", reason)


def _requested(ledger: Ledger, level: Level, eager: Decision) -> tuple[Decision, Decision]:
    if eager.value:
        for key in (MODE, GRAPHS):
            if ledger.user(key) not in (None, "NONE"):
                raise UserError(
                    f"{ledger.asked('enforce_eager')} and {ledger.asked(key)} contradict each other; drop one."
                )
            ledger.wish(key)
        mode, graphs = (Decision(key, "NONE", eager.origin, "enforce_eager") for key in (MODE, GRAPHS))
        return mode, graphs
    mode, graphs = (ledger.wish(key, level.defaults[key], "level", f"-O{level.number}") for key in (MODE, GRAPHS))
    if "PIECEWISE" not in PARTS[graphs.value]:
        return mode, graphs
    if mode.value == "PIECEWISE":
        return mode, _beside_splitting(ledger, graphs)
    if ledger.rank(mode) == ledger.rank(graphs) == 2:
        raise UserError(
            f"{ledger.asked(GRAPHS)} needs compiled pieces, and {ledger.asked(MODE)} makes none; "
            "use -cc.mode=PIECEWISE, or a graph mode without pieces."
        )
    if ledger.rank(graphs) > ledger.rank(mode):
        return Decision(MODE, "PIECEWISE", "derived", f"graph mode {graphs.value} needs compiled pieces"), graphs
    why = _less(graphs, f"mode {mode.value} makes no pieces")
    return mode, Decision(GRAPHS, without_pieces(graphs.value), "derived", why)


def _beside_splitting(ledger: Ledger, graphs: Decision) -> Decision:
    """Without splitting ops there is one piece with attention in it, so graphs are full or none."""
    splitting = ledger.wish(SPLITTING)
    if splitting.value is None or list(splitting.value) or ledger.rank(graphs) > ledger.rank(splitting):
        return graphs
    if ledger.user(GRAPHS) is not None:
        raise UserError(
            f"{ledger.asked(GRAPHS)} needs pieces, and {ledger.asked(SPLITTING)} cuts none; give the ops to cut at, or "
            "a graph mode without pieces."
        )
    rest = "FULL" if graphs.value == "FULL_AND_PIECEWISE" else "NONE"
    return Decision(GRAPHS, rest, "derived", f"{graphs.value}, but no splitting op cuts pieces")


def _served(ledger: Ledger, wanted: Decision, backend: Verdict) -> Decision:
    """The mode that a backend can serve: an explicit one or an exit, a default one or NONE with the reason."""
    key = wanted.key
    if wanted.value == "NONE" or backend:
        return wanted
    if ledger.user(key) is not None:
        raise UserError(
            f"{ledger.asked(key)} cannot be served: {backend.reason}. Use {BY_KEY[key].flag}=NONE, or drop "
            "the flag to take what the device offers."
        )
    return Decision(key, "NONE", "derived", _less(wanted, backend.reason))


def _less(wanted: Decision, why: str) -> str:
    """Why less than ``wanted`` is decided; what was derived before has said who asked for what."""
    asked = wanted.reason if wanted.origin == "derived" else f"{wanted.reason} asks for {wanted.value}"
    return f"{asked}; {why}"


def decide_graphs(
    ledger: Ledger,
    wanted: Decision,
    capture: Verdict,
    between: Collection[str],
    kernels: Sequence[KernelChoice],
    chooser: Chooser,
) -> Decision:
    """The graph mode that device and kernels can serve, not settled yet. ``between``: ops that stand between pieces.
    Raises ``UserError`` where a user asked for more."""
    if wanted.value == "NONE" or not capture:
        return _served(ledger, wanted, capture)
    around = surroundings(between, kernels, chooser)
    mode, why = effective(wanted.value, around)
    if mode == wanted.value:
        return wanted
    if behind := [ledger.asked(key) for key in _behind(ledger, why, around.pieces)]:
        why += f", given {' and '.join(behind)}"
    if ledger.user(GRAPHS) is not None:
        raise UserError(
            f"{ledger.asked(GRAPHS)} cannot be served: {why}. Use {BY_KEY[GRAPHS].flag}={mode}, or drop the flag "
            "to take what the kernels offer."
        )
    return Decision(GRAPHS, mode, "derived", _less(wanted, why))


def _behind(ledger: Ledger, why: str, pieces: bool) -> Iterator[str]:
    """Keys of a user's own wishes that the reason ``why`` follows from."""
    if not pieces and ledger.user(SPLITTING) is not None:
        yield SPLITTING
    if ledger.user("kernels") == REFERENCE and f"({REFERENCE})" in why:
        yield "kernels"
    if any(f"{op} (" in why for op in ledger.user("kernel_pins") or ()):
        yield "kernel_pins"
    if any(word[0] == "-" and f"{word[1:]} (" in why for word in ledger.user(CUSTOM_OPS) or ()):
        yield CUSTOM_OPS


def foreseen(
    ledger: Ledger, wanted: Decision, capture: Verdict, kernels: Sequence[KernelChoice], chooser: Chooser
) -> str:
    """The graph mode that kernels may be chosen for: ``NONE`` where the device or the plain program's kernels rule out
    every graph, so that none is chosen for the sake of graphs that are not captured."""
    if wanted.value == "NONE" or not capture:
        return "NONE"
    called = {row.op for row in kernels}
    splitting = ledger.wish(SPLITTING).value
    if splitting is None:
        splitting = [op for op in called if looks_at_requests(op, chooser)]
    between = called & set(splitting) if ledger.decisions[MODE].value == "PIECEWISE" else set()
    mode, _ = effective(wanted.value, surroundings(between, kernels, chooser))
    return wanted.value if mode != "NONE" else mode


def surroundings(between: Collection[str], kernels: Sequence[KernelChoice], chooser: Chooser) -> Surroundings:
    """What the chosen kernels declare about capture. ``between``: ops that stand between pieces, none where no pieces
    are made."""
    apart = [row for row in kernels if row.op in between or looks_at_requests(row.op, chooser)]
    unsafe = [
        f"{row.op} ({row.chosen}) cannot be captured"
        for row in kernels
        if row not in apart and _support(row, chooser) == "never"
    ]
    split = bool(between) and all(row.op in between for row in apart)
    support = least(_support(row, chooser) for row in apart)
    who = ", ".join(
        dict.fromkeys(f"{row.op} ({row.chosen})" for row in apart if _support(row, chooser) == support)
    )
    return Surroundings(support, split, "; ".join(dict.fromkeys(unsafe)), who=who)


def _support(choice: KernelChoice, chooser: Chooser) -> Support:
    row = next((row for row in chooser.rows if (row.op, row.name) == (choice.op, choice.chosen)), None)
    if row is None:
        return "never" if chooser.ops[choice.op].host_reads else "any"
    return row.graph_batches if row.graph_safe else "never"
