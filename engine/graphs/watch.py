"""Runs a reference on fake tensors and refuses what no graph can hold."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from engine.ops.constant import making

READS = frozenset(("item", "tolist", "numpy", "__array__", "__dlpack__", "__repr__", "__format__"))
NUMBERS = frozenset(("__bool__", "__int__", "__float__", "__complex__", "__index__"))
ADDRESSES = frozenset(("data_ptr", "untyped_storage", "storage", "_typed_storage", "const_data_ptr"))
MOVES = frozenset(("pin_memory", "share_memory_"))
WAITS = "synchronize"
MASKED = frozenset(("index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_"))


class Refused(Exception):
    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")


def watch(run: Callable[[], tuple[Any, ...]], inputs: Mapping[str, tuple[Any, bool]]) -> tuple[Any, ...]:
    """Results of ``run``, which is called inside a fake mode. ``inputs``: by name, a fake tensor and whether it may be
    written. Raises ``Refused``, also where ``run`` keeps what it did to itself."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    seen = _Seen(inputs)
    functions, operators = _modes()
    with operators(seen), functions(seen), _profiled(seen):
        # What a function does with fake tensors is its own affair; whatever comes of it is the reason.
        try:
            found = run()
        except Exception as error:
            if seen.first is None:
                said = str(error).partition("\n")[0]
                seen.first = Refused(f"fails on fake tensors: {type(error).__name__}: {said}", "see to its code")
            raise seen.first from error
    if seen.first:
        raise seen.first
    if any(isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor) for x in found):
        raise Refused("returns a tensor that it did not make from its inputs", _GIVE)
    return found


_GIVE = "give it to the call as an input"
_COPY = "copy before or after a step"
_ONE = "put them on one device before a step"
_HOST = "keep the decision on the device: where, masked_fill, index_select, or a size known beforehand"


def _joined(devices: Iterable[Any]) -> str:
    return " and ".join(sorted(map(str, devices)))


def reach(tensor: Any) -> tuple[int, int, int]:
    """Storage, first byte and the byte past the last."""
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start, item = tensor.storage_offset(), tensor.element_size()
    end = start + steps + 1 if tensor.numel() else start
    return tensor.untyped_storage()._cdata, start * item, end * item


class _Seen:
    """``function``: the function of torch that is being called; ``first``: the first refusal; ``look``: what python
    calls at each call of a function."""

    def __init__(self, inputs: Mapping[str, tuple[Any, bool]]) -> None:
        self.function: Any = None
        self.first: Refused | None = None
        self.look: Any = None
        self._spans = [(name, reach(tensor), may) for name, (tensor, may) in inputs.items()]

    def refuse(self, found: str, remedy: str) -> Refused:
        refusal = Refused(found, remedy)
        self.first = self.first or refusal
        return refusal

    def named(self, func: Any) -> str:
        """The operator, and the function that called it."""
        import torch

        own = str(func)
        if self.function is None or self.function is func:
            return own
        outer = torch.overrides.resolve_name(self.function) or getattr(self.function, "__name__", "")
        return f"{outer} ({own})" if outer else own

    def writes(self, func: Any, tensor: Any) -> None:
        storage, start, end = reach(tensor)
        shared = [(name, span, may) for name, span, may in self._spans if span[0] == storage]
        if not shared or any(may and span[1] <= start and end <= span[2] for _, span, may in shared):
            return
        if hit := [name for name, span, may in shared if not may and span[1] < end and start < span[2]]:
            found = f"{self.named(func)} writes {' and '.join(hit)}, which the op's mutates does not list"
            raise self.refuse(found, "write a clone, or list it")
        raise self.refuse(f"{self.named(func)} writes beside {shared[0][0]}", "write inside it")


@cache
def _is_device(name: str) -> bool:
    """Methods that copy to a kind of device have its name."""
    import torch

    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True


@cache
def _made_of_others(func: Any) -> bool:
    """In inference mode torch hands such an operator over whole."""
    import torch

    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@cache
