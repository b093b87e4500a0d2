from __future__ import annotations

import pytest

from engine.batch import Batch, Work


def batch(*lengths: int) -> Batch:
    return Batch([Work(str(at), [7] * length, 0, ([at],), True) for at, length in enumerate(lengths)])


@pytest.mark.parametrize(
    ("lengths", "uniform"), [((), None), ((1,), 1), ((5,), 5), ((1, 1, 1), 1), ((4, 4), 4), ((1, 1, 2), None)]
)
def test_the_shape_of_a_step(lengths: tuple[int, ...], uniform: int | None) -> None:
    step = batch(*lengths)
    assert (step.tokens, step.requests, step.query_lengths) == (sum(lengths), len(lengths), list(lengths))
    assert step.uniform == uniform
