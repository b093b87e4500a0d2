"""Four-bit layouts of checkpoints, packed here by loops that follow each format's own words."""

import pytest
import torch

from engine.errors import UserError
from engine.ops.packed import pack, packed_linear, unpack
from engine.weights.four_bits import from_awq, from_compressed, from_gptq, from_pairs

OUT, IN, GROUP = 16, 96, 32
GROUPS = IN // GROUP


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


def product(values, scales, zeros):
    x = torch.eye(IN)
    return packed_linear.reference(x, pack(values), scales.contiguous(), zeros, group=GROUP, format="int4").T


def test_awq():
    values, zeros, scales, dense = stored()
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    found = from_awq(along_rows(values.T, order), scales.T, along_rows(zeros.T, order))
    torch.testing.assert_close(product(*found), dense)


@pytest.mark.parametrize("one_less", [True, False])
def test_gptq(one_less):
    values, zeros, scales, dense = stored(1)
    kept = (zeros - 1) % 16 if one_less else zeros
    g_idx = torch.arange(IN, dtype=torch.int32) // GROUP
    found = from_gptq(along_rows(values).T, scales.T, along_rows(kept.T), g_idx, "layer", one_less)
    torch.testing.assert_close(product(*found), dense)


def test_H_QNT_03_columns_in_order_of_activation_are_refused():
    values, zeros, scales, _ = stored(2)
    shuffled = torch.randperm(IN, generator=torch.Generator().manual_seed(0)).to(torch.int32) // GROUP
    with pytest.raises(UserError, match=r"layers\.0\.q_proj.*desc_act"):
        from_gptq(along_rows(values).T, scales.T, along_rows(zeros.T), shuffled, "layers.0.q_proj")


@pytest.mark.parametrize("asymmetric", [True, False])
def test_compressed_tensors(asymmetric):
    values, zeros, scales, dense = stored(3)
    if not asymmetric:
        dense = (values - 8) * scales.repeat_interleave(GROUP, 1)
    packed = along_rows(zeros.T).T if asymmetric else None
    found = from_compressed(along_rows(values), scales, packed, IN)
    torch.testing.assert_close(product(*found), dense)


def test_pairs_and_runs_hold_the_same_values():
    values, *_ = stored(4)
    pairs = [[low | high << 4 for low, high in zip(row[::2], row[1::2], strict=True)] for row in values.tolist()]
    assert torch.equal(from_pairs(torch.tensor(pairs, dtype=torch.uint8)).long(), values)
    assert torch.equal(unpack(pack(values), IN).long(), values)
