"""Weights of four bits on a device with a kernel for them, from the file to the tokens."""

from __future__ import annotations

import pytest

from engine import LLM
from tests.anydevice.test_four_bit_checkpoints import made_of
from tests.anydevice.test_quantised_checkpoints import PARAMS, PROMPT, greedy, write
from tests.anydevice.test_quantised_programs import reference
from tests.four_bit_files import SCHEMES

PLATFORM = "tests.packing_platform:PackingHost"


def served(folder, **settings):
    """Tokens, and the rows that the plan has for the op."""
    settings |= {"dtype": "float32", "kv_cache_dtype": "float32", "max_model_len": 64}
    with LLM(str(folder), platform=PLATFORM, **settings) as llm:
        found = llm.generate([PROMPT], PARAMS, use_tqdm=False)[0].outputs[0].token_ids
        return list(found), {row.chosen for row in llm.plan.kernels if row.op == "packed_linear"}


@pytest.mark.parametrize("name", ["awq", "gptq", "gptq v2", "packed symmetric", "packed channel asymmetric", "mxfp4"])
def test_tokens_of_a_kernel_are_those_of_transformers(name, tmp_path):
    config, tensors, _, dense = made_of(SCHEMES[name])
    found = served(write(tmp_path / "m", config, tensors))
    assert found == (greedy(reference(config, dense), PARAMS.max_tokens), {"by_group"})


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_the_same_tokens_at_every_level(level, tmp_path):
    """The highest one measures, and may prefer the reference for some calls."""
    config, tensors, _, dense = made_of(SCHEMES["awq"])
    tokens, rows = served(write(tmp_path / "m", config, tensors), optimization_level=level)
    assert tokens == greedy(reference(config, dense), PARAMS.max_tokens)
    assert rows == {"by_group"} if level < 3 else rows and rows <= {"by_group", "reference"}


def test_references_alone_serve_packed_weights(tmp_path):
    config, tensors, _, dense = made_of(SCHEMES["gptq"])
    found = served(write(tmp_path / "m", config, tensors), kernels="reference")
    assert found == (greedy(reference(config, dense), PARAMS.max_tokens), {"reference"})
