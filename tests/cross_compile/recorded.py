"""What a launcher would start, from tensors without data, and its compilation for a device that is absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from kernels_triton import attention, mla, rotary, rows

_POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.float8_e4m3fnuz: "*fp8e4b8",
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
    "gfx1201": GPUTarget("hip", "gfx1201", 32),
}


@dataclass(frozen=True)
class Launch:
    kernel: Any
    values: tuple[Any, ...]
    constants: Mapping[str, Any]
    warps: int
    stages: int

    def compile(self, arch: str) -> Any:
        """As a first launch there would: 1 is a constant, multiples of 16 and allocations are known as such."""
        kept = {self.kernel.arg_names[at] for at in self.kernel.do_not_specialize if isinstance(at, int)}
        kept |= {name for name in self.kernel.do_not_specialize if isinstance(name, str)}
        signature, constants, facts = {}, dict(self.constants), {}
        for at, (name, value) in enumerate(zip(self.kernel.arg_names, self.values, strict=False)):
            if isinstance(value, torch.Tensor):
                signature[name] = _POINTERS[value.dtype]
            elif isinstance(value, float):
                signature[name] = "fp32"
            elif value is None or (value == 1 and name not in kept):
                signature[name], constants[name] = "constexpr", value
            else:
                signature[name] = "i32" if value < 2**31 else "i64"
            if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0 and name not in kept):
                facts[(at,)] = [["tt.divisibility", 16]]
        signature.update(dict.fromkeys(self.constants, "constexpr"))
        source = ASTSource(self.kernel, signature, constants, facts)
        return compile(source, TARGETS[arch], {"num_warps": self.warps, "num_stages": self.stages})


def record(call: Callable[..., Any], *tensors: Any, **attributes: Any) -> list[Launch]:
    """What ``call`` would launch."""
    found: list[Launch] = []

    def launch(kernel: Any, grid: Any, *values: Any, warps: int, stages: int = 1, **constants: Any) -> None:
        assert len(values) + len(constants) == len(kernel.arg_names)
        found.append(Launch(kernel, values, constants, warps, stages))

    modules = (attention, mla, rotary, rows)
    before = [module.launch for module in modules]
    try:
        for module in modules:
            module.launch = launch  # type: ignore[assignment]
        call(*tensors, **attributes)
    finally:
        for module, function in zip(modules, before, strict=True):
            module.launch = function
    return found