def _modes() -> tuple[Any, Any]:
    import torch
    from torch._subclasses import fake_tensor
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import arg_tree_leaves

    class Functions(TorchFunctionMode):
        """What reads, moves or asks for an address, by the name of torch's function: on the host's own tensors much of
        it reaches no operator."""

        def __init__(self, seen: _Seen) -> None:
            super().__init__()
            self.seen = seen

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, seen = getattr(func, "__name__", ""), self.seen
            outer, seen.function = seen.function, func
            if seen.look:
                sys.setprofile(None)
            try:
                if name in READS or name in NUMBERS:
                    raise seen.refuse(f"torch.Tensor.{name} reads values on the host", _HOST)
                if name in ADDRESSES:
                    raise seen.refuse(f"torch.Tensor.{name} asks where a tensor lies", "leave addresses to kernels")
                if name in MOVES or _is_device(name):
                    raise seen.refuse(f"torch.Tensor.{name} copies to another memory", _COPY)
                return func(*args, **(kwargs or {}))
            finally:
                if seen.look:
                    sys.setprofile(seen.look)
                seen.function = outer

    class Operators(TorchDispatchMode):
        def __init__(self, seen: _Seen) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.seen = seen

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, seen = kwargs or {}, self.seen
            if making.get() or func.namespace == "prim":
                return func(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                tensors = [x for x in arg_tree_leaves(*args, **kwargs) if isinstance(x, torch.Tensor)]
                self._before(func, args, kwargs, tensors)
                if _made_of_others(func):
                    with self:
                        return func.decompose(*args, **kwargs)
                self._alone(func, args, kwargs)
                try:
                    found = func(*args, **kwargs)
                except (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException) as error:
                    inner = "" if error.func is func else f", through {error.func},"
                    raise seen.refuse(f"{seen.named(func)}{inner} reads values on the host", _HOST) from error
                except (fake_tensor.UnsupportedOperatorException, fake_tensor.UnsupportedFakeTensorException) as error:
                    raise seen.refuse(f"{seen.named(func)} has no fake kernel", "register one") from error
                homes = {x.device for x in tensors}
                away = {x.device for x in arg_tree_leaves(found) if isinstance(x, torch.Tensor)} - homes
                if homes and away:
                    words = f"{seen.named(func)} copies from {_joined(homes)} to {_joined(away)}"
                    raise seen.refuse(words, _COPY)
                return found

        def _before(self, func: Any, args: Any, kwargs: Any, tensors: list[Any]) -> None:
            """What no operator may do, made of others or not."""
            seen, name = self.seen, func.overloadpacket.__name__
            if name in ("lift", "lift_fresh", "lift_fresh_copy"):
                raise seen.refuse(
                    f"{seen.named(func)} makes a tensor from values of the host",
                    "take it as an input, or keep it with engine.ops.constant",
                )
            for x in tensors:
                if not isinstance(x, fake_tensor.FakeTensor):
                    kind = str(x.dtype).removeprefix("torch.")
                    raise seen.refuse(f"{seen.named(func)} takes {kind}{list(x.shape)}, which is no input", _GIVE)
            wide = {x.device for x in tensors if x.dim() or name == "copy_"}
            if len(wide) > 1:
                raise seen.refuse(f"{seen.named(func)} takes tensors on {_joined(wide)}", _ONE)
            if name in MASKED and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]):
                raise seen.refuse(f"{seen.named(func)} writes where a mask says, which counts it on the host", _HOST)

        def _alone(self, func: Any, args: Any, kwargs: Any) -> None:
            """What an operator that is made of no others does."""
            given = {
                argument.name: args[at] if at < len(args) else kwargs.get(argument.name)
                for at, argument in enumerate(func._schema.arguments)
            }
            if torch.Tag.nondeterministic_seeded in func.tags and given.get("dropout_p", 1):
                found = f"{self.seen.named(func)} draws random numbers, whose state a replay does not carry on"
                raise self.seen.refuse(found, "draw before a step and give them as an input")
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for x in arg_tree_leaves(given[argument.name]):
                        if isinstance(x, torch.Tensor):
                            self.seen.writes(func, x)

    return Functions, Operators


@contextmanager
def _profiled(seen: _Seen) -> Iterator[None]:
    """Sees functions that wait for a device, which torch lets nobody override. Asleep inside functions of torch."""
    if sys.getprofile():
        # Python has one such hook, and a profiler's own cannot be put back.
        yield
        return

    def look(frame: Any, event: str, value: Any) -> None:
        found = {"call": (frame.f_code.co_name, frame.f_globals.get("__name__"))}.get(event)
        if event == "c_call":
            found = value.__name__, value.__module__
        if found and found[0] == WAITS:
            seen.refuse(f"{found[1] or 'torch'}.{WAITS} waits for the device", "leave waiting to the engine")

    seen.look = look
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
