"""Record batches, as a fetch brings them, as Arrow columns of the records inside.

The columns are those of Spark's Kafka source, in type and in meaning: a record without headers has null for
them, and with log-append time every record has the time of its batch. A time that a producer set so far away
that microseconds cannot express it is null. Requested headers are separate columns. No
object is made for a record; the compiled loops of `cutting_kernels` note where the parts of the records lie,
and copy the wanted ones.
"""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from headrace.columns.buffers import binary_array, headers_array, time_array
from headrace.columns.header_columns import TYPES, HeaderChoice, HeaderColumn, HeaderFinder
from headrace.columns.record_kernels import (
    APPEND_TIME,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COUNT,
    KEPT,
    OFFSET,
    SECTION_END,
    SECTION_ROWS,
    SECTION_START,
    TIMESTAMP_US,
    count_batches,
    find_batches,
    walk_sections,
)
from headrace.protocol.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
)
from headrace.protocol.compression import NONE, decompress
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.kernels import FAULTS, octets
from headrace.protocol.records import (
    KEY_SIZE,
    KEY_START,
    MIN_RECORD_BYTES,
    ROWS,
    VALUE_SIZE,
    VALUE_START,
    decode_batch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.protocol.compression import Bytes
    from headrace.protocol.kernels import Columns, Octets


_HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", ">i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
_ABORT: Final = 0
"""The type of an abort marker, in the third and fourth byte of its key."""


class BatchHeaders:
    """The headers of the whole batches in `data`; raises `CorruptBatch` if it is anything else.

    The checksum of every batch is verified, also of those that are then skipped: a corrupt header could make
    records look like a marker. `faults` has the reason of each batch that cannot be read, by its index.
    """

    def __init__(self, data: Octets) -> None:
        count = count_batches(data)
        if count < 0:
            raise CorruptBatch(f"no whole record batch begins at byte {-count - 1} of {len(data)}")
        self._data = data
        self.starts: NDArray[np.int64] = np.empty(count, np.int64)
        find_batches(data, self.starts)
        self._fields = data[self.starts[:, np.newaxis] + np.arange(HEADER_BYTES)].view(_HEADER).reshape(count)
        self.ends = self.starts + self["length"] + LENGTH_OVERHEAD
        self.attributes = self["attributes"]
        self.last_offsets = self["base_offset"] + self["last_offset_delta"]
        self.faults = self._find_faults()

    def __getitem__(self, field: str) -> NDArray[np.int64]:
        return np.asarray(self._fields[field], np.int64)

    def visible(self, first: int, end: int, aborted: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """The indexes of the batches that may have visible records at the offsets [first, end).

        Markers and batches of `aborted` transactions are left out: pairs of a producer id and the first
        offset of its transaction, as in the fetch response with these batches. The content of a batch with
        a fault is unknown, so it is never left out as a marker or as aborted.
        """
        seen = self.attributes & CONTROL == 0
        if aborted:
            seen[self._aborted(aborted)] = False
        seen[list(self.faults)] = True
        return np.flatnonzero(seen & (self.last_offsets >= first) & (self["base_offset"] < end))

    def _find_faults(self) -> dict[int, str]:
        faults: dict[int, str] = {}
        view = self._data.data
        numbers = (self.starts, self.ends, self["magic"], self["crc"])
        rows = zip(*(column.tolist() for column in numbers), strict=True)
        for index, (start, end, magic, crc) in enumerate(rows):
            if magic != MAGIC:
                faults[index] = f"record batch of format {magic}: only format 2 can be read"
            elif crc32c(view[start + CRC_START : end]) != crc:
                faults[index] = "the record batch fails its checksum"
        return faults

    def _aborted(self, aborted: Sequence[tuple[int, int]]) -> list[int]:
        """The indexes of the batches that belong to aborted transactions.

        As in Kafka's consumers, a producer's batches are dropped from the first offset of its aborted
        transaction on, up to its abort marker.
        """
        to_come = deque(sorted(aborted, key=lambda entry: entry[1]))
        aborting: set[int] = set()
        dropped: list[int] = []
        candidates = np.flatnonzero(self.attributes & TRANSACTIONAL)
        producers = self["producer_id"][candidates].tolist()
        last_offsets = self.last_offsets[candidates].tolist()
        for index, producer, last_offset in zip(candidates.tolist(), producers, last_offsets, strict=True):
            while to_come and to_come[0][1] <= last_offset:
                aborting.add(to_come.popleft()[0])
            if producer not in aborting:
                continue
            if not self.attributes[index] & CONTROL:
                dropped.append(index)
            elif self._is_abort_marker(index):
                aborting.remove(producer)
        return dropped

    def _is_abort_marker(self, index: int) -> bool:
        try:
            records = decode_batch(self._data.data[self.starts[index] : self.ends[index]])
        except CorruptBatch:
            # For a producer that is aborting it must be that: otherwise all later records would be lost.
            return True
        # Compaction may have left the batch of a marker without the marker.
        return bool(records) and int.from_bytes((records[0].key or b"")[2:4], signed=True) == _ABORT


SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        (
            "headers",
            pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ),
    ]
)
"""The columns of Spark's Kafka source, with the types of Spark's own conversion to Arrow."""
COLUMNS: Final = tuple(SCHEMA.names)

