"""Inductor, from a unit of calls to bytes and from bytes to a function. Needs torch.

The bytes hold everything that a run takes: where they are loaded, nothing is compiled, whatever lies in the caches.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import product
from pathlib import Path
from threading import RLock
from typing import Any

from engine.compat import GENERATOR_GRAPHS
from engine.compile.trace import TOKENS, Traced, Unit, size_range, trace

SIZES = (1, 2, 17, 511)
"""Sizes that one artefact must serve, where its range holds them: what a code generator likes to assume fails here."""
HEADERS = "headers"
_ONE_AT_A_TIME = RLock()
_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_VARIABLES = ("TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_")
"""How variables begin that it writes itself."""
_OPTIONS = {
    "compile_threads": 1,
    "cpp.dynamic_threads": True,
    "cpp_wrapper": False,
    "freezing": False,
    GENERATOR_GRAPHS: False,
}
"""No pool of workers; no count of threads and no weights in an artefact; no graphs inside ours."""


def build(unit: Unit, folder: Path, texts: dict[str, str]) -> bytes:
    """Compile. ``folder``: this process's own, for what the generator keeps. ``texts`` receives the traced graph under
    ``graph`` and the generated code under ``code``. Whatever the generator raises comes through; ``ValueError`` for
    code that would be wrong for a size of the range."""
    import torch

    with _settled(folder), torch.inference_mode(False), torch.no_grad():
        traced = trace(unit)
        texts["graph"] = traced.module.print_readable(print_output=False)
        _check(traced, unit)
        content = _generate(traced, folder / HEADERS, texts)
        _check(traced, unit)
    values = sum(one.stride is None for one in unit.layouts)
    return pickle.dumps({**content, "constants": traced.constants, "values": values, "texts": texts})


def load(payload: bytes, folder: Path) -> tuple[Callable[..., list[Any]], dict[str, str]]:
    """The function of what ``build`` returned, which takes the unit's inputs and returns its outputs, and its texts.
    Compiles nothing. Raises whatever a payload of another origin causes."""
    import torch

    content = pickle.loads(payload)
    with _settled(folder), _given(content["libraries"], folder), torch.inference_mode(False):
        from torch._inductor.standalone_compile import AOTCompiledArtifact

        artefact = AOTCompiledArtifact.deserialize(content["artefact"])
    values, constants = content["values"], content["constants"]

    def run(*tensors: Any) -> list[Any]:
        given = (x if x.is_contiguous() else x.contiguous() for x in tensors[:values])
        return artefact(*given, *tensors[values:], *constants)

    return run, content["texts"]


def _generate(traced: Traced, headers: Path, texts: dict[str, str]) -> dict[str, Any]:
    import torch
    from torch._guards import TracingContext, tracing
    from torch._inductor import codecache, config, standalone_compile
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.graph import GraphLowering

    code: list[str] = []
    libraries: dict[str, bytes] = {}
    settings: Any = torch.compiler.config
    with ExitStack() as stack:
        stack.enter_context(_recorded(libraries))
        stack.enter_context(tracing(TracingContext(traced.mode)))
        # A graph that its own caches know would not show what it takes for granted, nor its code.
        stack.enter_context(settings.patch(cache_key_tag=os.urandom(8).hex()))
        # Headers are compiled once, into 150 MB; they are named with a program of openssl.
        stack.enter_context(config.patch(cpp_cache_precompile_headers=bool(shutil.which("openssl"))))
        places = {"_HEADER_DIR": str(headers), "_HEADER_LOCK_DIR": str(headers / "locks")}
        stack.enter_context(_replaced(codecache, **places))
        # Remembered for the process, where others compile too, and this folder is gone before it ends.
        codecache._precompile_header.cache_clear()
        stack.callback(codecache._precompile_header.cache_clear)
        # https://github.com/pytorch/pytorch/issues/195582: a split loop leaves out the rest of a division.
        stack.enter_context(_replaced(CppScheduling, try_loop_split=lambda self, nodes: nodes))
        stack.enter_context(_replaced(GraphLowering, save_output_code=code.append))
        artefact: Any = standalone_compile(
            traced.module, traced.inputs, dynamic_shapes="from_tracing_context", aot=True
        )
    texts["code"] = "\n".join(code)
    return {"artefact": artefact.serialize(), "libraries": libraries}


def _check(traced: Traced, unit: Unit) -> None:
    """Raises ``ValueError`` for a size of the range that the code was not made for."""
    env = traced.mode.shape_env
    names = {size.node._expr: name for name, size in traced.symbols.items() if not isinstance(size, int)}
    for symbol, name in names.items():
        known, (first, last) = env.var_to_range[symbol], size_range(name, unit)
        if env.replace(symbol) != symbol or known.lower > first or known.upper < last:
            raise ValueError(f"it takes {name} for {env.replace(symbol)}, between {known.lower} and {known.upper}")
    asked = [guard.expr for guard in env.guards]
    asked += [one.expr for found in env.deferred_runtime_asserts.values() for one in found]
    for condition in asked:
        symbols = sorted(condition.free_symbols, key=str)
        for sizes in product(*(_samples(names.get(symbol, ""), unit) for symbol in symbols)):
            if condition.subs(dict(zip(symbols, sizes, strict=True))) == False:  # noqa: E712 (sympy's own false)
                found = ", ".join(f"{names.get(s, s)} = {n}" for s, n in zip(symbols, sizes, strict=True))
                raise ValueError(f"it would be wrong for {found}, since it takes {condition} for granted")


def _samples(name: str, unit: Unit) -> Sequence[int]:
    first, last = size_range(name, unit)
    return sorted({first, *(n for n in SIZES if first <= n <= last), *([last] if name == TOKENS else [])})


@contextmanager
def _settled(folder: Path) -> Iterator[None]:
    """Caches below ``folder``, one compilation at a time, in this process."""
    with _ONE_AT_A_TIME, ExitStack() as stack:
        before = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}

        def restore() -> None:
            for name in [name for name in os.environ if name.startswith(_VARIABLES)]:
                del os.environ[name]
            os.environ.update(before)

        stack.callback(restore)
        os.environ.update({name: str(folder / cache) for name, cache in _FOLDERS.items()})
        from torch._inductor import config
        from torch._inductor.codecache import PyCodeCache

        stack.enter_context(config.patch(_OPTIONS))
        # A module that is known already would not ask for its libraries.
        PyCodeCache.cache_clear()
        yield


@contextmanager
def _replaced(owner: Any, **members: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in members}
    try:
        for name, value in members.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _recorded(libraries: dict[str, bytes]) -> AbstractContextManager[None]:
    """Adds each C++ library that a generated module asks for."""

    def answer(original: Callable[[], Any], key: str) -> Any:
        function = original()
        libraries[key] = Path(function.__self__.__file__).read_bytes()
        return function

    return _asked(answer)


def _given(libraries: Mapping[str, bytes], folder: Path) -> AbstractContextManager[None]:
    """Gives the libraries that were recorded, from files of their own."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    def answer(original: Callable[[], Any], key: str) -> Any:
        content = libraries[key]
        name = hashlib.sha256(content).hexdigest()[:32]
        path = folder / f"{name}.so"
        if not path.exists():
            path.write_bytes(content)
        library: Any = CppPythonBindingsCodeCache._load_library(str(path), name)
        return library.kernel

    return _asked(answer)


def _asked(answer: Callable[[Callable[[], Any], str], Any]) -> AbstractContextManager[None]:
    """``answer(original, what is asked for)`` in place of what generated modules call for their C++ parts."""
    from torch._inductor.async_compile import AsyncCompile

    original = AsyncCompile.cpp_pybinding

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        text = repr((arguments, sorted(options.items())))
        return answer(lambda: original(self, *arguments, **options), hashlib.sha256(text.encode()).hexdigest())

    return _replaced(AsyncCompile, cpp_pybinding=method)
