"""Compile mode, graph mode and what belongs to them: which ops leave their reference, where pieces end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine import compat
from engine.config.fields import BY_KEY
from engine.errors import UserError
from engine.levels import Level
from engine.models.config import ModelConfig
from engine.ops import Op
from engine.plan.graph_modes import PARTS, Support, Surroundings, effective, least, without_pieces
from engine.plan.kernels import Chooser
from engine.plan.ledger import Ledger
from engine.plan_values import Decision, KernelChoice
from platforms.contract import Verdict

MODE, GRAPHS, SPLITTING = "compilation.mode", "compilation.graph_mode", "compilation.splitting_ops"
BACKEND, ENDPOINTS = "compilation.backend", "compilation.compile_ranges_endpoints"
PIECE_KEYS = (BACKEND, SPLITTING, "compilation.compile_sizes", ENDPOINTS, "compilation.debug_dump_path")
GENERATOR = "inductor"
REQUESTS = "starts"
"""Tensor that only ops take which look at requests: attention, between the pieces."""


def decide_mode(ledger: Ledger, level: Level, compiler: Verdict) -> Decision:
    """Settles eager and the compile mode; returns the graph mode asked for, before kernels are known. Where one rules
    the other out, the one of higher precedence stands. Raises ``UserError`` naming both flags where two explicit ones
    contradict each other, or one cannot be served."""
    eager = ledger.wish("enforce_eager")
    ledger.settle(eager)
    mode, graphs = _requested(ledger, level, eager)
    _settle_served(ledger, mode, compiler)
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
    why = f"{graphs.value}, but mode {mode.value} makes no pieces"
    return mode, Decision(GRAPHS, without_pieces(graphs.value), "derived", why)


def _beside_splitting(ledger: Ledger, graphs: Decision) -> Decision:
    """Without splitting ops there is one piece with attention in it, so graphs are full or none."""
    if ledger.user(SPLITTING) is None or list(ledger.user(SPLITTING)):
        return graphs
    if ledger.user(GRAPHS) is not None:
        raise UserError(
            f"{ledger.asked(GRAPHS)} needs pieces, and {ledger.asked(SPLITTING)} cuts none; give the ops to cut at, or "
            "a graph mode without pieces."
        )
    rest = "FULL" if graphs.value == "FULL_AND_PIECEWISE" else "NONE"
    return Decision(GRAPHS, rest, "derived", f"{graphs.value}, but no splitting op cuts pieces")


def _settle_served(ledger: Ledger, wanted: Decision, backend: Verdict) -> str:
    """The mode that a backend can serve: an explicit one or an exit, a default one or NONE with the reason."""
    key = wanted.key
    if wanted.value == "NONE" or backend:
        return ledger.settle(wanted)
    if ledger.user(key) is not None:
        raise UserError(
            f"{ledger.asked(key)} cannot be served: {backend.reason}. Use {BY_KEY[key].flag}=NONE, or drop "
            "the flag to take what the device offers."
        )
    return ledger.settle(Decision(key, "NONE", "derived", f"{wanted.reason} asks for {wanted.value}; {backend.reason}"))


def decide_custom_ops(ledger: Ledger, mode: str, model: ModelConfig) -> tuple[str, ...]:
    """Which ops may leave their reference: canonical names behind ``all`` or ``none``. The decision keeps a user's own
    words."""
    backend = ledger.decide(BACKEND, GENERATOR, reason="the code generator of torch.compile")
    generated = mode != "NONE" and backend == GENERATOR
    why = "a code generator compiles the pieces" if generated else "no code generator compiles the pieces"
    wish = ledger.wish("compilation.custom_ops", [])
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


def _canonical(word: str) -> list[str]:
    names = compat.OPERATIONS.get(word[1:], (word[1:],)) if word[0] in "+-" else ()
    return [word[0] + name for name in names] or [word]


def check_operations(ledger: Ledger, custom_ops: Sequence[str], ops: Mapping[str, Op]) -> None:
    """A warning for names that no op has."""
    unknown = [name for name in custom_ops if name[1:] not in ops and name not in ("all", "none")]
    if unknown:
        have = ", ".join(sorted(ops))
        ledger.warnings.append(f"custom_ops names {', '.join(unknown)}: no such op; this engine has {have}")


def user_ends(ledger: Ledger, mode: str) -> tuple[int, ...]:
    """Where a user wants ranges of compiled sizes to end."""
    return tuple(ledger.user(ENDPOINTS) or ()) if mode != "NONE" else ()


def decide_pieces(
    ledger: Ledger, mode: str, compiler: Verdict, ends: Sequence[int], kernels: Sequence[KernelChoice], chooser: Chooser
) -> None:
    """Settings that act on compiled pieces only. Raises ``UserError`` where one was given and no compiler is there;
    where a user chose to compile nothing, a warning says that it has no effect."""
    idle = "nothing is compiled"
    for key in PIECE_KEYS:
        if mode == "NONE" and ledger.user(key) is not None:
            if not compiler and key != "compilation.debug_dump_path" and ledger.user(MODE) is None:
                raise UserError(f"{ledger.asked(key)} cannot be served: {idle} ({compiler.reason}).")
            ledger.warnings.append(f"{ledger.asked(key)} has no effect: {idle}.")
    cut = sorted({row.op for row in kernels if _requests(row, chooser)}) if mode == "PIECEWISE" else []
    ledger.decide(SPLITTING, cut, "derived", "ops that look at requests" if cut else f"mode {mode} cuts no pieces")
    if mode == "NONE":
        reason = idle
    else:
        reason = "steps of these sizes run different programs" if len(ends) > 1 else "one program for every size"
    if ledger.user(ENDPOINTS) is None:
        ledger.decide(ENDPOINTS, list(ends) if mode != "NONE" else [], "derived", reason)
    for key in (ENDPOINTS, "compilation.compile_sizes"):
        if key not in ledger.decisions:
            ledger.decide(key, [], "derived", idle if mode == "NONE" else "default")
    ledger.decide("compilation.debug_dump_path", None, "derived", idle if mode == "NONE" else "default")


def decide_graphs(
    ledger: Ledger, wanted: Decision, capture: Verdict, kernels: Sequence[KernelChoice], chooser: Chooser
) -> str:
    """The graph mode that device and kernels can serve. Raises ``UserError`` where a user asked for more."""
    if wanted.value == "NONE" or not capture:
        return _settle_served(ledger, wanted, capture)
    mode, why = effective(wanted.value, surroundings(ledger, kernels, chooser))
    if mode == wanted.value:
        return ledger.settle(wanted)
    if ledger.user(GRAPHS) is not None:
        raise UserError(
            f"{ledger.asked(GRAPHS)} cannot be served: {why}. Use {BY_KEY[GRAPHS].flag}={mode}, or drop the flag "
            "to take what the kernels offer."
        )
    return ledger.settle(Decision(GRAPHS, mode, "derived", f"{wanted.reason} asks for {wanted.value}; {why}"))


def surroundings(ledger: Ledger, kernels: Sequence[KernelChoice], chooser: Chooser) -> Surroundings:
    """What the chosen kernels declare about capture."""
    cut = set(ledger.decisions[SPLITTING].value)
    inside = [row for row in kernels if row.op not in cut and not _requests(row, chooser)]
    unsafe = [f"{row.op} ({row.chosen}) cannot be captured" for row in inside if _support(row, chooser) == "never"]
    between = [row for row in kernels if row.op in cut or _requests(row, chooser)]
    split = ledger.decisions[MODE].value == "PIECEWISE" and all(row.op in cut for row in between)
    return Surroundings(least(_support(row, chooser) for row in between), split, "; ".join(dict.fromkeys(unsafe)))


def _support(choice: KernelChoice, chooser: Chooser) -> Support:
    row = next((row for row in chooser.rows if (row.op, row.name) == (choice.op, choice.chosen)), None)
    if row is None:
        return "never" if chooser.ops[choice.op].host_reads else "any"
    return row.graph_batches if row.graph_safe else "never"


def _requests(choice: KernelChoice, chooser: Chooser) -> bool:
    return REQUESTS in chooser.ops[choice.op].tensors
