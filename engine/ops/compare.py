"""A kernel's results beside those of its op's reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.ops.spec import Op, Spec


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def specs_of(tensors: Sequence[Any]) -> tuple[Spec, ...]:
    return tuple(Spec(name_of(x.dtype), tuple(x.shape)) for x in tensors)


def name_of(dtype: Any) -> str:
    """torch's name without the prefix."""
    return str(dtype).removeprefix("torch.")


def truth(op: Op, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Results of the reference on copies of ``inputs``, every floating one of them in float64."""
    given = [x.double() if x.is_floating_point() else x.clone() for x in inputs]
    return as_tuple(op.reference(*given, **attributes))


def with_packed(op: Op, pack: Any, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """``inputs`` with the weights in a kernel's own layout, as they are bound. ``pack``: its function."""
    given = list(inputs)
    spots = [at for at in op.weights if at < len(given)]
    for at, tensor in zip(spots, pack(tuple(given[at] for at in spots), attributes), strict=True):
        given[at] = tensor
    return given


def misfit(found: Sequence[Any], expected: Sequence[Spec]) -> str:
    """What is wrong with number, dtypes and shapes of results, or nothing."""
    if len(found) != len(expected):
        return f"returns {len(found)} results, the reference {len(expected)}"
    for tensor, spec in zip(found, expected, strict=True):
        if not hasattr(tensor, "dtype"):
            return f"returns a {type(tensor).__name__}, not a tensor"
        (got,) = specs_of((tensor,))
        if got != spec:
            return f"returns {got.dtype}{list(got.shape)}, the reference {spec.dtype}{list(spec.shape)}"
    return ""


def difference(found: Any, expected: Any, bound: tuple[float, float], on: object) -> str:
    """By how much a result misses, or nothing. ``bound``: relative and absolute; ``on``: which call it was. Tensors on
    the host, of one shape; both NaN is a miss. A bound without an absolute part is on what ``expected`` rounds to in
    the result's dtype."""
    import torch

    relative, absolute = bound
    if not absolute:
        expected = expected.to(found.dtype)
    got, wanted = found.double(), expected.double()
    if torch.allclose(got, wanted, rtol=relative, atol=absolute):
        return ""
    bad = ~torch.isclose(got, wanted, rtol=relative, atol=absolute)
    first = tuple(bad.nonzero()[0].tolist())
    return (
        f"differs from the reference by {float((got - wanted).abs().max()):.3g} on {on}, first at {list(first)}: "
        f"{float(got[first]):.6g} instead of {float(wanted[first]):.6g} ({int(bad.sum())} of {bad.numel()} elements)"
    )


def same_bits(one: Any, other: Any) -> bool:
    """Whether shapes and every byte agree, so that NaN equals itself and zero is not minus zero."""
    import torch

    left, right = (x.contiguous().flatten().view(torch.uint8) for x in (one, other))
    return one.shape == other.shape and torch.equal(left, right)
