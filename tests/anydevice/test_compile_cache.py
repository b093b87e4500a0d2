"""The cache of compiled pieces as users meet it: starts in processes of their own, on caches that are warm, damaged,
somewhere else, in use or in the way. The host's own platform, wherever they run: its code generator needs no device."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.caches import fresh_root
from tests.compile_starts import ALL, LOOKUP, VARIABLES, Start, Starts, starts, write_tiny
from tests.live_server import LiveServer

pytestmark = pytest.mark.timeout(300)
ROOT = os.geteuid() == 0
ENTRY = "*.piece"


@pytest.fixture(scope="module")
def begin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    with starts(write_tiny(tmp_path_factory.mktemp("model"))) as found:
        yield found


@pytest.fixture(scope="module")
def plain(begin: Starts, tmp_path_factory: pytest.TempPathFactory) -> Start:
    return begin(tmp_path_factory.mktemp("plain"), level=0)


@pytest.fixture(scope="module")
def warmed(begin: Starts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the one piece of ``VIEWS``; tests take copies."""
    root = tmp_path_factory.mktemp("warmed")
    assert begin(root).built == 1
    return root


@pytest.fixture
def root(warmed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(warmed, tmp_path / "root"))


def entries(root: Path) -> list[Path]:
    return sorted((root / "compile").glob(ENTRY))


def leftovers(root: Path) -> list[str]:
    """Files below a cache that are no entry, no kernels of the host and no memory of a check."""
    kinds = ("compile/*.piece", "first_touch/*.json", "captured/*.json", "kernels_cpu/*/kernels.so")
    kept = {file for kind in kinds for file in root.glob(kind)}
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if not file.is_dir() and file not in kept)


def edit_header(entry: Path, **fields: Any) -> None:
    line, _, payload = entry.read_bytes().partition(b"\n")
    entry.write_bytes(json.dumps({**json.loads(line), **fields}).encode() + b"\n" + payload)


def refused(*words: str, **variables: str) -> str:
    """stderr of a command that ends with 2."""
    command = [sys.executable, "-m", "engine", "serve", "--port", "0", "--platform", "cpu", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **variables})
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("engine: error:") == 1
    return done.stderr


def test_a_warm_start_compiles_nothing_and_says_so(begin: Starts, plain: Start, tmp_path: Path) -> None:
    cold, warm = begin(tmp_path, ALL), begin(tmp_path, ALL)
    assert (cold.built, cold.loaded, warm.built, warm.loaded) == (3, 0, 0, 3)
    assert cold.tokens == warm.tokens == plain.tokens
    assert cold.rows and warm.rows and plain.rows
    assert cold.rows["compiled"][0] == "3 built, 0 from the cache"
    assert warm.rows["compiled"][0] == "0 built, 3 from the cache"
    assert "compiled" not in plain.rows
    assert "g++" in cold.programs and set(warm.programs) <= {"g++ --version"}
    assert cold.phases and warm.phases and warm.phases["compile"] < cold.phases["compile"] / 3
    assert not cold.warnings and not warm.warnings
    assert len(entries(tmp_path)) == 3 and not leftovers(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "bfloat16"},
        {"block_size": 32},
        {"compilation_config": {"pass_config": {"fuse_rope_kvcache": False}}},
        {"compilation_config": {"custom_ops": ["none", "+silu_and_mul"]}},
    ],
    ids=lambda change: json.dumps(change),
)
def test_H_CCH_01_a_setting_that_shapes_has_entries_of_its_own(
    begin: Starts, plain: Start, root: Path, change: dict[str, Any]
) -> None:
    before = entries(root)
    first, third, again = begin(root, **change), begin(root), begin(root, **change)
    assert (first.built, first.loaded) == (1, 0) and len(entries(root)) == len(before) + 1
    assert (third.built, third.loaded, again.built, again.loaded) == (0, 1, 0, 1)
    eager = begin(root, level=0, **change) if "dtype" in change else plain
    assert first.tokens == again.tokens == eager.tokens and third.tokens == plain.tokens


