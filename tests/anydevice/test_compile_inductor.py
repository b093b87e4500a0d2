"""A piece through the code generator for real: right at every size, and from its bytes in any process and folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.compile.compiler import Compiler
from engine.compile.store import Store
from engine.ops import OPS
from tests.piece_toys import BASE, CALLS, LAST, RESULTS, SMALL, compare, piece, run, weights

SIZES = (1, 2, 17, 511)
CHILD = """
import sys

seen = []
sys.addaudithook(lambda event, arguments: seen.append(event) if event in WATCHED else None)
import torch
from pathlib import Path
from engine.compile.compiler import Compiler
from engine.compile.store import Store
from engine.ops import OPS
from tests import piece_toys as toys

texts = {}
compiler = Compiler(OPS, Store(Path(sys.argv[1])), toys.BASE, texts.__setitem__)
given = torch.load(sys.argv[2])
calls = toys.piece(compiler, given)
torch.save([toys.run(calls, given, tokens) for tokens in (1, 17)], sys.argv[3])
print(compiler.loaded, compiler.built, sorted(name.split(".", 1)[1] for name in texts), seen)
"""
WATCHED = ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec")


class Made:
    """What one compilation left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.given, self.texts = folder, weights(), dict[str, str]()
        self.compiler = Compiler(OPS, Store(folder), BASE, self.texts.__setitem__)
        before = dict(os.environ)
        with torch.inference_mode():
            self.calls = piece(self.compiler, self.given)
        self.counts = self.compiler.built, self.compiler.loaded
        self.changed = {key for key in {*before, *os.environ} if before.get(key) != os.environ.get(key)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("store"))


def test_a_piece_of_references_and_a_native_row_is_one_call(made):
    (call,) = made.calls
    assert (call.op, call.row, call.outputs) == ("compiled", "inductor", RESULTS)
    assert call.inputs == ("ids", "side", "positions", "table", "norm", "packed")
    assert made.counts == (1, 0)


@pytest.mark.parametrize("tokens", SIZES)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_one_artefact_is_right_at_every_size(made, tokens, mode):
    with mode():
        compare(run(made.calls, made.given, tokens), run(CALLS, made.given, tokens))


def test_weights_are_arguments(made):
    others = {name: tensor * 1.5 for name, tensor in made.given.items()}
    compare(run(made.calls, others, 17), run(CALLS, others, 17))


def test_neither_settings_nor_processes_are_left_behind(made):
    from torch._inductor import async_compile, config
    from torch._inductor.async_compile import AsyncCompile

    assert not made.changed
    assert not async_compile._pool_set
    assert AsyncCompile.cpp_pybinding.__module__ == async_compile.__name__
    assert not config.cpp.dynamic_threads


def test_graph_and_code_are_there_to_be_read(made):
    names = {name.split(".", 1)[1]: text for name, text in made.texts.items()}
    assert set(names) == {"graph.py", "code.py"}
    assert "aten.embedding" in names["graph.py"] and "engine_rows.linear_" in names["graph.py"]
    assert "def call(self, args)" in names["code.py"]


def test_caches_lie_in_the_store_and_none_is_shared(made):
    assert {path.name for path in made.folder.iterdir() if path.is_dir()} == {"generator"}
    assert {path.name.split("-")[0] for path in (made.folder / "generator").iterdir()} == {str(os.getpid())}


def test_one_size_compiles_for_itself(made):
    wanted = run(SMALL, made.given, 16, LAST)
    for compiler in (made.compiler, Compiler(OPS, Store(made.folder), BASE)):
        before = compiler.built, compiler.loaded
        compare(run(piece(compiler, made.given, SMALL, LAST, 16, 16), made.given, 16, LAST), wanted)
        assert (compiler.built - before[0], compiler.loaded - before[1]) == (
            compiler is made.compiler,
            before == (0, 0),
        )


def test_H_CCH_05_copied_entries_load_in_another_home_without_a_compiler(made, tmp_path):
    """Only the entries travel, not the caches of the code generator; no process is started and none could be."""
    for name in ("store", "home", "tmp", "empty"):
        (tmp_path / name).mkdir()
    entries = [path for path in made.folder.iterdir() if path.is_file()]
    assert entries
    for path in entries:
        (tmp_path / "store" / path.name).write_bytes(path.read_bytes())
    torch.save(made.given, tmp_path / "weights")
    root = str(Path(__file__).parents[2])
    environment = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp"), "PATH": str(tmp_path / "empty")}
    code = CHILD.replace("WATCHED", repr(WATCHED))
    arguments = [str(tmp_path / name) for name in ("store", "weights", "results")]
    child = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**environment, "PYTHONPATH": root}, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    assert child.stdout.split(maxsplit=2) == ["1", "0", "['code.py', 'graph.py'] []\n"], child.stdout
    for tokens, found in zip((1, 17), torch.load(tmp_path / "results"), strict=True):
        compare(found, run(CALLS, made.given, tokens))
    assert not list((tmp_path / "home").iterdir()) and not list((tmp_path / "store" / "generator").iterdir())
    assert not [path for path in (tmp_path / "tmp").iterdir() if "inductor" in path.name]
