"""Rows that call FlashInfer: what they ask of it, and that they give what the op's reference gives."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import kernels_cuda.collective
import kernels_cuda.library
from engine.bind import load_target
from engine.fusion import RULES, all_ops
from engine.ops import Case
from engine.ops.collective import open_group
from engine.ops.compare import as_tuple, specs_of
from engine.plan.kernels import call_facts
from kernels_cuda.manifest import KERNELS as CUDA
from platforms.cuda.targets import TARGETS as CUDA_TARGETS
from tests.library_stand_ins import install_flashinfer

OPS = all_ops(RULES)
EPS = {"eps": 1e-5}
FN = {"storage": "float8_e4m3fn"}


def rows(table, name):
    """Those that neither prepare nor multiply, which have tests of their own."""
    return {row.op: row for row in table if row.name == name and not row.prepare and row.op != "scaled_linear"}


FLASHINFER = rows(CUDA, "flashinfer")
TABLES, PROFILES = {"flashinfer": FLASHINFER}, {"flashinfer": CUDA_TARGETS["sm_90"]}
SINGLE = ("all_reduce_add_rms_norm", "all_reduce_rms_norm")
"""Rows that take float32 too."""

CASES = [
    ("flashinfer", "rms_norm", {"tokens": 7, "hidden": 127}, EPS),
    ("flashinfer", "silu_and_mul", {"tokens": 3, "hidden": 769}, {}),
    ("flashinfer", "gelu_and_mul", {"tokens": 3, "hidden": 769}, {"approximate": "none"}),
    ("flashinfer", "gelu_and_mul", {"tokens": 3, "hidden": 769}, {"approximate": "tanh"}),
    ("flashinfer", "rms_norm_quantize_static", {"tokens": 5, "hidden": 64}, {**EPS, **FN}),
    ("flashinfer", "add_rms_norm_quantize_static", {"tokens": 5, "hidden": 64}, {**EPS, **FN}),
    ("flashinfer", "all_reduce_add_rms_norm", {"tokens": 5, "hidden": 64}, {**EPS, "group": "tp"}),
    ("flashinfer", "all_reduce_rms_norm", {"tokens": 5, "hidden": 64}, {**EPS, "group": "tp"}),
    (
        "flashinfer",
        "all_reduce_add_rms_norm_quantize_static",
        {"tokens": 1, "hidden": 64},
        {**EPS, **FN, "group": "tp"},
    ),
]


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Each test finds the library it installed, and none after it does."""
    yield
    kernels_cuda.library.function.cache_clear()


@pytest.fixture
def libraries(monkeypatch, tmp_path):
    """The library stands in, and a group of one rank has the name that programs use."""
    install_flashinfer(monkeypatch)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    open_group("tp", dist.group.WORLD)
    yield
    kernels_cuda.collective.close()
    open_group("tp", None)
    dist.destroy_process_group()


def inputs_of(op, sizes, attributes):
    return OPS[op].inputs(Case(sizes, attributes), "bfloat16", torch.Generator().manual_seed(3))


def facts_of(inputs, attributes, ranks=2):
    return {**attributes, **call_facts(specs_of(inputs)), "tensor_parallel_size": ranks}


def strided(x):
    """The same values with a gap between the rows."""
    if x.dim() != 2:
        return x
    wide = x.new_full((len(x), x.shape[1] + 8), float("nan"))
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


@pytest.mark.parametrize("layout", ["contiguous", "H_FUS_08_strided"])
@pytest.mark.parametrize(("library", "op", "sizes", "attributes"), CASES, ids=lambda value: str(value)[:40])
def test_a_library_row_gives_what_the_reference_gives(libraries, library, op, sizes, attributes, layout):
    row, profile = TABLES[library][op], PROFILES[library]
    inputs = inputs_of(op, sizes, attributes)
    facts = facts_of(inputs, attributes)
    for verdict in (row.needs(profile, facts), row.accepts(profile, facts)):
        assert verdict, verdict.reason
    expected = as_tuple(OPS[op].reference(*(x.clone() for x in inputs), **attributes))
    given = [x.clone() for x in inputs]
    if layout != "contiguous":
        given = [x if at in OPS[op].mutates else strided(x) for at, x in enumerate(given)]
    found = as_tuple(load_target(row.target)(*given, **attributes))
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        relative, absolute = OPS[op].bound("bfloat16", str(want.dtype).removeprefix("torch."))
        torch.testing.assert_close(got.double(), want.double(), rtol=2 * relative + 1e-6, atol=2 * absolute + 1e-6)
    for at, (after, before) in enumerate(zip(given, inputs, strict=True)):
        assert at in OPS[op].mutates or torch.equal(after, before), f"input {at} of {op} was written"


@pytest.mark.parametrize("row", [FLASHINFER["rms_norm"]], ids=lambda row: row.name)
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_H_FUS_08_heads_are_normed_where_they_lie(libraries, row, tokens):
    """q of a packed qkv: heads of 16 in rows of 3 * 64."""
    packed, weight = torch.randn(tokens, 192).bfloat16(), torch.randn(16).bfloat16()
    found = load_target(row.target)(packed[:, :64], weight, eps=1e-6)
    expected = OPS["rms_norm"].reference(packed[:, :64].contiguous(), weight, eps=1e-6)
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=0)


