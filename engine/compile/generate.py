"""Inductor, from a unit of calls to bytes and from bytes to a function. Needs torch.

The bytes hold everything that a run takes: where they are loaded, nothing is compiled, whatever lies in the caches.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import RLock
from typing import Any

from engine.program import Dim

TOKENS = "tokens"
SIZES = (1, 2, 17, 511)
"""Sizes that one artefact must serve, where its range holds them: what a code generator likes to assume fails here."""
_HINT, _MOST = 17, 1 << 31
_ONE_AT_A_TIME = RLock()
_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_OPTIONS = {
    "compile_threads": 1,
    "cpp.dynamic_threads": True,
    "cpp_cache_precompile_headers": False,
    "cpp_wrapper": False,
    "freezing": False,
    "triton.cudagraphs": False,
}
"""No pool of workers, no count of threads and no weights in an artefact, no headers outside the caches."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Type of an input. ``stride``: ``None`` for a value, which is contiguous."""

    dtype: str
    shape: tuple[Dim, ...]
    stride: tuple[int, ...] | None
    device: str


@dataclass(frozen=True, slots=True)
class Unit:
    """Pure calls that become one function, from ``inputs`` to ``outputs``. ``calls``: (function, inputs, outputs,
    attributes) each. ``layouts``: of the inputs. Steps have ``start`` to ``end`` tokens."""

    calls: tuple[tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...], Mapping[str, Any]], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layouts: tuple[Layout, ...]
    start: int
    end: int


def build(unit: Unit, scratch: Path, texts: dict[str, str]) -> bytes:
    """Compile. ``scratch``: where the generator keeps caches of its own. ``texts`` receives the traced graph under
    ``graph`` and the generated code under ``code``. Whatever the generator raises comes through."""
    import torch

    with _settled(scratch), torch.inference_mode(False), torch.no_grad():
        module, inputs, constants, mode = _trace(unit)
        texts["graph"] = module.print_readable(print_output=False)
        try:
            return _generate(unit, module, inputs, constants, mode, texts)
        except Exception:
            # A cache whose files were cut short, by a full disk or a kill, is not read again.
            with tempfile.TemporaryDirectory(dir=scratch) as folder, _settled(Path(folder)):
                return _generate(unit, module, inputs, constants, mode, texts)


def load(payload: bytes, scratch: Path) -> tuple[Callable[..., list[Any]], dict[str, str]]:
    """The function of what ``build`` returned, which takes the unit's inputs and returns its outputs, and its texts.
    Compiles nothing. Raises whatever a payload of another origin causes."""
    import torch

    content = pickle.loads(payload)
    with _settled(scratch), _libraries(content["libraries"], scratch), torch.inference_mode(False):
        from torch._inductor.standalone_compile import AOTCompiledArtifact

        artefact = AOTCompiledArtifact.deserialize(content["artefact"])
    values, constants = content["values"], content["constants"]

    def run(*tensors: Any) -> list[Any]:
        given = (x if x.is_contiguous() else x.contiguous() for x in tensors[:values])
        return artefact(*given, *tensors[values:], *constants)  # type: ignore[no-any-return]

    return run, content["texts"]


def _trace(unit: Unit) -> tuple[Any, list[Any], list[Any], Any]:
    """(graph, fake inputs, constants, their mode). Sizes of values stay symbols, tokens aside where there is one
    count."""
    import torch
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from engine.compile.constants import as_constants, take_out

    mode = FakeTensorMode(shape_env=ShapeEnv(specialize_zero_one=False, duck_shape=False))
    symbols: dict[str, Any] = {}

    def size(dim: Dim) -> Any:
        if isinstance(dim, int):
            return dim
        if dim not in symbols:
            symbols[dim] = _symbol(mode.shape_env, dim, unit)
        return symbols[dim]

    def traced(*tensors: Any) -> list[Any]:
        values = dict(zip(unit.inputs, tensors, strict=True))
        with as_constants():
            for function, names, outputs, attributes in unit.calls:
                made = function(*[values[name] for name in names], **attributes)
                values.update(zip(outputs, [made] if len(outputs) == 1 else made, strict=True))
        return [values[name] for name in unit.outputs]

    with mode:
        inputs = []
        for one in unit.layouts:
            kind, shape = getattr(torch, one.dtype), [size(dim) for dim in one.shape]
            if one.stride is None:
                inputs.append(torch.empty(shape, dtype=kind, device=one.device))
            else:
                inputs.append(torch.empty_strided(shape, one.stride, dtype=kind, device=one.device))
        module = make_fx(traced, tracing_mode="real")(*inputs)
    constants = take_out(module)
    fakes = [mode.from_tensor(one, static_shapes=True) for one in constants]
    return module, [*inputs, *fakes], constants, mode


