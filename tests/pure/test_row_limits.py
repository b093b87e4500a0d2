"""What rows of vendor libraries accept: the limits of `aiter-apis.md` and `flashinfer-apis.md` of the project's
references, at their edges. A call outside them may end a process instead of raising."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_cuda.limits import ALL_REDUCE_BYTES, ONE_SHOT_BYTES
from kernels_cuda.manifest import KERNELS as CUDA
from kernels_rocm.limits import gate_vector, group_fits, norm_vector, one_stage_bytes
from kernels_rocm.manifest import KERNELS as ROCM
from platforms.contract import Verdict
from tests.described_plans import AITER, PLUGINS, described

ROWWISE = [row for row in CUDA if row.name == "flashinfer" and not row.prepare and row.op != "scaled_linear"]
FLASHINFER = {row.op: row for row in ROWWISE}
LIBRARY = {row.op: row for row in ROCM if row.name == "aiter"}
HALF = "bfloat16"


def call(op: str, width: int, dtype: str = HALF, weight: str = HALF, **attributes: object) -> dict[str, object]:
    """Facts of a call of an op on rows of ``width``."""
    rows = 2 if "add_" in op else 1
    gated = op.startswith(("silu", "gelu"))
    shapes = [("tokens", width * (2 if gated else 1))] * rows + ([] if gated else [(width,)])
    dtypes = [dtype] * rows + ([] if gated else [weight])
    if op.endswith("_static"):
        shapes, dtypes = [*shapes, (1,)], [*dtypes, "float32"]
    facts = {
        "call_shapes": tuple(shapes),
        "call_dtypes": tuple(dtypes),
        "call_dtype": dtype,
        "graph_mode": "FULL",
        "approximate": "none",
    }
    return {**facts, "tensor_parallel_size": 2, **attributes}


def takes(row, profile, facts) -> bool:
    return bool(row.needs(profile, facts)) and bool(row.accepts(profile, facts))


@pytest.mark.parametrize(
    "op", ["rms_norm", "silu_and_mul", "gelu_and_mul", "all_reduce_rms_norm", "all_reduce_add_rms_norm"]
)
def test_rows_are_whole_vectors_up_to_the_widest(op):
    """Odd widths corrupt the columns of later rows (ROCm/aiter issue 5044)."""
    profile, row = described("rocm", "gfx942"), LIBRARY[op]
    for width, expected in [
        (8, True),
        (768, True),
        (769, False),
        (2880, True),
        (8192, True),
        (8200, False),
        (4, False),
    ]:
        assert takes(row, profile, call(op, width)) is expected, width


@pytest.mark.parametrize(
    ("sizes", "expected"), [((1536, 512, 64), True), ((1532, 512, 64), False), ((8200, 512, 64), False)]
)
def test_two_norms_at_once_are_whole_vectors_up_to_the_widest(sizes, expected):
    shapes = (("tokens", sum(sizes)), *((size,) for size in sizes[:2]))
    facts = {"sizes": sizes, "call_shapes": shapes, "call_dtypes": (HALF,) * 3}
    assert takes(LIBRARY["dual_rms_norm"], described("rocm", "gfx942"), facts) is expected


@pytest.mark.parametrize("op", sorted(LIBRARY))
def test_families_that_the_other_library_has_no_kernels_for(op):
    for target in PLUGINS["rocm"].targets():
        with_it = described("rocm", target, "aiter", aiter=AITER)
        assert bool(LIBRARY[op].needs(with_it, {})) is (target in ("gfx942", "gfx950"))
        assert not LIBRARY[op].needs(described("rocm", target, "aiter"), {})
        assert not LIBRARY[op].needs(with_it, {"use_aiter": "0"})


def test_a_sum_in_two_stages_needs_the_version_that_orders_them():
    for version, expected in [("0.1.12.post1", False), ("0.1.13", True), ("unknown", False)]:
        profile = described("rocm", "gfx942", "aiter", aiter=version)
        assert bool(LIBRARY["all_reduce_add_rms_norm"].needs(profile, {})) is expected


@pytest.mark.parametrize(
    ("width", "units", "vector", "fitting"),
    [
        (1024, 304, 8, {8, 16, 32, 64, 128, 256, 512}),
        (4096, 304, 16, {16, 32, 64, 128, 256, 512, 1024}),
        (6144, 304, 24, {24, 48, 96, 192, 384, 768, 1536}),
        (8192, 304, 8, {8, 16, 32, 64, 128, 256, 512}),
        (8192, 104, 16, {16, 32, 64, 128, 256, 512, 1024}),
        (8200, 304, 0, set()),
    ],
)
def test_a_group_is_a_power_of_two_of_threads_within_a_wave(width, units, vector, fitting):
    assert norm_vector(width, units) == vector
    assert {columns for columns in range(1, 2049) if group_fits(columns, norm_vector(width, units))} == fitting


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("gated", [False, True], ids=["norm", "gate"])
def test_groups_of_128_where_the_kernel_has_them(target, gated):
    op = "silu_and_mul_quantize_dynamic" if gated else "add_rms_norm_quantize_dynamic"
    profile = described("rocm", target)
    storage = "float8_e4m3fnuz" if target == "gfx942" else "float8_e4m3fn"
    more = {"storage": storage, "columns": 128, "power_of_two": False}
    for width, expected in [(512, True), (2048, True), (4096, True), (5120, False), (6144, False), (7168, True)]:
        assert takes(LIBRARY[op], profile, call(op, width, **more)) is expected, width
        vector = gate_vector(width) if gated else norm_vector(width, profile.limits["compute_units"])
        assert expected is (width % 128 == 0 and group_fits(128, vector))
    refused = [
        {"power_of_two": True},
        {"storage": "int8"},
        {"storage": "float8_e4m3fn" if target == "gfx942" else "float8_e4m3fnuz"},
        {"columns": 96},
    ]
    for change in refused:
        assert not takes(LIBRARY[op], profile, call(op, 4096, **{**more, **change})), change
    per_row = call(op, 4096, **{**more, "columns": 0})
    assert takes(LIBRARY[op], profile, per_row) is not gated


@pytest.mark.parametrize("op", sorted({*FLASHINFER} - {"silu_and_mul", "gelu_and_mul"}))
def test_H_FUS_03_types_must_agree(op):
    profile, row = described("cuda", "sm_90"), FLASHINFER[op]
    more = {"storage": "float8_e4m3fn"} if op.endswith("_static") else {}
    assert takes(row, profile, call(op, 4096, **more)) and takes(
        row, profile, call(op, 4096, "float16", "float16", **more)
    )
    assert not takes(row, profile, call(op, 4096, HALF, "float32", **more))
    assert not takes(row, profile, call(op, 4096, HALF, "float16", **more))
    assert takes(row, profile, call(op, 4096, "float32", "float32", **more)) is (op.startswith("all") and not more)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("approximate", ["none", "tanh", "sigmoid"])
def test_a_coarse_tangent_is_kept_from_types_that_would_show_it(approximate, dtype):
    """FlashInfer calls ``tanh.approx.f32``, whose relative error is up to 2**-11."""
    facts = call("gelu_and_mul", 64, dtype, approximate=approximate)
    verdict = FLASHINFER["gelu_and_mul"].accepts(described("cuda", "sm_90"), facts)
    assert bool(verdict) is ((approximate, dtype) in {("none", "bfloat16"), ("none", "float16"), ("tanh", "bfloat16")})
    assert verdict or any(word in verdict.reason for word in ("11 bits", "needs none or tanh", "float32"))


@pytest.mark.parametrize("op", ["rms_norm_quantize_static", "add_rms_norm_quantize_static"])
def test_a_static_scale_is_for_8_bit_floats_on_devices_that_have_them(op):
    for target, expected in [("sm_80", False), ("sm_89", True), ("sm_90", True), ("sm_120", True)]:
        facts = call(op, 4096, storage="float8_e4m3fn")
        assert takes(FLASHINFER[op], described("cuda", target), facts) is expected
        assert not takes(FLASHINFER[op], described("cuda", target), {**facts, "storage": "int8"})


def test_sums_over_ranks_have_a_table():
    for (arch, ranks), most in ALL_REDUCE_BYTES.items():
        assert ONE_SHOT_BYTES.get((arch, ranks), 0) <= most
        facts = {**call("all_reduce_rms_norm", 4096), "tensor_parallel_size": ranks}
        assert takes(FLASHINFER["all_reduce_rms_norm"], described("cuda", arch), facts)
    for ranks in (1, 3, 16):
        facts = {**call("all_reduce_rms_norm", 4096), "tensor_parallel_size": ranks}
        assert not takes(FLASHINFER["all_reduce_rms_norm"], described("cuda", "sm_90"), facts)
        assert not takes(LIBRARY["all_reduce_rms_norm"], described("rocm", "gfx942"), facts)
    assert [one_stage_bytes(ranks) >> 10 for ranks in (2, 4, 8)] == [65536, 256, 128]
    for width, expected in [(4096, True), (4100, False), (65536, True), (65544, False)]:
        facts = call("all_reduce_rms_norm", width)
        assert takes(FLASHINFER["all_reduce_rms_norm"], described("cuda", "sm_90"), facts) is expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"dim": 96}, False),
        ({"page": 24}, False),
        ({"turned": 64}, False),
        ({"cache": "float16", "dtype": "float16"}, False),
        ({"cache": "float8_e4m3fn"}, False),
    ],
    ids=str,
)
def test_rotation_and_cache_write_are_for_whole_heads_of_bfloat16(change, expected):
    given = {"dim": 128, "page": 16, "turned": change.get("dim", 128), "dtype": HALF, "cache": HALF, **change}
    dim, dtype = given["dim"], given["dtype"]
    facts = {
        "head_dim": dim,
        "call_shapes": (
            *(("tokens", 8 * dim), ("tokens", 2 * dim), ("tokens", given["turned"]), ("tokens", 2 * dim)),
            *((2, "pool", given["page"], 2, dim), ("tokens",)),
        ),
        "call_dtypes": (dtype, dtype, "float32", dtype, given["cache"], "int64"),
    }
    assert takes(LIBRARY["rotary_kv_write"], described("rocm", "gfx942"), facts) is expected


DIMS = st.one_of(st.sampled_from(["tokens", 0, 1, 8, 64, 128, 4096]), st.none())
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "call_shapes": st.lists(st.lists(DIMS, max_size=5).map(tuple), max_size=7).map(tuple),
        "call_dtypes": st.lists(st.sampled_from([HALF, "float32", "int64", "float8_e4m3fn"]), max_size=7).map(tuple),
        "call_dtype": st.sampled_from([HALF, "float32"]),
        "storage": st.sampled_from(["", "int8", "float8_e4m3fn", "float8_e4m3fnuz"]),
        "columns": st.sampled_from([0, 1, 128]),
        "power_of_two": st.booleans(),
        "sizes": st.lists(st.integers(0, 9000), max_size=4).map(tuple),
        "head_dim": st.sampled_from([None, 1, 64, 128]),
        "graph_mode": st.sampled_from(["NONE", "FULL"]),
        "tensor_parallel_size": st.integers(0, 32),
        "use_aiter": st.text(max_size=5),
    },
)


@settings(max_examples=40, deadline=None)
@given(FACTS)
def test_library_rows_answer_whatever_they_are_asked(facts):
    for name, table in (("cuda", FLASHINFER), ("rocm", LIBRARY)):
        for target in PLUGINS[name].targets():
            for profile in (described(name, target), replace(described(name, target), limits={}, libraries={})):
                for row in table.values():
                    for verdict in (row.needs(profile, facts), row.accepts(profile, facts)):
                        assert type(verdict) is Verdict and verdict.reason
