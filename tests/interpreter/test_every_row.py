"""Every row against its op's reference in float64, over the op's cases."""

import pytest
import torch

from engine.ops.compare import same_bits
from kernels_triton.manifest import ROWS
from tests.interpreter.rows import DTYPES, EVERYTHING, MOST, OPS, accepted, apart, call, check, inputs_of, taken

CALLS = [
    (row, case, dtype)
    for row in ROWS
    for case, dtype in taken([case for case in OPS[row.op].cases if case.attributes.get("storage") != "int16"])
]
"""Without int16: no product of Triton takes it."""


@pytest.mark.parametrize(("row", "case", "dtype"), CALLS, ids=lambda x: getattr(x, "op", str(x)))
def test_a_row_matches_the_reference_whether_or_not_rows_lie_apart(row, case, dtype):
    op = OPS[row.op]
    inputs = inputs_of(op, case, dtype)
    assert accepted(row, case, inputs), accepted(row, case, inputs).reason
    found = call(row, op, case, inputs)
    check(row, op, case, dtype, inputs, found)
    if dtype == "float16":
        again = call(row, op, case, inputs, rows_apart=True)
        assert all(same_bits(one, other) for one, other in zip(found, again, strict=True))


def test_few_calls_still_have_every_type_and_cases_from_first_to_last():
    for count in range(1, 30):
        found = taken(tuple(range(count)))
        assert len(set(found)) == len(found) == (3 * count if EVERYTHING else min(3 * count, MOST))
        assert {dtype for _, dtype in found} == set(DTYPES)
        assert min(found)[0] == 0 and max(found)[0] >= count * 2 // 3


TOKENWISE = [row for row in ROWS if row.batch_invariant and row.op != "select_rows"]
"""``select_rows`` makes a token of another one's place."""


@pytest.mark.parametrize("row", TOKENWISE, ids=lambda row: row.op)
def test_a_row_that_says_so_gives_each_token_the_same_bits_alone(row):
    op = OPS[row.op]
    case = max(op.cases, key=lambda case: case.sizes["tokens"])
    inputs = inputs_of(op, case, "float16")
    whole, tokens = call(row, op, case, inputs), case.sizes["tokens"]
    assert tokens > 1
    pure = len(whole) - len(op.mutates)
    for token in (0, tokens - 1):
        alone = tuple(x[token : token + 1] if at in apart(op) else x for at, x in enumerate(inputs))
        for every, one in zip(whole[:pure], call(row, op, case, alone), strict=False):
            assert same_bits(every[token : token + 1], one)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.op)
def test_a_step_without_tokens_is_served(row):
    op = OPS[row.op]
    case = op.cases[-1]
    inputs = inputs_of(op, case, "float32")
    empty = tuple(x[:0] if at in apart(op) else x for at, x in enumerate(inputs))
    if row.op.startswith("attention"):
        empty = (inputs[0][:0], *inputs[1:3], torch.zeros_like(inputs[3]), *inputs[4:])
    found = call(row, op, case, empty)
    for at, tensor in enumerate(found[: len(found) - len(op.mutates)]):
        assert tensor.shape[0] == 0, at
    for at, tensor in zip(op.mutates, found[len(found) - len(op.mutates) :], strict=True):
        assert torch.equal(tensor, inputs[at])
