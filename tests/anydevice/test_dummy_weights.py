"""``--load-format dummy``: a model's shapes with random weights."""

import json

import pytest

from engine import LLM, SamplingParams
from engine.errors import UserError
from engine.weights.dummy import dummy_checkpoint
from tests.checkpoints import hf_config
from tests.word_tokenizer import write_word_tokenizer

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def folder(path, **more):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(hf_config("llama") | more))
    write_word_tokenizer(path, hf_config("llama")["vocab_size"])
    return path


def test_a_model_without_weights_answers_the_same_at_every_start(tmp_path):
    where = folder(tmp_path / "shape")
    found = []
    for _ in range(2):
        with LLM(str(where), load_format="dummy", max_model_len=64) as llm:
            found.append(list(llm.generate([[3, 4, 5]], PARAMS, use_tqdm=False)[0].outputs[0].token_ids))
    assert found[0] == found[1] and len(found[0]) == 8
    with pytest.raises(UserError, match="expected config"):
        LLM(str(where))


def test_rows_differ_and_names_differ(tmp_path):
    checkpoint = dummy_checkpoint(folder(tmp_path / "shape"))
    one, other = (checkpoint.read(f"model.layers.0.self_attn.{side}_proj.weight") for side in "kv")
    assert not one[0].equal(one[1]) and not one.equal(other)
    assert checkpoint.read("model.norm.weight").eq(1).all()


def test_quantised_models_are_refused(tmp_path):
    where = folder(tmp_path / "shape", quantization_config={"quant_method": "fp8", "activation_scheme": "static"})
    with pytest.raises(UserError, match=r"dummy.*quantization_config"):
        dummy_checkpoint(where)


def test_another_word_is_refused():
    with pytest.raises(UserError, match="auto, dummy"):
        LLM(load_format="pt")
