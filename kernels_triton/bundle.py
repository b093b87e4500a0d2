"""Forms compiled ahead of time, kept in a folder, and found there by launches as if they had been compiled here.

Triton finds what it compiled by a hash over the compiler's own files, the kernel's source, types, constants and
options. A bundle names a form by the latter, and the hash is made anew where the bundle is used: another build of the
same version still finds it, and a kernel whose source has changed does not.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
import triton.language as tl
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import FileCacheManager, _base32, get_cache_key

from kernels_triton.forms import Form
from kernels_triton.resources import resources_of
from kernels_triton.target import target_of

logger = logging.getLogger("engine")

_TYPE = "type"
_WARPS, _STAGES = (1, 2, 4, 8, 16, 32), 16
"""Of a form that any device runs; stages at most."""
_FILES = 2


def compiler() -> str:
    """What compiles here, with its version: code of another one is not used."""
    return f"Triton {triton.__version__}"


def source_of(form: Form, arch: str) -> tuple[ASTSource, Any, Any]:
    """Source, backend and options exactly as a launch makes them, so that both have one hash."""
    backend = make_backend(target_of(arch))
    facts: dict[tuple[int, ...], Any] = {}
    for at, (name, kind) in enumerate(form.signature):
        if kind == "constexpr":
            facts[at,] = backend.parse_attr("")
        elif kind.startswith("*"):
            facts[at,] = backend.parse_attr("DS" if name in form.near else "D")
    constants = {(form.function().arg_names.index(name),): value for name, value in form.constants}
    source = ASTSource(form.function(), dict(form.signature), constants, facts)
    return source, backend, backend.parse_options({"num_warps": form.warps, "num_stages": form.stages})


def place_of(form: Form, arch: str) -> str:
    """The name under which this machine's Triton looks for the form."""
    source, backend, options = source_of(form, arch)
    key = get_cache_key(source, backend, options, get_cache_invalidating_env_vars())
    return str(_base32(hashlib.sha256(key.encode()).hexdigest()))


def save(form: Form, arch: str, folder: Path) -> dict[str, Any]:
    """Compile into ``folder`` (two files, named after what they are made from), without the places of sources. Returns
    the form's entry of a manifest: plain values, no path of this machine among them."""
    source, backend, options = source_of(form, arch)
    with _apart():
        compiled = triton.compile(source, target_of(arch), options.__dict__)
    binary = backend.binary_ext
    metadata = {name: _placeless(value) for name, value in compiled.metadata._asdict().items()}
    metadata["target"] = compiled.metadata.target.__dict__
    name = hashlib.sha256(f"{source.hash()} {options.hash()} {arch}".encode()).hexdigest()[:32]
    contents = {"json": json.dumps(metadata, sort_keys=True).encode(), binary: compiled.asm[binary]}
    for kind, content in contents.items():
        (folder / f"{name}.{kind}").write_bytes(content)
    return {
        "kernel": form.kernel,
        "signature": [list(pair) for pair in form.signature],
        "constants": [[name, _plain(value)] for name, value in form.constants],
        "near": sorted(form.near),
        "warps": form.warps,
        "stages": form.stages,
        "source": source.hash(),
        "options": _placeless(options.__dict__),
        "resources": resources_of(compiled).to_json(),
        "files": {f"{name}.{kind}": hashlib.sha256(content).hexdigest() for kind, content in contents.items()},
    }


@contextmanager
def _apart() -> Iterator[None]:
    """A cache of its own, and code that does not tell where its source lay; neither changes what is compiled."""
    knobs, before = triton.knobs, triton.knobs.propagate_env
    with TemporaryDirectory() as folder, knobs.cache.scope(), knobs.compilation.scope():
        knobs.propagate_env = False
        try:
            knobs.cache.dir, knobs.cache.manager_class = folder, FileCacheManager
            knobs.compilation.disable_line_info = True
            yield
        finally:
            knobs.propagate_env = before


def _placeless(value: Any) -> Any:
    """Plain values; paths without their folders."""
    if isinstance(value, Mapping):
        return {str(name): _placeless(part) for name, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_placeless(part) for part in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, str) and value.startswith("/"):
        return Path(value).name
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _plain(value: Any) -> Any:
    """A constant as JSON has it; types are objects of their name."""
    return {_TYPE: value.name} if isinstance(value, tl.dtype) else value


def _constant(value: Any) -> Any:
    return tl.dtype(value[_TYPE]) if isinstance(value, dict) else value


