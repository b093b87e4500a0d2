"""GGUF files: metadata and where each tensor lies. Reads no weight, needs no library."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from engine.errors import UserError
from engine.weights.gguf_header import GgufArray, GgufHeader, GgufTensor, Scalar
from engine.weights.json_file import refuse_pointer

__all__ = ["GgufFile", "GgufTensor", "open_gguf"]


class GgufFile:
    """An open GGUF header.

    ``metadata``: key to str, int, float, bool, or a list of one of these; a list is decoded on first access, which
    must come before ``close()``. ``tensors``: by the file's own names, in file order.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self._data = data
        header = GgufHeader(path, data)
        header.parse()
        self.version = header.version
        self.metadata: Mapping[str, Scalar | list[Scalar]] = _Metadata(header)
        self.tensors = header.tensors

    def close(self) -> None:
        self._data.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: str | Path) -> GgufFile:
    """Reads the header of ``path``. Raises ``UserError`` for a missing, foreign, cut or absurd file, naming the field
    or tensor where it breaks."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: asked to read a GGUF file, found no regular file there; check the path")
    try:
        with path.open("rb") as file:
            refuse_pointer(file.read(64), str(path))
            file.seek(0)
            magic = file.read(4)
            if magic != b"GGUF":
                raise UserError(f"{path}: not a GGUF file (starts with {magic!r}, expected b'GGUF')")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return GgufFile(path, data)
    except UserError:
        data.close()
        raise


class _Metadata(Mapping[str, "Scalar | list[Scalar]"]):
    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._decoded: dict[str, list[Scalar]] = {}

    def __getitem__(self, key: str) -> Scalar | list[Scalar]:
        value = self._header.fields[key]
        if not isinstance(value, GgufArray):
            return value
        if key not in self._decoded:
            self._decoded[key] = self._header.elements_of(value)
        return self._decoded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._header.fields)

    def __len__(self) -> int:
        return len(self._header.fields)
