"""Generated code in the folder of -cc.debug_dump_path, and a whole start that writes there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine import LLM
from engine.plan.backend import WHOLE
from engine.sampling_params import SamplingParams
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.word_tokenizer import write_word_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumped")
    config = hf_config(num_hidden_layers=1)
    write_hf(folder, config, random_weights(config, seed=5))
    write_word_tokenizer(folder, config["vocab_size"])
    return folder


def run(model: Path, folder: Path | None, **compilation: object) -> list[int]:
    config = {**compilation, **({"debug_dump_path": str(folder)} if folder else {})}
    with LLM(
        model=str(model), dtype="float32", max_model_len=64, max_num_batched_tokens=64, max_num_seqs=2, block_size=16,
        kv_cache_memory_bytes=1 << 20, compilation_config=config,
    ) as llm:  # fmt: skip
        prompt = {"prompt_token_ids": [5, 9, 31, 40, 2]}
        (found,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    return list(found.outputs[0].token_ids)


def files(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def truth(model: Path) -> list[int]:
    return run(model, None, mode="NONE")


@pytest.mark.parametrize("mode", ["STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE"])
def test_modes_of_torch_serve_and_leave_what_they_gave_to_it(
    model: Path, truth: list[int], mode: str, tmp_path: Path
) -> None:
    assert run(model, tmp_path, mode=mode, backend="eager", custom_ops=["none"]) == truth
    found = files(tmp_path / "rank_0")
    assert f"  code: torch.compile, backend eager: {WHOLE[mode]}" in found["pieces.txt"]
    graphs = sorted(name for name in found if name.endswith(".graph.py"))
    assert graphs[0] == f"{mode.lower()}.0.graph.py"
    assert "engine_ops_norm_rms_norm(" in found[graphs[0]]


def test_eager_steps_are_dumped_too(model: Path, truth: list[int], tmp_path: Path) -> None:
    assert run(model, tmp_path, mode="NONE") == truth
    found = files(tmp_path / "rank_0")
    assert sorted(name for name in found if "program" not in name) == ["pieces.txt", "plan.json"]
    assert json.loads(found["plan.json"])["decisions"]["compilation.mode"]["value"] == "NONE"


def test_generated_code_lies_beside_its_graph(model: Path, truth: list[int], tmp_path: Path) -> None:
    assert run(model, tmp_path, mode="PIECEWISE", backend="inductor", custom_ops=["none"]) == truth
    found = files(tmp_path / "rank_0")
    graphs, codes = ({name.split(".")[0] for name in found if name.endswith(end)} for end in (".graph.py", ".code.py"))
    assert graphs == codes and len(graphs) == found["pieces.txt"].count("code: inductor") > 0
    assert all("torch.ops.aten" in found[f"{name}.graph.py"] for name in graphs)
    assert all("def call(" in found[f"{name}.code.py"] for name in graphs)
