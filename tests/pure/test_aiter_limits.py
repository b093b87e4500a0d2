"""What rows of AITER for products, experts, attention and static scales accept, at the edges that its sources have;
which devices, releases and variables let them; another arch, type or an absent library never lets one through."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_rocm.calls import CALLS
from kernels_rocm.manifest import KERNELS
from platforms.contract import Verdict
from tests.described_plans import AITER, PLUGINS, chosen, described, plan
from tests.model_configs import BLOCK, INT8, LLAMA, MOE

ROWS = {row.op: row for row in KERNELS if row.name == "aiter"}
HALF, FN, FNUZ = "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"
OWN = {"gfx942": FNUZ, "gfx950": FN}
"""The 8-bit float of a device; another one's bits mean other values."""


def takes(op: str, target: str, facts: dict[str, object]) -> bool:
    profile = described("rocm", target, aiter=AITER)
    return bool(ROWS[op].needs(profile, facts)) and bool(ROWS[op].accepts(profile, facts))


def product(storage: str, **change: object) -> dict[str, object]:
    at = {"width": 256, "out": 128, "block": None, "scales": 1, "result": HALF, "bias": None, **change}
    shapes = [("tokens", at["width"]), ("tokens", at["scales"]), (at["out"], at["width"]), (at["out"],)]
    dtypes = [storage, "float32", storage, "float32"]
    if at["bias"]:
        shapes, dtypes = [*shapes, (at["out"],)], [*dtypes, str(at["bias"])]
    return {
        "result": at["result"],
        "block": at["block"],
        "call_shapes": tuple(shapes),
        "call_dtypes": tuple(dtypes),
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"result": "float16"}, True),
        ({"result": "float32"}, False),
        ({"width": 272, "out": 16}, True),
        ({"width": 264}, False),
        ({"out": 120}, False),
        ({"out": 0}, False),
        ({"scales": 2}, False),
        ({"bias": HALF}, True),
        ({"bias": "float32"}, False),
        ({"block": (128, 128), "scales": 2}, True),
        ({"block": (128, 128), "scales": 1}, False),
        ({"block": (128, 128), "scales": 2, "bias": HALF}, False),
        ({"block": (64, 128), "scales": 2}, False),
        ({"block": (128, 128), "scales": 2, "width": 272}, False),
        ({"block": (128, 128), "scales": 2, "out": 144}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("target", sorted(OWN))
def test_products(target, change, expected):
    assert takes("scaled_linear", target, product(OWN[target], **change)) is expected
    assert not takes("scaled_linear", target, product(FN if OWN[target] == FNUZ else FNUZ, **change))
    assert takes("scaled_linear", target, product("int8", **change)) is (expected and "block" not in change)


def experts(**change: object) -> dict[str, object]:
    at = {"count": 128, "hidden": 2048, "inner": 768, "dtype": HALF, "weights": HALF, "logits": HALF, "bias": False}
    at |= {"scoring": "softmax", "top_k": 8, "groups": 1, "top_groups": 1, "renormalize": True, **change}
    count, hidden, inner = at["count"], at["hidden"], at["inner"]
    shapes = [("tokens", hidden), ("tokens", count), (count, 2 * inner, hidden), (count, hidden, inner)]
    dtypes = [at["dtype"], at["logits"], at["weights"], at["weights"]]
    if at["bias"]:
        shapes, dtypes = [*shapes, (count,)], [*dtypes, "float32"]
    names = ("scoring", "top_k", "groups", "top_groups", "renormalize")
    return {**{name: at[name] for name in names}, "call_shapes": tuple(shapes), "call_dtypes": tuple(dtypes)}


BIASED = {"bias": True, "scoring": "sigmoid", "count": 256}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"dtype": "float16", "weights": "float16", "logits": "float32"}, True),
        ({"dtype": "float32", "weights": "float32"}, False),
        ({"weights": "float32"}, False),
        ({"weights": FNUZ}, False),
        ({"hidden": 2080}, False),
        ({"inner": 704}, False),
        ({"count": 256}, True),
        ({"count": 288}, False),
        ({"count": 60, "top_k": 6}, True),
        ({"count": 6, "top_k": 8}, False),
        ({"groups": 8, "top_groups": 3}, True),
        ({"groups": 3, "top_groups": 1, "count": 126}, False),
        ({"groups": 4, "top_groups": 1, "count": 24}, False),
        ({"groups": 8, "top_groups": 1, "count": 32, "top_k": 5}, False),
        ({"groups": 2, "top_groups": 3}, False),
        ({"scoring": "sigmoid"}, True),
        ({"scoring": "sqrt"}, False),
        ({"bias": True}, False),
        (BIASED, True),
        ({**BIASED, "groups": 8, "top_groups": 4}, True),
        ({**BIASED, "groups": 4, "top_groups": 2}, False),
        ({**BIASED, "renormalize": False}, False),
        ({**BIASED, "count": 70}, False),
    ],
    ids=str,
)
def test_experts(change, expected):
    for target in OWN:
        assert takes("moe", target, experts(**change)) is expected


