"""Rows are compared before they serve: until nothing new is refused, on cases that suit them, remembering passes."""

import dataclasses
import logging
import re

import pytest
import torch

from engine.first_touch import first_touch
from engine.fusion import RULES, all_ops
from engine.ops import OPS
from platforms.contract import Kernel, fact
from platforms.discovery import select
from tests.profiles import MODEL, TABLES, Tables, plan

HERE = __name__
CALLS = []
ALL = all_ops(RULES)


class Stranger(Exception):
    """An exception no engine knows."""


def good(x, weight, *, eps):
    CALLS.append(tuple(x.shape))
    return OPS["rms_norm"].reference(x, weight, eps=eps)


def off(x, weight, *, eps):
    return good(x, weight, eps=eps) * 1.01


def wider(x, weight, *, eps):
    return good(x, weight, eps=eps).double()


def two(x, weight, *, eps):
    return x, x


def strange(x, weight, *, eps):
    raise Stranger("no such instruction\nand more")


def stopped(x, weight, *, eps):
    raise KeyboardInterrupt


def full(x, weight, *, eps):
    CALLS.append("full")
    raise torch.OutOfMemoryError("out of memory")


def norm(name, priority=1, **more):
    return Kernel("rms_norm", name, f"{HERE}:{name}", priority=priority, **more)


@pytest.fixture(scope="module")
def runtime():
    selection = select("auto")
    opened = selection.plugin.open(selection.index)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def fresh():
    CALLS.clear()


def touched(runtime, folder, *rows, ops=ALL, **values):
    plans = []

    def make(observations):
        plans.append(plan(Tables(rows, TABLES.fusions), observations=observations, **values))
        return plans[-1]

    final = first_touch(make, ops, rows, runtime, folder)
    assert final is plans[-1]
    return final, len(plans)


def choice(found, op="rms_norm"):
    return next(row for row in found.kernels if row.op == op)


def reason(found, name):
    return dict(choice(found).considered)[name].reason


def test_a_row_that_agrees_serves_and_is_not_run_again(runtime, tmp_path):
    for _ in range(2):
        found, plans = touched(runtime, tmp_path, norm("good"))
        assert (choice(found).chosen, plans, len(CALLS)) == ("good", 1, 1)
    touched(runtime, tmp_path / "elsewhere", norm("good"))
    assert len(CALLS) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("off", r"first touch: differs from the reference by 0\.\d+ on "),
        ("wider", r"first touch: returns float64\[.*\], the reference float32\["),
        ("two", r"first touch: returns 2 results, the reference 1"),
        ("strange", r"first touch: Stranger: no such instruction$"),
        ("absent", r"first touch: UserError: kernel target .*absent cannot be loaded"),
    ],
)
def test_a_row_that_disagrees_or_raises_is_refused_with_the_reason(runtime, tmp_path, name, said):

    found, _ = touched(runtime, tmp_path, norm(name))
    assert choice(found).chosen == "reference"
    assert re.search(said, reason(found, name))


def test_the_row_chosen_after_a_refusal_is_touched_as_well_and_refusals_add_up(runtime, tmp_path):
    found, plans = touched(runtime, tmp_path, norm("off", 3), norm("strange", 2), norm("good", 1))
    assert (choice(found).chosen, plans) == ("good", 3)
    assert "differs" in reason(found, "off") and "Stranger" in reason(found, "strange")
    assert CALLS.count(CALLS[-1]) == 2
    found, plans = touched(runtime, tmp_path, norm("off", 3), norm("strange", 2))
    assert (choice(found).chosen, plans) == ("reference", 3)


def test_a_refusal_is_never_remembered(runtime, tmp_path):
    for times in (1, 2):
        found, _ = touched(runtime, tmp_path, norm("full"))
        assert choice(found).chosen == "reference"
        assert ["full"] * times == CALLS
    assert not list(tmp_path.iterdir())


def test_what_is_no_error_of_a_row_is_not_caught(runtime, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        touched(runtime, tmp_path, norm("stopped"))


def test_the_smallest_case_that_the_row_accepts_is_the_one(runtime, tmp_path):
    op = OPS["rms_norm"]
    shapes = [tuple(op.inputs(case, "float32", torch.Generator())[0].shape) for case in op.cases]
    width = max(shape[-1] for shape in shapes)
    picky = fact("call_shapes", lambda shapes: shapes[0][-1] in (width, MODEL.hidden_size), "wide")
    touched(runtime, tmp_path / "picky", norm("good", accepts=picky))
    touched(runtime, tmp_path / "any", norm("good"))
    assert CALLS[0][-1] == width
    assert CALLS[1] == min(shapes, key=sum)
    assert CALLS[0] != CALLS[1]


def test_a_row_that_no_case_suits_serves_uncompared_and_the_log_says_so(runtime, tmp_path, caplog):
    caplog.set_level(logging.INFO, "engine")
    only = fact("call_shapes", lambda shapes: shapes[0][0] == "tokens", "a program's own shape")
    found, plans = touched(runtime, tmp_path, norm("off", accepts=only))
    assert (choice(found).chosen, plans, CALLS) == ("off", 1, [])
    assert "kernel off of rms_norm is not compared with the reference: no case of the op suits it" in caplog.text
    assert not list(tmp_path.iterdir())


def test_an_op_without_cases_is_logged_and_not_passed(runtime, tmp_path, caplog):

    caplog.set_level(logging.INFO, "engine")
    ops = {**ALL, "rms_norm": dataclasses.replace(OPS["rms_norm"], cases=())}
    touched(runtime, tmp_path, norm("good"), ops=ops)
    assert "is not compared with the reference: the op has no cases" in caplog.text
    assert not CALLS and not list(tmp_path.iterdir())


def test_a_change_of_any_source_of_the_rows_package_runs_it_again(runtime, tmp_path, monkeypatch):
    package = tmp_path / "strangers_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("from engine.ops import OPS\nfast = OPS['rms_norm'].reference\n")
    (package / "outer.py").write_text("from strangers_kernels.inner import fast\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    row, cache = Kernel("rms_norm", "fast", "strangers_kernels.outer:fast"), tmp_path / "cache"
    for text, kept in (("", 1), ("", 1), ("# changed\n", 2)):
        with (package / "inner.py").open("a") as file:
            file.write(text)
        touched(runtime, cache, row)
        assert len(list(cache.iterdir())) == kept


@pytest.mark.parametrize("content", ["", "[]", '{"refused": ""}', '{"passed": 1}'])
def test_a_damaged_answer_is_none(runtime, tmp_path, content):
    touched(runtime, tmp_path, norm("good"))
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    touched(runtime, tmp_path, norm("good"))
    assert len(CALLS) == 2
    assert '"passed": "rms_norm good' in file.read_text()


def test_a_folder_that_cannot_be_written_is_no_error(runtime, tmp_path):
    (tmp_path / "file").write_text("")
    found, _ = touched(runtime, tmp_path / "file" / "below", norm("good"))
    assert choice(found).chosen == "good"
