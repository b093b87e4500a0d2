"""Every described accelerator has a row beside the reference for what a decoder computes."""

import pytest

from tests.described_plans import TARGETS, described, plan
from tests.model_configs import MODELS

LEFT = {"split", "split_heads", "rotary_table", "argmax"}
"""Views, a rearrangement, a table made once per step, and one call of the device's own library."""


@pytest.mark.parametrize(("name", "target"), [row for row in TARGETS if row[0] != "cpu"], ids=":".join)
def test_every_op_of_every_model_has_a_row(name, target):
    missing = {}
    for model in MODELS:
        for row in plan(described(name, target), model).kernels:
            if row.op not in LEFT and not any(verdict for _, verdict in row.considered):
                missing[row.op] = "; ".join(verdict.reason for _, verdict in row.considered)
    assert not missing
