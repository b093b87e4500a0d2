"""Weights in blocks: what they stand for, as the gguf library says."""

import numpy as np
import pytest
import torch

from engine.ops.blocks import FORMATS, block_of, bytes_of, columns_of, dequantised, sample_blocks


def library(weight, format):
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    return torch.from_numpy(dequantize(weight.numpy(), GGMLQuantizationType[format.upper()]))


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_blocks_stand_for_what_the_library_makes_of_them_to_the_bit(format, largest):
    weight = sample_blocks(9, 768, format, torch.Generator().manual_seed(5), largest)
    assert weight.shape == (9, bytes_of(format, 768)) and columns_of(format, weight.shape[1]) == 768
    found, expected = dequantised(weight, format), library(weight, format)
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    exact = dequantised(weight, format, "float64")
    np.testing.assert_allclose(found.numpy(), exact.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("format", FORMATS)
def test_random_blocks_are_of_the_size_of_weights_and_hold_a_small_row(format):
    values = dequantised(sample_blocks(64, 1024, format, torch.Generator().manual_seed(6)), format)
    assert block_of(format)[0] in (32, 256)
    assert 0.05 < values[:-1].std() < 0.6 and values[-1].std() < values[:-1].std() / 8
    assert abs(values.mean()) < 0.1
