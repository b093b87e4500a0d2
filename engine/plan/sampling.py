"""Who turns logits into tokens: ops that the sampler calls, chosen like those of a program. Standard library only."""

from __future__ import annotations

from engine.ops import Spec
from engine.plan.kernels import Chooser
from engine.plan_values import KernelChoice
from engine.program import Call

_ROWS = ("rows",)
OPS = ("argmax", "mask", "penalize", "draw")


def choose_sampling(chooser: Chooser, vocab: int) -> tuple[KernelChoice, ...]:
    """One choice for each of ``OPS``. ``vocab``: columns of the logits. The reference stands for the sampler's own
    means, which keep to the same rules."""
    return tuple(chooser.choose(call, specs) for call, specs in sampling_calls(vocab))


def sampling_calls(vocab: int) -> tuple[tuple[Call, tuple[Spec, ...]], ...]:
    """What the sampler calls, as of programs; ``slots``: requests with penalties that its tables have room for."""
    logits, one = Spec("float32", ("rows", vocab)), Spec("float32", _ROWS)
    tables = Spec("bool", ("slots", vocab)), Spec("int32", ("slots", vocab))
    whole, share = Spec("int64", _ROWS), Spec("float64", _ROWS)
    inputs = {
        "argmax": (logits,),
        "mask": (logits, Spec("int32", ("rows", -(-vocab // 32)))),
        "penalize": (logits, *tables, whole, one, one, one),
        "draw": (logits, one, whole, share, one, whole),
    }
    return tuple((Call(op, (), ()), inputs[op]) for op in OPS)
