"""Devices described without having them, and what predicates and settings make of them."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platforms.accelerator import GIB
from platforms.contract import DeviceProfile, FusionOffer, FusionRule, Kernel, Setting, Verdict
from platforms.cpu.plugin import CpuPlugin
from platforms.cuda.plugin import CudaPlugin
from platforms.rocm.plugin import RocmPlugin

PLUGINS = {plugin.name: plugin for plugin in (CpuPlugin(), CudaPlugin(), RocmPlugin())}
TARGETS = [(name, target) for name, plugin in PLUGINS.items() for target in plugin.targets()]
ACCELERATORS = [row for row in TARGETS if row[0] != "cpu"]
MODEL = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "batch_invariant": False,
    "native_ops": frozenset(),
    "hidden_size": 4096,
    "head_dim": 128,
    "dtype": "bfloat16",
    "quantized": False,
    "mla": False,
    "moe": False,
    "max_model_len": 8192,
}


def described(name: str, target: str) -> DeviceProfile:
    return PLUGINS[name].targets()[target]


def offers(name: str) -> dict[str, FusionOffer]:
    return {row.rule: row for row in PLUGINS[name].fusions() if isinstance(row, FusionOffer)}


def verdict(name: str, target: str, rule: str, without: str = "", **facts) -> Verdict:
    profile = described(name, target)
    libraries = {key: value for key, value in profile.libraries.items() if key != without}
    return offers(name)[rule].when(dataclasses.replace(profile, libraries=libraries), MODEL | facts)


def test_the_promised_targets_are_there():
    assert set(PLUGINS["cuda"].targets()) == {"sm_80", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"}
    assert set(PLUGINS["rocm"].targets()) == {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"}
    assert set(PLUGINS["cpu"].targets()) == {"x86-64-v2", "x86-64-v3", "x86-64-v4", "amx", "armv8.2", "armv8.6"}


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_a_target_is_complete_and_says_where_its_facts_are_from(name, target):
    profile = described(name, target)
    assert (profile.platform, profile.origin) == (name, "described")
    assert "unknown" not in (profile.arch, profile.family, profile.product)
    assert profile.memory_bytes >= 8 * GIB and "dtype.float32" in profile.features
    facts = {"arch", "family", "product", "memory_bytes", "libraries"}
    facts |= {f"features.{name}" for name in profile.features} | {f"limits.{name}" for name in profile.limits}
    assert facts <= set(profile.evidence) and all(len(profile.evidence[name]) > 8 for name in facts)
    assert "torch" in profile.libraries
    needed = {"threads", "physical_cores"} if name == "cpu" else {"shared_memory", "warp_size", "compute_units"}
    assert needed <= set(profile.limits) and all(value > 0 for value in profile.limits.values())
    assert DeviceProfile.from_json(profile.to_json()) == profile
    assert name == "cpu" or profile.arch == target


def test_number_formats_and_instructions_by_architecture():
    def having(feature: str) -> set[str]:
        return {target for name, target in TARGETS if feature in described(name, target).features}

    assert having("mma.wgmma") == {"sm_90"}
    assert having("mma.tcgen05") == {"sm_100", "sm_103"}
    assert having("copy.tma") == {"sm_90", "sm_100", "sm_103", "sm_120"}
    assert having("dtype.nvfp4") == {"sm_100", "sm_103", "sm_120"}
    assert having("dtype.fp8_e4m3fnuz") == {"gfx942"}
    assert having("dtype.fp8_e4m3fn") == {"sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx950", "gfx1201"}
    assert having("mma.mfma") == {"gfx90a", "gfx942", "gfx950"} and having("mma.wmma") == {"gfx1100", "gfx1201"}
    assert having("dtype.bfloat16") == {target for _, target in ACCELERATORS} | {"amx", "armv8.6"}
    assert having("mem.shared_with_host") == {"sm_87"} | {target for name, target in TARGETS if name == "cpu"}
    assert having("graph.capture") == {target for _, target in TARGETS}
    assert having("compile.native") == {target for name, target in TARGETS if name == "cpu"}


LIMITS = ("shared_memory", "warp_size", "warps_per_unit", "compute_units", "l2_bytes")
KIB, MIB = 1 << 10, 1 << 20
FIGURES = {
    "sm_80": (163 * KIB, 32, 64, 108, 40 * MIB),
    "sm_87": (163 * KIB, 32, 48, 16, 4 * MIB),
    "sm_89": (99 * KIB, 32, 48, 142, 96 * MIB),
    "sm_90": (227 * KIB, 32, 64, 132, 50 * MIB),
    "sm_100": (227 * KIB, 32, 64, 148, 126 * MIB),
    "sm_103": (227 * KIB, 32, 64, 148, 126 * MIB),
    "sm_120": (99 * KIB, 32, 48, 188, 128 * MIB),
    "gfx90a": (64 * KIB, 64, None, 104, 8 * MIB),
    "gfx942": (64 * KIB, 64, None, 304, 32 * MIB),
    "gfx950": (160 * KIB, 64, None, 256, 32 * MIB),
    "gfx1100": (64 * KIB, 32, None, 96, 6 * MIB),
    "gfx1201": (64 * KIB, 32, None, 64, 8 * MIB),
}


@pytest.mark.parametrize(("name", "target"), ACCELERATORS)
def test_figures_of_the_vendors_documents(name, target):
    limits = described(name, target).limits
    assert tuple(limits.get(limit) for limit in LIMITS) == FIGURES[target]
    assert limits["threads_per_block"] == 1024 and (name == "rocm" or limits["registers"] == 65536)


KINDS = re.compile(r"(dtype|mma|copy|cluster|launch|isa|graph|mem|link|tool|compile)\.[a-z0-9_.]+")


def test_features_that_code_names_exist_on_some_target():
    named: dict[str, str] = {}
    for folder in ("engine", "kernels_cpu", "kernels_cuda", "kernels_rocm", "kernels_triton", "platforms"):
        for path in sorted((Path(__file__).parents[2] / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and KINDS.fullmatch(text):
                    named[text] = str(path)
    there = {feature for name, target in TARGETS for feature in described(name, target).features}
    assert {"copy.async", "graph.capture", "compile.inductor"} <= set(named), "the search finds some"
    assert {text: path for text, path in named.items() if text not in there} == {}


def test_features_of_an_architecture_belong_together():
    for name, target in TARGETS:
        features = described(name, target).features
        flavours = {flavour for flavour in features if re.fullmatch(r"dtype\.fp8_\w+", flavour)}
        fnuz = {flavour for flavour in flavours if flavour.endswith("fnuz")}
        assert fnuz in (set(), flavours) and len(flavours) in (0, 2), "one flavour, of both splits"
        assert len({"mma.wgmma", "mma.tcgen05"} & features) <= 1 and len({"mma.mfma", "mma.wmma"} & features) <= 1
        assert "copy.tma" not in features or "copy.async" in features
        assert not {"mma.wgmma", "mma.tcgen05"} & features or "copy.tma" in features
        assert not {"dtype.nvfp4", "dtype.mxfp4"} & features or flavours
        isa = {feature for feature in features if feature.startswith("isa.")}
        assert bool(isa) is (name == "cpu")
        assert "isa.avx512f" not in isa or "isa.avx2" in isa
        assert "isa.amx_int8" not in isa or {"isa.amx_tile", "isa.avx512_vnni"} <= isa


def test_families_are_names_that_no_vendor_shares():
    of = {name: {described(name, target).family for target in plugin.targets()} for name, plugin in PLUGINS.items()}
    assert not of["cuda"] & of["rocm"] and not of["cpu"] & (of["cuda"] | of["rocm"])
    assert described("cuda", "sm_120").family != described("cuda", "sm_100").family


def test_limits_that_decide_whether_a_kernel_fits():
    assert described("rocm", "gfx942").limits["shared_memory"] == 65536
    assert described("rocm", "gfx950").limits["shared_memory"] == 163840
    assert described("cuda", "sm_90").limits["shared_memory"] == 232448
    assert described("cuda", "sm_120").limits["shared_memory"] == 101376
    assert (
        described("rocm", "gfx1100").limits["warp_size"] == 32 and described("cuda", "sm_90").limits["warp_size"] == 32
    )


@pytest.mark.parametrize("name", PLUGINS)
def test_tables_are_rows(name):
    plugin = PLUGINS[name]
    assert all(isinstance(row, Kernel) for row in plugin.kernels())
    rows = plugin.fusions()
    assert all(isinstance(row, FusionOffer | FusionRule) for row in rows)
    names = [row.rule for row in rows if isinstance(row, FusionOffer)]
    assert len(names) == len(set(names))


SETS = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel_size": st.integers(1, 64),
        "pipeline_parallel_size": st.integers(1, 4),
        "data_parallel_size": st.integers(1, 4),
        "native_ops": st.frozensets(st.sampled_from(["rms_norm", "quantize_static", "silu_and_mul"])),
        "allreduce_max_size_mb": st.floats(0.001, 1024),
        "rope_kvcache_max_tokens": st.integers(1, 4096),
        "batch_invariant": st.booleans(),
        "hidden_size": st.sampled_from([64, 2880, 4096]),
        "head_dim": st.integers(1, 512),
        "dtype": st.sampled_from(["float32", "bfloat16", "float16"]),
        "quantized": st.booleans(),
        "mla": st.booleans(),
        "use_aiter": st.text(max_size=5),
        "offline": st.booleans(),
    },
)


@settings(max_examples=60, deadline=None)
@given(SETS)
def test_predicates_and_settings_answer_for_every_target_and_any_facts(facts):
    for name, target in TARGETS:
        profile = described(name, target)
        for offer in offers(name).values():
            first, second = offer.when(profile, facts), offer.when(profile, facts)
            assert first == second and first.reason
            if first and offer.tokens is not None:
                limit = offer.tokens(profile, facts)
                assert type(limit) is int and limit == offer.tokens(profile, facts) >= 0
        for level in range(4):
            rows = PLUGINS[name].settings(profile, facts, level)
            assert all(isinstance(row, Setting) and row.reason for row in rows)
            assert len({row.key for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("target", "ranks", "expected"),
    [
        ("sm_80", 2, False),
        ("sm_89", 2, False),
        ("sm_90", 1, False),
        ("sm_90", 2, True),
        ("sm_90", 3, False),
        ("sm_90", 16, False),
        ("sm_100", 16, True),
        ("sm_103", 8, True),
        ("sm_120", 2, False),
    ],
)
def test_fused_all_reduce_by_architecture_and_ranks(target, ranks, expected):
    assert bool(verdict("cuda", target, "fuse_allreduce_rms", tensor_parallel_size=ranks)) is expected
    off = verdict("cuda", target, "fuse_allreduce_rms", tensor_parallel_size=ranks, batch_invariant=True)
    missing = verdict("cuda", target, "fuse_allreduce_rms", "flashinfer", tensor_parallel_size=ranks)
    assert not off and not missing
    if expected:
        assert "batch_invariant" in off.reason and missing.reason == "flashinfer not installed"


@pytest.mark.parametrize(("name", "target"), TARGETS)
@pytest.mark.parametrize(("rule", "op"), [("fuse_norm_quant", "rms_norm"), ("fuse_act_quant", "silu_and_mul")])
def test_quantising_fusions_need_a_kernel_for_one_of_the_two(name, target, rule, op):
    for rows, expected in [((), False), ((op,), True), (("quantize_static",), True), (("linear", "add"), False)]:
        found = verdict(name, target, rule, native_ops=frozenset(rows))
        assert bool(found) is expected
        assert expected or ("compiler fuses better" in found.reason and f"+{op}" in found.reason)
    other = "silu_and_mul" if op == "rms_norm" else "rms_norm"
    assert not verdict(name, target, rule, native_ops=frozenset({other}))


@pytest.mark.parametrize(
    ("rule", "facts"),
    [
        ("fuse_act_padding", {"hidden_size": 2880}),
        ("fuse_mla_dual_rms_norm", {"mla": True}),
        ("fuse_allreduce_rms", {"tensor_parallel_size": 2}),
    ],
)
def test_what_only_aiter_has(rule, facts):
    assert verdict("rocm", "gfx942", rule, **facts) and verdict("rocm", "gfx950", rule, **facts)
    assert verdict("rocm", "gfx942", rule, "aiter", **facts).reason == "aiter not installed"
    assert not verdict("rocm", "gfx942", rule, use_aiter="0", **facts)
    assert "use_aiter = false" in verdict("rocm", "gfx942", rule, use_aiter="false", **facts).reason
    assert not verdict("rocm", "gfx942", rule), "the model is not of that kind"
    profile = dataclasses.replace(described("rocm", "gfx90a"), libraries={"aiter": "0.1.20"})
    assert not offers("rocm")[rule].when(profile, MODEL | facts)
    assert rule not in offers("cuda") or rule == "fuse_allreduce_rms"


def test_rope_rules_follow_the_kind_of_attention():
    for name, target in (("cuda", "sm_90"), ("rocm", "gfx942"), ("rocm", "gfx1201")):
        assert verdict(name, target, "fuse_rope_kvcache") and not verdict(name, target, "fuse_rope_kvcache", mla=True)
        assert verdict(name, target, "fuse_rope_kvcache_cat_mla", mla=True)
        assert not verdict(name, target, "fuse_rope_kvcache_cat_mla")
        assert not verdict(name, target, "fuse_qk_norm_rope_kvcache", head_dim=96)
    assert verdict("rocm", "gfx942", "fuse_rope_kvcache", "aiter"), "without AITER there is Triton"
    assert not verdict("rocm", "gfx1201", "fuse_rope_kvcache", "triton")


def values(name: str, profile: DeviceProfile, **facts) -> dict[str, object]:
    return {row.key: row.value for row in PLUGINS[name].settings(profile, MODEL | facts, 2)}


@pytest.mark.parametrize(
    ("name", "target", "offline", "tokens", "sequences"),
    [
        ("cuda", "sm_100", False, 16384, 1024),
        ("cuda", "sm_90", False, 8192, 1024),
        ("cuda", "sm_90", True, 16384, 1024),
        ("cuda", "sm_80", False, 2048, 256),
        ("cuda", "sm_89", False, 2048, 256),
        ("cuda", "sm_89", True, 8192, 256),
        ("rocm", "gfx942", False, 16384, 1024),
        ("rocm", "gfx1201", False, 2048, 256),
        ("cpu", "x86-64-v3", False, 2048, 128),
        ("cpu", "x86-64-v3", True, 4096, 256),
    ],
)
def test_step_sizes_by_memory(name, target, offline, tokens, sequences):
    found = values(name, described(name, target), offline=offline)
    assert found["scheduler.max_num_batched_tokens"] == tokens and found["scheduler.max_num_seqs"] == sequences


def test_unknown_memory_sets_nothing_and_capture_caps_follow_the_family():
    unknown = dataclasses.replace(described("cuda", "sm_90"), memory_bytes=0)
    assert set(values("cuda", unknown)) == {"compilation.capture_cap"}
    caps = {target: values(name, described(name, target))["compilation.capture_cap"] for name, target in ACCELERATORS}
    assert {target for target, cap in caps.items() if cap == 1024} == {"sm_100", "sm_103"}
    assert set(caps.values()) == {512, 1024}


def test_settings_of_the_host():
    for target in PLUGINS["cpu"].targets():
        profile = described("cpu", target)
        found = values("cpu", profile)
        assert found["compilation.custom_ops"] == ["all"] and found["compilation.backend"] == "native"
        assert found["model.dtype"] == "float32", "compiled kernels sum in it, whatever the processor multiplies"
        halves = "isa.f16c" in profile.features or "isa.asimd" in profile.features
        assert found.get("cache.kv_cache_dtype") == ("float16" if halves else None)
        assert "cache.kv_cache_dtype" not in values("cpu", profile, mla=True)
        bare = dataclasses.replace(profile, features=profile.features - {"kernel.cxx"})
        found = values("cpu", bare)
        assert found.get("model.dtype") == (None if "dtype.bfloat16" in profile.features else "float32")
        assert "cache.kv_cache_dtype" not in found


def test_aliases_are_names_of_facts():
    aliases = PLUGINS["rocm"].aliases()
    assert aliases["VLLM_ROCM_USE_AITER"] == "use_aiter" and aliases["VLLM_ROCM_USE_AITER_MHA"] == "use_aiter_mha"
    assert len(set(aliases.values())) == len(aliases) and all(name.isidentifier() for name in aliases.values())
