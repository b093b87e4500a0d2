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
    r"(cuda|cudnn|cublas|rocm|hipblas|miopen|nvidia|nvml|pynvml|amdsmi|nccl|rccl|aiter|flashinfer)\w*"
    r"|hip|amd|intel|cpu|xpu|tpu|npu|mps|metal|hopper|blackwell|ampere|mi\d{3}x?|[cr]dna\d?|gfx\w*|sm\d+\w?"
    r"|x86|avx\w*|amx\w*|neon"
)
PLATFORM_MODULES = re.compile(r"\btorch\.(version|xpu|mps)\b|(?<![a-z])sm_\d", re.I)
HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
OWN_CODE = [
    file
    for folder in (
        "engine",
        "platforms",
        "kernels_cpu",
        "kernels_cuda",
        "kernels_rocm",
        "kernels_triton",
        "ci",
        "tests",
        "docs",
        "benchmarks",
    )
    for file in sorted((ROOT / folder).rglob("*.py"))
]


def code_words(file: Path) -> list[str]:
    """Every name and string of a file, docstrings, comments and the language's own ``__names__`` aside."""
    tree = ast.parse(file.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in prose:
            found += [node.value] if isinstance(node.value, str) else []
            found += [node.value.decode("latin-1")] if isinstance(node.value, bytes) else []
        elif isinstance(node, (ast.Attribute, ast.Import, ast.ImportFrom)):
            found.append(ast.unparse(node))
        elif not isinstance(node, ast.Constant):
            values = [value for _, value in ast.iter_fields(node)]
            values += [each for value in values if isinstance(value, list) for each in value]
            found += [value for value in values if isinstance(value, str)]
    return [text for text in found if not re.fullmatch(r"__\w+__", text)]


def platform_words(text: str) -> list[str]:
    """The words of ``text`` that name a platform: it is cut at everything but letters and digits, and at humps."""
    pieces = re.findall(r"[A-Za-z0-9]+", text)
    words = {
        word.lower()
        for piece in pieces
        for hump in HUMP.finditer(piece)
        for word in (piece, hump.group(), piece[hump.start() :])
    }
    found = [word for word in words if PLATFORM_WORDS.fullmatch(word)]
    return sorted(found + [match.group() for match in PLATFORM_MODULES.finditer(text)])


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
        f"{file.relative_to(ROOT)}: {text!r}: {', '.join(platform_words(text))}"
        for file in ENGINE
        if file != ROOT / "engine/compat.py"
        for text in code_words(file)
        if platform_words(text)
    ]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize(
    "line",
    [
        'x = "gfx942"',
        "torch.cuda.synchronize()",
        "import pynvml",
        "import x.cudnn as y",
        "import x as rocm",
        "from platforms import amd",
        "if device == 'cuda': pass",
        "sm_90 = 2",
        "is_sm_90 = 1",
        "sm90 = 1",
        "x = is_cuda",
        "device.is_cuda",
        "device.is_cuda()",
        "use_cuda = 1",
        "def cuda_init(): pass",
        "async def cuda_init(): pass",
        "class CudaGraph: pass",
        "class CUDAGraph: pass",
        "class UseROCm: pass",
        "class MIGraph(HipRuntime): pass",
        "f(on_cuda=1)",
        "def f(on_cuda): pass",
        "def f(*, on_cuda=None): pass",
        "def f(*rocm): pass",
        "def f(**rocm): pass",
        "lambda hip: 1",
        "cudagraph = 1",
        "x = cudnn",
        "x = 'cudagraph'",
        "x = f'{y}_cuda'",
        "x = b'cuda'",
        "x = {'VLLM_ROCM_USE': 1}",
        "useCuda = 1",
        "runsOnHIP = 1",
        "x = mi300x",
        "x = has_avx512f",
        "x = 'x86_64'",
        "global cuda_seen",
        "try: pass\nexcept E as cuda_error: pass",
        "match x:\n case cuda_x: pass",
        "match x:\n case {**cuda_x}: pass",
        "torch.version.x",
        "torch.mps.x",
    ],
)
def test_invariant_1_the_search_finds_what_it_is_for(line: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(line)
    assert any(platform_words(text) for text in code_words(file))


@pytest.mark.parametrize(
    "line",
    [
        '"""Works on cuda."""',
        "x = 1  # rocm",
        "ship = chip = whip = 1",
        "x = 'relationship, metallic, camp'",
        "class A:\n async def __aiter__(self): pass",
        "small_sum = smoke = 1",
        "x = 'torch.versions'",
    ],
)
def test_invariant_1_the_search_finds_nothing_else(line: str, tmp_path: Path) -> None:
    file = tmp_path / "good.py"
    file.write_text(line)
    assert not any(platform_words(text) for text in code_words(file))


@pytest.mark.parametrize("file", ENGINE, ids=lambda file: str(file.relative_to(ROOT)))
def test_invariant_2_the_engine_sees_the_contract_and_discovery_only(file: Path) -> None:
    for name in imports(file):
        top = name.split(".")[0]
        assert not top.startswith("kernels_"), name
        if top == "platforms":
            assert name in ("platforms.contract", "platforms.discovery") or name.startswith("platforms.contract."), name


@pytest.mark.parametrize("package", ["kernels_cpu", "kernels_cuda", "kernels_rocm", "kernels_triton"])
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
    native = [(len(file.read_text().splitlines()), file) for file in (ROOT / "kernels_cpu" / "src").iterdir()]
    assert max(sizes[-1], *native)[0] <= 400, max(sizes[-1], *native)
    source = sorted(n for n, file in sizes if "tests" not in file.parts and n > 1)
    assert source[len(source) // 2] <= 120
