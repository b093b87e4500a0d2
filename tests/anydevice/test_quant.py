"""Quantised activations and products against an independent float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.ops import OPS

QUANTIZE = {
    "static": lambda x, storage, **more: (
        OPS["quantize_static"].reference(x, torch.tensor([0.5]), storage=storage),
        torch.tensor([0.5]),
    ),
    "token": lambda x, storage, columns=0, power_of_two=False: OPS["quantize_dynamic"].reference(
        x, storage=storage, columns=columns, power_of_two=power_of_two
    ),
    "group": lambda x, storage, columns=4, power_of_two=False: OPS["quantize_dynamic"].reference(
        x, storage=storage, columns=columns, power_of_two=power_of_two
    ),
}
LARGEST = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "int8": 127.0}
LEAST_STEP = {"float8_e4m3fn": 2.0**-9, "float8_e4m3fnuz": 2.0**-10, "int8": 1.0}


def unpacked(stored: torch.Tensor, scales: torch.Tensor, columns: int = 0) -> torch.Tensor:
    """float64, written without the code under test."""
    width = stored.shape[1]
    index = torch.arange(width) // (columns or width)
    sides = scales.double().expand(stored.shape[0], -1)
    return stored.double() * (sides[:, index] if scales.ndim == 2 else scales.double())


def near(found: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor, storage: str) -> bool:
    """Within half a step of the storage type, a float32 rounding aside; ``scale`` broadcasts."""
    quotient = exact / scale
    step = torch.full_like(exact, LEAST_STEP[storage])
    if storage != "int8":
        step = torch.maximum(step, 2.0 ** (quotient.abs().clamp_min(1e-30).log2().floor() - 3))
    return bool(((found / scale - quotient).abs() <= step * (0.5 + 1e-4)).all())


@pytest.mark.parametrize("storage", LARGEST)
@pytest.mark.parametrize("way", QUANTIZE)
def test_H_FUS_05_one_with_scale_a_half_stores_two_and_gives_one(way: str, storage: str) -> None:
    x = torch.tensor([[1.0, 0.5 * LARGEST[storage], -1.0, 0.0]])
    stored, scales = QUANTIZE[way](x, storage)
    assert scales.unique().tolist() == [0.5]
    assert stored.dtype == getattr(torch, storage) and stored.double()[0, 0] == 2.0
    assert unpacked(stored, scales, 4).tolist() == x.tolist()
    one = torch.ones(1, 4).to(stored.dtype)
    given = dict(result="float32", block=None if way == "static" or way == "token" else (1, 4))
    side = torch.ones(1) if way != "group" else torch.ones(1, 1)
    total = OPS["scaled_linear"].reference(stored, scales, one, side, **given)
    assert total.tolist() == [[0.5 * LARGEST[storage]]]


@pytest.mark.parametrize("before", ["rms_norm", "silu_and_mul"])
@pytest.mark.parametrize("storage", LARGEST)
def test_H_FUS_06_scales_are_powers_of_two(before: str, storage: str) -> None:
    if before == "rms_norm":
        x = OPS["rms_norm"].reference(torch.randn(32, 512), torch.randn(512), eps=1e-6)
    else:
        x = OPS["silu_and_mul"].reference(torch.randn(32, 1024) * 3)
    plain = QUANTIZE["group"](x, storage, columns=128)[1]
    stored, scales = QUANTIZE["group"](x, storage, columns=128, power_of_two=True)
    assert scales.shape == (32, 4) and torch.equal(scales.log2(), scales.log2().round())
    assert bool((scales >= plain).all() and (scales < 2 * plain).all()) and not torch.equal(scales, plain)
    exact = x.double()
    assert near(unpacked(stored, scales, 128), exact, scales.double().repeat_interleave(128, 1), storage)


def test_powers_of_two_stay_and_their_neighbours_rise() -> None:
    top = LARGEST["int8"]
    rows = torch.tensor([[top / 4], [torch.tensor(top / 4).nextafter(torch.tensor(1e9)).item()], [top * 8]])
    _, scales = QUANTIZE["token"](rows, "int8", power_of_two=True)
    assert scales.flatten().tolist() == [0.25, 0.5, 8.0]


@pytest.mark.parametrize("width", [1, 2, 7, 127, 769])
@pytest.mark.parametrize("storage", LARGEST)
@pytest.mark.parametrize("columns", [0, 2, 128])
def test_what_is_stored_is_the_nearest_value(width: int, storage: str, columns: int) -> None:
    x = torch.randn(5, width) * torch.logspace(-3, 3, 5)[:, None]
    x[2] = 0.0
    stored, scales = QUANTIZE["token"](x, storage, columns=columns)
    groups = -(-width // (columns or width))
    assert scales.shape == (5, groups) and scales.dtype == torch.float32
    assert bool((scales > 0).all() and scales.isfinite().all()) and not stored.double()[2].any()
    sides = scales.double()[:, torch.arange(width) // (columns or width)]
    assert near(unpacked(stored, scales, columns), x.double(), sides, storage)


@pytest.mark.parametrize("storage", LARGEST)
def test_values_beyond_the_largest_are_stored_as_the_largest(storage: str) -> None:
    x = torch.tensor([[1e6, -1e6, 3e38, LARGEST[storage] * 0.5]])
    stored, _ = QUANTIZE["static"](x, storage)
    least = -128.0 if storage == "int8" else -LARGEST[storage]
    assert stored.double().tolist() == [[LARGEST[storage], least, LARGEST[storage], LARGEST[storage]]]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_quotients_are_rounded_once(kind: torch.dtype) -> None:
    """A quotient made in 16 bits would move to another step."""
    x = (torch.arange(-1000, 1000) / 27.0).to(kind)[None]
    scale = torch.tensor([0.3])
    stored = OPS["quantize_static"].reference(x, scale, storage="int8")
    assert torch.equal(stored.float(), (x.float() / scale).round().clamp(-128, 127))
    assert not torch.equal(stored.float(), (x / scale.to(kind)).float().round().clamp(-128, 127))


@pytest.mark.parametrize("case", OPS["scaled_linear"].cases, ids=str)
def test_scaled_products_equal_products_of_unpacked_values(case: Any) -> None:
    x, x_scale, weight, scale, *bias = OPS["scaled_linear"].inputs(case, "float32", torch.Generator().manual_seed(7))
    block = case.attributes["block"]
    rows, columns = block or (1, weight.shape[1])
    grid = scale if block else scale[:, None]
    at = torch.arange(weight.shape[0])[:, None] // rows, torch.arange(weight.shape[1])[None] // columns
    grouped = x_scale.ndim == 2 and x_scale.shape[1] > 1
    exact = unpacked(x, x_scale, columns if grouped else 0) @ (weight.double() * grid.double()[at]).T
    exact = exact + bias[0].double() if bias else exact
    found = OPS["scaled_linear"].reference(x, x_scale, weight, scale, *bias, **case.attributes)
    loose = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}[case.attributes["result"]]
    torch.testing.assert_close(found.double(), exact, rtol=loose, atol=loose)


def test_a_bound_of_one_step_tells_one_step_from_two() -> None:
    for storage in ("float8_e4m3fn", "float8_e4m3fnuz"):
        values = torch.arange(256, dtype=torch.uint8).view(getattr(torch, storage)).double()
        values = values[values.isfinite()].unique()
        relative, absolute = OPS["quantize_static"].bound("float32", storage)
        allowed = absolute + relative * values[:-2].abs()
        assert bool(((values[1:-1] - values[:-2]) <= allowed + 1e-12)[values[:-2] >= 0].all())
        assert not bool(((values[2:] - values[:-2]) <= allowed)[values[:-2] > 0.5].any())
    assert OPS["quantize_dynamic"].bound("bfloat16", "int8")[1] == 1.0
    assert OPS["quantize_dynamic"].bound("bfloat16", "float32")[0] < 1e-6


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("storage", LARGEST)
def test_the_scale_of_a_run_that_holds_nan_is_nan(storage: str, power_of_two: bool) -> None:
    x = torch.tensor([[1.0, float("nan"), 2.0, 3.0], [1.0, 2.0, float("inf"), 3.0]])
    how = dict(storage=storage, columns=2, power_of_two=power_of_two)
    _, scales = OPS["quantize_dynamic"].reference(x, **how)
    assert scales.isnan().tolist() == [[True, False], [False, False]]
    assert scales.isinf().tolist() == [[False, False], [False, True]]
