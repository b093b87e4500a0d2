"""What a row's function would launch, found from tensors without data, and its compilation for an absent device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from triton.compiler import ASTSource
from triton.runtime.jit import KernelParam

from kernels_triton.launch import assume, recording
from kernels_triton.target import ranges_matter, target_of

WITHIN = 2**31 - 1
"""Bytes of a tensor's storage at most for which Triton uses offsets of 32 bits where that matters."""

_KINDS = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2": "fp8e5",
    "float8_e5m2fnuz": "fp8e5b16",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "bool": "i1",
}
"""torch's type → Triton's."""


@dataclass(frozen=True, slots=True)
class Form:
    """One compiled variant of a kernel. ``kernel``: ``"module:name"``. ``signature``: every parameter → its type
    (``*bf16``, ``i32``; ``constexpr`` for a constant or a tensor left out). ``constants``: values of the latter.
    ``near``: pointers to storages within 2 GiB, on devices where that makes other code. Every pointer is a multiple of
    16 bytes. Hashable, and equal forms give equal code of one version of kernel and compiler."""

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    warps: int
    stages: int
    near: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """One line that tells forms apart: types of tensors (``~`` within 2 GiB, ``-`` left out), constants, warps and
        stages."""
        given = dict(self.constants)
        types = [
            "-" if given.get(name, 0) is None else kind.removeprefix("*") + "~" * (name in self.near)
            for name, kind in self.signature
            if kind.startswith("*") or given.get(name, 0) is None
        ]
        rest = [f"{name}={_word(value)}" for name, value in self.constants if value is not None]
        words = (*rest, f"warps={self.warps}", f"stages={self.stages}")
        return f"{self.kernel.removeprefix('kernels_triton.')} {','.join(types)} {' '.join(words)}"

    def __str__(self) -> str:
        return self.name

    def function(self) -> Any:
        """The kernel, as its module has it."""
        module, name = self.kernel.split(":")
        return getattr(import_module(module), name)


def _word(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def forms_of(target: str, tensors: Iterable[Any], attributes: Mapping[str, Any], arch: str) -> list[Form]:
    """The forms that ``target`` (``"module:function"`` of a row) would launch on ``arch``, each once, in order.
    ``tensors``: without data (device ``meta``), or their specs (``dtype`` as torch's name, ``shape`` of numbers), or
    ``None`` for one left out. Raises ``TypeError`` for a kernel whose numbers are not annotated."""
    module, name = target.split(":")
    return record(getattr(import_module(module), name), *map(without_data, tensors), arch=arch, **attributes)


def without_data(spec: Any) -> Any:
    """A tensor of these dtype and shape that has no data; tensors and ``None`` as they are."""
    if spec is None or isinstance(spec, torch.Tensor):
        return spec
    return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")


def record(call: Callable[..., Any], *tensors: Any, arch: str, **attributes: Any) -> list[Form]:
    """As ``forms_of``, of a function."""
    found: dict[Form, None] = {}

    def recorder(
        kernel: Any, grid: tuple[int, ...], values: tuple[Any, ...], warps: int, stages: int, constants: dict[str, Any]
    ) -> None:
        found[form_of(kernel, values, warps, stages, constants, ranges_matter(arch))] = None

    with assume(arch), recording(recorder), torch.inference_mode():
        call(*tensors, **attributes)
    return list(found)


def form_of(
    kernel: Any, values: tuple[Any, ...], warps: int, stages: int, constants: Mapping[str, Any], ranges: bool
) -> Form:
    """The form of a launch. ``ranges``: 2 GiB make a difference. Raises ``TypeError`` for a number without a type."""
    signature: dict[str, str] = {}
    fixed = dict(constants)
    near = set()
    for parameter, value in zip(_params(kernel), values, strict=False):
        name = parameter.name
        if value is None:
            signature[name], fixed[name] = "constexpr", None
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + _KINDS[str(value.dtype).removeprefix("torch.")]
            if ranges and value.untyped_storage().nbytes() <= WITHIN:
                near.add(name)
        elif parameter.annotation_type and parameter.do_not_specialize:
            signature[name] = parameter.annotation_type
        else:
            raise TypeError(f"{kernel.__name__}: the number {name!r} has no type; annotate it and use launch.jit")
    signature |= dict.fromkeys(constants, "constexpr")
    order = kernel.arg_names
    missing = [name for name in order if name not in signature]
    if missing or len(signature) != len(order):
        raise TypeError(f"{kernel.__name__}: launched without {missing}, with {sorted(set(signature) - set(order))}")
    return Form(
        f"{kernel.fn.__module__}:{kernel.fn.__name__}",
        tuple((name, signature[name]) for name in order),
        tuple((name, fixed[name]) for name in order if name in fixed),
        warps,
        stages,
        frozenset(near),
    )


def _params(kernel: Any) -> list[Any]:
    """The kernel's parameters, also in a process that interprets, where kernels keep none."""
    if hasattr(kernel, "params"):
        return list(kernel.params)
    plain = kernel.kwargs.get("do_not_specialize") or ()
    found = enumerate(inspect.signature(kernel.fn).parameters.values())
    return [KernelParam(at, one, one.name in plain, False) for at, one in found]


def compile_form(form: Form, arch: str, fresh: bool = False) -> Any:
    """Triton's compiled kernel (``asm``, ``metadata``) for a device that is absent. ``fresh``: whatever was compiled
    before, and leaving nothing behind. Raises what Triton raises where it cannot."""
    facts = {
        (at,): [["tt.divisibility", 16], *([["tt.pointer_range", 32]] if name in form.near else [])]
        for at, (name, kind) in enumerate(form.signature)
        if kind.startswith("*")
    }
    source = ASTSource(form.function(), dict(form.signature), dict(form.constants), facts)
    options = {"num_warps": form.warps, "num_stages": form.stages}
    if not fresh:
        return triton.compile(source, target_of(arch), options)
    with _empty_cache():
        return triton.compile(source, target_of(arch), options)


@contextmanager
def _empty_cache() -> Iterator[None]:
    with TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        yield
