"""Each chosen kernel runs once against the reference before it serves; what passed is remembered per device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.bind import load_target
from engine.graphs.preparing import prepare_alone
from engine.ops import Case, Op
from engine.ops.compare import as_tuple, difference, misfit, name_of, specs_of, with_packed
from engine.plan import DECIDED, Observations
from engine.plan.kernels import ask, call_facts
from engine.plan_values import Plan, digest
from engine.remembered import package_hash, passed, remember
from platforms.contract import Kernel, Runtime

logger = logging.getLogger("engine")


def first_touch(
    make: Callable[[Observations], Plan],
    ops: Mapping[str, Op],
    rows: tuple[Kernel, ...],
    runtime: Runtime,
    cache: Path,
) -> Plan:
    """The first plan of ``make`` whose rows all agree with their references; each plan is made knowing the refusals
    before it. A row that no case of its op suits is not compared, and the log says so. ``cache``: folder of what has
    passed, by device, dtype, torch and the sources involved; unwritable is no error. A refusal is never remembered."""
    table = {(row.op, row.name): row for row in rows}
    refused: dict[tuple[str, str], str] = {}
    done: set[tuple[str, str]] = set()
    while True:
        plan = make(Observations(dict(refused)))
        new = {(row.op, row.chosen) for row in plan.kernels if row.target} - done
        done |= new
        problems = {key: touch(table[key], ops[key[0]], plan, runtime, cache) for key in sorted(new)}
        found = {key: problem for key, problem in problems.items() if problem}
        if not found:
            return plan
        for (op, name), problem in found.items():
            logger.warning("kernel %s of %s is not used: %s", name, op, problem)
        refused |= found


def touch(row: Kernel, op: Op, plan: Plan, runtime: Runtime, cache: Path) -> str:
    """What is wrong with the row, beside its reference on the smallest case that it accepts, or nothing."""
    import torch

    dtype = plan["model.dtype"]
    parts = [plan.profile.to_json(), dtype, str(torch.__version__), row.target, row.pack, _sources(row, op)]
    file = cache / f"{digest(parts)}.json"
    if passed(file):
        return ""
    found = smallest(row, op, plan)
    if found is None:
        what = "no case of the op suits it" if op.cases else "the op has no cases"
        logger.info("kernel %s of %s is not compared with the reference: %s", row.name, row.op, what)
        return ""
    problem = _compare(row, op, dtype, runtime, *found)
    if not problem:
        remember(file, f"{row.op} {row.name}: {found[0]}")
    return problem


def smallest(row: Kernel, op: Op, plan: Plan) -> tuple[Case, tuple[Any, ...]] | None:
    """The smallest case that the row accepts, and its inputs on the host."""
    import torch

    dtype, decided = plan["model.dtype"], {name: plan[key] for name, key in DECIDED.items() if key in plan.decisions}
    for case in sorted(op.cases, key=lambda case: sum(case.sizes.values())):
        inputs = op.inputs(case, dtype, torch.Generator().manual_seed(0))
        facts = {**decided, **case.attributes, **call_facts(specs_of(inputs))}
        if ask(row.accepts, plan.profile, facts):
            return case, inputs
    return None


def _compare(row: Kernel, op: Op, dtype: str, runtime: Runtime, case: Case, inputs: tuple[Any, ...]) -> str:
    """What is wrong with the row, or nothing. Rows are strangers' code: whatever they raise is an answer. The reference
    runs in the same dtype, so that it may itself be off by the bound."""
    import torch

    truth = as_tuple(op.reference(*(x.clone() for x in inputs), **case.attributes))
    try:
        with torch.inference_mode(), runtime.compute():
            given = [x.clone().to(runtime.device) for x in inputs]
            if row.pack:
                given = with_packed(op, load_target(row.pack), given, case.attributes)
            prepare_alone(row, op.tensors, given, case.attributes)
            found = as_tuple(load_target(row.target)(*given, **case.attributes))
            runtime.synchronize()
            if problem := misfit(found, specs_of(truth)):
                return f"{problem}, on {case}"
            for expected, result in zip(truth, found, strict=True):
                relative, absolute = op.bound(row.rounds or dtype, name_of(expected.dtype))
                got = runtime.fetch(result).wait()
                if problem := difference(got, expected, (2 * relative + 1e-6, 2 * absolute + 1e-6), case):
                    return problem
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def _sources(row: Kernel, op: Op) -> list[str]:
    """One hash for each package whose code decides the comparison: the row's, its packer's, the reference's."""
    names = {target.partition(":")[0].partition(".")[0] for target in (row.target, row.pack) if target}
    return [package_hash(name) for name in sorted(names | {Op.__module__.rpartition(".")[0], op.reference.__module__})]