def test_every_library_row_is_run_above():
    assert {op for _, op, *_ in CASES} == set(FLASHINFER)


@pytest.mark.parametrize(("library", "op", "sizes", "attributes"), CASES, ids=lambda value: str(value)[:40])
def test_H_FUS_03_a_weight_of_another_type_is_refused(library, op, sizes, attributes):
    """A row says yes to types it declares only; the library reads a weight as if it had the activation's type."""
    row, profile = TABLES[library][op], PROFILES[library]
    inputs = inputs_of(op, sizes, attributes)
    weights = [at for at in OPS[op].weights if inputs[at].dtype == torch.bfloat16]
    for at in weights:
        mixed = [x.float() if spot == at else x for spot, x in enumerate(inputs)]
        verdict = row.accepts(profile, facts_of(mixed, attributes))
        assert not verdict and "float32" in verdict.reason
    wide = [x.float() if x.dtype == torch.bfloat16 else x for x in inputs]
    assert bool(row.accepts(profile, facts_of(wide, attributes))) is (library == "flashinfer" and op in SINGLE)


def test_H_FUS_05_a_scale_divides(libraries):
    x, weight, scale = torch.ones(1, 8, dtype=torch.bfloat16), torch.ones(8, dtype=torch.bfloat16), torch.tensor([0.5])
    call = load_target(FLASHINFER["rms_norm_quantize_static"].target)
    stored = call(x, weight, scale, eps=0.0, storage="float8_e4m3fn")
    assert stored.float().tolist() == [[2.0] * 8] and (stored.float() * scale).tolist() == [[1.0] * 8]


@pytest.mark.parametrize("row", [FLASHINFER["all_reduce_rms_norm"]], ids=lambda r: r.name)
def test_H_FUS_02_a_norm_without_a_residual_reads_no_leftovers(libraries, row):
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(64).bfloat16()
    call = load_target(row.target)
    found = []
    for _ in range(20):
        leftovers = torch.full((4096, 64), float("nan"), dtype=torch.bfloat16)
        del leftovers
        found.append(call(x, weight, group="tp", eps=1e-6))
    normed, total = found[0]
    assert torch.equal(total, x) and normed.isfinite().all()
    assert all(torch.equal(a, normed) and torch.equal(b, total) for a, b in found)


def test_a_workspace_is_made_once_grows_and_is_given_back(libraries):
    call, made = load_target(FLASHINFER["all_reduce_rms_norm"].target), sys.modules["flashinfer.comm"].Workspace.made
    weight = torch.ones(64).bfloat16()
    for tokens in (4, 2, 4, 9):
        call(torch.ones(tokens, 64).bfloat16(), weight, group="tp", eps=1e-6)
    assert [row.destroyed for row in made] == [True, False]
    kernels_cuda.collective.close("tp")
    assert made[-1].destroyed
    kernels_cuda.collective.close("tp")


def test_a_group_that_nobody_named_is_told(libraries):
    for row in (FLASHINFER["all_reduce_rms_norm"],):
        with pytest.raises(RuntimeError, match="nobody"):
            load_target(row.target)(torch.ones(4, 64).bfloat16(), torch.ones(64).bfloat16(), group="nobody", eps=1e-6)


def test_a_library_that_cannot_be_imported_is_told(monkeypatch):
    for name in TABLES:
        row = TABLES[name]["rms_norm"]
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(RuntimeError, match=f"{name}.* cannot be loaded: .*repair the library"):
            load_target(row.target)(torch.ones(1, 8).bfloat16(), torch.ones(8).bfloat16(), eps=1e-6)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("", "not installed"),
        ("0.6.13", "flashinfer 0.6.13 < 0.7.4"),
        ("0.8.0", "needs one before 0.8"),
        ("unknown", "flashinfer unknown < 0.7.4"),
        ("0.7.12", ""),
    ],
)
def test_a_library_that_is_absent_too_old_or_too_new_is_a_verdict(version, said):
    profile = replace(PROFILES["flashinfer"], libraries={"flashinfer": version} if version else {})
    for row in FLASHINFER.values():
        verdict = row.needs(profile, {})
        assert bool(verdict) is (not said) and said in verdict.reason


@pytest.mark.parametrize("missing", ["rmsnorm", "rmsnorm_quant"])
def test_a_library_that_lacks_a_function_turns_off_that_row_alone(libraries, monkeypatch, missing):
    """First touch calls it, and records what it said."""
    monkeypatch.delattr(sys.modules["flashinfer.norm"], missing)
    x, weight, scale = torch.randn(2, 8).bfloat16(), torch.ones(8).bfloat16(), torch.ones(1)
    calls = {
        "rmsnorm": lambda: load_target(FLASHINFER["rms_norm"].target)(x, weight, eps=1e-6),
        "rmsnorm_quant": lambda: load_target(FLASHINFER["rms_norm_quantize_static"].target)(
            x, weight, scale, eps=1e-6, **FN
        ),
    }
    with pytest.raises(RuntimeError, match=f"{missing}.*cannot be loaded: AttributeError.*repair the library"):
        calls.pop(missing)()
    for call in calls.values():
        call()


def test_a_call_with_other_keywords_than_the_table_is_a_fault_of_the_row():
    with pytest.raises(TypeError, match="the table has"):
        kernels_cuda.library.call("flashinfer.norm:rmsnorm", input=None)
