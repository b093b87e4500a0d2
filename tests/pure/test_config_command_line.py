"""The grammar of the command line: every spelling that works, and what the others are told."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import compat
from engine.config import BY_KEY, FIELDS, collect
from engine.errors import UserError


def values(*words: str, command: str = "serve") -> dict[str, object]:
    return {key: row.value for key, row in collect(words, {}, command).given.items()}


GRAPHS, MODE, SIZES = "compilation.graph_mode", "compilation.mode", "compilation.capture_sizes"
OPS, TUNE, RULE = "compilation.custom_ops", "kernel_config.autotune", "compilation.pass_config.fuse_norm_quant"

WORKS = [
    ("-O0", "optimization_level", 0),
    ("-O1", "optimization_level", 1),
    ("-O 3", "optimization_level", 3),
    ("-O=2", "optimization_level", 2),
    ("--optimization-level 2", "optimization_level", 2),
    ("--optimization-level=2", "optimization_level", 2),
    ("--optimization_level=1", "optimization_level", 1),
    ("-O1 -O2", "optimization_level", 2),
    ("-cc.mode=NONE", MODE, "NONE"),
    ("-cc.mode=none", MODE, "NONE"),
    ("-cc.mode none", MODE, "NONE"),
    ("-cc.mode=3", MODE, "PIECEWISE"),
    ("-cc.mode=VLLM_COMPILE", MODE, "PIECEWISE"),
    ("-cc.mode=stock_torch_compile", MODE, "STOCK_TORCH_COMPILE"),
    ("-cc.mode=2", MODE, "DYNAMO_TRACE_ONCE"),
    ("--compilation-config.mode=0", MODE, "NONE"),
    ("--compilation_config.mode=0", MODE, "NONE"),
    ("--compilation.mode=0", MODE, "NONE"),
    ('-cc {"mode":3}', MODE, "PIECEWISE"),
    ('-cc={"mode":3}', MODE, "PIECEWISE"),
    ('--compilation-config {"mode":"none"}', MODE, "NONE"),
    ("-cc.graph_mode=full_and_piecewise", GRAPHS, "FULL_AND_PIECEWISE"),
    ("-cc.graph-mode=full-decode-only", GRAPHS, "FULL_DECODE_ONLY"),
    ("-cc.cudagraph_mode=2", GRAPHS, "FULL"),
    ("-cc.cudagraph-mode=PIECEWISE", GRAPHS, "PIECEWISE"),
    ("-cc.pass_config.fuse_norm_quant=True", RULE, True),
    ("-cc.pass-config.fuse-norm-quant=true", RULE, True),
    ("-cc.pass_config.fuse_norm_quant=0", RULE, False),
    ('-cc.pass_config {"fuse_norm_quant":true}', RULE, True),
    ('-cc {"pass_config":{"fuse_norm_quant":false}}', RULE, False),
    ("-cc.custom_ops=none,+rms_norm", OPS, ("none", "+rms_norm")),
    ('-cc.custom_ops=["none","+rms_norm"]', OPS, ("none", "+rms_norm")),
    ("-cc.custom_ops+=none -cc.custom_ops+=+rms_norm,+quant_fp8", OPS, ("none", "+rms_norm", "+quant_fp8")),
    ("-cc.custom_ops+=+rms_norm -cc.custom_ops=none", OPS, ("none", "+rms_norm")),
    ("-cc.custom_ops+ all", OPS, ("all",)),
    ("-cc.cudagraph_capture_sizes=[1,2,4]", SIZES, (1, 2, 4)),
    ("-cc.cudagraph_capture_sizes+=1,2,4", SIZES, (1, 2, 4)),
    ("--cudagraph-capture-sizes 1 2 4", SIZES, (1, 2, 4)),
    ("--capture-sizes 4,2,1,4", SIZES, (1, 2, 4)),
    ('-cc {"max_cudagraph_capture_size": 1K}', "compilation.max_capture_size", 1024),
    ("-cc.compile_sizes=cudagraph_capture_sizes,8", "compilation.compile_sizes", ("capture_sizes", 8)),
    ("-cc.splitting_ops=[]", "compilation.splitting_ops", ()),
    ("-cc.debug_dump_path=/tmp/x", "compilation.debug_dump_path", "/tmp/x"),
    ("--kernel-config.enable_flashinfer_autotune=False", TUNE, False),
    ("--kernel_config.enable-flashinfer-autotune=false", TUNE, False),
    ("--kernel-config.autotune=true", TUNE, True),
    ("--no-enable-flashinfer-autotune", TUNE, False),
    ("--enable-flashinfer-autotune", TUNE, True),
    ("--enable-prefix-caching", "cache.enable_prefix_caching", True),
    ("--no-enable-prefix-caching", "cache.enable_prefix_caching", False),
    ("--no-enable-chunked-prefill", "scheduler.enable_chunked_prefill", False),
    ("--kv-cache-memory 8G", "cache.kv_cache_memory_bytes", 8 * 2**30),
    ("--kv-cache-memory-bytes 8g", "cache.kv_cache_memory_bytes", 8 * 10**9),
    ("--kv-cache-memory-bytes=1.5k", "cache.kv_cache_memory_bytes", 1500),
    ("--max-model-len 32K", "scheduler.max_model_len", 32768),
    ("--max-model-len auto", "scheduler.max_model_len", "auto"),
    ("--max-model-len -1", "scheduler.max_model_len", "auto"),
    ("--max_num_batched_tokens 2k", "scheduler.max_num_batched_tokens", 2000),
    ("--gpu-memory-utilization 0.95", "cache.gpu_memory_utilization", 0.95),
    ("--dtype half", "model.dtype", "float16"),
    ("--dtype auto", "model.dtype", "auto"),
    ("-tp 4", "parallel.tensor_parallel_size", 4),
    ("-tp=4", "parallel.tensor_parallel_size", 4),
    ("--data-parallel-size 2", "parallel.data_parallel_size", 2),
    ("--scheduling-policy PRIORITY", "scheduler.policy", "priority"),
    ("--kernel rms_norm=a --kernel attention=b", "kernel_pins", {"rms_norm": "a", "attention": "b"}),
    ('--kernel ["rms_norm=a","attention=b"]', "kernel_pins", {"rms_norm": "a", "attention": "b"}),
    ("-cc.compile_sizes=4,4,8", "compilation.compile_sizes", (4, 8)),
    ("-cc.splitting_ops=vllm::unified_attention", "compilation.splitting_ops", ("attention",)),
    ("--kernel rms_norm=a --kernel rms_norm=b", "kernel_pins", {"rms_norm": "b"}),
    ("--api-key a --api-key b", "server.api_key", ("a", "b")),
    ("some/model", "model.name", "some/model"),
    ("--model some/model", "model.name", "some/model"),
    ("--enforce-eager", "enforce_eager", True),
    ("--scheduler.max-num-seqs 7", "scheduler.max_num_seqs", 7),
]


@pytest.mark.parametrize(("line", "key", "value"), WORKS, ids=[row[0] for row in WORKS])
def test_spelling(line: str, key: str, value: object) -> None:
    assert values(*line.split(" ") if "{" not in line else _json_words(line)) == {key: value}


def _json_words(line: str) -> list[str]:
    head, brace, rest = line.partition("{")
    return [*head.split(), brace + rest] if head.endswith(" ") else [line]


FAILS = [
    ("-cc.mode=bogus", "-cc.mode bogus", "STOCK_TORCH_COMPILE"),
    ("-cc.cudagraph_mode=bogus", "-cc.cudagraph_mode bogus", "FULL_DECODE_ONLY"),
    ("-cc.bogus=1", "-cc.bogus", "graph_mode"),
    ("-cc.graph_mod=FULL", "-cc.graph_mod", "-cc.graph_mode"),
    ("-cc 3", "-cc 3", "-cc.NAME=VALUE"),
    ("-cc {mode:3}", "{mode:3}", "JSON"),
    ("-cc", "-cc", "JSON"),
    ("-cc.custom_ops=all,none", "all,none", "keep one"),
    ("-cc.custom_ops=none,+a,-a", "none,+a,-a", "keep one"),
    ("-cc.custom_ops=rms_norm", "rms_norm", "+op"),
    ("-cc.custom_ops=none -cc.custom_ops+=all", "-cc.custom_ops+=", "keep one"),
    ("-cc.mode+=NONE", "-cc.mode+=", "only a list"),
    ("-cc.capture_sizes=[]", "-cc.capture_sizes", "at least one"),
    ("-cc.capture_sizes=0", "-cc.capture_sizes 0", "from 1"),
    ("-cc.max_capture_size=big", "-cc.max_capture_size big", "whole number"),
    ("-cc.level=3", "-cc.level", "-cc.mode"),
    ("--max-modl-len 3", "--max-modl-len", "--max-model-len"),
    ("--max-model 3", "--max-model", "did you mean"),
    ("--max-model-len", "--max-model-len", "needs a value"),
    ("--max-model-len --port 1", "--max-model-len", "found --port"),
    ("--max-model-len 1.5K5", "1.5K5", "whole number"),
    ("--max-model-len 0", "--max-model-len 0", "from 1"),
    ("--kv-cache-memory-bytes 0", "--kv-cache-memory-bytes 0", "from 1"),
    ("--gpu-memory-utilization 0", "--gpu-memory-utilization 0", "at most 1"),
    ("--gpu-memory-utilization nan", "--gpu-memory-utilization nan", "at most 1"),
    ("--port 65536", "--port 65536", "65535"),
    ("--port http", "--port http", "whole number"),
    ("--dtype int8", "--dtype int8", "bfloat16"),
    ("--kernel rms_norm", "--kernel rms_norm", "OP=NAME"),
    ("--no-port", "--no-port", "--port"),
    ("--no-enforce-eager=1", "--no-enforce-eager=1", "takes no value"),
    ("--enforce-eager false", "--enforce-eager false", "write --enforce-eager=false"),
    ("--enforce-eager=maybe", "--enforce-eager maybe", "true or false"),
    ("-x", "-x", "--help=all"),
    ("-tp", "-tp", "needs a value"),
    ("a b", "'b'", "'a'"),
    ("a --model b", "MODEL a", "--model b"),
    ("--profile f", "--profile", "engine explain"),
    ("--config", "--config", "FILE"),
    ("--config=", "--config", "FILE"),
    ("--config a.yaml --config b.yaml", "a.yaml", "b.yaml"),
    ("-O1 --optimization-level 2", "-O 1", "--optimization-level 2"),
    ("--kernel rms_norm=a,rms_norm=b", "rms_norm=a", "rms_norm=b; keep one"),
    ("-cc.custom_ops=+quant_fp8,-quantize_static", "+quant_fp8", "-quantize_static; keep one"),
    ("-cc.cudagraph_mode=FULL -cc.graph_mode=NONE", "-cc.cudagraph_mode FULL", "-cc.graph_mode NONE"),
    ('-cc={"mode":3} -cc.mode=0', "-cc {mode} 3", "-cc.mode 0"),
    (f'-cc {{"a":{"[" * 5000}{"]" * 5000}}}', "-cc", "nested too deeply"),
    (f'-cc {{"a":{"[" * 20}{"]" * 20}}}', "-cc", "nested too deeply"),
    ('-cc {"mode":"NONE","mode":"PIECEWISE"}', "-cc", "mode stands there twice; keep one"),
    ('-cc {"graph-mode":0,"graph_mode":0}', "-cc", "graph-mode and graph_mode"),
    ('-cc {"pass_config":3}', "-cc {pass_config} 3", "-cc.pass_config.NAME=VALUE"),
    ("--kv-cache-memory 1G --kv-cache-memory-bytes 2G", "--kv-cache-memory 1G", "--kv-cache-memory-bytes 2G"),
    ("--enable-lora", "--enable-lora", "not built"),
    ('--speculative-config {"method":"eagle"}', "--speculative-config {method} eagle", "is not built; ngram is"),
    ("--spec-method oracle", "--spec-method oracle", "wants one of ngram"),
    ("--spec-method ngram --spec-tokens 1025", "--spec-tokens 1025", "wants a whole number from 1 to 1024"),
    ("--speculative-config.model tiny", "--speculative-config.model", "without a second model"),
    ('--speculative-config {"tokens":4}', "speculative_config.tokens", "there are method, num_speculative_tokens"),
    ("--generation-config auto", "--generation-config", "only eos_token_id is read"),
    ("--uvicorn-log-level info", "--uvicorn-log-level", "not built"),
    ("--download-dir /tmp", "--download-dir", "HF_HOME"),
    ("--swap-space", "--swap-space", "needs a value (N)"),
    ("-cc.pass_config.enable_fusion=true", "enable_fusion", "renamed; use -cc.pass_config.fuse_norm_quant and"),
    ('-cc {"pass_config":{"enable_async_tp":true}}', "enable_async_tp", "renamed; use -cc.pass_config.fuse_gemm_comms"),
    *(
        (f"--{name} 4", f"--{name}", "removed")
        for name in ("device", "metrics", "verbose", "debug-dump-path")
    ),
]


@pytest.mark.parametrize(("line", "token", "advice"), FAILS, ids=[row[0][:60] for row in FAILS])
def test_mistake_is_named(line: str, token: str, advice: str) -> None:
    with pytest.raises(UserError) as error:
        values(*line.split(" "))
    assert token in str(error.value)
    assert advice in str(error.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--trust-remote-code", "no code of a checkpoint is run"),
        ("--no-trust-remote-code", "no code of a checkpoint is run"),
        ("--disable-log-requests", "requests are logged only under"),
        ("--swap-space 4", "recomputed"),
        ("--swap-space=4", "recomputed"),
        ("-cc.pass_config.eliminate_noops=true", "programs hold"),
        ("-cc.pass_config.eliminate_noops true", "programs hold"),
        ('-cc {"pass_config":{"enable_noop":true}}', "programs hold"),
    ],
)
def test_what_loses_nothing_is_accepted_with_one_warning(line: str, reason: str) -> None:
    found = collect([*line.split(" "), "--port", "1"], {})
    (warning,) = found.warnings
    assert "has no effect here" in warning and reason in warning
    assert {key: row.value for key, row in found.given.items()} == {"server.port": 1}


def test_every_renamed_fusion_names_ones_that_exist() -> None:
    for old, advice in compat.RENAMED.items():
        assert old not in BY_KEY
        for flag in (word for word in advice.split() if word.startswith("-cc.")):
            assert f"compilation.{flag.removeprefix('-cc.')}" in BY_KEY


@pytest.mark.parametrize("line", ["-O", "-O4", "-O 7", "-O-1", "-O -1", "-O2.5", "-O 2.5", "-Ofast", "-O=", "-O.mode=x",
                                  "-o2", "--optimization-level 4", "--optimization-level fast"])  # fmt: skip
def test_H_OPT_06_malformed_levels_list_the_levels(line: str) -> None:
    with pytest.raises(UserError) as error:
        values(*line.split())
    assert "0, 1, 2, 3" in str(error.value)
    assert line.split()[0] in str(error.value)
    assert ("-cc.mode=x" in str(error.value)) == (line == "-O.mode=x")


def test_json_and_dots_merge_in_any_order() -> None:
    words = ['-cc={"mode": 3, "pass_config": {"fuse_act_quant": true}}', "-cc.cudagraph_mode=NONE",
             "--compilation-config.max_capture_size=8", "-cc.pass_config.fuse_norm_quant=true"]  # fmt: skip
    found = [values(*order) for order in itertools.permutations(words)]
    assert all(one == found[0] for one in found)
    assert len(found[0]) == 5


def test_only_explain_takes_a_profile() -> None:
    assert values("--profile", "device.json", command="explain") == {"profile_file": "device.json"}


SAMPLES = {
    "": ["", "=true", "=false"],
    "TYPE": [" auto", "=float32", "=bfloat16"],
    "N": [" 1", "=3", " 2"],
    "0|1|2": [" 0", "=2"],
    "METHOD": [" ngram", "=ngram"],
    "MODE": ["=NONE", " 1", "=0"],
    "WHICH": None,
    "SHARE": [" 0.5", "=1"],
    "MIB": [" 64", "=0.5"],
    "SIZE": [" 8G", "=3"],
    "N,...": ["=2,4", "=[8]"],
    "OPS": ["=none", "=+a"],
    "OP=NAME": [" a=b", "=c=d"],
    "SECONDS": [" 3", "=0.5"],
    "PARSER": [" auto", "=hermes"],
    "FORMAT": [" qwen3", "=deepseek_r1"],
    "JSON": [' {"pooling_type": "MEAN"}', '={"normalize": false}'],
}


@st.composite
def arguments(draw: st.DrawFn) -> list[list[str]]:
    """Groups of words, one per field, that no order may change the meaning of."""
    chosen = draw(st.lists(st.sampled_from(FIELDS), unique_by=lambda field: field.key, max_size=12))
    groups = []
    for field in chosen:
        forms = SAMPLES.get(field.kind.metavar, [" text", "=text"])
        if forms is None or (field.kind.switch and "." in field.flag):
            continue
        flag = draw(st.sampled_from(field.flags or (field.flag,)))
        text = draw(st.sampled_from(forms))
        if flag == "-O" and text == "":
            continue
        groups.append([flag, text[1:]] if text.startswith(" ") else [flag + text])
    return groups


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_H_OPT_04_order_of_arguments_never_matters(data: st.DataObject) -> None:
    groups = data.draw(arguments())
    shuffled = data.draw(st.permutations(groups))
    ordered = values(*itertools.chain(*groups), command="explain")
    assert values(*itertools.chain(*shuffled), command="explain") == ordered
    assert len(ordered) == len(groups)
