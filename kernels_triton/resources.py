"""What a compiled form takes of a device, read from the code itself."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton

from kernels_triton.forms import Form, compile_form

_MATRIX = (
    ("tcgen05", r"\btcgen05\.mma"),
    ("wgmma", r"\bwgmma\.mma_async"),
    ("mma.sync", r"\bmma\.sync"),
    ("mfma", r"\bv_s?mfma\w*"),
    ("wmma", r"\bv_s?wmma\w*"),
)
"""Word for a matrix unit → what its instructions look like in PTX or AMD assembly."""

_PRODUCT = re.compile(r"\btt\.dot(?:_scaled)? .*? : tensor<(\d+)x\d+x(?:f16|bf16|f8\w+|f4\w+|i8|ui8)\b")
"""Rows of the first operand of a product of narrow values."""
_BULK = re.compile(r"\bcp\.async\.bulk\.tensor")
_COPY = re.compile(r"\bcp\.async\.\w+\.shared\.global\S* .*?, (?:0x)?([0-9a-f]+)[,;]")
_PTX = re.compile(r"\b(ld|st)\.global\S*?(?:\.v(\d))?\.[a-z](\d+)\s")
_AMD = re.compile(r"\b(?:global|buffer|flat)_(load|store)_(?:lds_)?([a-z0-9_]+)")
_WORDS = {"byte": 8, "ubyte": 8, "sbyte": 8, "short": 16, "ushort": 16, "sshort": 16, "dword": 32}


@dataclass(frozen=True, slots=True)
class Resources:
    """``registers``: of a thread. ``spills``: what of a thread does not fit them, in bytes of stack and local memory
    (NVIDIA) or vector registers and bytes of private memory (AMD). ``scalar_spills``: scalar registers kept in vector
    ones (AMD). ``shared_memory``: bytes of a block. ``matrix``: matrix instructions that occur. ``product_rows``: of
    the largest matrix product of 16-bit or narrower values, 0 where there is none. ``load``, ``store``: bits of the
    widest access to global memory. ``seconds``: of one core, for compiling."""

    registers: int
    spills: int
    scalar_spills: int
    shared_memory: int
    matrix: tuple[str, ...]
    product_rows: int
    load: int
    store: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(form: Form, arch: str) -> Resources:
    """The form's figures on ``arch``, compiled anew."""
    begin = time.perf_counter()
    compiled = compile_form(form, arch, fresh=True)
    return resources_of(compiled, round(time.perf_counter() - begin, 2))


def resources_of(compiled: Any, seconds: float = 0.0) -> Resources:
    """Of what Triton compiled. Raises ``ValueError`` where the vendor's tool prints nothing that can be read."""
    assembly = compiled.asm.get("amdgcn")
    if assembly is not None:
        registers, spilled, scalars, private = (
            _field(assembly, name)
            for name in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
        )
        spills = spilled + private
        accesses = [(kind, _amd_bits(word)) for kind, word in _AMD.findall(assembly)]
    else:
        assembly, scalars = compiled.asm["ptx"], 0
        usage = _usage(compiled.asm["cubin"])
        registers, spills = usage["REG"], usage["STACK"] + usage["LOCAL"]
        accesses = [
            ({"ld": "load", "st": "store"}[kind], int(count or 1) * int(bits))
            for kind, count, bits in _PTX.findall(assembly)
        ]
        accesses += [("load", int(size, 16) * 8) for size in _COPY.findall(assembly)]
        accesses += [("load", 128)] * bool(_BULK.search(assembly))
    return Resources(
        registers,
        spills,
        scalars,
        compiled.metadata.shared,
        tuple(name for name, pattern in _MATRIX if re.search(pattern, assembly)),
        max(map(int, _PRODUCT.findall(compiled.asm["ttir"])), default=0),
        max((bits for kind, bits in accesses if kind == "load"), default=0),
        max((bits for kind, bits in accesses if kind == "store"), default=0),
        seconds,
    )


def _field(assembly: str, name: str) -> int:
    found = re.findall(rf"\.{name}:\s*(\d+)", assembly)
    if not found:
        raise ValueError(f"the assembly has no .{name}")
    return max(map(int, found))


def _amd_bits(word: str) -> int:
    """``dwordx4``, ``b128``, ``ushort``, ``u16``, ``short_d16_hi`` → bits."""
    head = word.split("_")[0]
    many = re.fullmatch(r"dwordx(\d)", head)
    if many:
        return 32 * int(many[1])
    exact = re.fullmatch(r"[bui](\d+)", head)
    return int(exact[1]) if exact else _WORDS.get(head, 16 if head == "d16" else 0)


def _usage(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        made = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True)
    found: dict[str, int] = {}
    for name, number in re.findall(r"\b(REG|STACK|LOCAL|SHARED):(\d+)", made.stdout):
        found[name] = max(found.get(name, 0), int(number))
    if not {"REG", "STACK", "LOCAL"} <= set(found):
        raise ValueError(f"{tool.name} -res-usage printed no figures: {(made.stdout + made.stderr).strip()[-500:]}")
    return found
