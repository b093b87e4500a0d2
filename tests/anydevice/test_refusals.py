"""What a person can get wrong at the command line: exit 2, one message, no traceback, nothing left running."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.checkpoints import builtin_gguf, hf_config, random_weights, write_hf
from tests.live_server import live_server
from tests.word_tokenizer import write_word_tokenizer


def serve(*arguments: str, **environment: str) -> str:
    """stderr of a start that must be refused."""
    command = [sys.executable, "-m", "engine", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("engine: error:") == 1
    return done.stderr


FLOATS = ("--kv-cache-dtype", "float32")
PAGE = 2 * 2 * 16 * 2 * 16 * 4
"""Bytes of a block of 16 tokens of the model below: 2 layers, keys and values, 2 heads of 16 columns, in ``FLOATS``."""


def tiny(folder: Path, architecture: str = "llama", shards: int = 1, **changes: object) -> Path:
    config = hf_config(architecture, **changes)
    write_hf(folder, config, random_weights(config), shards=shards)
    write_word_tokenizer(folder, config["vocab_size"])
    return folder


def test_a_model_nobody_knows_names_the_nearest() -> None:
    assert "SmolLM2-135M-Instruct" in serve("SmolLM-135M-Instruct", "--port", "0")


def test_a_config_of_quantised_weights_over_dense_files_is_planned_for_and_not_served(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    tiny(tmp_path, quantization_config=fp8)
    said = serve(str(tmp_path), "--port", "0")
    assert str(tmp_path) in said and "stored as float32" in said and "the config says float8_e4m3fn" in said
    (tmp_path / "model.safetensors").unlink()
    command = [sys.executable, "-m", "engine", "explain", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "kernels" in json.loads(done.stdout)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "absent.gguf") in serve(str(tmp_path / "absent.gguf"), "--port", "0")


def test_a_truncated_gguf_names_file_and_tensor(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    shutil.copy(builtin_gguf(), file)
    with open(file, "r+b") as handle:
        handle.truncate(60_000_000)
    said = serve(str(file), "--port", "0")
    assert "cut.gguf" in said and "blk." in said


def test_a_truncated_safetensors_names_file_and_tensor(tmp_path: Path) -> None:
    file = next(tiny(tmp_path).glob("*.safetensors"))
    with open(file, "r+b") as handle:
        handle.truncate(file.stat().st_size - 100)
    said = serve(str(tmp_path), "--port", "0")
    assert file.name in said and "weight" in said


def test_H_QNT_06_a_missing_shard_is_named(tmp_path: Path) -> None:
    gone = sorted(tiny(tmp_path, shards=3).glob("*.safetensors"))[1]
    gone.unlink()
    assert gone.name in serve(str(tmp_path), "--port", "0")


def test_an_architecture_nobody_knows_is_named_with_the_known_ones(tmp_path: Path) -> None:
    tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    strange = {**config, "architectures": ["StrangeForCausalLM"], "model_type": "strange"}
    (tmp_path / "config.json").write_text(json.dumps(strange))
    said = serve(str(tmp_path), "--port", "0")
    assert "strange" in said.lower() and "LlamaForCausalLM" in said


def test_H_SRV_04_a_port_in_use_is_refused_with_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in serve("--port", str(port))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-O7"], ["-O7", "0, 1, 2"]),
        (["--platform", "cuda"], ["--platform cuda", "no usable device"]),
        (["--platform", "cuda:sm_90"], ["cuda:sm_90", "not here"]),
        (["--platform", "nonsense"], ["nonsense"]),
        (["--kernel", "rms_norm=aiter"], ["rms_norm=aiter"]),
        (["-cc.graph_mode=FULL", "--kernels=reference"], ["graph_mode=FULL", "--kernels=reference", "attention"]),
        (["--capture-sizes", "1", "5000"], ["capture", "5000", "2048"]),
        (["-cc.pass_config.fuse_allreduce_rms=true"], ["fuse_allreduce_rms"]),
        (["--max-model-len", "99999"], ["99999", "8192"]),
        (["--no-enable-chunked-prefill", "--max-num-batched-tokens", "64"], ["64", "8192"]),
        (["--kv-cache-memory", "1K"], ["No memory for the cache blocks"]),
        (["-tp", "2"], ["tensor-parallel-size=2"]),
        (["--max-modellen", "4"], ["--max-model-len"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_what_cannot_be_served_says_what_was_asked_and_why(arguments: list[str], words: list[str]) -> None:
    said = serve("--port", "0", *arguments)
    assert all(word in said for word in words), said


def test_H_PLT_11_without_any_compiler_every_level_serves_the_same_tokens(tmp_path: Path) -> None:
    tiny(tmp_path)
    request = {"prompt": list(range(3, 20)), "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    found = []
    for level in ("-O0", "-O2"):
        arguments = (str(tmp_path), level, "--kv-cache-memory", "8M")
        with live_server(*arguments, environment={"PATH": "/nonexistent"}) as server:
            found.append(server.post("/v1/completions", **request).json()["choices"][0]["text"])
    assert found[0] == found[1] != ""


def test_H_SCH_01_a_request_larger_than_the_pool_is_refused_and_the_next_one_served(tmp_path: Path) -> None:
    tiny(tmp_path, max_position_embeddings=4096)
    with live_server(str(tmp_path), *FLOATS, "--max-model-len", "4096", "--kv-cache-memory", str(64 * PAGE)) as server:
        assert "the KV cache holds 1024 tokens" in " ".join(server.output.split())
        answer = server.post("/v1/completions", prompt=[5] * 2000, max_tokens=4)
        assert answer.status_code == 400
        assert "2004" in answer.json()["error"]["message"] and "1024" in answer.json()["error"]["message"]
        assert server.post("/v1/completions", prompt=[5] * 5, max_tokens=4).status_code == 200


def test_a_longest_sequence_that_nobody_named_is_held_to_the_kv_cache(tmp_path: Path) -> None:
    tiny(tmp_path, max_position_embeddings=4096)
    for arguments in ((), ("--max-model-len", "auto")):
        with live_server(str(tmp_path), *FLOATS, *arguments, "--kv-cache-memory", str(64 * PAGE)) as server:
            assert httpx.get(server.url + "/v1/models").json()["data"][0]["max_model_len"] == 1024


def test_H_SCH_03_preemption_changes_no_text(tmp_path: Path) -> None:
    tiny(tmp_path)
    requests = [{"prompt": [7 + n] * 32, "max_tokens": 96, "temperature": 0, "ignore_eos": True} for n in range(6)]

    async def together(url: str) -> list[str]:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            answers = await asyncio.gather(*(client.post("/v1/completions", json=request) for request in requests))
            return [answer.json()["choices"][0]["text"] for answer in answers]

    with live_server(str(tmp_path), *FLOATS, "--kv-cache-memory", str(20 * PAGE)) as server:
        found = asyncio.run(together(server.url))
        assert server.metric("num_preemptions_total") > 0
        assert server.is_idle()
    with live_server(str(tmp_path), *FLOATS, "--kv-cache-memory", str(200 * PAGE)) as server:
        assert found == [server.post("/v1/completions", **request).json()["choices"][0]["text"] for request in requests]