def attends(**change: object) -> dict[str, object]:
    at = {"page": 16, "heads": 32, "kv_heads": 8, "dim": 128, "dtype": HALF, "cache": HALF, "scales": 0}
    at |= {"window": None, "softcap": 0.0, **change}
    shapes = [
        *(("tokens", at["heads"] * at["dim"]), (2, "pool", at["page"], at["kv_heads"], at["dim"])),
        *(("requests", "width"), ("edges",), ("requests",)),
    ]
    dtypes = [at["dtype"], at["cache"], "int32", "int32", "int32"]
    names = ("heads", "kv_heads", "window", "softcap")
    return {
        **{name: at[name] for name in names},
        "head_dim": at["dim"],
        "call_shapes": (*shapes, *[(1,)] * at["scales"]),
        "call_dtypes": (*dtypes, *["float32"] * at["scales"]),
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"dtype": "float16", "cache": "float16"}, True),
        ({"dtype": "float32", "cache": "float32"}, False),
        ({"cache": "float16"}, False),
        *(({"page": page}, page in (16, 32, 64, 128)) for page in (1, 8, 16, 24, 32, 48, 64, 128)),
        *(({"dim": dim}, 32 <= dim <= 256) for dim in (16, 31, 32, 80, 96, 256, 257, 576)),
        ({"heads": 64, "kv_heads": 4}, True),
        ({"heads": 68, "kv_heads": 4}, False),
        ({"heads": 30, "kv_heads": 8}, False),
        ({"window": 128}, True),
        ({"window": 0}, False),
        ({"softcap": 50.0}, True),
        ({"scales": 2}, False),
    ],
    ids=str,
)
def test_attention(change, expected):
    for target in OWN:
        assert takes("attention", target, attends(**change)) is expected
        fused = attends(**{**change, "scales": 3})
        assert not takes("attention_quantize_static", target, {**fused, "storage": OWN[target]})
        if "scales" not in change:
            fused = {**attends(**{**change, "scales": 1}), "storage": OWN[target]}
            assert takes("attention_quantize_static", target, fused) is expected
            for storage in {FN, FNUZ, "int8"} - {OWN[target]}:
                assert not takes("attention_quantize_static", target, {**fused, "storage": storage})


@pytest.mark.parametrize("target", sorted(OWN))
def test_a_cache_of_8_bits_is_the_devices_own_with_both_scales_or_none(target):
    for cache in (FN, FNUZ, "int8", "float8_e5m2"):
        for scales in (0, 1, 2, 3):
            expected = cache == OWN[target] and scales in (0, 2)
            assert takes("attention", target, attends(cache=cache, scales=scales)) is expected
            fused = {**attends(cache=cache, scales=scales + 1), "storage": OWN[target]}
            assert takes("attention_quantize_static", target, fused) is expected
    wide = attends(cache=OWN[target], scales=2)
    wide["call_shapes"] = (*wide["call_shapes"][:5], (8,), (8,))
    assert not takes("attention", target, wide)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ("gfx942", "gfx950")),
        ({"page": 8}, ()),
        ({"page": 24}, ()),
        ({"page": 32}, ("gfx942", "gfx950")),
        ({"page": 64}, ("gfx950",)),
        ({"page": 256}, ()),
        ({"rank": 384}, ()),
        ({"rope": 8}, ()),
        ({"dtype": "float16"}, ("gfx942", "gfx950")),
        ({"dtype": "float32"}, ()),
        ({"cache": FNUZ}, ()),
    ],
    ids=str,
)
def test_latent_attention_shares_a_page_among_threads(change, expected):
    at = {"page": 16, "rank": 512, "rope": 64, "dtype": HALF, **change}
    dtype = at["dtype"]
    facts = {
        "kv_rank": at["rank"],
        "rope": at["rope"],
        "call_shapes": (
            *(("tokens", 16 * 128), ("tokens", 16 * at["rope"]), ("pool", at["page"], at["rank"] + at["rope"])),
            *((16 * 256, at["rank"]), ("requests", "width"), ("edges",), ("requests",)),
        ),
        "call_dtypes": (dtype, dtype, at.get("cache", dtype), dtype, "int32", "int32", "int32"),
    }
    for target in ("gfx90a", "gfx942", "gfx950", "gfx1201"):
        assert takes("mla_attention", target, facts) is (target in expected)