def _symbol(env: Any, name: str, unit: Unit) -> Any:
    """A size without an example, so that nothing can be assumed of it beyond its range."""
    first, last = (unit.start, unit.end) if name == TOKENS else (1, _MOST)
    if first == last:
        return first
    size = env.create_unbacked_symint()
    env.constrain_symbol_range(size.node.expr, first, last)
    env.var_to_hint_override[size.node.expr] = min(max(_HINT, first), last)
    env.pending_fresh_unbacked_symbols.clear()
    return size


def _generate(
    unit: Unit, module: Any, inputs: list[Any], constants: list[Any], mode: Any, texts: dict[str, str]
) -> bytes:
    from torch._guards import TracingContext, tracing
    from torch._inductor import standalone_compile
    from torch._inductor.graph import GraphLowering

    code: list[str] = []
    libraries: dict[str, bytes] = {}
    before = GraphLowering.save_output_code
    with _recorded(libraries), tracing(TracingContext(mode)):
        GraphLowering.save_output_code = code.append  # type: ignore[assignment]
        try:
            artefact = standalone_compile(module, inputs, dynamic_shapes="from_tracing_context", aot=True)
        finally:
            GraphLowering.save_output_code = before
    _check(mode.shape_env, unit)
    texts["code"] = "\n".join(code)
    return pickle.dumps(
        {
            "artefact": artefact.serialize(),  # type: ignore[attr-defined]
            "libraries": libraries,
            "constants": constants,
            "values": sum(one.stride is None for one in unit.layouts),
            "texts": texts,
        }
    )


def _check(env: Any, unit: Unit) -> None:
    """Raises ``ValueError`` for a size of the range that the code was not made for."""
    names = {symbol: source[0].name for symbol, source in env.var_to_sources.items()}
    for guard in env.guards:
        symbols = sorted(guard.expr.free_symbols, key=str)
        for sizes in product(*(_sizes(names.get(symbol, ""), unit) for symbol in symbols)):
            if guard.expr.subs(dict(zip(symbols, sizes, strict=True))) == False:  # noqa: E712 (sympy's own false)
                found = ", ".join(f"{names.get(s, s)} = {n}" for s, n in zip(symbols, sizes, strict=True))
                raise ValueError(f"its code would be wrong for {found}: it takes {guard.expr} for granted")


def _sizes(name: str, unit: Unit) -> Sequence[int]:
    if TOKENS not in name:
        return SIZES
    return sorted({unit.start, unit.end, *(n for n in SIZES if unit.start <= n <= unit.end)})


@contextmanager
def _settled(scratch: Path) -> Iterator[None]:
    """Caches below ``scratch``, one compilation at a time, in this process."""
    with _ONE_AT_A_TIME, ExitStack() as stack:
        before = {name: os.environ.get(name) for name in _FOLDERS}

        def restore() -> None:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

        stack.callback(restore)
        os.environ.update({name: str(scratch / folder) for name, folder in _FOLDERS.items()})
        import torch.fx.experimental._config as symbolic
        from torch._inductor import config

        stack.enter_context(config.patch(_OPTIONS))
        stack.enter_context(symbolic.patch(backed_size_oblivious=True))  # type: ignore[attr-defined]
        from torch._inductor.codecache import PyCodeCache

        # A module that is known already would not ask for its libraries.
        PyCodeCache.cache_clear()
        yield


def _key(arguments: Any) -> str:
    return hashlib.sha256(repr(arguments).encode()).hexdigest()


@contextmanager
def _asked(answer: Callable[..., Any]) -> Iterator[None]:
    """``answer(original, *arguments)`` in place of what generated modules call for their C++ parts."""
    from torch._inductor.async_compile import AsyncCompile

    original = AsyncCompile.cpp_pybinding

    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return answer(lambda: original(self, *arguments, **options), (arguments, sorted(options.items())))

    AsyncCompile.cpp_pybinding = method  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = original  # type: ignore[method-assign]


@contextmanager
def _recorded(libraries: dict[str, bytes]) -> Iterator[None]:
    """Adds each compiled library that is asked for."""

    def answer(original: Callable[[], Any], arguments: Any) -> Any:
        function = original()
        libraries[_key(arguments)] = Path(function.__self__.__file__).read_bytes()
        return function

    with _asked(answer):
        yield


@contextmanager
def _libraries(known: Mapping[str, bytes], scratch: Path) -> Iterator[None]:
    """Gives the libraries that were recorded, from files of their own."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    def answer(original: Callable[[], Any], arguments: Any) -> Any:
        content = known[_key(arguments)]
        name = hashlib.sha256(content).hexdigest()[:32]
        path = _placed(scratch / "libraries" / f"{name}.so", content)
        library = CppPythonBindingsCodeCache._load_library(str(path), name)
        return library.kernel  # type: ignore[union-attr]

    with _asked(answer):
        yield


def _placed(path: Path, content: bytes) -> Path:
    """A file with this content, whole for every reader."""
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{os.getpid()}-{os.urandom(8).hex()}")
        draft.write_bytes(content)
        os.replace(draft, path)
    return path
