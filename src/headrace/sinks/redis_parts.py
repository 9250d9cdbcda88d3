r"""Texts as parts of commands for Redis, by the column: `$3\r\ntea\r\n`.

Arrow puts them together; Python sees one piece of memory for hundreds of rows, and no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def as_parts(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    """Each text as a part; nulls stay nulls."""
    lengths = pc.binary_length(texts).cast(pa.large_string())
    return joined(["$", lengths, "\r\n", texts, "\r\n"])


def joined(pieces: Sequence[pa.LargeStringArray | str]) -> pa.LargeStringArray:
    """Row by row the pieces one after the other, where a text is the same for all; null where one is."""
    scalars = [pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*scalars, pa.scalar("", pa.large_string()))
