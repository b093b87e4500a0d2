"""What ``--performance-mode`` does to defaults, and to nothing else."""

from __future__ import annotations

import pytest
from test_golden_plans import PLUGINS
from toy_plans import ABLE, toy_model, toy_plan

from engine.config import collect
from engine.levels import PERFORMANCE_MODES
from engine.plan import Tables, plan_for
from platforms.contract import Setting

SEQS, TOKENS, SIZES = "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens", "compilation.capture_sizes"
CHANGED = {"balanced": set(), "interactivity": {SIZES}, "throughput": {SEQS, TOKENS}}
FOLLOWS = {
    "compilation.max_capture_size",
    "compilation.compile_ranges_endpoints",
    "performance_mode",
    SIZES,
}


@pytest.mark.parametrize("mode", PERFORMANCE_MODES)
def test_a_mode_changes_its_defaults_and_says_so(mode):
    plain, leaning = toy_plan(), toy_plan("--performance-mode", mode)
    different = {key for key in plain.decisions if plain[key] != leaning[key]}
    assert CHANGED[mode] <= different <= CHANGED[mode] | FOLLOWS
    named = {key for key, row in leaning.decisions.items() if row.origin == "performance mode"}
    assert named == CHANGED[mode]
    assert all(leaning.decisions[key].reason.startswith(mode) for key in named)
    assert (plain.hash == leaning.hash) == (mode == "balanced")


def test_throughput_doubles_what_the_platform_or_the_default_says():
    plain, leaning = toy_plan(), toy_plan("--performance-mode=throughput")
    assert (leaning[SEQS], leaning[TOKENS]) == (2 * plain[SEQS], 2 * plain[TOKENS]) == (512, 4096)
    tables = Tables(ABLE.kernels, ABLE.fusions, lambda *_: (Setting(SEQS, 60, "a small box"),))
    row = toy_plan("--performance-mode=throughput", tables=tables).decisions[SEQS]
    assert (row.value, row.reason) == (120, "throughput: 2 × 60 (platform: a small box)")


@pytest.mark.parametrize("target", ["cuda:sm_90", "cpu:x86-64-v3", "rocm:gfx942"])
def test_interactivity_has_a_graph_for_every_small_step(target):
    name, _, arch = target.partition(":")

    def sizes(*words):
        plugin = PLUGINS[name]
        return plan_for(plugin, plugin.targets()[arch], toy_model(), collect(words, {}).given)[SIZES]

    plain, leaning = sizes(), sizes("--performance-mode=interactivity")
    assert leaning == sorted({*plain, *range(1, 33)}) and leaning[-1] == plain[-1]
    few = sizes("--performance-mode=interactivity", "--max-num-seqs=3")
    assert few == list(range(1, sizes("--max-num-seqs=3")[-1] + 1))
    assert sizes("--performance-mode=interactivity", "--max-capture-size=20") == list(range(1, 21))


def test_what_a_user_asks_for_stays():
    words = ["--max-num-seqs=7", "--max-num-batched-tokens=100", "--capture-sizes=1,5"]
    for mode in PERFORMANCE_MODES:
        found = toy_plan("--performance-mode", mode, *words)
        assert (found[SEQS], found[TOKENS], list(found[SIZES])) == (7, 100, [1, 5])
        assert {found.decisions[key].origin for key in (SEQS, TOKENS, SIZES)} == {"command line"}
    assert toy_plan("--performance-mode=throughput", "--max-num-batched-tokens=300")[SEQS] == 300


def test_the_variable_and_the_file_of_others_are_read():
    assert collect([], {"VLLM_PERFORMANCE_MODE": "throughput"}).given["performance_mode"].value == "throughput"
