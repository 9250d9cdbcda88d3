"""Where a record and its parts lie in the records section of a batch.

In plain Python that is one `Extent` per record; in bulk it is a matrix of whole numbers with a row for each
field of `Extent`, named by the constants here, and a column for each record.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Extent(NamedTuple):
    """One record: positions count from the beginning of the section, and a size of −1 means null."""

    start: int
    """Where the record begins: its length."""
    size: int
    """Bytes of the whole record, its length included."""
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_size: int
    value_start: int
    value_size: int
    headers_start: int
    """Where the headers begin, behind their count."""
    header_count: int


START: Final = 0
SIZE: Final = 1
TIMESTAMP_DELTA: Final = 2
OFFSET_DELTA: Final = 3
KEY_START: Final = 4
KEY_SIZE: Final = 5
VALUE_START: Final = 6
VALUE_SIZE: Final = 7
HEADERS_START: Final = 8
HEADER_COUNT: Final = 9
ROWS: Final = 10
