"""The bench of devices runs on whatever is here; what it says about speed is not judged."""

import json
import subprocess
import sys
from pathlib import Path

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
    layer = 256 * (256 + 2 * 128 + 256) + 3 * 256 * 512 + 2 * 256
    assert run["decode"][0]["bytes"] == 4 * (2 * layer + 256 + 1024 * 256 + 2 * 2 * 128 * 19)
    assert "decode -O2" in made.stdout and "GB/s" in made.stdout


def test_a_device_that_is_not_here(tmp_path):
    words = ["--platform", "cuda:sm_90"]
    made = subprocess.run([sys.executable, "-m", "benchmarks.device", *words], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 2 and "not here" in made.stderr and "Traceback" not in made.stderr
