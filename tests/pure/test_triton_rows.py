"""What the portable rows say of devices and calls. Nothing here imports triton."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from engine.fusion import RULES, all_ops
from kernels_triton.manifest import BEHIND, PRIORITY, ROWS
from platforms.contract import DeviceProfile, Verdict
from platforms.cuda.archs import ARCHS as CUDA_ARCHS
from platforms.cuda.targets import TARGETS as CUDA
from platforms.fusions import ADD_NORM
from platforms.rocm.targets import TARGETS as ROCM

BY_OP = {row.op: row for row in ROWS}
DEVICES = {**CUDA, **ROCM}
HOPPER, AMPERE, CDNA3 = CUDA["sm_90"], CUDA["sm_80"], ROCM["gfx942"]
OPS = all_ops((*RULES, ADD_NORM))


def said(device: DeviceProfile, op: str, *inputs: tuple[str, tuple[int | str, ...]], **attributes: object) -> Verdict:
    """``inputs``: dtype and shape of each tensor."""
    facts = {
        **attributes,
        "call_dtypes": tuple(dtype for dtype, _ in inputs),
        "call_shapes": tuple(shape for _, shape in inputs),
    }
    row = BY_OP[op]
    return row.needs(device, facts) and row.accepts(device, facts)


def rows(*dtypes: str, width: int = 64) -> list[tuple[str, tuple[int | str, ...]]]:
    return [(dtype, ("tokens", width)) for dtype in dtypes]


WEIGHT, SCALE = ("bfloat16", (64,)), ("float32", (1,))


def test_rows_of_an_op_differ_in_name_and_priority_and_are_safe_in_graphs():
    assert len({(row.op, row.name) for row in ROWS}) == len({(row.op, row.priority) for row in ROWS}) == len(ROWS)
    assert {row.op for row in ROWS} <= set(OPS)
    for row in ROWS:
        assert row.priority in (PRIORITY, BEHIND) and row.graph_safe and row.graph_batches == "any"
        form = row.name.removeprefix("triton").removeprefix("_")
        assert row.target.partition(":")[2] == "_".join(filter(None, (form, row.op)))
        families = ("attention", "mla_attention", "moe")
        tiled = row.op.startswith(families) or (row.op, row.name) == ("scaled_linear", "triton")
        assert row.batch_invariant == (not tiled), row


def test_reading_the_rows_loads_neither_triton_nor_torch():
    code = "import sys, kernels_triton.manifest; assert not {'triton', 'torch', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", DEVICES)
def test_every_described_device_runs_norms_rotation_and_attention(name):
    device = DEVICES[name]
    assert said(device, "rms_norm", *rows("bfloat16"), WEIGHT, eps=1e-8)
    assert said(device, "rotary", *rows("bfloat16", "bfloat16", "float32"), head_dim=64)
    integers = [("int32", ("requests", "blocks")), ("int32", ("requests",)), ("int32", ("requests",))]
    assert said(device, "attention", *rows("bfloat16"), ("bfloat16", (2, 9, 16, 1, 64)), *integers, head_dim=64)


@pytest.mark.parametrize(
    ("device", "storage", "ok"),
    [
        (HOPPER, "float8_e4m3fn", True),
        (HOPPER, "float8_e4m3fnuz", False),
        (AMPERE, "float8_e4m3fn", False),
        (AMPERE, "int8", True),
        (CDNA3, "float8_e4m3fnuz", True),
        (CDNA3, "float8_e4m3fn", False),
        (ROCM["gfx950"], "float8_e4m3fn", True),
        (HOPPER, "float8_e5m2", False),
    ],
)
def test_a_storage_type_is_taken_where_the_device_has_it(device, storage, ok):
    inputs = [*rows("bfloat16", "bfloat16"), WEIGHT, SCALE]
    verdict = said(device, "add_rms_norm_quantize_static", *inputs, eps=1e-6, storage=storage)
    assert bool(verdict) == ok, verdict.reason
    if not ok:
        assert storage.removeprefix("float8") in verdict.reason


def test_H_FUS_03_activations_of_two_types_are_refused_and_a_weight_of_its_own_is_not():
    mixed = said(HOPPER, "add_rms_norm_pad", *rows("bfloat16", "float32"), WEIGHT, eps=1e-6, multiple=256)
    assert not mixed and "one type for activations" in mixed.reason
    assert said(HOPPER, "add_rms_norm_pad", *rows("bfloat16", "bfloat16"), ("float32", (64,)), eps=1e-6, multiple=256)


@pytest.mark.parametrize("dtype", ["float64", "float8_e4m3fn"])
def test_other_types_are_refused(dtype):
    verdict = said(HOPPER, "silu_and_mul", *rows(dtype))
    assert not verdict and dtype in verdict.reason


def test_sizes_that_no_kernel_takes_are_refused_with_both_figures():
    runs = said(HOPPER, "rms_norm_quantize_dynamic", *rows("bfloat16"), ("bfloat16", (16,)), storage="int8")
    assert not runs and "64" in runs.reason and "16" in runs.reason
    wide = said(HOPPER, "attention", *rows("bfloat16"), ("bfloat16", (2, 9, 16, 1, 512)), head_dim=512)
    assert not wide and "512 > 256" in wide.reason
    whole = [("bfloat16", (256,)), *rows("bfloat16"), ("bfloat16", (256,)), *rows("float32")]
    heads = said(HOPPER, "qk_norm_rotary", *rows("bfloat16"), *whole, head_dim=64)
    assert not heads and "256" in heads.reason
    parts = said(HOPPER, "dual_rms_norm", *rows("bfloat16"), ("bfloat16", (8,)), ("bfloat16", (4,)), sizes=(32, 4, 28))
    assert not parts and "32" in parts.reason


ATTENDED = [("int32", ("requests", "blocks")), ("int32", ("requests+1",)), ("int32", ("requests",))]


@pytest.mark.parametrize(
    ("arch", "q", "cache", "dim", "ok"),
    [
        ("sm_90", "bfloat16", "float8_e4m3fn", 256, True),
        ("sm_90", "bfloat16", "float8_e4m3fnuz", 128, False),
        ("sm_90", "float32", "bfloat16", 128, True),
        ("sm_80", "bfloat16", "float8_e4m3fn", 128, False),
        ("gfx942", "bfloat16", "float8_e4m3fnuz", 128, True),
        ("gfx942", "bfloat16", "float8_e4m3fn", 128, False),
        ("gfx950", "float16", "float8_e4m3fn", 128, True),
        ("gfx1100", "bfloat16", "bfloat16", 128, True),
        ("gfx1100", "bfloat16", "bfloat16", 256, True),
        ("gfx1100", "bfloat16", "bfloat16", 257, False),
        ("gfx1100", "bfloat16", "float8_e4m3fn", 64, False),
        ("gfx1201", "bfloat16", "float8_e4m3fn", 256, True),
        ("gfx1201", "float32", "float32", 64, True),
        ("gfx1201", "float16", "bfloat16", 64, True),
    ],
)
def test_H_QNT_10_attention_takes_the_caches_and_heads_that_its_tiles_hold(arch, q, cache, dim, ok):
    given = [(q, ("tokens", 4 * dim)), (cache, (2, 9, 16, 1, dim)), *ATTENDED]
    scales = [SCALE, SCALE] if cache.startswith("float8") else []
    verdict = said(DEVICES[arch], "attention", *given, *scales, head_dim=dim)
    assert bool(verdict) == ok, verdict.reason
    if cache.startswith("float8"):
        written = [(q, ("tokens", dim)), (q, ("tokens", dim)), given[1], ("int64", ("tokens",)), *scales]
        assert bool(said(DEVICES[arch], "kv_write", *written, head_dim=dim)) == ok


def test_devices_without_triton_or_older_than_it_are_refused():
    bare = replace(HOPPER, libraries={"torch": "2.13.0"})
    assert said(bare, "silu_and_mul", *rows("bfloat16")).reason == "triton not installed"
    turing = replace(HOPPER, features=CUDA_ARCHS["sm_75"].features)
    verdict = said(turing, "silu_and_mul", *rows("float16"))
    assert not verdict and "copy.async absent" in verdict.reason


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.op)
@pytest.mark.parametrize("name", DEVICES)
def test_predicates_answer_where_nothing_is_known_of_the_call(row, name):
    assert isinstance(row.needs(DEVICES[name], {}), Verdict)
    verdict = row.accepts(DEVICES[name], {})
    assert not verdict and verdict.reason
