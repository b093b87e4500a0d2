"""Four-bit layouts of checkpoints, decoded beside loops that follow each format's own words."""

import pytest
import torch

from engine.errors import UserError
from engine.models.quantization import Quantization
from engine.ops.packed import pack, packed_linear, unpack
from engine.weights import four_bits

OUT, IN, GROUP = 16, 96, 32
GROUPS = IN // GROUP


def scheme(layout, kind="int4", one_less=False):
    block = (1, GROUP)
    return Quantization("any", kind, "group", "none", block, layout=layout, zero="zeros", one_less=one_less)


def stored(seed=0):
    """Values [out, in], zeros [out, groups], scales [out, groups], and the weight they mean."""
    rng = torch.Generator().manual_seed(seed)
    values, zeros = (torch.randint(16, (OUT, n), generator=rng) for n in (IN, GROUPS))
    scales = torch.rand((OUT, GROUPS), generator=rng) + 0.5
    dense = torch.empty(OUT, IN)
    for row in range(OUT):
        for column in range(IN):
            group = column // GROUP
            dense[row, column] = (values[row, column] - zeros[row, group]) * scales[row, group]
    return values, zeros, scales, dense


def word(eight):
    """Eight numbers in 32 bits, the first lowest, as int32."""
    found = sum(int(number) << 4 * at for at, number in enumerate(eight))
    return found - (1 << 32) if found >= 1 << 31 else found


def along_rows(values, order=range(8)):
    """[rows, columns] → int32 [rows, columns / 8]."""
    return torch.tensor(
        [[word(row[at + place] for place in order) for at in range(0, len(row), 8)] for row in values.tolist()],
        dtype=torch.int32,
    )


def check(form, weight, scales, zeros, dense):
    """The parts of a checkpoint mean ``dense``, unpacked and to the op."""
    values = four_bits.values(form, weight, (OUT, IN))
    scales = four_bits.scales(form, scales, OUT)
    zeros = None if zeros is None else four_bits.zeros(form, zeros, OUT)
    torch.testing.assert_close(four_bits.unpacked(form, values, scales, zeros), dense)
    product = packed_linear.reference(torch.eye(IN), pack(values), scales, zeros, group=GROUP, format="int4").T
    torch.testing.assert_close(product, dense)


def test_awq():
    values, zeros, scales, dense = stored()
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    check(scheme("awq"), along_rows(values.T, order), scales.T, along_rows(zeros.T, order), dense)


@pytest.mark.parametrize("one_less", [True, False])
def test_gptq(one_less):
    values, zeros, scales, dense = stored(1)
    kept = (zeros - 1) % 16 if one_less else zeros
    check(scheme("gptq", one_less=one_less), along_rows(values).T, scales.T, along_rows(kept.T), dense)


def test_H_QNT_03_columns_in_order_of_activation_are_refused():
    runs = torch.arange(IN, dtype=torch.int32) // GROUP
    four_bits.check_runs(runs, GROUP, "layers.0.q_proj")
    shuffled = runs[torch.randperm(IN, generator=torch.Generator().manual_seed(0))]
    for found in (shuffled, runs.flip(0), torch.zeros_like(runs)):
        with pytest.raises(UserError, match=r"layers\.0\.q_proj.*desc_act"):
            four_bits.check_runs(found, GROUP, "layers.0.q_proj")


@pytest.mark.parametrize("asymmetric", [True, False])
def test_compressed_tensors(asymmetric):
    values, zeros, scales, dense = stored(3)
    if not asymmetric:
        dense = (values - 8) * scales.repeat_interleave(GROUP, 1)
    check(scheme("rows"), along_rows(values), scales, along_rows(zeros.T).T if asymmetric else None, dense)


def test_sizes_that_are_no_multiple_of_eight_are_filled_up():
    values, zeros, *_ = stored(5)
    assert torch.equal(four_bits.values(scheme("rows"), along_rows(values), (OUT, IN - 3)), values[:, :-3])
    assert torch.equal(four_bits.zeros(scheme("rows"), along_rows(zeros.T).T, OUT - 5), zeros[:-5])


def test_pairs_and_runs_hold_the_same_values():
    values, *_ = stored(4)
    pairs = [[low | high << 4 for low, high in zip(row[::2], row[1::2], strict=True)] for row in values.tolist()]
    form = scheme("pairs", "mxfp4")
    assert torch.equal(four_bits.values(form, torch.tensor(pairs, dtype=torch.uint8), (OUT, IN)).long(), values)
    assert torch.equal(unpack(pack(values), IN).long(), values)
    exponents = torch.randint(120, 134, (OUT, GROUPS), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    given = {"group": GROUP, "format": "mxfp4"}
    product = packed_linear.reference(torch.eye(IN), pack(values), exponents, **given).T
    torch.testing.assert_close(four_bits.unpacked(form, values.to(torch.uint8), exponents, None), product)
