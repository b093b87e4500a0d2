"""Which device takes which product, and why not. Nothing here imports triton."""

from __future__ import annotations

import pytest

from kernels_cuda.manifest import KERNELS
from platforms.contract import DeviceProfile, Verdict
from platforms.cuda.targets import TARGETS as CUDA
from platforms.rocm.targets import TARGETS as ROCM

ROWS = {(row.op, row.name): row for row in KERNELS}
DEVICES = {**CUDA, **ROCM}


def scaled(device: DeviceProfile, name: str, storage: str, **more: object) -> Verdict:
    facts = {
        "call_dtypes": (storage, "float32", storage, "float32"),
        "call_shapes": (("tokens", 4096), (1,), (1024, 4096), (1024,)),
        "result": "bfloat16",
        "block": None,
        **more,
    }
    row = ROWS["scaled_linear", name]
    return row.needs(device, facts) and row.accepts(device, facts)


def dense(device: DeviceProfile, name: str, dtype: str, width: int = 4096) -> Verdict:
    facts = {"call_dtypes": (dtype, dtype), "call_shapes": (("tokens", width), (1024, width))}
    row = ROWS["linear", name]
    return row.needs(device, facts) and row.accepts(device, facts)


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_stored_values_are_multiplied_where_the_device_does(name):
    device = DEVICES[name]
    for row in ("triton", "triton_steady"):
        assert scaled(device, row, "int8")
        for storage in ("float8_e4m3fn", "float8_e4m3fnuz"):
            feature = f"dtype.{storage.replace('float8', 'fp8')}"
            verdict = scaled(device, row, storage)
            assert bool(verdict) == (feature in device.features)
            assert verdict or f"{feature} absent" in verdict.reason


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_descriptors_are_for_hopper_and_its_successor(name):
    chosen = DEVICES[name].family in ("hopper", "blackwell")
    for verdict in (
        scaled(DEVICES[name], "triton_tma", "float8_e4m3fn"),
        dense(DEVICES[name], "triton_tma", "bfloat16"),
    ):
        assert bool(verdict) == chosen
        assert chosen or "family" in verdict.reason or "triton" in verdict.reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"block": (128, 64)}, "groups of 64 columns, needs a multiple of 128"),
        ({"call_shapes": (("tokens", 4100), (1,), (1024, 4100), (1024,))}, "rows of 4100 and 2048 bytes"),
        ({"call_shapes": (("tokens", 4096), (1,), (1026, 4096), (1026,))}, "rows of 4096 and 2052 bytes"),
        ({"call_shapes": ()}, "shapes of the call unknown"),
    ],
)
def test_limits_of_descriptors_have_figures(more, reason):
    verdict = scaled(CUDA["sm_90"], "triton_tma", "float8_e4m3fn", **more)
    assert not verdict and reason in verdict.reason
    integers = scaled(CUDA["sm_90"], "triton_tma", "int8")
    assert not integers and "float8_e4m3fn" in integers.reason


def test_dense_products_stand_behind_the_reference():
    assert ROWS["linear", "triton"].priority < ROWS["linear", "triton_tma"].priority < 0
    assert ROWS["linear", "triton"].batch_invariant and ROWS["linear", "triton_tma"].batch_invariant
    assert dense(CUDA["sm_80"], "triton", "float32")
    odd = dense(CUDA["sm_90"], "triton_tma", "float16", 4097)
    assert not odd and "rows of 8194" in odd.reason
    assert dense(CUDA["sm_90"], "triton", "float16", 4097)