def form_from(entry: Mapping[str, Any]) -> Form:
    """Inverse of what ``save`` says of a form. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    signature = tuple((str(name), str(kind)) for name, kind in entry["signature"])
    constants = tuple((str(name), _constant(value)) for name, value in entry["constants"])
    warps, stages = int(entry["warps"]), int(entry["stages"])
    if warps not in _WARPS or not 0 <= stages <= _STAGES:
        raise ValueError(f"{warps} warps, {stages} stages")
    return Form(str(entry["kernel"]), signature, constants, warps, stages, frozenset(entry["near"]))


class Found:
    """Forms of a bundle by the names under which launches look for them. ``hits``, ``misses``: names of kernels, the
    latter with their types, that launches found and did not find. ``required``: a miss raises ``RuntimeError``.
    ``packages``: whose kernels alone are looked at."""

    def __init__(
        self, folder: Path, arch: str, entries: Sequence[Mapping[str, Any]], required: bool, packages: frozenset[str]
    ) -> None:
        self.folder, self.required, self.packages = folder, required, packages
        self.hits: list[str] = []
        self.misses: list[str] = []
        self.problems: list[str] = []
        self.places: dict[str, dict[str, str]] = {}
        self._wanted = threading.local()
        for entry in entries:
            try:
                self._add(entry, arch)
            except (OSError, LookupError, TypeError, ValueError, ImportError, AttributeError, AssertionError) as error:
                self.problems.append(f"{entry.get('kernel', 'a form')}: {type(error).__name__}: {error}")

    def _add(self, entry: Mapping[str, Any], arch: str) -> None:
        form = form_from(entry)
        module = form.kernel.partition(":")[0]
        if module.partition(".")[0] not in self.packages:
            raise ValueError(f"{module} has no kernels of this platform")
        if source_of(form, arch)[0].hash() != entry["source"]:
            raise ValueError("the kernel's source is another one now")
        name, group = form.kernel.partition(":")[2], {}
        for file, wanted in entry["files"].items():
            path = self.folder / Path(file).name
            if hashlib.sha256(path.read_bytes()).hexdigest() != wanted:
                raise ValueError(f"{path.name} is damaged")
            group[f"{name}{path.suffix}"] = str(path)
        if len(group) != _FILES:
            raise ValueError(f"{len(group)} files, a form has {_FILES}")
        self.places[place_of(form, arch)] = group

    def want(self, fn: Any, compile: Mapping[str, Any], **others: Any) -> None:
        """Triton's hook before each look-up of a launch."""
        order = fn.jit_function.arg_names
        types = [f"{name}: {kind}" for name, kind in compile["signature"].items() if kind != "constexpr"]
        constants = [f"{order[at]}={value}" for (at,), value in compile["constants"].items() if value is not None]
        options = [f"warps={compile['num_warps']}", f"stages={compile['num_stages']}"]
        self._wanted.name = f"{fn.name}({', '.join(types)}) {' '.join((*constants, *options))}"

    def group(self, place: str, filename: str) -> dict[str, str] | None:
        """Files of a form. A miss that no launch asked for is a code generator's and none of ours."""
        name, self._wanted.name = getattr(self._wanted, "name", ""), ""
        if place in self.places:
            self.hits.append(filename.removesuffix(".json"))
            return self.places[place]
        if name:
            self.misses.append(name)
            if self.required:
                raise RuntimeError(f"kernel {name} is not in the bundle {self.folder}, and nothing may be compiled")
        return None


_FOUND: list[Found] = []


class BundleCache(FileCacheManager):  # type: ignore[misc]
    """Triton's cache, with the installed bundles behind it."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        for found in _FOUND:
            if group := found.group(self.key, filename):
                return group
        return super().get_group(filename)


def install(
    folder: Path, arch: str, entries: Sequence[Mapping[str, Any]], required: bool, packages: frozenset[str]
) -> Found:
    """Have launches of this process look into the bundle first. ``packages``: whose kernels may be in it."""
    found = Found(folder, arch, entries, required, packages)
    _FOUND[:] = [found]
    triton.knobs.cache.manager_class = BundleCache
    triton.knobs.runtime.jit_cache_hook = found.want
    return found


def uninstall() -> None:
    """As before ``install``."""
    _FOUND.clear()
    triton.knobs.cache.manager_class = None
    triton.knobs.runtime.jit_cache_hook = None