@pytest.mark.parametrize(
    ("width", "group", "expected"),
    [(4096, 128, True), (5120, 128, True), (4096, 512, True), (4096, 1024, False), (4096, 96, False), (4096, 0, False)],
)
def test_a_fused_sum_quantises_in_groups_of_a_power_of_two_of_threads(width, group, expected):
    """Each thread owns eight columns at every width, unlike in the norm alone."""
    op = "all_reduce_add_rms_norm_quantize_dynamic"
    for target, own in OWN.items():
        facts = {"columns": group, "power_of_two": False, "storage": own, "tensor_parallel_size": 8}
        facts |= {"call_shapes": (("tokens", width), ("tokens", width), (width,)), "call_dtypes": (HALF,) * 3}
        assert takes(op, target, facts) is expected
        for change in ({"power_of_two": True}, {"storage": "int8"}, {"tensor_parallel_size": 6}):
            assert not takes(op, target, {**facts, **change})


STATIC = {
    "rms_norm_quantize_static": (1, False),
    "add_rms_norm_quantize_static": (2, False),
    "silu_and_mul_quantize_static": (1, True),
}


@pytest.mark.parametrize("op", sorted(STATIC))
@pytest.mark.parametrize("target", sorted(OWN))
def test_static_scales(op, target):
    rows, gated = STATIC[op]

    def call(width: int, storage: str, dtype: str = HALF, weight: str = HALF) -> dict[str, object]:
        shapes = [("tokens", width * (2 if gated else 1))] * rows + [(width,)] * (not gated)
        dtypes = [dtype] * rows + [weight] * (not gated)
        return {"storage": storage, "call_shapes": (*shapes, (1,)), "call_dtypes": (*dtypes, "float32")}

    for width, expected in [(1, True), (769, True), (16384, True), (16385, False)]:
        assert takes(op, target, call(width, OWN[target])) is expected
    for storage in {FN, FNUZ, "int8", ""} - {OWN[target]}:
        assert not takes(op, target, call(64, storage))
    assert not takes(op, target, call(64, OWN[target], "float32", "float32"))
    assert gated or not takes(op, target, call(64, OWN[target], HALF, "float32"))


@pytest.mark.parametrize("op", sorted(ROWS))
def test_a_release_before_what_is_passed_was_declared_is_too_old(op):
    """One that does not say its number is looked at when it is first called."""
    edges = {
        "silu_and_mul_quantize_dynamic": ("0.1.14.post1", "0.1.15"),
        "dual_rms_norm": ("0.1.13.post1", "0.1.14"),
        "all_reduce_add_rms_norm_quantize_dynamic": ("0.1.13.post1", "0.1.14"),
        "mla_attention": ("0.1.15", "0.1.16"),
    }
    old, new = edges.get(op, ("0.1.3", "0.1.13"))
    for version, expected in [(old, op in ("rms_norm", "add_rms_norm", "silu_and_mul", "gelu_and_mul")), (new, True)]:
        found = ROWS[op].needs(described("rocm", "gfx942", "aiter", aiter=version), {})
        assert bool(found) is expected and version in found.reason
    unknown = ROWS[op].needs(described("rocm", "gfx942", "aiter", aiter="unknown"), {})
    assert bool(unknown) is not op.startswith("all_reduce")


@pytest.mark.parametrize("version", ["0", "0.0.1", "0.1.0.post9", "garbage", "", "garbage-1.2.3", "1", "9.9.9 or so"])
@pytest.mark.parametrize("op", sorted(ROWS))
def test_a_version_that_says_nothing_or_that_nothing_is_known_of_is_a_no(op, version):
    found = ROWS[op].needs(described("rocm", "gfx942", "aiter", aiter=version), {})
    assert not found and ("< 0.1." in found.reason or f"{version!r} is no version" in found.reason)


@pytest.mark.parametrize("version", [AITER, "0.1.20", "0.1.21.dev3+gde07f3885", "v0.1.20", "0.1.20rc1", "0.2.0a1"])
def test_versions_as_they_are_written_are_read(version):
    assert ROWS["rms_norm"].needs(described("rocm", "gfx942", "aiter", aiter=version), {})


WORDS = {
    "scaled_linear": "LINEAR",
    "moe": "MOE",
    "mla_attention": "MLA",
    "attention": "UNIFIED_ATTENTION",
    "attention_quantize_static": "UNIFIED_ATTENTION",
    "rms_norm_quantize_static": "RMSNORM",
    "silu_and_mul_quantize_static": "LINEAR",
    "rotary_kv_write": "TRITON_ROPE",
    "all_reduce_rms_norm": "CUSTOM_AR",
}


