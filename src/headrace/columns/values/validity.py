"""Which entries of a column are there, as Arrow keeps it: a bit for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def validity(present: NDArray[np.bool_]) -> pa.Buffer | None:
    """The bits of `present`, or None when all entries are there."""
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def column(type_: pa.DataType, values: NDArray[np.generic], present: NDArray[np.bool_]) -> pa.Array:
    """A column of numbers that have the same form in numpy and in Arrow."""
    return pa.Array.from_buffers(type_, len(present), [validity(present), pa.py_buffer(values)])
