"""Which row of the table computes a call, and what every other row said."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import UserError
from engine.ops import GENERATED, OPS, Op, Spec
from engine.plan.ledger import Ledger
from engine.plan.rounding import may_round
from engine.plan.times import Rounds, fastest, figure
from engine.plan_values import KernelChoice, digest
from engine.program import Call, Program, Value, Weight
from platforms.contract import DeviceProfile, Facts, Kernel, Predicate, Verdict

REFERENCE = "reference"
BROKEN = (Exception, SystemExit)
"""What strangers' code may raise without being more than broken."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """Everything a choice depends on. ``pins``: op → row asked for by a user; ``custom_ops``: which ops may leave their
    reference (``none`` holds back what a code generator does as well; a fused op exists for its kernel);
    ``refused``: (op, row) → what went wrong at first touch; ``reference_only``: ``--kernels reference``; ``times``:
    (op, row or ``reference``, call as ``describe`` words it) → seconds of its rounds."""

    profile: DeviceProfile
    facts: Facts
    rows: tuple[Kernel, ...]
    ops: Mapping[str, Op]
    pins: Mapping[str, str]
    custom_ops: tuple[str, ...]
    refused: Mapping[tuple[str, str], str]
    reference_only: bool
    times: Mapping[tuple[str, str, str], Rounds] = field(default_factory=dict)

    def check_pins(self) -> None:
        """Raises ``UserError`` for a pin on an op or row that does not exist."""
        for op, name in self.pins.items():
            if op not in self.ops:
                near = difflib.get_close_matches(op, self.ops, 3) or sorted(self.ops)
                raise UserError(f"--kernel {op}={name}: no op is called {op!r}. Known ones near it: {', '.join(near)}.")
            names = [row.name for row in self.rows if row.op == op] + [REFERENCE]
            if name not in names:
                raise UserError(
                    f"--kernel {op}={name}: {op} has no row {name!r} on this platform; it has {', '.join(names)}."
                )

    def choose(self, call: Call, specs: tuple[Spec, ...], count: int = 1) -> KernelChoice:
        """The first row in order, or one that was measured faster beyond chance. Raises ``UserError`` where
        a pinned row says no, or where two rows of equal priority both say yes."""
        text, pin = describe(call, specs), self.pins.get(call.op, "")
        facts = {**self.facts, **call.attributes, **call_facts(specs)}
        considered = tuple((row.name, self._verdict(row, facts)) for row in self._table(call.op))
        willing = [row for row, (_, verdict) in zip(self._table(call.op), considered, strict=True) if verdict]

        def made(row: Kernel | None, reason: str) -> KernelChoice:
            name, target = (row.name, row.target) if row else (REFERENCE, "")
            return KernelChoice(call.op, text, count, name, target, reason, considered)

        if pin == REFERENCE:
            return made(None, "asked for with --kernel")
        if pin:
            verdict = dict(considered)[pin]
            if not verdict:
                raise UserError(
                    f"--kernel {call.op}={pin} cannot be served: {verdict.reason}. Call: {text}. "
                    "Drop the flag to let the plan choose."
                )
            return made(next(row for row in willing if row.name == pin), "asked for with --kernel")
        if self.reference_only:
            return made(None, "asked for with --kernels reference")
        allowed = self._allowed(call.op)
        if not allowed:
            return made(None, allowed.reason)
        rivals = self._rivals(call.op, willing)

        def settled(row: Kernel | None, reason: str) -> KernelChoice:
            return self._measured(replace(made(row, reason), rivals=rivals), willing)

        front = [row for row in willing if row.priority >= 0]
        said = "; ".join(f"{name}: {verdict.reason}" for name, verdict in considered if not verdict)
        if not front and willing and not self.facts.get("batch_invariant"):
            names = " and ".join(row.name for row in willing)
            behind = f"{names} would do, behind the reference unless pinned or measured faster"
            return settled(None, f"{behind}; {said}" if said else behind)
        if not willing:
            return made(None, said or "the platform has no row for it")
        first, *others = front or willing
        if others and first.priority == others[0].priority:
            raise UserError(
                f"kernels {first.name} and {others[0].name} of {call.op} share priority "
                f"{first.priority} and both accept {text}; pin one with --kernel {call.op}=NAME."
            )
        reason = dict(considered)[first.name].reason
        return settled(first, reason if front else f"{reason}; batch_invariant rules the reference out")

    def _rivals(self, op: str, willing: Iterable[Kernel]) -> tuple[str, ...]:
        """Who may be measured beside each other, in order. The reference is left out where it would not run as it is
        measured: fused with its neighbours by a code generator, or of a fused op, whose calls would be separate ones;
        and where batch invariance rules it out."""
        front = [row.name for row in willing if row.priority >= 0]
        behind = [row.name for row in willing if row.priority < 0]
        mode = self.facts.get("mode", "NONE")
        fair = op in OPS and (mode == "NONE" or (mode == "PIECEWISE" and op not in GENERATED))
        found = (*front, *([REFERENCE] if fair and not self.facts.get("batch_invariant") else []), *behind)
        return found if len(found) > 1 else ()

    def _measured(self, choice: KernelChoice, willing: Iterable[Kernel]) -> KernelChoice:
        """The choice, or a rival that was measured faster beyond chance."""
        known = ((name, self.times.get((choice.op, name, choice.call))) for name in choice.rivals)
        times = {name: rounds for name, rounds in known if rounds is not None}
        if choice.chosen not in times or len(times) < 2:
            return choice
        best = fastest({choice.chosen: times[choice.chosen], **times})
        target = next((row.target for row in willing if row.name == best), "")
        shown = {name: _time(figure(rounds)) for name, rounds in times.items()}
        said = ", ".join(f"{name} {time}" for name, time in shown.items() if name != best)
        return replace(choice, chosen=best, target=target, reason=f"measured: {shown[best]}, {said}")

    def _table(self, op: str) -> list[Kernel]:
        return sorted((row for row in self.rows if row.op == op), key=lambda row: (-row.priority, row.name))

    def _verdict(self, row: Kernel, facts: Facts) -> Verdict:
        if (row.op, row.name) in self.refused:
            return Verdict(False, f"first touch: {self.refused[row.op, row.name]}")
        if facts.get("batch_invariant") and not row.batch_invariant:
            return Verdict(False, "not batch-invariant")
        needs = ask(row.needs, self.profile, facts)
        found = ask(row.accepts, self.profile, facts) if needs else needs
        if not found or not row.rounds:
            return found
        may = may_round(row, facts, self.pins)
        return Verdict(True, f"{found.reason}; {may.reason}") if may else may

    def _allowed(self, op: str) -> Verdict:
        if f"-{op}" in self.custom_ops:
            return Verdict(False, f"custom_ops holds -{op}")
        if op in GENERATED and "none" in self.custom_ops and f"+{op}" not in self.custom_ops:
            return Verdict(False, "custom_ops is none: the code generator takes it")
        return Verdict(True, "custom_ops allows it")


def ask(predicate: Predicate, profile: DeviceProfile, facts: Facts) -> Verdict:
    """The predicate's verdict; a predicate that breaks its contract says no, with what it did."""
    try:
        found = predicate(profile, facts)
    except BROKEN as error:
        return Verdict(False, f"its predicate raised {type(error).__name__}: {error}")
    return found if isinstance(found, Verdict) else Verdict(False, f"its predicate returned {found!r}, no Verdict")


