"""Every Triton kernel becomes machine code for devices that are absent, without spilling what devices keep at hand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
import triton

from kernels_triton import activation, attention, mla, norm, quant, rotary
from kernels_triton.manifest import ROWS
from tests.cross_compile.recorded import TARGETS, Launch, record

ARCHS = ("sm_90", "sm_100", "gfx942", "gfx950")
"""Every row is compiled for these, one of each kernel for all of ``TARGETS``."""
SLACK = 16
"""Bytes of a thread's stack that ptxas takes rather than more registers."""
HALF, SINGLE = torch.bfloat16, torch.float32


def empty(*shape, dtype=HALF):
    return torch.empty(shape, dtype=dtype, device="meta")


def storage(arch):
    """The float8 of the device, integers where it has none."""
    return {"gfx942": "float8_e4m3fnuz", **dict.fromkeys(("sm_80", "gfx90a"), "int8")}.get(arch, "float8_e4m3fn")


def attend(tokens, dim, dtype=HALF, window=None, **stored):
    cache, tables = empty(2, 100, 16, 8, dim, dtype=dtype), [empty(n, dtype=torch.int32) for n in (5, 4)]
    how = dict(heads=32, kv_heads=8, head_dim=dim, scale=0.1, window=window, **stored)
    given = [empty(tokens, 32 * dim, dtype=dtype), cache, empty(4, 20, dtype=torch.int32), *tables]
    if stored:
        return record(attention.attention_quantize_static, *given, empty(1, dtype=SINGLE), **how)
    return record(attention.attention, *given, **how)


def launches(op: str, arch: str) -> list[Launch]:
    """What one op starts for a model of 4096 columns and heads of 128."""
    x, weight, gated, one = empty(7, 4096), empty(4096), empty(7, 8192), empty(1, dtype=SINGLE)
    q, k, v, table = empty(7, 4096), empty(7, 1024), empty(7, 1024), empty(7, 128, dtype=SINGLE)
    cache, slots, head = empty(2, 100, 16, 8, 128), empty(7, dtype=torch.int64), empty(128)
    latent, latents, key, turn = empty(7, 512), empty(100, 16, 576), empty(7, 64), empty(7, 64, dtype=SINGLE)
    queries = empty(7, 1024)
    kind = dict(storage=storage(arch))
    groups = dict(**kind, columns=128, power_of_two=True)
    eps = dict(eps=1e-6)
    if op == "attention":  # tiles of each table, the largest heads in float32
        long = [*attend(70, 64, window=100), *attend(70, 128), *attend(70, 256)]
        return [*attend(4, 128), *long, *attend(4, 256, SINGLE)]
    if op == "attention_quantize_static":
        return [*attend(4, 128, **kind), *attend(70, 128, **kind)]
    function, *given, how = {
        "rms_norm": (norm.rms_norm, x, weight, eps),
        "rms_norm_quantize_static": (norm.rms_norm_quantize_static, x, weight, one, {**eps, **kind}),
        "rms_norm_quantize_dynamic": (norm.rms_norm_quantize_dynamic, x, weight, {**eps, **groups}),
        "add_rms_norm_quantize_static": (norm.add_rms_norm_quantize_static, x, x, weight, one, {**eps, **kind}),
        "add_rms_norm_quantize_dynamic": (norm.add_rms_norm_quantize_dynamic, x, x, weight, {**eps, **groups}),
        "add_rms_norm_pad": (norm.add_rms_norm_pad, x, x, weight, {**eps, "multiple": 256}),
        "dual_rms_norm": (norm.dual_rms_norm, x, empty(1536), empty(512), {**eps, "sizes": (1536, 512, 2048)}),
        "silu_and_mul": (activation.silu_and_mul, gated, {}),
        "silu_and_mul_quantize_static": (activation.silu_and_mul_quantize_static, gated, one, dict(storage="int8")),
        "silu_and_mul_quantize_dynamic": (activation.silu_and_mul_quantize_dynamic, gated, groups),
        "quantize_static": (quant.quantize_static, x, one, kind),
        "quantize_dynamic": (quant.quantize_dynamic, x, dict(storage="int8", columns=0, power_of_two=False)),
        "rotary": (rotary.rotary, q, k, table, dict(head_dim=128)),
        "kv_write": (rotary.kv_write, k, v, cache, slots, dict(head_dim=128)),
        "rotary_kv_write": (rotary.rotary_kv_write, q, k, turn, v, cache, slots, dict(head_dim=128)),
        "qk_norm_rotary": (rotary.qk_norm_rotary, q, head, k, head, table, {**eps, "head_dim": 128}),
        "qk_norm_rotary_kv_write": (
            *(rotary.qk_norm_rotary_kv_write, q, head, k, head, table, v, cache, slots),
            {**eps, "head_dim": 128},
        ),
        "mla_write": (mla.mla_write, latent, key, latents, slots, {}),
        "rotary_mla_write": (mla.rotary_mla_write, queries, key, turn, latent, latents, slots, dict(head_dim=64)),
    }[op]
    return record(function, *given, **how)


def spilled(compiled, folder: Path) -> int:
    """Bytes or registers of a thread that do not fit, as the vendor's assembler reports them."""
    if "amdgcn" in compiled.asm:
        found = re.findall(r"\.(?:vgpr_spill_count|private_segment_fixed_size):\s*(\d+)", compiled.asm["amdgcn"])
        assert len(found) >= 2
        return sum(map(int, found))
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    (folder / "cubin").write_bytes(compiled.asm["cubin"])
    made = subprocess.run([tool, "-res-usage", folder / "cubin"], capture_output=True, text=True)
    found = re.findall(r"(?:STACK|LOCAL):(\d+)", made.stdout)
    assert len(found) >= 2, made
    return sum(map(int, found))


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """Nothing comes from an earlier run."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("op", [row.op for row in ROWS])
def test_every_row_compiles(op, arch, tmp_path):
    for launch in launches(op, arch):
        assert spilled(launch.compile(arch), tmp_path) <= SLACK


@pytest.mark.parametrize("arch", TARGETS)
def test_one_of_each_kernel_compiles(arch, tmp_path):
    sample = [
        *launches("add_rms_norm_quantize_dynamic", arch),
        *launches("qk_norm_rotary_kv_write", arch),
        *launches("rotary_mla_write", arch),
        *attend(4, 128),
    ]
    assert len({id(launch.kernel) for launch in sample}) == len(sample) == 4
    for launch in sample:
        compiled = launch.compile(arch)
        assert compiled.metadata.target.arch in (arch, TARGETS[arch].arch)
        assert spilled(compiled, tmp_path) <= SLACK
