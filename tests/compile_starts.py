"""Starts of a tiny engine, each in a process of its own, that tell what they compiled and what they answered.

One process imports torch once and forks for each start, which then looks for files and reads variables by itself.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
import pwd
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.checkpoints import hf_config, random_weights, write_hf
from tests.word_tokenizer import write_word_tokenizer

PAGE_BYTES = 2 * 2 * 16 * 2 * 16 * 4
VARIABLES = {
    # One thread each, and no trial of every instruction set: four starts share two cores.
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
}
IMPORTED = (
    "torch._inductor.standalone_compile",
    "torch._inductor.select_algorithm",
    "torch._inductor.codegen.cpp",
    "torch._dynamo.polyfills.loader",
    "torch._functorch.aot_autograd",
    "tokenizers",
    "engine.core",
    "engine.runner",
)
"""Most of what a start imports, none of which looks at a cache."""
ALL = ["attention"]
"""Ops between pieces: the pieces of the whole model, three forms, most of them of C++."""
VIEWS = [*ALL, "embedding", "add", "rotary_table", "rms_norm", "silu_and_mul", "rotary"]
"""What is left to generate are views, in one form: no C++ compiler runs."""
LOOKUP = [*ALL, "add", "rotary_table", "split", "rms_norm", "silu_and_mul", "select_rows"]
"""What is left is one loop of C++."""


@dataclass(frozen=True, slots=True)
class Start:
    """``tokens`` of two prompts. ``rows``: label → value and reason of the start-up table. ``phases``: seconds by name.
    ``warnings``: what was logged as one. ``programs``: names of what was run, with ``--version`` where that was all.
    ``error``: a ``UserError``'s text, with everything else empty."""

    built: int = 0
    loaded: int = 0
    tokens: list[list[int]] | None = None
    rows: dict[str, list[str]] | None = None
    phases: dict[str, float] | None = None
    warnings: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    error: str = ""


def write_tiny(folder: Path) -> Path:
    config = hf_config()
    write_hf(folder, config, random_weights(config, seed=5))
    write_word_tokenizer(folder, config["vocab_size"])
    return folder


class Starts:
    """Makes starts of the checkpoint in ``model``."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **VARIABLES},
        )

    def __call__(
        self,
        root: Path | None,
        splitting_ops: list[str] | None = None,
        *,
        level: int = 2,
        permissions: bool = False,
        homeless: bool = False,
        user: int | None = None,
        variables: Mapping[str, str | None] | None = None,
        **settings: Any,
    ) -> Start:
        """``root``: ENGINE_CACHE_ROOT. ``variables``: more of them, ``None`` for one that is not set. ``permissions``:
        the bits of a file hold for root as well. ``homeless``: HOME is not set, and no user database knows another.
        ``user``: id that the process takes for its own."""
        compilation = settings.pop("compilation_config", {})
        if level:
            shown = {"backend": "inductor", "custom_ops": ["none"], "splitting_ops": splitting_ops or VIEWS}
            compilation = {**shown, "cudagraph_capture_sizes": [1, 2], **compilation}
        given = {
            "model": str(self.model), "platform": "cpu", "dtype": "float32", "max_model_len": 64,
            "max_num_batched_tokens": 64, "max_num_seqs": 4, "kv_cache_memory_bytes": 40 * PAGE_BYTES,
            "optimization_level": level, "compilation_config": compilation, **settings,
        }  # fmt: skip
        found = {"ENGINE_CACHE_ROOT": str(root) if root else None, "VLLM_CACHE_ROOT": None, **(variables or {})}
        with tempfile.TemporaryDirectory() as folder:
            answer = f"{folder}/answer"
            who = {"permissions": permissions, "homeless": homeless, "user": user}
            order = {"settings": given, "variables": found, "answer": answer, **who}
            assert self._process.stdin is not None and self._process.stdout is not None
            print(json.dumps(order), file=self._process.stdin, flush=True)
            code = self._process.stdout.readline().strip()
            assert code == "0", f"the start ended with {code or 'its parent'}"
            return Start(**json.loads(Path(answer).read_text()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


@contextmanager
def starts(model: Path) -> Iterator[Starts]:
    found = Starts(model)
    try:
        yield found
    finally:
        found.close()


def _heed_permissions() -> None:
    """Give up the three capabilities by which root passes over the bits of files."""
    size, version = 3, 0x20080522
    header, data = (ctypes.c_uint32 * 2)(version, 0), (ctypes.c_uint32 * (2 * size))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(header, data) == 0, os.strerror(ctypes.get_errno())
    for at in range(2):
        data[at] &= ~0b1110
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


def _unknown(user: int) -> Any:
    raise KeyError(f"getpwuid(): uid not found: {user}")


def _start(order: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in order["variables"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    # It was looked up when this process's parent began.
    tempfile.tempdir = None
    if order["permissions"]:
        _heed_permissions()
    if order["homeless"]:
        os.environ.pop("HOME", None)
        pwd.getpwuid = _unknown
    if order["user"] is not None:
        os.geteuid = lambda: order["user"]
    warnings, programs = list[str](), list[str]()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            words = [os.fsdecode(word) for word in arguments[1]]
            name = os.path.basename(os.fsdecode(arguments[0] or words[0]))
            programs.append(f"{name} --version" if words[1:] == ["--version"] else name)

    sys.addaudithook(hear)

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())

    logging.getLogger().addHandler(Heard(logging.WARNING))
    from engine import LLM, SamplingParams
    from engine.errors import UserError

    try:
        with LLM(**order["settings"]) as llm:
            info = llm._open_core().info
            greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            tokens = [one.outputs[0].token_ids for one in llm.generate(["w3 w4 w5", "w9"], greedy, False)]
    except UserError as error:
        return {"error": str(error), "warnings": warnings, "programs": programs}
    return {
        "built": info.built, "loaded": info.loaded, "tokens": tokens, "warnings": warnings, "programs": programs,
        "rows": {label: [value, why] for label, value, why in info.summary if label}, "phases": dict(info.phases),
    }  # fmt: skip


def _child(order: Mapping[str, Any]) -> int:
    """Everything that an end of the process does but taking down an interpreter full of torch, which takes seconds."""
    try:
        Path(order["answer"]).write_text(json.dumps(_start(order)))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()
    return 0


def _serve() -> None:
    from importlib import import_module

    for name in IMPORTED:
        import_module(name)
    # Kernels of the host are no pieces, and take as long as all that is looked at here: they are compiled once.
    native = import_module("platforms.cpu.native")
    kernels = native.cache_folder(os.environ)
    native.cache_folder = lambda environ: kernels
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(2, 1)
            os._exit(_child(json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
