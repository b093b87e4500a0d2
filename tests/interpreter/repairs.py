"""Three faults of Triton 3.7.1's interpreter, repaired so that what runs on it rounds as devices do: it cuts float32 to
bfloat16 and rounds float8 without carrying into the exponent, multiplies the raw bits of bfloat16 in ``dot``, and does
not know float8_e4m3fnuz. And a delay: it patches the language again at every call of a helper, a third of its time.
One check is added: programs that run one after another hide a race, so no launch may store an element twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e4nv": torch.float8_e4m3fn,
}
_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def _convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Bits of ``values`` in dtype ``target``, rounded to nearest, ties to even."""
    given = torch.from_numpy(np.array(values, order="C", copy=True)).view(_TORCH[source.name])
    found = given.to(_TORCH[target.name])
    return found.view(_BITS[found.element_size()]).numpy()


_PATCHED: set[Any] = set()


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A helper's body. The launch has patched the language; what a helper's patch adds to that stays."""
    if self.fn not in _PATCHED:
        interpreter._patch_lang(self.fn)
        _PATCHED.add(self.fn)
    return self.rewrite()(*args, **kwargs)


_STORED: list[Any] = []


def _once(launch: Any) -> Any:
    """``launch`` of kernels whose every result has one writer."""

    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        _STORED.clear()
        launch(self, *args, **kwargs)
        addresses = np.concatenate([np.zeros(0, np.uint64), *_STORED])
        assert len(np.unique(addresses)) == len(addresses), "an element was stored twice by one launch"

    return checked


def repair() -> None:
    """Once per process, before a kernel runs."""
    builder, core = interpreter.InterpreterBuilder, interpreter._patch_lang_core
    dot, store = builder.create_dot, builder.create_masked_store

    def create_dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        wide = [
            interpreter.TensorHandle(_convert(x.data, x.dtype.scalar, tl.float32, None).view(np.float32), tl.float32)
            if x.dtype.scalar.name == "bf16"
            else x
            for x in (a, b)
        ]
        return dot(self, *wide, *more)

    def create_masked_store(self: Any, places: Any, values: Any, mask: Any, *more: Any) -> Any:
        _STORED.append(places.data[np.asarray(mask.data).astype(bool)].ravel())
        return store(self, places, values, mask, *more)

    def patch_core(lang: Any, scope: Any) -> None:
        core(lang, scope)
        known = lang.dtype.to_ir
        scope.set_attr(
            lang.dtype,
            "to_ir",
            lambda self, builder: builder.get_fp8e4b8_ty() if self.name == "fp8e4b8" else known(self, builder),
        )

    interpreter.InterpretedFunction.__call__ = _call
    interpreter._convert_float = _convert
    interpreter.GridExecutor.__call__ = _once(interpreter.GridExecutor.__call__)
    builder.create_dot, builder.create_masked_store = create_dot, create_masked_store
    interpreter._patch_lang_core = patch_core