PART_BYTES: Final = 32 * 1024 * 1024
"""Decompressed bytes after which the next Arrow batch begins: decoding may take twelve times as much."""


class Part(NamedTuple):
    """Bytes with sections of decompressed records, and the numbers of those sections."""

    data: Octets
    sections: Columns


class UnreadableBatch(NamedTuple):
    """A record batch that cannot be read, limited to the requested offsets."""

    first: int
    last: int
    reason: str

    @property
    def sentence(self) -> str:
        """The reason and the offsets, as a sentence."""
        return f"the record batch with the offsets {self.first} to {self.last} cannot be read: {self.reason}"


class RecordDecoder:
    """Arrow columns from the batches of one partition, for the records at the offsets [start, end).

    Only requested columns cost time; those of `headers` follow the others. With `where_headers` only records
    whose headers have one of the accepted texts are rows. Markers are never rows, and records of aborted
    transactions are not either, unless `read_committed` is false. `CorruptBatch` is
    raised for a batch that cannot be read; `readable_parts` continues without it.
    """

    def __init__(
        self,
        partition: tuple[str, int],
        start: int,
        end: int,
        *,
        columns: Sequence[str] = COLUMNS,
        headers: Sequence[HeaderColumn] = (),
        where_headers: Mapping[str, Sequence[str]] = MappingProxyType({}),
        read_committed: bool = True,
    ) -> None:
        self._topic, self._number = partition
        self._first = start
        self._end = end
        fields = [SCHEMA.field(name) for name in columns]
        self.schema = pa.schema([*fields, *((header.name, TYPES[header.type]) for header in headers)])
        self._headers = HeaderFinder(headers)
        self._choice = HeaderChoice(where_headers)
        self._read_committed = read_committed
        # The result of the walk, kept from call to call: allocating memory costs more than the walk.
        self._columns = np.empty((ROWS, 0), np.int64)

    def decode(self, batches: Bytes, aborted: Sequence[tuple[int, int]] = ()) -> pa.RecordBatch:
        """The rows of `batches`, all whole ones, in one Arrow batch.

        `aborted` is the list of the fetch response with these batches. Compressed batches may not fit into
        one Arrow batch: `parts` has no such limit.
        """
        parts = list(self.parts(batches, aborted))
        if len(parts) == 1:
            return parts[0]
        return pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], self.schema)

    def parts(self, batches: Bytes, aborted: Sequence[tuple[int, int]] = ()) -> Iterator[pa.RecordBatch]:
        """The rows of `batches` in Arrow batches of bounded size; nothing if there are no rows."""
        for part in self.readable_parts(batches, aborted):
            if isinstance(part, UnreadableBatch):
                raise CorruptBatch(part.reason)
            yield part

    def readable_parts(
        self, batches: Bytes, aborted: Sequence[tuple[int, int]] = ()
    ) -> Iterator[pa.RecordBatch | UnreadableBatch]:
        """As `parts`, with an `UnreadableBatch` in place of each batch that cannot be read."""
        data = octets(batches)
        headers = BatchHeaders(data)
        seen = headers.visible(self._first, self._end, aborted if self._read_committed else ())
        if headers.faults:
            for index in (each for each in seen.tolist() if each in headers.faults):
                yield self._unreadable(headers, index, headers.faults[index])
            seen = seen[~np.isin(seen, list(headers.faults))]
        yield from self._readable(data, headers, seen)

    def _readable(
        self, data: Octets, headers: BatchHeaders, indexes: NDArray[np.int64]
    ) -> Iterator[pa.RecordBatch | UnreadableBatch]:
        """The rows of the batches at `indexes`; after a fault they are decoded one at a time."""
        done = 0
        try:
            for part in _open_parts(data, headers, indexes):
                rows = self._rows(part)
                done += part.sections.shape[1]
                if rows.num_rows:
                    yield rows
        except CorruptBatch as fault:
            if len(indexes) == 1:
                yield self._unreadable(headers, int(indexes[0]), str(fault))
                return
            for place in range(done, len(indexes)):
                yield from self._readable(data, headers, indexes[place : place + 1])

    def _unreadable(self, headers: BatchHeaders, index: int, reason: str) -> UnreadableBatch:
        first, last = int(headers["base_offset"][index]), int(headers.last_offsets[index])
        return UnreadableBatch(max(first, self._first), max(first, min(last, self._end - 1)), reason)

    def _rows(self, part: Part) -> pa.RecordBatch:
        count = int(part.sections[COUNT].sum())
        if count > self._columns.shape[1]:
            self._columns = np.empty((ROWS, count), np.int64)
        columns = self._columns
        rows = walk_sections(part.data, part.sections, self._first, self._end, columns)
        if rows < 0:
            raise CorruptBatch(f"the records of a batch cannot be read: {FAULTS[-rows]}")
        types = np.repeat(part.sections[APPEND_TIME], part.sections[KEPT])
        wanted = self._choice.mask(part.data, columns, rows)
        if wanted is not None:
            columns, types = columns[:, :rows][:, wanted], types[wanted]
            rows = len(types)
        arrays = self._arrays(part.data, columns, types, rows)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _arrays(self, data: Octets, columns: Columns, types: NDArray[np.int64], rows: int) -> list[pa.Array]:
        makers = {
            "key": lambda: binary_array(data, columns[KEY_START, :rows], columns[KEY_SIZE, :rows]),
            "value": lambda: binary_array(data, columns[VALUE_START, :rows], columns[VALUE_SIZE, :rows]),
            "topic": lambda: pa.repeat(self._topic, rows),
            "partition": lambda: pa.array(np.full(rows, self._number, np.int32)),
            "offset": lambda: pa.array(columns[OFFSET, :rows].copy()),
            "timestamp": lambda: time_array(columns[TIMESTAMP_US, :rows]),
            "timestampType": lambda: pa.array(types, pa.int32()),
            "headers": lambda: headers_array(data, columns, rows, SCHEMA.field("headers").type),
        }
        found = self._headers.arrays(data, columns, rows)
        return [found[name] if name in found else makers[name]() for name in self.schema.names]