def check_idle_pins(ledger: Ledger, kernels: Iterable[KernelChoice], chooser: Chooser) -> None:
    """A warning for each pin on an op that no call of the plan has."""
    called = {row.op for row in kernels}
    for op, name in chooser.pins.items():
        if op not in called:
            origin = ledger.decisions["kernel_pins"].origin
            ledger.warnings.append(f"--kernel {op}={name} ({origin}) has no effect: the plan has no call of {op}.")


def choose_all(program: Program, chooser: Chooser) -> tuple[KernelChoice, ...]:
    """One choice per kind of call, in order of first appearance."""
    return tuple(_choices(program, chooser).values())


def choose_ranges(programs: Iterable[Program], chooser: Chooser) -> tuple[KernelChoice, ...]:
    """The choices of several programs together; ``count`` is that of the first program with such a call."""
    found: dict[str, KernelChoice] = {}
    for program in programs:
        found = {**_choices(program, chooser), **found}
    return tuple(found.values())


def _choices(program: Program, chooser: Chooser) -> dict[str, KernelChoice]:
    alike: dict[tuple[Any, ...], list[Call]] = {}
    for call in program.calls:
        types = tuple([(value.dtype, value.shape) for value in _inputs(program, call)])
        alike.setdefault((call.op, types, repr(call.attributes)), []).append(call)
    kinds: dict[str, tuple[Call, tuple[Spec, ...], int]] = {}
    for call, *others in alike.values():
        specs = input_specs(program, call)
        key = f"{call.op} {describe(call, specs)}"
        kinds[key] = (call, specs, 1 + len(others) + (kinds[key][2] if key in kinds else 0))
    return {key: chooser.choose(call, specs, count) for key, (call, specs, count) in kinds.items()}


def input_specs(program: Program, call: Call) -> tuple[Spec, ...]:
    return tuple(Spec(value.dtype, value.shape) for value in _inputs(program, call))


def _inputs(program: Program, call: Call) -> list[Value | Weight]:
    weights, values = program.weights, program.values
    return [weights[name] if name in weights else values[name] for name in call.inputs]


def call_facts(specs: tuple[Spec, ...]) -> dict[str, Any]:
    """What a row's ``accepts`` sees of a call beside its attributes: ``call_dtype`` (of the first floating input),
    ``call_dtypes``, ``call_shapes``."""
    floating = [spec.dtype for spec in specs if "float" in spec.dtype]
    return {
        "call_dtype": floating[0] if floating else specs[0].dtype,
        "call_dtypes": tuple(spec.dtype for spec in specs),
        "call_shapes": tuple(spec.shape for spec in specs),
    }


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def describe(call: Call, specs: tuple[Spec, ...]) -> str:
    """One line that tells kinds of calls apart: types of the inputs, short attributes."""
    tensors = " ".join(f"{spec.dtype}[{','.join(map(str, spec.shape))}]" for spec in specs)
    rest = " ".join(f"{name}={_short(value)}" for name, value in sorted(call.attributes.items()))
    return f"{tensors} {rest}".strip()


def _short(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 4:
        return f"({len(value)} values, {digest(value)[:6]})"
    return str(value)