def test_settings_that_shape_nothing_share_their_entries(begin: Starts, plain: Start, root: Path) -> None:
    found = begin(
        root, max_num_seqs=8, enable_prefix_caching=False, kv_cache_memory_bytes=2**21, max_model_len=48,
        served_model_name="other", seed=7,
    )  # fmt: skip
    assert (found.built, found.loaded, found.tokens) == (0, 1, plain.tokens)


@pytest.fixture
def few_tools(tmp_path: Path) -> str:
    """A PATH with a C++ compiler and without openssl, so that nobody compiles 150 MB of headers first."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("g++", "as", "ld", "ldd", "uname"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return str(folder)


def test_H_CCH_02_four_servers_start_at_once_on_an_empty_cache(
    begin: Starts, plain: Start, tmp_path: Path, few_tools: str
) -> None:
    root = fresh_root(tmp_path / "root")
    words = [str(begin.model), "--platform", "cpu", "-O2", "-cc.backend=inductor", "-cc.custom_ops=none"]
    words += ["--max-model-len", "64", "--max-num-seqs", "4", "--kv-cache-memory", "1M"]
    words += ["--max-num-batched-tokens", "64", "--capture-sizes", "1", "2"]
    words += [f"-cc.splitting_ops={json.dumps(LOOKUP)}"]
    environment = {**VARIABLES, "PATH": few_tools, "ENGINE_CACHE_ROOT": str(root), "COLUMNS": "200"}
    request = {"prompt": "w3 w4 w5", "max_tokens": 8, "temperature": 0, "ignore_eos": True}

    def check(server: LiveServer) -> tuple[str, int, int]:
        server.wait_ready(200)
        assert httpx.get(server.url + "/health").status_code == 200
        assert not any(word in server.output for word in ("Traceback", "is not used", "cannot be kept", "not kept"))
        counts = [pieces(server, source) for source in ("built", "cache")]
        return server.post("/v1/completions", **request).json()["choices"][0]["text"], *counts

    with ExitStack() as stack:
        servers = [LiveServer(*words, environment=environment) for _ in range(4)]
        for server in servers:
            stack.callback(server.stop)
        found = [check(server) for server in servers]
    assert all(server.wait_exit(10) == 0 for server in servers)
    texts = {text for text, _, _ in found}
    assert len(texts) == 1 and "".join(texts) and all(built + loaded == 1 for _, built, loaded in found)
    assert len(entries(root)) == 1 and not leftovers(root)
    with ExitStack() as stack:
        fifth = LiveServer(*words, environment=environment)
        stack.callback(fifth.stop)
        assert check(fifth) == (texts.pop(), 0, 1)
        assert "0 built, 1 from the cache" in fifth.output
    assert fifth.wait_exit(10) == 0 and not leftovers(root)


def pieces(server: LiveServer, source: str) -> int:
    (row,) = [
        line
        for line in httpx.get(server.url + "/metrics").text.splitlines()
        if line.startswith("engine:compiled_functions{") and f'source="{source}"' in line
    ]
    return int(float(row.split()[-1]))


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def scramble(file: Path) -> None:
    file.write_bytes(os.urandom(file.stat().st_size))


@pytest.mark.parametrize("damage", [halve, scramble])
def test_H_CCH_03_damaged_files_are_one_warning_and_made_again(
    begin: Starts, plain: Start, root: Path, damage: Callable[[Path], None]
) -> None:
    # What a killed start leaves, and what the generator itself would keep: nobody may believe any of it.
    for name in ("lock", "inductor/aa/caa.py", "inductor/fxgraph/ab/artifact", "triton/x/kernel.json"):
        left = root / "compile" / "generator" / "77-killed" / name
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(os.urandom(100))
    files = [file for file in root.rglob("*") if file.is_file()]
    assert {file.relative_to(root).parts[0] for file in files} == {"compile", "first_touch", "captured"}
    for file in files:
        damage(file)
    (entry,) = entries(root)
    damaged = entry.read_bytes()
    found = begin(root)
    assert (found.built, found.loaded, found.tokens) == (1, 0, plain.tokens)
    (said,) = found.warnings
    assert f"compiled piece {entry} is not used: " in said
    assert entry.read_bytes() != damaged and entries(root) == [entry] and not leftovers(root)
    again = begin(root)
    assert (again.built, again.loaded, again.tokens, again.warnings) == (0, 1, plain.tokens, [])


def test_H_CCH_03_an_entry_that_reads_well_and_does_not_load(begin: Starts, plain: Start, root: Path) -> None:
    (entry,) = entries(root)
    payload = os.urandom(1000)
    entry.write_bytes(entry.read_bytes().partition(b"\n")[0] + b"\n" + payload)
    edit_header(entry, size=len(payload), sha256=sha256(payload).hexdigest())
    found = begin(root)
    assert (found.built, found.loaded, found.tokens) == (1, 0, plain.tokens)
    (said,) = found.warnings
    assert f"compiled piece {entry} is not used: UnpicklingError: " in said and entries(root) == [entry]


def test_H_CCH_04_a_root_that_is_a_file(begin: Starts, plain: Start, tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "temporary"
    root.write_text("mine")
    folder.mkdir()
    found = begin(root, variables={"TMPDIR": str(folder)})
    assert (found.built, found.tokens) == (1, plain.tokens)
    (said,) = found.warnings
    assert f"compiled pieces cannot be kept in {root / 'compile'}" in said and f"{root} is not a folder" in said
    assert root.read_text() == "mine" and not list(folder.iterdir())


def test_H_CCH_04_a_read_only_cache_is_read(begin: Starts, plain: Start, root: Path) -> None:
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    before = sorted(root.rglob("*"))
    reading, writing = begin(root, permissions=True), begin(root, permissions=True, block_size=32)
    assert sorted(root.rglob("*")) == before
    for folder in folders:
        folder.chmod(0o755)
    assert (reading.built, reading.loaded, reading.tokens) == (0, 1, plain.tokens)
    assert (writing.built, writing.loaded, writing.tokens) == (1, 0, plain.tokens)
    for start in (reading, writing):
        (said,) = start.warnings
        assert f"compiled pieces cannot be kept in {root / 'compile'} (Permission denied)" in said


def test_H_CCH_04_a_folder_nobody_may_write_in(begin: Starts, plain: Start, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    found = begin(tmp_path / "root", permissions=True)
    tmp_path.chmod(0o755)
    assert (found.built, found.tokens) == (1, plain.tokens)
    (said,) = found.warnings
    assert "(Permission denied)" in said and not list(tmp_path.iterdir())


def test_H_CCH_04_a_user_without_a_home(begin: Starts, plain: Start, tmp_path: Path) -> None:
    variables = {"XDG_CACHE_HOME": None, "TMPDIR": str(tmp_path)}
    cold, warm = (begin(None, homeless=True, variables=variables) for _ in range(2))
    assert (cold.built, cold.tokens, cold.warnings) == (1, plain.tokens, [])
    assert (warm.built, warm.loaded, warm.tokens) == (0, 1, plain.tokens)
    assert entries(tmp_path / f"cache-{os.getuid()}" / "engine")


def test_H_CCH_04_a_named_folder_that_cannot_be_used_is_refused(begin: Starts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    folder = tmp_path / "file" / "cache"
    wanted = f"--cache-dir={folder} cannot be used: {tmp_path / 'file'} is not a folder. Name a folder"
    words = [str(begin.model), "-O2", "-cc.backend=native", "--cache-dir", str(folder)]
    assert wanted in refused(*words, ENGINE_CACHE_ROOT=str(fresh_root(tmp_path / "root")))
    for settings in ({}, {"level": 0}):
        assert wanted in begin(tmp_path / "root", compilation_config={"cache_dir": str(folder)}, **settings).error


def test_H_CCH_04_a_named_folder_without_permission_is_refused(begin: Starts, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o555)
    found = begin(tmp_path / "root", permissions=True, compilation_config={"cache_dir": str(tmp_path / "mine")})
    assert f"--cache-dir={tmp_path / 'mine'} cannot be used: Permission denied. Name a folder" in found.error


@pytest.mark.parametrize(
    "variables",
    [
        {"ENGINE_CACHE_ROOT": "moved"},
        {"VLLM_CACHE_ROOT": "moved"},
        {"ENGINE_CACHE_ROOT": "moved", "VLLM_CACHE_ROOT": "elsewhere"},
        {"XDG_CACHE_HOME": "xdg"},
        {},
    ],
    ids=lambda variables: " ".join(variables) or "HOME",
)
def test_H_CCH_05_a_cache_that_moved_is_found(
    begin: Starts, plain: Start, root: Path, tmp_path: Path, variables: dict[str, str]
) -> None:
    """With another home each time."""
    places = {"ENGINE_CACHE_ROOT": "moved", "VLLM_CACHE_ROOT": "moved", "XDG_CACHE_HOME": "xdg/engine"}
    moved = tmp_path / places.get(next(iter(variables), ""), "home/.cache/engine")
    shutil.copytree(root, moved)
    shutil.rmtree(root)
    known = dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME"), None)
    given = {name: str(tmp_path / value) for name, value in variables.items()}
    found = begin(None, variables={**known, "HOME": str(tmp_path / "home"), **given})
    assert (found.built, found.loaded, found.tokens, found.warnings) == (0, 1, plain.tokens, [])
    assert not root.exists() and not (tmp_path / "elsewhere").exists()


def test_H_CCH_05_a_folder_that_is_named_needs_no_root(begin: Starts, plain: Start, root: Path, tmp_path: Path) -> None:
    found = begin(tmp_path / "other", compilation_config={"cache_dir": str(root / "compile")})
    assert (found.built, found.loaded, found.tokens) == (0, 1, plain.tokens)


@pytest.mark.parametrize("name", ["ENGINE_FORCE_AOT_LOAD", "VLLM_FORCE_AOT_LOAD"])
def test_a_start_that_must_find_everything_finds_it(begin: Starts, plain: Start, root: Path, name: str) -> None:
    found = begin(root, variables={name: "1"})
    assert (found.built, found.loaded, found.tokens, found.warnings) == (0, 1, plain.tokens, [])
    (entry,) = entries(root)
    other = begin(root, variables={name: "1"}, block_size=32)
    assert "which differs in cache.block_size: 32 was 16" in other.error and entry.stem in other.error
    assert "ENGINE_FORCE_AOT_LOAD: the compiled piece " in other.error and entries(root) == [entry]
    scramble(entry)
    damaged = begin(root, variables={name: "1"})
    assert f"cannot be used: it is no entry, or the beginning of one ({entry})" in damaged.error


def test_our_own_variable_counts_before_the_other(begin: Starts, tmp_path: Path) -> None:
    found = begin(tmp_path, variables={"ENGINE_FORCE_AOT_LOAD": "0", "VLLM_FORCE_AOT_LOAD": "1"})
    assert found.built == 1


def test_a_start_that_must_find_everything_ends_on_an_empty_cache(begin: Starts, tmp_path: Path) -> None:
    words = [str(begin.model), "-O2", "-cc.backend=inductor", "-cc.custom_ops=none"]
    root = fresh_root(tmp_path / "root")
    said = refused(*words, ENGINE_CACHE_ROOT=str(root), ENGINE_FORCE_AOT_LOAD="1")
    assert "ENGINE_FORCE_AOT_LOAD: the compiled piece " in said
    assert f"is not in {root / 'compile'}, which holds no entry at all. Unset ENGINE_FORCE_AOT_LOAD" in said


def test_a_cache_of_another_user_is_not_believed(begin: Starts, plain: Start, root: Path) -> None:
    (entry,) = entries(root)
    entry.parent.chmod(0o777)
    if ROOT:
        os.chown(entry, 4343, -1)
    owner = entry.stat().st_uid
    found = begin(root, user=4242)
    (said,) = found.warnings
    assert f"compiled piece {entry} is not used: it belongs to user {owner}, in a folder that others may" in said
    assert (found.built, found.loaded, found.tokens) == (1, 0, plain.tokens)


@pytest.mark.parametrize("written", [2])
def test_a_cache_of_another_version_is_made_again(begin: Starts, plain: Start, root: Path, written: int) -> None:
    (entry,) = entries(root)
    edit_header(entry, format=written)
    found = begin(root)
    (said,) = found.warnings
    assert f"compiled piece {entry} is not used: it has format {written}, and this version reads 1" in said
    assert (found.built, found.loaded, found.tokens) == (1, 0, plain.tokens)
    assert begin(root).loaded == 1