def _open_parts(data: Octets, headers: BatchHeaders, indexes: NDArray[np.int64]) -> Iterator[Part]:
    """The records of the batches at `indexes`, decompressed, or in place if none is compressed."""
    sections = _sections(headers, indexes)
    codecs = headers.attributes[indexes] & CODEC_MASK
    if (codecs == NONE).all():
        yield Part(data, _checked(sections))
        return
    opened: list[Bytes] = []
    first = size = 0
    for index, codec in enumerate(codecs.tolist()):
        section = data.data[sections[SECTION_START, index] : sections[SECTION_END, index]]
        opened.append(decompress(codec, section))
        sections[SECTION_START, index] = size
        size += len(opened[-1])
        sections[SECTION_END, index] = size
        if size >= PART_BYTES or index + 1 == len(codecs):
            yield Part(octets(b"".join(opened)), _checked(sections[:, first : index + 1].copy()))
            opened.clear()
            first, size = index + 1, 0


def _sections(headers: BatchHeaders, indexes: NDArray[np.int64]) -> Columns:
    sections = np.empty((SECTION_ROWS, len(indexes)), np.int64)
    sections[SECTION_START] = headers.starts[indexes] + HEADER_BYTES
    sections[SECTION_END] = headers.ends[indexes]
    sections[COUNT] = headers["count"][indexes]
    sections[BASE_OFFSET] = headers["base_offset"][indexes]
    append_time = (headers.attributes[indexes] & LOG_APPEND_TIME) != 0
    sections[APPEND_TIME] = append_time
    base, latest = headers["base_timestamp"][indexes], headers["max_timestamp"][indexes]
    sections[BASE_TIMESTAMP] = np.where(append_time, latest, base)
    return sections


def _checked(sections: Columns) -> Columns:
    """`sections`; raises `CorruptBatch` if one is too small for the number of its records."""
    sizes = sections[SECTION_END] - sections[SECTION_START]
    invalid = np.flatnonzero((sections[COUNT] < 0) | (sections[COUNT] > sizes // MIN_RECORD_BYTES))
    if len(invalid):
        raise CorruptBatch(f"batch counts {sections[COUNT][invalid[0]]} records in {sizes[invalid[0]]} bytes")
    return sections