@pytest.mark.parametrize("op", sorted(WORDS))
def test_a_variable_turns_off_its_part_and_no_other(op):
    aliases, profile = PLUGINS["rocm"].aliases(), described("rocm", "gfx942", aiter=AITER)
    for word in sorted(set(WORDS.values())):
        fact = aliases[f"VLLM_ROCM_USE_AITER_{word}"]
        assert bool(ROWS[op].needs(profile, {fact: "0"})) is (word != WORDS[op])
    assert not ROWS[op].needs(profile, {aliases["VLLM_ROCM_USE_AITER"]: "false"})


FACTS: dict[str, dict[str, object]] = {
    "scaled_linear": product("int8"),
    "moe": experts(),
    "attention": attends(),
}


@pytest.mark.parametrize("op", sorted(FACTS))
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_arch_type_and_library_together(op, target):
    """RDNA gets none: the library's products and experts have no code for it, and its attention overflows there."""
    for installed in (True, False):
        profile = described("rocm", target, "aiter", **({"aiter": AITER} if installed else {}))
        found = bool(ROWS[op].needs(profile, FACTS[op])) and bool(ROWS[op].accepts(profile, FACTS[op]))
        assert found is (installed and target in OWN)


@pytest.mark.parametrize("installed", [True, False], ids=["aiter", "bare"])
@pytest.mark.parametrize(
    ("model", "op", "word"),
    [(INT8, "scaled_linear", "LINEAR"), (BLOCK, "scaled_linear", "LINEAR"), (MOE, "moe", "MOE")],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "gfx1201"])
def test_what_a_plan_takes(target, model, op, word, installed):
    profile = described("rocm", target, "aiter", **({"aiter": AITER} if installed else {}))
    off = {f"VLLM_ROCM_USE_AITER_{word}": "0"}
    rows, without = (chosen(plan(profile, model, environment=one), op) for one in ({}, off))
    assert (rows or (target == "gfx90a" and model is BLOCK)) and "aiter" not in without
    assert (rows == {"aiter"}) is (installed and target in OWN), rows


def test_attention_of_the_same_compiler_stands_behind_the_portable_row():
    found = plan(described("rocm", "gfx942"), LLAMA)
    assert chosen(found, "attention") == {"triton"}
    pinned = plan(described("rocm", "gfx942"), LLAMA, "--kernel", "attention=aiter")
    assert chosen(pinned, "attention") == {"aiter"}


def test_a_row_is_not_invariant_to_its_batch_and_says_so():
    """The library picks kernels by the number of rows."""
    assert not any(row.batch_invariant for row in ROWS.values())
    found = plan(described("rocm", "gfx942"), INT8, "--batch-invariant")
    assert all("aiter" not in chosen(found, op) for op in ROWS)


DIMS = st.one_of(st.sampled_from(["tokens", 0, 1, 16, 64, 128, 4096]), st.none())
ODD = st.fixed_dictionaries(
    {},
    optional={
        "call_shapes": st.lists(st.lists(DIMS, max_size=5).map(tuple), max_size=7).map(tuple),
        "call_dtypes": st.lists(st.sampled_from([HALF, "float32", "int32", "int8", FN]), max_size=7).map(tuple),
        "storage": st.sampled_from(["", "int8", FN, FNUZ]),
        "result": st.sampled_from([HALF, "float32"]),
        "block": st.sampled_from([None, (128, 128), (1, 7)]),
        "scoring": st.sampled_from(["softmax", "sigmoid"]),
        "renormalize": st.booleans(),
        **{name: st.integers(0, 65) for name in ("top_k", "groups", "top_groups", "heads", "kv_heads")},
        **{name: st.sampled_from([None, 1, 64, 128]) for name in ("head_dim", "kv_rank", "rope")},
        "window": st.sampled_from([None, 0, 7]),
        "use_aiter": st.text(max_size=5),
    },
)


@settings(max_examples=60, deadline=None)
@given(ODD)
def test_rows_answer_whatever_they_are_asked(facts):
    for target in ("gfx90a", "gfx942", "gfx950"):
        profile = described("rocm", target, aiter=AITER)
        for one in (profile, replace(profile, limits={}, libraries={})):
            for row in ROWS.values():
                for verdict in (row.needs(one, facts), row.accepts(one, facts)):
                    assert type(verdict) is Verdict and type(verdict.ok) is bool and verdict.reason


def test_names_in_the_table_are_releases():
    assert all(call.since == "" or call.since.startswith("0.1.") for call in CALLS.values())
