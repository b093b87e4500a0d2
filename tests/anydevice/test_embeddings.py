"""Vectors of prompts: as transformers makes them in float64, however prompts are cut and preempted; and the route."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from engine import LLM, PoolingParams, SamplingParams
from engine.errors import RequestError
from engine.pooling import Pooling
from tests.checkpoints import hf_config, random_weights, write_hf
from tests.scripted_engine import Script, error_of, serving
from tests.word_tokenizer import write_word_tokenizer

KINDS = ("last", "mean", "cls")
POISON = 77
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_dtype": "float32", "max_model_len": 64, "block_size": 16, "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in which one token's embedding is not a number."""
    where = tmp_path_factory.mktemp("tiny")
    config = hf_config()
    weights = random_weights(config, seed=3)
    weights["model.embed_tokens.weight"][POISON] = np.nan
    write_hf(where, config, weights)
    write_word_tokenizer(where, config["vocab_size"])
    return where


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [[int(t) for t in draw.integers(0, POISON, size)] for size in (1, 5, 47, 16, 60)]


@pytest.fixture(scope="module")
def truth(folder: Path, prompts: list[list[int]]) -> dict[str, list[Any]]:
    """Kind → vectors of length 1, by transformers in float64."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        hidden = [model(torch.tensor([ids])).last_hidden_state[0].numpy() for ids in prompts]
    rows = {
        "last": [each[-1] for each in hidden], "mean": [each.mean(0) for each in hidden],
        "cls": [each[0] for each in hidden],
    }  # fmt: skip
    return {kind: [row / np.linalg.norm(row) for row in each] for kind, each in rows.items()}


def opened(folder: Path, kind: str = "last", **more: Any) -> LLM:
    return LLM(str(folder), pooler_config={"pooling_type": kind}, **SETTINGS | more)


def vectors(llm: LLM, prompts: list[list[int]], params: PoolingParams | None = None) -> list[Any]:
    return [np.array(found.outputs.embedding) for found in llm.embed(prompts, params, use_tqdm=False)]


def close(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < 2e-6 and np.linalg.norm(one) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [{"optimization_level": 0, "kernels": "reference"}, {"max_num_batched_tokens": 8}, {"optimization_level": 2}],
    ids=["whole", "in chunks of 8", "graphs"],
)
def test_vectors_are_those_of_float64_however_prompts_are_cut(
    folder: Path, prompts: list[list[int]], truth: dict[str, list[Any]], kind: str, settings: dict[str, Any]
) -> None:
    with opened(folder, kind, **settings) as llm:
        close(vectors(llm, prompts), truth[kind])
        again = llm.embed(prompts, use_tqdm=False)
        close([np.array(found.outputs.embedding) for found in again], truth[kind])
        # What earlier prompts left in the cache is of use where the last position alone counts.
        assert [found.num_cached_tokens for found in again] == ([0, 0, 32, 0, 48] if kind == "last" else [0] * 5)


@pytest.mark.parametrize("kind", KINDS)
def test_with_batch_invariant_kernels_no_bit_shows_how_a_prompt_was_cut(
    folder: Path, prompts: list[list[int]], kind: str
) -> None:
    found = []
    for budget in (64, 5, 24):
        with opened(folder, kind, max_num_batched_tokens=budget, batch_invariant=True, optimization_level=0) as llm:
            found.append([list(each) for each in vectors(llm, prompts, PoolingParams(normalize=False))])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", ["mean", "cls"])
def test_a_preempted_prompt_begins_anew(
    folder: Path, prompts: list[list[int]], truth: dict[str, list[Any]], kind: str
) -> None:
    """Two tokens at a time, beside two generations that grow into the last of 9 blocks."""
    from tests.core_requests import finish, request

    small = {"kv_cache_memory_bytes": 9 * 2 * 16 * 2 * (16 + 16) * 4, "max_num_batched_tokens": 4, "max_num_seqs": 3}
    with opened(folder, kind, **small) as llm:
        core = llm._open_core()
        for at in range(2):
            core.add(request(f"generate {at}", [at] * 15, 40))
        for at, ids in enumerate(reversed(prompts)):
            core.add(replace(request(f"embed {len(prompts) - 1 - at}", ids, 0), pool=kind, arrival=1.0))
        found = {name: output for name, (_, output) in finish(core).items() if name.startswith("embed")}
        times = found["embed 4"].times
        assert times is not None and times.preemptions > 0
    rows = [np.frombuffer(found[f"embed {at}"].pooled, "<f4").astype(np.float64) for at in range(len(prompts))]
    close([row / np.linalg.norm(row) for row in rows], truth[kind])


def test_a_prompt_whose_values_break_fails_alone(folder: Path, prompts: list[list[int]], truth: dict[str, Any]) -> None:
    with opened(folder, "mean") as llm:
        with pytest.raises(RequestError, match="NaN or infinity"):
            llm.embed([prompts[0], [1, POISON, 2]], use_tqdm=False)
        close(vectors(llm, prompts), truth["mean"])
        assert llm.generate([[1, 2]], SamplingParams(max_tokens=2), use_tqdm=False)[0].outputs[0].token_ids


def test_dimensions_length_and_truncation(folder: Path, prompts: list[list[int]], truth: dict[str, list[Any]]) -> None:
    with opened(folder) as llm:
        (plain,) = vectors(llm, [prompts[2]], PoolingParams(normalize=False))
        (short,) = vectors(llm, [prompts[2]], PoolingParams(dimensions=3))
        assert np.linalg.norm(plain) != pytest.approx(1, abs=1e-3)
        assert np.allclose(short, plain[:3] / np.linalg.norm(plain[:3]), atol=1e-6)
        (cut,) = vectors(llm, [prompts[2]], PoolingParams(truncate_prompt_tokens=5))
        close([cut], vectors(llm, [prompts[2][-5:]]))
        long = prompts[4] + prompts[4]
        close(vectors(llm, [long], PoolingParams(truncate_prompt_tokens=-1)), vectors(llm, [long[-64:]]))
        for params, said in (
            (PoolingParams(dimensions=10**6), "dimensions is 1000000"), (PoolingParams(dimensions=0), "from 1 to"),
            (PoolingParams(truncate_prompt_tokens=65), "context of 64"), (PoolingParams(), "120 tokens"),
        ):  # fmt: skip
            with pytest.raises(RequestError, match=said):
                llm.embed([long], params, use_tqdm=False)


def test_a_model_s_own_folder_says_how_and_what_is_not_built_is_refused(tmp_path: Path, folder: Path) -> None:
    import shutil

    where = Path(shutil.copytree(folder, tmp_path / "model"))
    (where / "1_Pooling").mkdir()
    modes = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (where / "1_Pooling/config.json").write_text(json.dumps(modes))
    with opened(folder, "mean") as wanted, LLM(str(where), **SETTINGS) as llm:
        assert llm._pooling == Pooling("mean", True, "1_Pooling/config.json")
        close(vectors(llm, [[1, 2, 3]]), vectors(wanted, [[1, 2, 3]]))
        llm._pooling = Pooling(refusal="it has the module Dense")
        with pytest.raises(RequestError, match="the module Dense"):
            llm.embed("x")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with serving(max_model_len=64) as running:
        yield running


def embed(server: Any, given: Any, **more: Any) -> Any:
    return server.client.post("/v1/embeddings", json={"model": "script", "input": given, **more})


def unit(*numbers: float) -> Any:
    return pytest.approx(np.array(numbers) / np.linalg.norm(numbers), abs=1e-6)


def test_the_route_takes_texts_ids_and_lists_of_them(server: Any) -> None:
    """The script's vector: length, first and last token, 1 for the last token's; a token is a byte, behind a begin."""
    begin = server.tokenizer.encode("")[0]
    ids = server.tokenizer.encode("hi")
    for given, count in (("hi", 1), (["hi", "you"], 2), (ids, 1), ([ids, [5, 6, 7, 8]], 2)):
        answer = embed(server, given)
        body = answer.json()
        assert answer.status_code == 200 and body["object"] == "list" and body["model"] == "script"
        assert [row["index"] for row in body["data"]] == list(range(count)), body
        assert body["data"][0]["embedding"] == unit(3, begin, ids[-1], 1) and body["data"][0]["object"] == "embedding"
    assert body["data"][1]["embedding"] == unit(4, 5, 8, 1)
    assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 0}}
    assert answer.headers["x-request-id"] == body["id"] and body["id"].startswith("embd-")
    assert embed(server, "hi", add_special_tokens=False).json()["data"][0]["embedding"] == unit(2, ids[1], ids[2], 1)


def test_formats_dimensions_and_truncation_of_the_route(server: Any) -> None:
    body = embed(server, [[5, 6, 7]], encoding_format="base64").json()
    assert np.frombuffer(base64.b64decode(body["data"][0]["embedding"]), "<f4") == unit(3, 5, 7, 1)
    assert embed(server, [[5, 6, 7]], dimensions=2).json()["data"][0]["embedding"] == unit(3, 5)
    assert embed(server, [[5, 6, 7]], normalize=False).json()["data"][0]["embedding"] == [3, 5, 7, 1]
    assert embed(server, [[5, 6, 7]], truncate_prompt_tokens=2).json()["data"][0]["embedding"] == unit(2, 6, 7, 1)
    right = embed(server, [[5, 6, 7]], truncate_prompt_tokens=2, truncation_side="right").json()
    assert right["data"][0]["embedding"] == unit(2, 5, 6, 1)
    long = embed(server, [[5] * 100], truncate_prompt_tokens=-1, user="someone").json()
    assert long["usage"]["prompt_tokens"] == 64
    for side in ("left", "right"):
        text = embed(server, "a" + "x" * 100_000 + "b", truncate_prompt_tokens=3, truncation_side=side).json()
        ids = server.tokenizer.encode("axb")
        wanted = (3, ids[2], ids[3]) if side == "left" else (3, ids[0], ids[2])
        assert text["data"][0]["embedding"] == unit(*wanted, 1)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"encoding_format": "bytes"}, "encoding_format", "float or base64"),
        ({"dimensions": 5}, "dimensions", "from 1 to 4"),
        ({"dimensions": 0}, "dimensions", "from 1 to 4"),
        ({"truncate_prompt_tokens": 65}, "truncate_prompt_tokens", "64 tokens"),
        ({"truncation_side": "middle"}, "truncation_side", "left or right"),
        ({"input": []}, "input", "input is empty"),
        ({"input": [1, "a"]}, "input", "input must be"),
        ({"input": [5] * 65}, "input", "65 tokens"),
        ({"input": [10**6]}, "input", "1000000"),
        ({"input": "x" * 100_000}, "input", "cannot fit"),
        ({"input": None}, "input", "input"),
        ({"dimension": 5}, "dimension", "did you mean dimensions?"),
        ({"priority": 3}, "priority", "--scheduling-policy priority"),
        ({"temperature": 0.5}, "temperature", "Unknown field temperature"),
        ({"stream": True}, "stream", "Unknown field stream"),
    ],
)
def test_what_cannot_be_is_400_naming_the_field(server: Any, fields: dict[str, Any], param: str, said: str) -> None:
    error = error_of(embed(server, **{"given": "hi", **fields}), 400, param)
    assert said in error["message"], error
    assert embed(server, "hi").status_code == 200


def test_an_unknown_model_is_404_and_a_model_without_vectors_400(server: Any) -> None:
    error_of(embed(server, "hi", model="nobody"), 404, "model")
    own = server.state.pooling
    server.state.pooling = Pooling(refusal="modules.json has the module Dense, which is not built")
    try:
        assert "module Dense" in error_of(embed(server, "hi"), 400, "model")["message"]
    finally:
        server.state.pooling = own


def test_a_request_is_counted_once_and_a_failing_prompt_is_500(server: Any) -> None:
    before = server.metric("request_success_total", finished_reason="stop")
    tokens = server.metric("prompt_tokens_total")
    embed(server, ["hi", "hi"])
    assert server.metric("request_success_total", finished_reason="stop") == before + 1
    assert server.metric("prompt_tokens_total") == tokens + 6
    with serving(Script(fail_after=0)) as failing:
        error_of(embed(failing, "hi"), 500)


def test_the_openai_client_reads_the_vectors(server: Any) -> None:
    from openai import OpenAI

    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    for more in ({}, {"encoding_format": "float"}, {"dimensions": 2}):
        found = client.embeddings.create(model="script", input=["hi", "you"], **more)  # type: ignore[call-overload]
        assert len(found.data) == 2 and np.linalg.norm(found.data[1].embedding) == pytest.approx(1, abs=1e-6)
        assert found.usage.total_tokens == 7


def test_embeddings_are_measured_like_anything_else(server: Any, capsys: Any, tmp_path: Path) -> None:
    from engine.cli import main
    from engine.weights.resolve import BUILTIN

    words = ["bench", "serve", "--base-url", server.url, "--backend", "openai-embeddings", "--tokenizer", BUILTIN]
    words += ["--num-prompts", "5", "--input-len", "4", "--output-json", str(tmp_path / "r")]
    assert main(words) == 0 and "E2EL (ms)" in capsys.readouterr().out
    found = json.loads((tmp_path / "r").read_text())
    assert found["completed"] == 5 and found["total_output_tokens"] == 0 and found["p99_e2el_ms"] > 0
    assert "mean_ttft_ms" not in found and found["total_input_tokens"] > 20
