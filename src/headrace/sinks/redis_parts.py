r"""Texts as parts of commands for Redis, by the column: `$3\r\ntea\r\n`.

Arrow puts them together; Python sees one piece of memory for hundreds of rows, and no row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.column_texts import joined


class Parts:
    """For each row a piece of a command."""

    def __init__(self, pieces: pa.LargeStringArray) -> None:
        _, offsets, self._data = pieces.buffers()
        self._offsets = np.frombuffer(offsets, np.int64)[pieces.offset :]

    def join(self, start: int, end: int) -> bytes:
        """The pieces of some rows, one after the other."""
        if self._data is None:
            return b""
        first, last = int(self._offsets[start]), int(self._offsets[end])
        pieces: bytes = self._data.slice(first, last - first).to_pybytes()
        return pieces


def as_part(text: str) -> str:
    r"""One text as a part.

    >>> as_part("tea")
    '$3\r\ntea\r\n'
    """
    return f"${len(text.encode())}\r\n{text}\r\n"


def as_parts(texts: pa.LargeStringArray, *, after: str = "") -> pa.LargeStringArray:
    r"""Each text as a part, behind a text that is the same for all; nulls stay nulls.

    >>> as_parts(pa.array(["tea", None], pa.large_string()), after="+").to_pylist()
    ['+$3\r\ntea\r\n', None]
    """
    lengths = pc.binary_length(texts).cast(pa.large_string())
    return joined([f"{after}$", lengths, "\r\n", texts, "\r\n"])
