"""Arrays of a step, beside what its work says token by token."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import Work
from engine.graphs.dispatch import Shape
from engine.step_inputs import step_inputs

PAGES = (4, 3)


@st.composite
def works(draw, most):
    found = []
    for number in range(draw(st.integers(1, 6))):
        start, count = draw(st.integers(0, 20)), draw(st.integers(1, most))
        need = [-(-(start + count) // page) + draw(st.integers(0, 2)) for page in PAGES]
        tables = tuple(draw(st.lists(st.integers(0, 99), min_size=n, max_size=n)) for n in need)
        tokens = draw(st.lists(st.integers(0, 999), min_size=count, max_size=count))
        found.append(Work(f"r{number}", tokens, start, tables, True))
    return found


@given(st.one_of(works(1), works(5)))
def test_every_token_has_its_position_and_slot(work):
    arrays, shape = step_inputs(work, PAGES, [0, 2])
    counts = [len(item.tokens) for item in work]
    places = [(item, at) for item in work for at in range(item.start, item.start + len(item.tokens))]
    assert shape == Shape(len(places), len(work), counts[0] if len(set(counts)) == 1 else 0)
    expected = {
        "ids": np.array([token for item in work for token in item.tokens], np.int64),
        "positions": np.array([at for _, at in places], np.int64),
        "starts": np.array([sum(counts[:n]) for n in range(len(work) + 1)], np.int32),
        "lengths": np.array([item.start + len(item.tokens) for item in work], np.int32),
        "rows": np.array([0, 2], np.int64),
    }
    for group, page in enumerate(PAGES):
        width = max(len(item.blocks[group]) for item in work)
        slots = [item.blocks[group][at // page] * page + at % page for item, at in places]
        expected[f"slots.{group}"] = np.array(slots, np.int64)
        tables = [item.blocks[group] + [0] * (width - len(item.blocks[group])) for item in work]
        expected[f"blocks.{group}"] = np.array(tables, np.int32)
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype and np.array_equal(arrays[name], array), name
