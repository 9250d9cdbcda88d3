"""What a keyed stage asks of its kernel, and rows in order of their keys.

A kernel is called once for each partition of a micro-batch, with the rows of its keys that are new, with what
it kept, and with the times of the batch. It does no I/O: the same arguments give the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

MANY = 1 << 31
"""Above this the numbers of keys are made small again."""


class Times(NamedTuple):
    """The two watermarks of a micro-batch, in microseconds since 1970."""

    late_us: int
    """What had to be there by then was closed by the batch before: what comes for it is late."""
    watermark_us: int
    """What this batch closes."""

    def behind(self, time_us: int) -> Times:
        """Those of rows that come so much later than others."""
        return Times(self.late_us - time_us, self.watermark_us - time_us)


class KernelResult(NamedTuple):
    """What a kernel gives."""

    output: pa.Table
    state: pa.Table | None
    """What the next call gets. The very table that the kernel was given is kept as it is, without a copy."""
    late: int = 0
    """How many rows came too late, and are not in the outcome."""


Kernel: TypeAlias = Callable[[pa.Table, pa.Table | None, Times], KernelResult]


def key_codes(rows: pa.Table, keys: Sequence[str]) -> NDArray[np.int64]:
    """A number for each row: the same for rows of the same key. Null is a key as any other.

    >>> key_codes(pa.table({"a": ["x", "y", "x", None], "b": [1, 1, 1, 2]}), ["a", "b"]).tolist()
    [0, 2, 0, 5]
    """
    codes = np.zeros(rows.num_rows, np.int64)
    known = 1
    for key in keys:
        column = rows[key].combine_chunks().dictionary_encode(null_encoding="encode")
        size = max(1, len(column.dictionary))
        codes = codes * size + column.indices.to_numpy()
        known *= size
        if known > MANY:
            values, codes = np.unique(codes, return_inverse=True)
            known = len(values)
    return codes


def changes(*columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a row differs from the one before in any of the columns; the first one does."""
    differs = np.ones(len(columns[0]), np.bool_)
    if len(differs) > 1:
        differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs
