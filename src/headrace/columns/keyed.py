"""What a keyed stage asks of its kernel, and rows in order of their keys.

A kernel is called once for each partition of a micro-batch, with the new rows, with the state of their keys
and of keys that are due, and with the times of the batch. It does no I/O: the same arguments give the same
outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

MANY = 1 << 31
"""Above this the numbers of keys are made small again."""


NEVER: Final = (1 << 63) - 1
"""The due time of rows that no kernel waits to see again."""


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


class Deadlines(NamedTuple):
    """When each row of a state matters again, in microseconds since 1970."""

    due_us: NDArray[np.int64]
    """The watermark at which the kernel has to be called with the row, even if no new row has its key.

    `NEVER` if there is none. That of a key is the earliest of its rows.
    """
    expires_us: NDArray[np.int64]
    """The watermark from which on the row makes no difference. That of a key is the latest of its rows."""


class Kernel(Protocol):
    """What is done with the rows of a partition.

    `state` has the rows of all keys that the batch has rows of, or that are due; it may have those of other
    keys too. The state of the result takes their place.
    """

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        """The outcome of a batch."""

    def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
        """The deadlines of the rows of a state that a batch with these times left."""

    @property
    def deadline_rule(self) -> str:
        """What deadlines depend on besides rows and times: if it changes, they are computed again."""

    def upgraded(self, state: pa.Table, schema: pa.Schema) -> pa.Table:
        """The rows of an earlier definition of the operator, for a batch whose rows have `schema`."""


class StatefulKernel:
    """What most kernels have in common: deadlines by a fixed rule, and columns that never change."""

    __slots__ = ()

    @property
    def deadline_rule(self) -> str:
        """What deadlines depend on besides rows and times."""
        return ""

    def upgraded(self, state: pa.Table, schema: pa.Schema) -> pa.Table:
        """The state as it is."""
        del schema
        return state


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
            order = np.argsort(codes)
            is_new = changes(codes[order])
            codes[order] = np.cumsum(is_new) - 1
            known = int(np.count_nonzero(is_new))
    return codes


def changes(*columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a row differs from the one before in any of the columns; the first one does."""
    differs = np.ones(len(columns[0]), np.bool_)
    if len(differs) > 1:
        differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs
