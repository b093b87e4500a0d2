"""A rule that a platform brings beside the catalog, from its plan to the tokens and to the kit."""

import logging

import pytest
import torch

from engine import LLM, SamplingParams
from engine.conformance.subject import Subject
from tests.adding_platform import Adding
from tests.anydevice.test_quantised_checkpoints import PROMPT, write
from tests.checkpoints import hf_config, random_weights

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
RULE = "fuse_add_norm"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = hf_config()
    tensors = {name: torch.from_numpy(array) for name, array in random_weights(config, 5).items()}
    return write(tmp_path_factory.mktemp("dense") / "m", config, tensors)


def served(folder, platform, **passes):
    settings = {"platform": f"tests.adding_platform:{platform}", "dtype": "float32", "max_model_len": 64}
    settings["compilation_config"] = {"mode": 0, "pass_config": passes}
    with LLM(str(folder), **settings) as llm:
        made = llm.generate([PROMPT, PROMPT[:5]], PARAMS, use_tqdm=False)
        report = next(row for row in llm.plan.fusions if row.rule == RULE)
        return [list(one.outputs[0].token_ids) for one in made], report, [call.op for call in llm.plan.program.calls]


def test_a_rule_of_the_platforms_own_is_asked_for_by_name_and_changes_no_token(folder):
    plain, report, ops = served(folder, "Adding", fuse_add_norm=False)
    assert (report.requested, report.origin, report.matched) == (False, "argument", 0)
    assert "add_rms_norm" not in ops and ops.count("add") == 4
    for asked in ({}, {RULE: True}):
        fused, report, ops = served(folder, "Adding", **asked)
        assert (report.matched, ops.count("add_rms_norm"), ops.count("add")) == (4, 4, 0)
        assert fused == plain


def test_its_kernel_is_compared_on_cases_of_the_rule_before_it_serves(folder, caplog):
    plain, *_ = served(folder, "Adding", fuse_add_norm=False)
    with caplog.at_level(logging.WARNING, logger="engine"):
        found, report, ops = served(folder, "Misled")
    assert report.matched == 0 and "first touch: " in report.reason and "add_rms_norm" not in ops
    assert "kernel own of add_rms_norm is not used" in caplog.text
    assert found == plain


@pytest.mark.parametrize(("target", "ok"), [("add_rms_norm", True), ("off", False)])
def test_the_kit_tries_it_on_cases_of_the_rule(target, ok):
    wanted = {f"{RULE}/add_rms_norm/own", "add_rms_norm/own/odd-sizes", "add_rms_norm/own/guard-bands"}
    found = [row for row in Subject(Adding(target), "adding", "").checks(("fusions", "kernels")) if row.name in wanted]
    assert {row.name for row in found} == wanted
    for row in found:
        outcome = row.run()
        assert outcome.state == ("passed" if ok or row.name.endswith("bands") else "failed"), outcome
