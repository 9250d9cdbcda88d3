"""State files in memory, for tests that run many batches."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.state.files import BadState

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryStateFiles:
    """A folder in memory."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._files: dict[str, pa.Buffer] = {}
        self._children: dict[str, MemoryStateFiles] = {}

    def __str__(self) -> str:
        return self._name

    def child(self, name: str) -> MemoryStateFiles:
        return self._children.setdefault(name, MemoryStateFiles(f"{self._name}/{name}"))

    def names(self) -> list[str]:
        return sorted(self._files)

    def read(self, name: str) -> bytes:
        return self.map(name).to_pybytes()

    def map(self, name: str) -> pa.Buffer:
        if name not in self._files:
            raise BadState.missing(f"{self}/{name}")
        return self._files[name]

    @contextmanager
    def create(self, name: str) -> Iterator[pa.NativeFile]:
        file = pa.BufferOutputStream()
        yield file
        self._files[name] = file.getvalue()

    def sync(self, name: str) -> None:
        assert name in self._files

    def delete(self, name: str) -> None:
        self._files.pop(name, None)
