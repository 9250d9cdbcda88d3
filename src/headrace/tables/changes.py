"""What a range of a topic says about a table: its records as versions of rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.errors import OffsetOutOfRange
from headrace.client.fetch import PartitionReader
from headrace.client.offsets import EARLIEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.columns.key_hash import key_bytes
from headrace.columns.record_decoder import RecordDecoder, UnreadableBatch
from headrace.tables.keys import RecordKeys
from headrace.tables.row_values import RowReader
from headrace.tables.versions import newest_us, sorted_versions, version_schema, version_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.cluster import Cluster
    from headrace.tables.definition import Definition

COLUMNS: Final = ("key", "value", "offset", "timestamp")
ENOUGH_BYTES: Final = 16 << 20
"""Pieces are put together until they are so many bytes: a parser's start costs more than a hundred rows."""

Positions = dict[int, int]
"""The offset at which each partition is to be read next."""

UNREAD: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("reason", pa.string()),
    ]
)
"""Records that name no row, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Versions, sorted as files are."""

    versions: pa.Table
    newest_us: int | None = None
    unread: pa.Table = field(default_factory=UNREAD.empty_table)
    """The records that named no row: batches that cannot be read, values that do not parse, null keys."""


class ChangeReader:
    """Reads the changes of one table from its topic."""

    def __init__(self, cluster: Cluster, definition: Definition) -> None:
        self._cluster = cluster
        self._topic = definition.topic
        self._maker = VersionMaker(definition)
        self._unread: pa.Table | None = None
        self.records = 0
        """How many records were read so far."""

    def read(self, start: Positions, end: Positions) -> Changes:
        """What the topic holds between two positions; a partition without a start begins at its first record.

        What retention or compaction has removed is no longer part of the table.
        """
        parts = [part for number in sorted(end) for part in self._parts(number, start, end)]
        changes = joined_changes(parts, self._maker.schema)
        self._unread = changes.unread
        self.records += changes.versions.num_rows + changes.unread.num_rows
        return changes

    def unread(self, start: Positions, end: Positions) -> pa.Table:
        """The records between two positions that named no row; read again only by those who have not yet."""
        unread = self.read(start, end).unread if self._unread is None else self._unread
        self._unread = None
        return unread

    def _parts(self, number: int, start: Positions, end: Positions) -> Iterator[Changes]:
        partition = TopicPartition(self._topic, number)
        return self.read_range(partition, self._first(partition, start, end), end[number])

    def read_range(self, partition: TopicPartition, start: int, end: int) -> Iterator[Changes]:
        """What a partition holds between two offsets, in pieces that are in its order."""
        unreadable: list[UnreadableBatch] = []
        for piece in _gathered(self._pieces(partition, start, end, unreadable)):
            yield self._maker.changes(piece, partition.partition)
        if unreadable:
            named = _unreadable(unreadable, partition.partition)
            yield Changes(versions=self._maker.schema.empty_table(), unread=named)

    def _first(self, partition: TopicPartition, start: Positions, end: Positions) -> int:
        known = start.get(partition.partition)
        if known is not None and known <= end[partition.partition]:
            return known
        # New, or made anew: its end is before what was read.
        return list_offsets(self._cluster, {partition: EARLIEST})[partition]

    def _pieces(
        self, partition: TopicPartition, start: int, end: int, unreadable: list[UnreadableBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The records between two offsets; batches that cannot be read are added to `unreadable`."""
        position = start
        while position < end:
            cutter = RecordDecoder(partition, position, end, columns=COLUMNS)
            try:
                for fetched in PartitionReader(self._cluster, partition, position, end):
                    position = fetched.next_offset
                    for part in cutter.readable_parts(fetched.batches, fetched.aborted):
                        if isinstance(part, UnreadableBatch):
                            unreadable.append(part)
                        else:
                            yield part
                position = end
            except OffsetOutOfRange as gone:
                if not position < gone.first:
                    raise
                position = gone.first


class VersionMaker:
    """Makes versions of records."""

    def __init__(self, definition: Definition) -> None:
        self.schema = version_schema(definition)
        self._definition = definition
        self._names = [field.name for field in definition.row_type]
        self._rows = RowReader(definition.row_type, time_unit=definition.time_unit)
        self._record_keys = RecordKeys(definition)
        self._no_key = f"the key ({', '.join(definition.key)}) is null"

    def changes(self, records: pa.RecordBatch, partition: int) -> Changes:
        """What records of one partition change, in their order."""
        rows, deleted, errors = self._rows.read(records.column("value"))
        keys = key_bytes([self._field(rows, name) for name in self._definition.key])
        if pc.any(deleted).as_py():
            keys = pc.if_else(deleted, self._record_keys.read(records.column("key")), keys)
        recorded = records.column("timestamp").cast(pa.int64()).fill_null(0)
        versions = version_table(
            self.schema,
            keys=keys,
            valid_from=self._valid_from(rows, recorded),
            partition=partition,
            offsets=records.column("offset"),
            deleted=deleted,
            values=[self._field(rows, field.name) for field in self._definition.columns],
        )
        # A value that is no row has no key either.
        named = keys.is_valid()
        versions, recorded = versions.filter(named), recorded.filter(named)
        changes = Changes(versions=versions, newest_us=newest_us(versions, recorded))
        if versions.num_rows == records.num_rows:
            return changes
        reasons = pc.if_else(deleted, "the record's key names no row", self._no_key)
        reasons = reasons if errors is None else pc.coalesce(errors, reasons)
        return replace(changes, unread=_unread(records, partition, reasons, pc.invert(named)))

    def _valid_from(self, rows: pa.StructArray, recorded: pa.Int64Array) -> pa.Int64Array:
        name = self._definition.valid_from
        if name is None:
            return recorded
        return pc.coalesce(self._field(rows, name).cast(pa.int64()), recorded)

    def _field(self, rows: pa.StructArray, name: str) -> pa.Array:
        return pc.struct_field(rows, [self._names.index(name)])


def joined_changes(parts: list[Changes], schema: pa.Schema) -> Changes:
    """The changes of all parts, which are in the order of the topic, sorted as files are."""
    versions = pa.concat_tables([schema.empty_table(), *(part.versions for part in parts)])
    times = [part.newest_us for part in parts if part.newest_us is not None]
    return Changes(
        versions=sorted_versions(versions),
        newest_us=max(times, default=None),
        unread=pa.concat_tables([UNREAD.empty_table(), *(part.unread for part in parts)]),
    )


def _unread(
    records: pa.RecordBatch, partition: int, reasons: pa.StringArray, chosen: pa.BooleanArray
) -> pa.Table:
    columns = {
        "key": records.column("key"),
        "value": records.column("value"),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), records.num_rows),
        "offset": records.column("offset"),
        "reason": reasons,
    }
    return pa.table(columns).filter(chosen).cast(UNREAD)


def _unreadable(batches: list[UnreadableBatch], partition: int) -> pa.Table:
    rows = [{"partition": partition, "offset": batch.first, "reason": batch.sentence} for batch in batches]
    return pa.Table.from_pylist(rows, UNREAD)


def _gathered(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The pieces, small ones put together."""
    held: list[pa.RecordBatch] = []
    for piece in pieces:
        held.append(piece)
        if sum(each.nbytes for each in held) >= ENOUGH_BYTES:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)
