"""Pieces of a program through a code generator. What was made before comes from a store."""

from __future__ import annotations

import shutil
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from engine.compile import generate, opaque
from engine.compile.cut import stays_apart
from engine.compile.folder import own_folder
from engine.compile.store import Store
from engine.compile.trace import Layout, Unit
from engine.errors import UserError
from engine.ops import Op, Spec
from engine.plan_values import digest
from engine.work import BoundCall

ROW = "inductor"
Dump = Callable[[str, str], None]


class Compiler:
    """``built``, ``loaded``: functions that were compiled, and that came from the store. ``base``: what every piece
    depends on beside itself, as plain values. ``dump(name, text)`` receives the graph and the generated code of each
    function, as a name of a file and its content."""

    def __init__(self, ops: Mapping[str, Op], store: Store, base: Mapping[str, Any], dump: Dump | None = None) -> None:
        self._ops, self._store, self._base, self._dump = ops, store, base, dump
        self._functions: dict[str, Callable[..., Any]] = {}
        self._own: Path | None = None
        self.built = self.loaded = 0

    def piece(
        self,
        calls: Sequence[BoundCall],
        specs: Mapping[str, Spec],
        given: Mapping[str, Any],
        outputs: Collection[str],
        start: int,
        end: int,
        label: str = "piece",
    ) -> list[BoundCall]:
        """The calls of a piece with each run of pure ones that holds a reference in place of one compiled call.

        ``specs``: type of every value; ``given``: weights and caches by name; ``outputs``: names that are read outside
        the piece; steps have ``start`` to ``end`` tokens, one artefact for all of them. Values that come into a
        compiled call are contiguous, or copied so. ``label``: how names of dumped files begin. Units that differ in
        names only share one artefact. Raises ``UserError`` naming the ops of a unit that cannot be compiled, or that
        the store was required to have."""
        types = _Types(specs, given)
        found: list[BoundCall] = []
        for pure, run in groupby(calls, lambda call: self._pure(call, types)):
            part = list(run)
            if not pure or all(call.row for call in part):
                found += part
                continue
            inside = {id(call) for call in part}
            outside = {*outputs, *(name for call in calls if id(call) not in inside for name in call.inputs)}
            wanted = [name for call in part for name in call.outputs if name in outside]
            if wanted:
                found.append(self._compiled(part, types, wanted, start, end, label))
        return found

    def _pure(self, call: BoundCall, types: _Types) -> bool:
        if stays_apart(self._ops[call.op]):
            return False
        if not all(name in types for name in (*call.inputs, *call.outputs)):
            return False
        return not call.row or bool(opaque.name_of(call, types.all(call.inputs), types.all(call.outputs)))

    def _compiled(
        self, calls: list[BoundCall], types: _Types, wanted: list[str], start: int, end: int, label: str
    ) -> BoundCall:
        made = {name for call in calls for name in call.outputs}
        read = dict.fromkeys(name for call in calls for name in call.inputs if name not in made)
        inputs = sorted(read, key=lambda name: types.layout(name).stride is not None)
        numbers = {name: at for at, name in enumerate([*inputs, *(n for call in calls for n in call.outputs)])}
        bodies, described = list[Any](), list[Any]()
        for call in calls:
            ends = types.all(call.inputs), types.all(call.outputs)
            name = opaque.name_of(call, *ends) if call.row else ""
            if call.row:
                bodies.append((opaque.register(name, call, *ends), call.inputs, call.outputs, {}))
            else:
                bodies.append((call.function, call.inputs, call.outputs, call.attributes))
            attributes = [[key, _plain(value)] for key, value in sorted(call.attributes.items())]
            places = [[numbers[n] for n in names] for names in (call.inputs, call.outputs)]
            described.append([call.op, name, *places, [] if name else attributes])
        unit = Unit(tuple(bodies), tuple(inputs), tuple(wanted), tuple(map(types.layout, inputs)), start, end)
        declared = {
            **self._base,
            "piece": {
                "calls": described,
                "inputs": [[one.dtype, one.shape, one.stride, one.device] for one in unit.layouts],
                "outputs": [numbers[name] for name in wanted],
                "tokens": [start, end],
                "threads": types.threads(),
            },
        }
        run = self._function(unit, declared, [call.op for call in calls], label)
        function = run if len(wanted) > 1 else _first(run)
        return BoundCall("compiled", ROW, function, tuple(inputs), tuple(wanted))

    def _function(self, unit: Unit, declared: dict[str, Any], ops: Sequence[str], label: str) -> Callable[..., Any]:
        key = digest(declared)
        if key not in self._functions:
            name = f"{label}_{digest(declared['piece'])[:6]}_{unit.start}-{unit.end}"
            self._functions[key] = self._stored(declared, name) or self._built(unit, declared, ops, name)
        return self._functions[key]

    def _folder(self) -> Path:
        if self._own is None:
            root = self._store.scratch / "generator"
            try:
                self._own = own_folder(root)
            except OSError as error:
                raise UserError(
                    f"pieces cannot be compiled: {root} cannot be written ({error.strerror or error}). Name a folder "
                    "with room that this user may write to, with --cache-dir, or serve without (-cc.backend=eager)."
                ) from error
            # Of use for compiling only, and large.
            weakref.finalize(self, shutil.rmtree, self._own / generate.HEADERS, ignore_errors=True)
        return self._own

    def _stored(self, declared: dict[str, Any], name: str) -> Callable[..., Any] | None:
        payload = self._store.read(declared)
        if payload is None:
            return None
        folder = self._folder()
        try:
            run, texts = generate.load(payload, folder)
        except Exception as error:
            self._store.discard(declared, _cause(error))
            return None
        self.loaded += 1
        self._show(name, texts)
        return run

    def _built(self, unit: Unit, declared: dict[str, Any], ops: Sequence[str], name: str) -> Callable[..., Any]:
        texts: dict[str, str] = {}
        folder = self._folder()
        try:
            payload = generate.build(unit, folder, texts)
            run, _ = generate.load(payload, folder)
        except Exception as error:
            texts["error"] = traceback.format_exc()
            raise UserError(
                f"a piece for steps of {unit.start} to {unit.end} tokens cannot be compiled, with the ops "
                f"{', '.join(ops)}: {_cause(error)}. -cc.debug_dump_path=DIR shows more; "
                "-cc.backend=eager serves without."
            ) from error
        finally:
            self._show(name, texts)
        self._store.write(declared, payload)
        self.built += 1
        return run

    def _show(self, name: str, texts: Mapping[str, str]) -> None:
        for kind, text in texts.items() if self._dump else ():
            self._dump(f"{name}.{kind}.{'txt' if kind == 'error' else 'py'}", text)  # type: ignore[misc]


class _Types:
    """Types of values, and of weights and caches as they lie in memory."""

    def __init__(self, specs: Mapping[str, Spec], given: Mapping[str, Any]) -> None:
        import torch

        self._specs = specs
        self._given = {
            name: tensor
            for name, tensor in given.items()
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided
        }
        self._device = str(next(iter(self._given.values())).device if self._given else torch.get_default_device())

    def __contains__(self, name: str) -> bool:
        return name in self._given or name in self._specs

    def all(self, names: Sequence[str]) -> list[Spec]:
        return [Spec(one.dtype, one.shape) for one in map(self.layout, names)]

    def layout(self, name: str) -> Layout:
        if name not in self._given:
            return Layout(self._specs[name].dtype, self._specs[name].shape, None, self._device)
        tensor = self._given[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Layout(dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device))

    def threads(self) -> str:
        """Loops are made for one thread or for any number."""
        import torch

        return "one" if torch.get_num_threads() == 1 else "several"


def _first(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors: run(*tensors)[0]


def _cause(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip(' .')}" if lines else type(error).__name__


def _plain(value: Any) -> Any:
    """As JSON would give it back, or as text."""
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
