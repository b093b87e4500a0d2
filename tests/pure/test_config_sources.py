"""File, environment and Python arguments: how they are read, and which wins."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from engine.config import BY_KEY, FIELDS, collect, from_environment, from_keywords, value_of
from engine.config.environment import unknown_variables
from engine.config.fields import FUSE, Field
from engine.config.values import written_value
from engine.errors import UserError
from engine.levels import LEVELS


def write(folder: Path, text: str, name: str = "f.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def plain(words: list[str], environ: dict[str, str] | None = None) -> dict[str, tuple[object, str]]:
    return {key: (row.value, row.origin) for key, row in collect(words, environ or {}).given.items()}


@pytest.mark.parametrize("level", [row.number for row in LEVELS])
@pytest.mark.parametrize("key", [*LEVELS[0].defaults, *(field.key for field in FIELDS if field.group == FUSE)])
def test_H_OPT_02_an_explicit_value_is_kept_beside_any_level(level: int, key: str) -> None:
    preset = LEVELS[level].defaults.get(key, True)
    opposite = (not preset) if isinstance(preset, bool) else next(
        name for name in ("NONE", "PIECEWISE") if name != preset
    )
    found = plain([f"-O{level}", f"{BY_KEY[key].flag}={opposite}"])
    assert found == {"optimization_level": (level, "command line"), key: (opposite, "command line")}


@pytest.mark.parametrize("config", [["--config", "{}"], ["--config={}"]])
def test_H_OPT_03_a_typed_default_wins_over_the_file(tmp_path: Path, config: list[str]) -> None:
    file = write(tmp_path, "optimization-level: 3\n")
    words = [word.format(file) for word in config]
    assert plain(["-O2", *words])["optimization_level"] == (2, "command line")
    assert plain(words)["optimization_level"] == (3, "file")
    assert "optimization_level" not in plain([])


def test_H_OPT_04_every_order_of_config_and_flags_is_the_same(tmp_path: Path) -> None:
    file = write(tmp_path, "port: 9002\nO: 3\n")
    groups = [["--port", "9001"], ["-O1"], ["--config", file]]
    for order in itertools.permutations(groups):
        found = plain(list(itertools.chain(*order)))
        assert found == {"server.port": (9001, "command line"), "optimization_level": (1, "command line")}
    with pytest.raises(UserError, match="--config needs a file"):
        collect(["-O1", "--config"], {})


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("O: 3", "optimization_level", 3),
        ("optimization_level: 1", "optimization_level", 1),
        ("max-model-len: 32K", "scheduler.max_model_len", 32768),
        ("scheduler.max_model_len: 7", "scheduler.max_model_len", 7),
        ("scheduler:\n  max-model-len: 7", "scheduler.max_model_len", 7),
        ("compilation_config.mode: 0", "compilation.mode", "NONE"),
        ("compilation-config:\n  cudagraph_mode: FULL", "compilation.graph_mode", "FULL"),
        ("cc.mode: 3", "compilation.mode", "PIECEWISE"),
        ("cc:\n  mode: 3", "compilation.mode", "PIECEWISE"),
        ("cudagraph_capture_sizes: [4, 1]", "compilation.capture_sizes", (1, 4)),
        ("compilation:\n  custom_ops: [none, +rms_norm]", "compilation.custom_ops", ("none", "+rms_norm")),
        ("enable-prefix-caching: false", "cache.enable_prefix_caching", False),
        ("no-enable-prefix-caching: true", "cache.enable_prefix_caching", False),
        ("enforce_eager: true", "enforce_eager", True),
        ("model: some/model", "model.name", "some/model"),
        ("model:\n  name: some/model", "model.name", "some/model"),
        ("tp: 2", "parallel.tensor_parallel_size", 2),
        ("kernel: [a=b, c=d]", "kernel_pins", {"a": "b", "c": "d"}),
        ("kernel_pins: {a: b}", "kernel_pins", {"a": "b"}),
        ("api-key: [x, y]", "server.api_key", ("x", "y")),
    ],
)
def test_file_spelling(tmp_path: Path, text: str, key: str, value: object) -> None:
    assert plain(["--config", write(tmp_path, text)]) == {key: (value, "file")}


@pytest.mark.parametrize("text", ["", "port: null\nO: ~\ncompilation: null\n", "# nothing\n"])
def test_null_in_a_file_is_no_value(tmp_path: Path, text: str) -> None:
    assert plain(["--config", write(tmp_path, text)]) == {}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("prot: 1", ["f.yaml", "prot", "port"]),
        ("preemption-mode: swap", ["preemption-mode", "removed"]),
        ("server:\n  prt: 1", ["server.prt", "server.port"]),
        ("optimization-level: 7", ["f.yaml", "optimization-level 7", "0, 1, 2, 3"]),
        ("enforce_eager: perhaps", ["enforce_eager perhaps", "true or false"]),
        ("port: 1\nport: 2", ["line 2", "port", "twice"]),
        ("a: &a {b: *a}", ["f.yaml", "line 1", "refers to itself"]),
        ("capture-sizes: &a [*a]", ["f.yaml", "line 1", "refers to itself"]),
        (f"a: {'[' * 3000}{']' * 3000}", ["f.yaml", "nested too deeply"]),
        (f"a: {'[' * 20}{']' * 20}", ["f.yaml", "line 1", "nested too deeply"]),
        ("a: &a [1]\n" + "".join(f"{b}: &{b} [{f'*{a}, ' * 10}]\n" for a, b in itertools.pairwise("abcdefg")),
         ["f.yaml", "more than 10000 values"]),
        ("model: 2024-99-99", ["f.yaml", "cannot be read", "quote it"]),
        ("max-model-len: 512\nmax_model_len: 256", ["line 2", "max-model-len and max_model_len", "keep one"]),
        ("compilation:\n  graph-mode: NONE\n  graph_mode: NONE", ["line 3", "graph-mode and graph_mode"]),
        ("capture-sizes: [0, 4]", ["capture-sizes 0,4:"]),
        ("O: 1\noptimization-level: 2", ["O 1", "optimization-level 2", "keep one"]),
        ("api-key: 123", ["api-key", "quote"]),
        ("- a", ["wants settings"]),
        ("server: 3", ["server 3", "by name"]),
        ("a: [", ["line 1", "not YAML"]),
        ("1: 2", ["line 1", "must be text"]),
        ("profile_file: x", ["profile_file"]),
    ],
)
def test_mistake_in_a_file_is_named(tmp_path: Path, text: str, tokens: list[str]) -> None:
    with pytest.raises(UserError) as error:
        collect(["--config", write(tmp_path, text)], {})
    assert all(token in str(error.value) for token in tokens), str(error.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (str(tmp_path / "missing.yaml"), write(tmp_path, "port: 1", "f.json"), str(tmp_path)):
        with pytest.raises(UserError, match="--config"):
            collect(["--config", path], {})


def test_a_wrong_value_fails_even_where_it_is_overruled(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="7"):
        collect(["-O2", "--config", write(tmp_path, "O: 7")], {})


def test_sources_merge_setting_by_setting(tmp_path: Path) -> None:
    file = write(tmp_path, "compilation-config: {mode: 3, cudagraph_mode: FULL, custom_ops: [none]}\nkernel: [a=b]\n")
    environ = {"ENGINE_COMPILATION_GRAPH_MODE": "PIECEWISE", "ENGINE_KERNEL": "c=d", "ENGINE_PORT": "1"}
    words = ["-cc.custom_ops+=+rms_norm", "--kernel", "c=e", "--port", "2", "--config", file]
    assert plain(words, environ) == {
        "compilation.mode": ("PIECEWISE", "file"),
        "compilation.graph_mode": ("PIECEWISE", "environment"),
        "compilation.custom_ops": (("none", "+rms_norm"), "command line"),
        "kernel_pins": ({"a": "b", "c": "e"}, "command line"),
        "server.port": (2, "command line"),
    }


def test_every_field_has_a_variable_of_its_own() -> None:
    names = [field.environment for field in FIELDS if field.environment]
    assert len(names) == len(set(names)) == len(FIELDS) - sum(bool(field.only) for field in FIELDS)


@pytest.mark.parametrize("prefix", ["ENGINE_", "VLLM_"])
def test_variables_in_both_spellings(prefix: str) -> None:
    found = from_environment({f"{prefix}MAX_MODEL_LEN": "1k", f"{prefix}DEBUG_DUMP_PATH": "d", f"{prefix}SEED": ""})
    assert {key: (row.value, row.origin) for key, row in found.items()} == {
        "scheduler.max_model_len": (1000, "environment"),
        "compilation.debug_dump_path": ("d", "environment"),
    }


def test_own_variable_wins_with_a_warning() -> None:
    both = collect([], {"ENGINE_SEED": "1", "VLLM_SEED": "2"})
    assert both.given["model.seed"].value == 1
    assert both.warnings == ("ENGINE_SEED wins over VLLM_SEED, which says something else",)
    assert collect([], {"ENGINE_SEED": "1", "VLLM_SEED": "1"}).warnings == ()
    assert collect([], {"VLLM_TARGET_DEVICE": "here"}).given["platform"].value == "here"


def test_what_kubernetes_injects_is_no_setting() -> None:
    environ = {"ENGINE_PORT": "tcp://10.0.0.1:8000", "ENGINE_SERVICE_HOST": "10.0.0.1", "ENGINE_PORT_80_TCP_ADDR": "x"}
    assert collect([], environ).given == {}
    assert "Kubernetes" in collect([], environ).warnings[0]
    assert unknown_variables(environ) == []


def test_wrong_variable_is_named() -> None:
    with pytest.raises(UserError, match=r"ENGINE_MAX_MODEL_LEN: x: wants"):
        collect([], {"ENGINE_MAX_MODEL_LEN": "x"})


def test_unknown_variables_are_reported_once_each() -> None:
    environ = {"VLLM_MAX_MODL_LEN": "1", "ENGINE_FOO": "1", "VLLM_PORT": "1", "ENGINE_CACHE_ROOT": "/c",
               "VLLM_SEED": "1", "VLLM_OF_A_PLATFORM": "1", "OTHER": "1"}  # fmt: skip
    warnings = unknown_variables(environ, {"VLLM_OF_A_PLATFORM"})
    assert [line.split()[0] for line in warnings] == ["ENGINE_FOO", "VLLM_MAX_MODL_LEN", "VLLM_PORT"]
    assert "VLLM_MAX_MODEL_LEN" in warnings[1] and "ENGINE_PORT" in warnings[2]


def test_a_variable_of_an_option_that_is_not_taken_has_its_advice_and_no_far_guess() -> None:
    (said,) = unknown_variables({"VLLM_ATTENTION_BACKEND": "FLASH_ATTN"})
    assert "--kernel attention=NAME" in said and "did you mean" not in said


def test_python_arguments() -> None:
    found = from_keywords(
        model="m", optimization_level=2, max_num_batched_tokens=16384, tensor_parallel_size=2, dtype=None, port=None,
        compilation_config={"mode": 0, "cudagraph_mode": "NONE", "pass_config": {"fuse_norm_quant": True}},
        kernel_config={"enable_flashinfer_autotune": False}, kernel_pins={"a": "b"}, enable_prefix_caching=False,
    )  # fmt: skip
    assert {row.origin for row in found.values()} == {"argument"}
    assert {key: row.value for key, row in found.items()} == {
        "model.name": "m",
        "optimization_level": 2,
        "scheduler.max_num_batched_tokens": 16384,
        "parallel.tensor_parallel_size": 2,
        "compilation.mode": "NONE",
        "compilation.graph_mode": "NONE",
        "compilation.pass_config.fuse_norm_quant": True,
        "kernel_config.autotune": False,
        "kernel_pins": {"a": "b"},
        "cache.enable_prefix_caching": False,
    }


@pytest.mark.parametrize(
    ("keywords", "token"),
    [
        ({"modle": "m"}, "modle"),
        ({"optimization_level": True}, "optimization_level"),
        ({"optimization_level": 4}, "0, 1, 2, 3"),
        ({"max_num_seqs": 0}, "max_num_seqs 0"),
        ({"compilation_config": 3}, "compilation_config 3"),
        ({"compilation_config": {"bogus": 1}}, "bogus"),
        ({"preemption_mode": "swap"}, "removed"),
        ({"model": 3}, "text"),
        ({"port": 1}, "port: a setting of the server.* --port"),
        ({"server": {"host": "0.0.0.0"}}, "host: a setting of the server"),
    ],
)
def test_wrong_python_argument_is_named(keywords: dict[str, object], token: str) -> None:
    with pytest.raises(UserError, match=token):
        from_keywords(**keywords)


def test_an_argument_without_effect_is_accepted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert set(from_keywords(trust_remote_code=True, swap_space=None, seed=3)) == {"model.seed"}
    assert caplog.messages == ["trust_remote_code has no effect here: no code of a checkpoint is run"]


def test_a_line_without_effect_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "trust-remote-code: true\ndisable-log-requests: true\nport: 1")
    found = collect(["--config", path], {})
    assert {key: row.value for key, row in found.given.items()} == {"server.port": 1}
    assert [("f.yaml" in text, "no effect here" in text) for text in found.warnings] == [(True, True)] * 2


def test_arguments_lie_over_the_environment() -> None:
    merged = from_environment({"ENGINE_SEED": "1", "ENGINE_PORT": "2"}) | from_keywords(seed=3)
    assert (value_of(merged, "model.seed"), value_of(merged, "server.port"), value_of(merged, "server.host")) == (
        3,
        2,
        "127.0.0.1",
    )


def test_defaults_are_values_their_own_fields_accept() -> None:
    for field in FIELDS:
        if field.default is not None:
            assert field.kind.parse(field.default) == field.default, field.key
            if not field.key.startswith("server."):
                assert from_keywords(**{field.key: field.default})[field.key].value == field.default


OF_THE_SERVER = [field for field in FIELDS if field.key.startswith("server.")]


@pytest.mark.parametrize("field", OF_THE_SERVER, ids=lambda field: field.key)
def test_no_setting_of_the_server_is_a_python_argument(field: Field) -> None:
    samples = {"N": 1, "SECONDS": 1, "FORMAT": "qwen3"}
    value = samples.get(field.kind.metavar, "x") if field.default is None else field.default
    with pytest.raises(UserError, match="engine serve " + field.flag):
        from_keywords(**{field.key: value})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((99999999,), "99999999"),
        ((1, 2), "1,2"),
        (True, "true"),
        ({"a": "b", "c": "d"}, "a=b,c=d"),
        ("x" * 300, "x" * 200 + "…"),
    ],
)
def test_messages_repeat_values_as_they_are_typed(value: object, text: str) -> None:
    assert written_value(value) == text


def test_options_that_are_not_taken_may_ask_for_nothing() -> None:
    nothing = {"quantization": None, "tokenizer": None, "speculative_config": None, "hf_overrides": {}}
    assert set(from_keywords(**nothing, enable_lora=False, cpu_offload_gb=0, seed=3)) == {"model.seed"}
    for name, value in {"quantization": "awq", "enable_lora": True, "tokenizer": "", "no_such_option": None}.items():
        with pytest.raises(UserError, match=name):
            from_keywords(**{name: value})
