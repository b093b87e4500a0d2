"""Writing a program down: every call is typed by its op's own ``shapes``."""

from __future__ import annotations

from typing import Any

from engine.ops import OPS, Spec
from engine.program import CacheSpec, Call, Dim, Program, Value, Weight


class Draft:
    """Collects inputs, weights, caches and calls; ``finish`` gives the program."""

    def __init__(self) -> None:
        self._values: dict[str, Value] = {}
        self._inputs: list[Value] = []
        self._weights: dict[str, Weight] = {}
        self._caches: dict[str, CacheSpec] = {}
        self._calls: list[Call] = []
        self._shared: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def input(self, name: str, dtype: str, *shape: Dim) -> str:
        self._inputs.append(self._name(name, Spec(dtype, shape)))
        return name

    def weight(self, name: str, dtype: str, shape: tuple[int, ...], tensors: tuple[str, ...], **more: Any) -> str:
        self._weights[name] = Weight(name, dtype, shape, tensors, **more)
        return name

    def cache(self, spec: CacheSpec, shape: tuple[Dim, ...]) -> str:
        self._caches[spec.name] = spec
        self._name(spec.name, Spec(spec.dtype, shape))
        return spec.name

    def call(self, op: str, *inputs: str, into: str | tuple[str, ...], **attributes: Any) -> Any:
        """Append a call; returns ``into``. Optional tensors are left out by passing fewer inputs."""
        names = into if isinstance(into, tuple) else (into,)
        specs = OPS[op].shapes(tuple(self._spec(name) for name in inputs), attributes)
        for name, spec in zip(names, specs, strict=True):
            self._name(name, spec)
        self._calls.append(Call(op, inputs, names, attributes))
        return into

    def shared(self, op: str, *inputs: str, into: tuple[str, ...], **attributes: Any) -> tuple[str, ...]:
        """The outputs of an equal call that was shared before, or of a new one ``into`` these names."""
        key = (op, inputs, tuple(sorted(attributes.items())))
        if key not in self._shared:
            self._shared[key] = self.call(op, *inputs, into=into, **attributes)
        return self._shared[key]

    def format_of(self, weight: str) -> str:
        return self._weights[weight].format

    def finish(self, **outputs: str) -> Program:
        return Program(tuple(self._inputs), tuple(self._calls), outputs, self._values, self._weights, self._caches)

    def _name(self, name: str, spec: Spec) -> Value:
        if name in self._values or name in self._weights:
            raise ValueError(f"the name {name} is taken; a program assigns each name once")
        self._values[name] = Value(name, spec.dtype, spec.shape)
        return self._values[name]

    def _spec(self, name: str) -> Spec:
        found = self._weights.get(name) or self._values[name]
        return Spec(found.dtype, found.shape)
