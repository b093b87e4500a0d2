"""Checkpoints of 8-bit weights, served as they are stored, with and without fused quantisation."""

import pytest

from engine import LLM, SamplingParams
from tests.anydevice.test_quantised_checkpoints import PROMPT, made_of, write
from tests.anydevice.test_quantised_programs import SCHEMES

PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
STORING = "tests.storing_platform:Storing"


def served(folder, level):
    settings = {"platform": STORING, "dtype": "float32", "max_model_len": 64, "optimization_level": level}
    settings["compilation_config"] = {"mode": 0}
    with LLM(str(folder), **settings) as llm:
        tokens = [one.outputs[0].token_ids for one in llm.generate([PROMPT, PROMPT[:5]], PARAMS, use_tqdm=False)]
        return list(map(list, tokens)), llm.plan


@pytest.mark.parametrize("name", ["fp8 static", "fp8 dynamic", "fp8 blocks", "int8 channel"])
def test_fused_and_unfused_steps_give_the_same_tokens(name, tmp_path):
    config, tensors, _ = made_of(SCHEMES[name])
    folder = write(tmp_path / "m", config, tensors)
    plain, plan = served(folder, 0)
    ops = [call.op for call in plan.program.calls]
    assert "scaled_linear" in ops and not any("quantize" in op and op.startswith(("rms", "add", "silu")) for op in ops)
    fused, plan = served(folder, 1)
    ops = {call.op for call in plan.program.calls}
    kind = "static" if SCHEMES[name].static else "dynamic"
    assert {f"add_rms_norm_quantize_{kind}", f"silu_and_mul_quantize_{kind}"} <= ops
    assert fused == plain
