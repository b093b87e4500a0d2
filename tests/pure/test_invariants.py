"""Rules of the design that a text search or an import can hold (docs/design.md, section 9)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = sorted((ROOT / "engine").rglob("*.py"))
PLATFORM_WORDS = re.compile(
    r"\b(cuda|rocm|hip|nvidia|amd|intel|cpu|xpu|tpu|npu|mps|metal|aiter|flashinfer|hopper|blackwell|ampere|mi\d{3}x?"
    r"|cdna\d?|rdna\d?|gfx\w+|sm_?\d+|x86\w*|avx\w*|amx\w*|neon|nvml|pynvml|amdsmi)\b|torch\.(cuda|version|xpu|mps)",
    re.I,
)
OWN_CODE = [
    file
    for folder in ("engine", "platforms", "kernels_cpu", "kernels_cuda", "kernels_rocm", "tests", "docs", "benchmarks")
    for file in sorted((ROOT / folder).rglob("*.py"))
]


def code_words(file: Path) -> list[str]:
    """Names and strings of a file, docstrings and comments aside."""
    tree = ast.parse(file.read_text())
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    prose |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found.append(node.value)
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Name):
            found.append(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(ast.unparse(node))
    return found


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_invariant_1_no_platform_word_in_the_engine() -> None:
    hits = [
        f"{file.relative_to(ROOT)}: {text!r}"
        for file in ENGINE
        if file.name != "compat.py"
        for text in code_words(file)
        if PLATFORM_WORDS.search(text)
    ]
    assert not hits, "\n".join(hits)


def test_invariant_1_the_search_finds_what_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    for line in (
        'x = "gfx942"',
        "torch.cuda.synchronize()",
        "import pynvml",
        "if device == 'cuda': pass",
        "is_sm_90 = 1; sm_90 = 2",
    ):
        file.write_text(line)
        assert any(PLATFORM_WORDS.search(text) for text in code_words(file)), line
    file.write_text('"""Works on cuda."""\nx = 1  # rocm\n')
    assert not any(PLATFORM_WORDS.search(text) for text in code_words(file))


@pytest.mark.parametrize("file", ENGINE, ids=lambda file: str(file.relative_to(ROOT)))
def test_invariant_2_the_engine_sees_the_contract_and_discovery_only(file: Path) -> None:
    for name in imports(file):
        top = name.split(".")[0]
        assert not top.startswith("kernels_"), name
        if top == "platforms":
            assert name in ("platforms.contract", "platforms.discovery") or name.startswith("platforms.contract."), name


@pytest.mark.parametrize("package", ["kernels_cpu", "kernels_cuda", "kernels_rocm"])
def test_invariant_2_kernels_see_the_contract_only(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        for name in imports(file):
            assert name.split(".")[0] != "engine", f"{file}: {name}"
            assert not name.startswith("platforms.") or name.startswith("platforms.contract"), f"{file}: {name}"


def test_invariant_2_platforms_do_not_see_the_engine_and_the_contract_sees_nobody() -> None:
    for file in (ROOT / "platforms").rglob("*.py"):
        for name in imports(file):
            assert name.split(".")[0] != "engine", f"{file}: {name}"
    for file in (ROOT / "platforms/contract").rglob("*.py"):
        for name in imports(file):
            standard = name.split(".")[0] in sys.stdlib_module_names
            assert standard or name.startswith("platforms.contract") or name == "torch", f"{file}: {name}"


@pytest.mark.parametrize(
    "module", ["engine.scheduler", "engine.block_manager", "engine.plan", "engine.client", "engine.server.app"]
)
def test_invariant_3_no_torch_where_none_belongs(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_file_is_over_400_lines_and_the_median_is_small() -> None:
    sizes = sorted((len(file.read_text().splitlines()), file) for file in OWN_CODE)
    assert sizes[-1][0] <= 400, sizes[-1]
    source = sorted(n for n, file in sizes if "tests" not in file.parts and n > 1)
    assert source[len(source) // 2] <= 120


def test_invariant_10_generated_tables_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "docs/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
