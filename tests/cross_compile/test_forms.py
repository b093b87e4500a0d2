"""Forms are what a launch would start; what is wrong with their code is found without a device."""

import sys

import pytest
import torch

from kernels_triton import budget, evidence, norm
from kernels_triton.build import Unit, build
from kernels_triton.forms import compile_form, form_of, record
from kernels_triton.launch import arch_of, assume, launch
from kernels_triton.resources import measure
from platforms.contract import DeviceProfile
from tests.cross_compile import toys
from tests.described_plans import described

ROOM = 65536
H100 = described("cuda", "sm_90")
MI300 = described("rocm", "gfx942")


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def product(size: int, warps: int, arch: str) -> Unit:
    def call(*tensors: torch.Tensor) -> None:
        launch(toys.product_kernel, (1,), *tensors, 8, warps=warps, SIZE=size)

    (form,) = record(call, *(empty(size, size) for _ in range(3)), arch=arch)
    return Unit(form, arch, ROOM)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_a_tile_that_does_not_fit_the_registers_fails(arch):
    made = product(128, 1, arch).make()
    assert made["figures"]["spills"] > 0
    assert any(problem.startswith("spills") for problem in made["problems"])


def test_a_large_product_on_the_older_unit_fails():
    few, enough = (product(64, warps, "sm_90").make() for warps in (1, 4))
    assert "products of 64 rows use mma.sync, needs wgmma" in few["problems"]
    assert enough["figures"]["matrix"] == ("wgmma",) and not enough["problems"]
    assert product(64, 4, "sm_100").make()["figures"]["matrix"] == ("tcgen05",)
    small = product(16, 1, "sm_90").make()
    assert small["figures"]["matrix"] == ("mma.sync",) and not small["problems"]


@pytest.mark.parametrize(("arch", "unit"), [("sm_120", "mma.sync"), ("gfx950", "mfma"), ("gfx1201", "wmma")])
def test_the_matrix_unit_of_an_arch_is_read_from_its_code(arch, unit):
    assert product(16, 1, arch).make()["figures"]["matrix"] == (unit,)


def test_more_shared_memory_than_the_device_has_fails():
    unit = product(64, 4, "sm_90")
    tight = Unit(unit.form, unit.arch, 1024).make()
    assert [problem for problem in tight["problems"] if "of shared memory, sm_90 has 1024" in problem]


def test_rows_of_multiples_of_16_move_in_128_bits_and_others_make_one_form_more():
    def forms(columns):
        return build(H100, "kernels_triton.norm:rms_norm", (empty(7, columns), empty(columns)), dict(eps=1e-6))

    (wide,), (odd,) = forms(4096), forms(4095)
    assert wide.make()["figures"]["load"] == wide.make()["figures"]["store"] == 128
    found = measure(odd.form, "sm_90")
    assert found.load < 128 and not evidence.problems(odd.form, found, "sm_90", ROOM)
    assert forms(4080) == (wide,) and forms(4093) == (odd,)
    broken = type(found)(**{**found.to_json(), "load": 64})
    assert evidence.problems(wide.form, broken, "sm_90", ROOM) == (
        "loads 64 bits at most, rows of multiples of 16 allow 128",
    )


@pytest.mark.parametrize("tokens", [1, 2, 16, 1000])
def test_a_form_depends_on_neither_tokens_nor_addresses(tokens):
    weight = empty(4096)
    forms = [
        record(norm.rms_norm, empty(tokens, 4096), weight, arch="sm_90", eps=1e-6),
        record(norm.rms_norm, empty(7, 3 * 4096)[:, 4096:8192], weight, arch="sm_90", eps=1e-5),
    ]
    assert forms[0] == forms[1]


def test_only_where_2_gib_make_other_code_are_they_part_of_a_form():
    large = [empty(1 << 19, 4096), empty(4096)]
    for arch, near in (("sm_90", False), ("gfx942", True)):
        (one,), (other,) = (record(norm.rms_norm, x, large[1], arch=arch, eps=1e-6) for x in (empty(1, 4096), large[0]))
        assert (one != other) == near
        assert ("x" in one.near, "x" in other.near) == (near, False)


def test_a_number_without_a_type_is_refused():
    with pytest.raises(TypeError, match="untyped_kernel: the number 'count' has no type"):
        form_of(toys.untyped_kernel, (empty(4), 1), 1, 1, {}, False)
    with pytest.raises(TypeError, match="launched without \\['SIZE'\\]"):
        form_of(toys.product_kernel, (*[empty(4)] * 3, 1), 1, 1, {}, False)


def test_tensors_without_data_lie_where_it_was_assumed():
    with assume("gfx942"):
        assert arch_of(empty(1)) == "gfx942" and arch_of(torch.empty(1)) == ""
    assert arch_of(empty(1)) == ""


def test_an_arch_triton_does_not_compile_for_is_named():
    form = product(16, 1, "sm_90").form
    with pytest.raises(ValueError, match="found 'x86-64-v4'"):
        compile_form(form, "x86-64-v4")


SOURCE = """
import triton, triton.language as tl
from kernels_triton.launch import jit
LIMIT = tl.constexpr(4)
@triton.jit
def helper(x):
    return x + 1
@jit
def kernel(x, count: tl.int32):
    'Words.'
    tl.store(x, helper(count) + LIMIT)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("Words.", "Other words.", True),
        ("import triton,", "# A remark.\nimport triton,", True),
        ("x + 1", "x + 2", False),
        ("constexpr(4)", "constexpr(5)", False),
        ("tl.store(x,", "tl.store(x + 1,", False),
    ],
)
def test_the_code_of_a_kernel_and_of_its_helpers_is_what_is_hashed(old, new, same, tmp_path, monkeypatch):
    found = []
    for folder, text in (("before", SOURCE), ("after", SOURCE.replace(old, new))):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "toy_source.py").write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / folder))
            patch.delitem(sys.modules, "toy_source", raising=False)
            budget.source_hash.cache_clear()
            found.append(budget.source_hash("toy_source:kernel"))
            del sys.modules["toy_source"]
    assert old in SOURCE and (found[0] == found[1]) == same


def test_a_profile_without_the_arch_of_triton_names_it():
    host = DeviceProfile("toy", "x86", "toy", "toy", 1, "described", limits={"shared_memory": ROOM})
    (unit,) = build(host, "kernels_triton.norm:rms_norm", (empty(7, 64), empty(64)), dict(eps=1e-6))
    with pytest.raises(ValueError, match="found 'x86'"):
        unit.make()
