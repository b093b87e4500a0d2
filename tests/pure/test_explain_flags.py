"""``--as-flags``: every level on every target can be written out under -O0."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from test_golden_plans import PLUGINS, TARGETS
from toy_plans import ABLE, PROFILE, toy_model

from engine.cli import main
from engine.config import collect
from engine.errors import UserError
from engine.explain.flags import ABOUT, explicit, spelled
from engine.explain.same import LEVEL, parts_apart, plain, settings_apart
from engine.models.config import ModelConfig
from engine.plan import Observations, Tables, make_plan, model_facts, plan_for
from engine.plan_values import Given, Plan
from tests.model_configs import LLAMA, MODELS, STATIC

PlanOf = Callable[[Mapping[str, Given]], Plan]


def toy(tables: Tables = ABLE) -> PlanOf:
    facts = model_facts(toy_model())
    return lambda given: make_plan(PROFILE, facts, given, tables, Observations())


def written_out(plan_of: PlanOf, words: list[str]) -> list[str]:
    """The words; their plan is compared on the way."""
    given = collect(words, {}, "explain").given
    wanted = plan_of(given)
    flags = explicit(wanted, given, plan_of)
    again = plan_of(collect(flags, {}, "explain").given)
    assert again[LEVEL] == 0
    assert (settings_apart(wanted, again), parts_apart(wanted, again)) == ([], [])
    values = [{key: plain(row.value) for key, row in plan.decisions.items()} for plan in (wanted, again)]
    assert values[0] | {LEVEL: 0} == values[1]
    return flags


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize(("name", "target"), TARGETS, ids=[":".join(row) for row in TARGETS])
def test_every_level_can_be_written_out(name: str, target: str, model: ModelConfig) -> None:
    plugin = PLUGINS[name]
    profile = plugin.targets()[target]
    for level in range(4):
        flags = written_out(lambda given: plan_for(plugin, profile, model, given), [f"-O{level}"])
        assert flags[0] == "-O0" and (len(flags) == 1 or level > 0)


@pytest.mark.parametrize("model", [LLAMA, STATIC], ids=lambda model: model.name)
@pytest.mark.parametrize(("name", "target"), TARGETS, ids=[":".join(row) for row in TARGETS])
def test_so_can_two_devices_and_what_users_set(name: str, target: str, model: ModelConfig) -> None:
    plugin = PLUGINS[name]
    profile = plugin.targets()[target]
    for words in ("-tp 2", "-cc.custom_ops=all", "--enforce-eager", "--batch-invariant", "-cc.mode=NONE"):
        written_out(lambda given: plan_for(plugin, profile, model, given), ["-O2", *words.split()])


@pytest.mark.parametrize("level", range(4))
def test_where_everything_can_be_had_the_flags_are_the_level_s_own(level: int) -> None:
    flags = written_out(toy(), [f"-O{level}"])
    if level == 0:
        assert flags == ["-O0"]
    else:
        assert "-cc.mode=PIECEWISE" in flags and "--kernel-config.autotune=true" in flags


@pytest.mark.parametrize(
    "words",
    [
        "--max-num-seqs 17 --kernel rms_norm=old --kernel linear=reference --no-enable-prefix-caching",
        "--enforce-eager --max-model-len auto --dtype bfloat16",
        "--capture-sizes 1,2,4 -cc.custom_ops=none,+rms_norm -cc.splitting_ops+=attention",
        "-cc.mode=NONE -cc.debug_dump_path=-odd --gpu-memory-utilization 0.25",
        "-cc.pass_config.fuse_rope_kvcache=false --platform x --api-key secret --port 9",
    ],
)
def test_what_the_user_asked_for_is_kept(words: str) -> None:
    flags = written_out(toy(), ["-O2", *shlex.split(words)])
    given = collect(["-O2", *shlex.split(words)], {}, "explain").given
    again = collect(flags, {}, "explain").given
    for key, row in given.items():
        if key != LEVEL and row.value != "auto" and not key.startswith("server."):
            assert again[key].value == row.value, key
    assert "secret" not in flags


SWITCHES = {
    "--max-num-seqs": st.sampled_from(["1", "17", "300"]),
    "--dtype": st.sampled_from(["float32", "bfloat16", "auto"]),
    "-cc.graph_mode": st.sampled_from(["NONE", "FULL", "FULL_DECODE_ONLY", "PIECEWISE", "FULL_AND_PIECEWISE"]),
    "-cc.mode": st.sampled_from(["NONE", "PIECEWISE"]),
    "-cc.custom_ops": st.sampled_from(["all", "none", "none,+rms_norm", "all,-rms_norm"]),
    "--kernel": st.sampled_from(["rms_norm=old", "linear=reference"]),
    "-cc.pass_config.fuse_rope_kvcache": st.sampled_from(["true", "false"]),
    "--enforce-eager": st.sampled_from(["true", "false"]),
    "-cc.compile_sizes": st.sampled_from(["1,2", "4"]),
    "--max-capture-size": st.sampled_from(["8", "100"]),
}


@settings(max_examples=150, deadline=None)
@drawn(st.fixed_dictionaries({}, optional=SWITCHES), st.integers(0, 3))
def test_any_settings_that_have_a_plan_can_be_written_out(chosen: dict[str, str], level: int) -> None:
    words = [f"-O{level}", *(f"{flag}={value}" for flag, value in chosen.items())]
    plan_of = toy()
    try:
        plan_of(collect(words, {}, "explain").given)
    except UserError:
        return
    written_out(plan_of, words)


VALUES = {
    "compilation.custom_ops": ("none", "+rms_norm"),
    "compilation.splitting_ops": (),
    "compilation.capture_sizes": (1, 2, 512),
    "compilation.compile_sizes": ("capture_sizes", 3),
    "model.chat_template": "{{ 'a b' }}, \"q\"",
    "model.name": "-dash",
    "kernel_pins": {"rms_norm": "a", "linear": "b"},
    "cache.gpu_memory_utilization": 0.35,
    "compilation.pass_config.own_rule": True,
    "compilation.graph_mode": "FULL",
    "enforce_eager": False,
    "profile_file": "a b.json",
}


@pytest.mark.parametrize("key", VALUES)
def test_a_spelling_is_read_back_to_the_same_value(key: str) -> None:
    line = shlex.join(spelled(key, VALUES[key]))
    assert collect(shlex.split(line), {}, "explain").given[key].value == VALUES[key]


def test_items_with_commas_survive() -> None:
    words = spelled("compilation.splitting_ops", ("a,b", "c"))
    assert collect(words, {}).given["compilation.splitting_ops"].value == ("a,b", "c")


def test_what_no_flag_can_say_is_told_by_name() -> None:
    def by_level(given: Mapping[str, Given]) -> Plan:
        tables = Tables() if given[LEVEL].value else ABLE
        return make_plan(PROFILE, model_facts(toy_model()), given, tables, Observations())

    asked = {LEVEL: Given(2, "command line")}
    with pytest.raises(UserError, match=r"--as-flags: kernels.*-O2.*-O0"):
        explicit(by_level(asked), asked, by_level)


def test_the_printed_line_can_be_pasted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    name, target = TARGETS[-1]
    words = ["--platform", f"{name}:{target}", "-O2", "--max-num-seqs", "9"]
    assert main(["explain", *words, "--as-flags"]) == 0
    line = capsys.readouterr().out
    program, command, *flags = shlex.split(line)
    assert (program, command) == ("engine", "explain") and line.count("\n") == 1
    assert {"-O0", "--max-num-seqs", "9"} <= set(flags)
    found = collect(flags, {}, "explain").given
    assert found["platform"].value == f"{name}:{target}"
    assert set(ABOUT) & set(found) == {"platform"}


def test_variables_that_predicates_read_stand_in_front(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(name for name, plugin in PLUGINS.items() if plugin.aliases())
    variable = next(iter(PLUGINS[name].aliases()))
    monkeypatch.setenv(variable, "1")
    assert main(["explain", "--platform", f"{name}:{next(iter(PLUGINS[name].targets()))}", "--as-flags"]) == 0
    assert shlex.split(capsys.readouterr().out)[0] == f"{variable}=1"
