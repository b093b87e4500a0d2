"""The bench of devices runs on whatever is here; what it says about speed is not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.device.__main__ import main

ROOT = Path(__file__).parents[2]


def test_one_table_and_one_file(tmp_path):
    asked = {"shape": "tiny", "batches": "1,2", "steps": 6, "copy-mib": 16, "mib": 1, "dtype": "float32", "levels": 2}
    words = [f"--{name}={value}" for name, value in asked.items()]
    command = [sys.executable, "-m", "benchmarks.device", *words, "--json", str(tmp_path / "found.json")]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    shares = {row["op"]: row["share"] for row in found["kernels"] if "share" in row}
    assert {"rms_norm", "silu_and_mul", "rotary_kv_write"} <= set(shares) and min(shares.values()) > 0
    (run,) = found["decode"]
    assert [row["batch"] for row in run["decode"]] == [1, 2] and run["steps"]["FULL"] > 0
    # The tiny model: 2 layers of 256 and 512 columns, its head, in float32; the embedding's rows are not read whole.
    # 19 tokens, at what the platform keeps keys and values in.
    layer = 256 * (256 + 2 * 128 + 256) + 3 * 256 * 512 + 2 * 256
    kept = getattr(torch, run["kv_cache_dtype"]).itemsize * 2 * 2 * 128 * 19
    assert run["decode"][0]["bytes"] == 4 * (2 * layer + 256 + 1024 * 256) + kept
    assert "decode -O2" in made.stdout and "GB/s" in made.stdout
    said = made.stderr.splitlines()
    assert any(line.startswith("rms_norm ") for line in said) and any("batch 2: " in line for line in said)


def test_a_device_that_is_not_here(tmp_path):
    words = ["--platform", "cuda:sm_90"]
    made = subprocess.run([sys.executable, "-m", "benchmarks.device", *words], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 2 and "not here" in made.stderr and "Traceback" not in made.stderr
    assert "copies" not in made.stderr, "nothing was measured"


def bench(*words):
    command = [sys.executable, "-m", "benchmarks.device", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "words",
    [
        *(["--levels", "x"], ["--levels", "0,9"], ["--levels", ""], ["--copy-mib", "0"], ["--copy-mib", "1e3"]),
        *(["--dtype", "foo"], ["--dtype", "int8"], ["--mib", "-1"], ["--mib", "0"], ["--batches", "1,,2"]),
        *(["--batches", "0"], ["--steps", "1"], ["--steps", "5000"], ["--shape", "70b"]),
    ],
    ids=" ".join,
)
def test_what_cannot_be_measured_is_refused_before_anything_is(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr()
    parts = map(repr, (words[1], *words[1].split(",")))
    assert f"argument {words[0]}: " in said.err and any(part in said.err for part in parts) and not said.out


def test_a_file_that_cannot_be_written_is_told_first(tmp_path):
    for path in (tmp_path / "none" / "x.json", tmp_path):
        made = bench("--json", str(path))
        assert made.returncode == 2 and "cannot be written" in made.stderr and "copies" not in made.stderr


def test_more_than_the_device_holds_leaves_no_file(tmp_path):
    for name in ("--mib", "--copy-mib"):
        made = bench(name, str(1 << 20), "--json", str(tmp_path / "x.json"))
        assert made.returncode == 2 and f"{name} {1 << 20} takes" in made.stderr and "Traceback" not in made.stderr
        assert not (tmp_path / "x.json").exists()
