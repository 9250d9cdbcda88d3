"""Reads ranges of offsets as Arrow batches, in a task.

Fetched batches are decoded into columns by compiled kernels and values are parsed in bulk; no record is ever
a Python object. Small pieces are concatenated before they are parsed, because starting a parser costs more
than a hundred rows do, and large ones are passed to Spark in slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from headrace.client.errors import OffsetOutOfRange
from headrace.client.fetch import PartitionReader
from headrace.columns.header_columns import HeaderColumn
from headrace.columns.record_decoder import RecordDecoder, UnreadableBatch
from headrace.columns.values import Parsed, value_parser
from headrace.columns.values.assembly import with_reasons
from headrace.spark.errors import UnreadableRecords
from headrace.spark.layout import ERROR, PULSE, VALUE
from headrace.spark.offset_reader import report_data_loss
from headrace.spark.row_checks import FailedRecords

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import StructType

    from headrace.client.fetch import FetchedBatches
    from headrace.client.partition import TopicPartition
    from headrace.columns.values import ValueParser
    from headrace.spark.offsets import Range
    from headrace.spark.row_checks import RowCheck
    from headrace.spark.source import Reading

ROWS: Final = 50_000
"""The most rows of a batch that is passed to Spark."""
ENOUGH_BYTES: Final = 8 << 20
"""A piece of this size is parsed at once, even if it has few rows."""


def read_rows(reading: Reading, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
    """The rows of `ranges` as Arrow batches of exactly the schema."""
    shape = _Shape(reading)
    for piece in _gathered(_pieces(reading, ranges, shape)):
        shaped = shape.unreadable(piece) if isinstance(piece, Unreadable) else shape.shape(piece)
        for first in range(0, shaped.num_rows, ROWS):
            yield shaped.slice(first, ROWS)


def heartbeat_row(schema: StructType, time_ms: int) -> pa.RecordBatch:
    """A batch of one row, in which only the heartbeat is not null."""
    return _row(schema, PULSE, time_ms * 1000)


def number_row(schema: StructType, number: int) -> pa.RecordBatch:
    """A batch of one row, in which only the partition is not null: it is the number of the task."""
    return _row(schema, "partition", number)


def _row(schema: StructType, column: str, value: int) -> pa.RecordBatch:
    fields = to_arrow_schema(schema, timezone="UTC")
    arrays = [pa.array([value if field.name == column else None], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=fields)


class Unreadable(NamedTuple):
    """A record batch that cannot be read."""

    partition: TopicPartition
    batch: UnreadableBatch


def _pieces(
    reading: Reading, ranges: Iterable[Range], shape: _Shape
) -> Iterator[pa.RecordBatch | Unreadable]:
    for wanted in ranges:
        start = wanted.start
        while start < wanted.end:
            try:
                for fetched, cutter in _fetched(reading, wanted._replace(start=start), shape):
                    start = fetched.next_offset
                    for part in cutter.readable_parts(fetched.batches, fetched.aborted):
                        is_batch = isinstance(part, UnreadableBatch)
                        yield Unreadable(wanted.partition, part) if is_batch else part
                start = wanted.end
            except OffsetOutOfRange as gone:
                start = _after_loss(reading, wanted, start, gone)


def _fetched(
    reading: Reading, wanted: Range, shape: _Shape
) -> Iterator[tuple[FetchedBatches, RecordDecoder]]:
    """The fetched batches of a range, and the decoder of its rows."""
    cutter = RecordDecoder(
        *wanted,
        columns=shape.cut_columns,
        headers=shape.cut_headers,
        where_headers=reading.layout.wanted_headers,
        read_committed=reading.read_committed,
    )
    reader = PartitionReader(reading.link.cluster(), *wanted, read_committed=reading.read_committed)
    for fetched in reader:
        yield fetched, cutter


def _after_loss(reading: Reading, wanted: Range, start: int, gone: OffsetOutOfRange) -> int:
    """The offset at which reading can continue."""
    resumed = min(gone.first, wanted.end) if start < gone.first else wanted.end
    found = f"the log has {gone.first} to {gone.end - 1}"
    report_data_loss(wanted.partition, start, resumed, found, fail=reading.fail_on_data_loss)
    return resumed


class _Shape:
    """Pieces of raw columns into batches of the source's schema."""

    def __init__(self, reading: Reading) -> None:
        layout = reading.layout
        self._schema = to_arrow_schema(reading.schema, timezone="UTC")
        self._errors_only = layout.errors_only
        self._value_type = _value_type(reading)
        self._parser = None if self._value_type is None else _parser(reading, self._value_type)
        types = layout.header_types
        self.cut_headers = [HeaderColumn(name, types[name]) for name in self._schema.names if name in types]
        for check in layout.checks:
            if self._parser is not None:
                check.verify(self._value_type)
        self._checks = _checks(reading) if self._errors_only or ERROR in self._schema.names else ()
        needed = [name for check in self._checks for name in check.columns]
        if self._parser is not None or self._checks or ERROR in self._schema.names:
            needed.append(VALUE)
        names = [name for name in self._schema.names if name not in (ERROR, PULSE, *types)]
        self.cut_columns = list(dict.fromkeys([*names, *needed]))

    def shape(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        columns = {name: piece.column(name) for name in piece.schema.names}
        if PULSE in self._schema.names:
            columns[PULSE] = pa.nulls(piece.num_rows, self._schema.field(PULSE).type)
        errors = None
        if VALUE in columns:
            columns[VALUE], errors = self._values(piece)
        if self._errors_only and errors is None:
            return _empty(self._schema)
        if ERROR in self._schema.names:
            columns[ERROR] = _error_column(errors, piece.column(VALUE), self._schema.field(ERROR).type)
        shaped = self._in_order(columns)
        return shaped.filter(pc.is_valid(errors)) if self._errors_only else shaped

    def unreadable(self, unreadable: Unreadable) -> pa.RecordBatch:
        """A row with the records that could not be read, and the reason."""
        (topic, partition), batch = unreadable
        if ERROR not in self._schema.names:
            raise UnreadableRecords(
                f"{topic}/{partition}: {batch.sentence}. Read the column `error` too, and it is a row with "
                f"that reason; or begin after it, at offset {batch.last + 1}."
            )
        known = {"topic": topic, "partition": partition, "offset": batch.first}
        known[ERROR] = {"reason": batch.sentence, "raw": None}
        arrays = [pa.array([known.get(field.name)], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _values(self, piece: pa.RecordBatch) -> Parsed:
        """The values of records, and the reasons of those that are errors."""
        raw = piece.column(VALUE)
        parsed = Parsed(raw, None) if self._parser is None else self._parser.parse(raw)
        reasons: dict[int, str] = {}
        for check in self._checks:
            reasons |= check.reasons(piece, parsed.values)
        return with_reasons(parsed, reasons) if reasons else parsed

    def _in_order(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)


def _checks(reading: Reading) -> tuple[RowCheck, ...]:
    """The checks of records that parse, in this micro-batch."""
    failed = FailedRecords.of_task()
    return reading.layout.checks if failed is None else (*reading.layout.checks, failed)


def _value_type(reading: Reading) -> pa.DataType | None:
    """The type that values are parsed into; None if they stay raw, or are not read."""
    layout, names = reading.layout, reading.schema.names
    if layout.value_format == "raw" or not (layout.errors_only or {VALUE, ERROR} & set(names)):
        return None
    return to_arrow_type(layout.value_type(reading.schema), timezone="UTC")


def _parser(reading: Reading, value_type: pa.DataType) -> ValueParser:
    layout = reading.layout
    options = dict(layout.parser_options)
    times = {name: options.pop(name) for name in ("time_zone", "time_unit") if name in options}
    return value_parser(layout.value_format, value_type, options=options, **times)


def _error_column(errors: pa.Array | None, raw: pa.Array, error_type: pa.StructType) -> pa.Array:
    if errors is None:
        return pa.nulls(len(raw), error_type)
    faulty = pc.is_valid(errors)
    bytes_of_faulty = pc.if_else(faulty, raw, pa.scalar(None, raw.type))
    return pa.StructArray.from_arrays(
        [errors, bytes_of_faulty], fields=list(error_type), mask=pc.invert(faulty)
    )


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], column.type) for column in schema], schema=schema)


def _gathered(pieces: Iterable[pa.RecordBatch | Unreadable]) -> Iterator[pa.RecordBatch | Unreadable]:
    """The pieces, with small ones concatenated."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        if isinstance(piece, Unreadable):
            yield piece
            continue
        held.append(piece)
        rows, size = rows + piece.num_rows, size + piece.nbytes
        if rows >= ROWS or size >= ENOUGH_BYTES:
            yield _together(held)
            held, rows, size = [], 0, 0
    if rows:
        yield _together(held)


def _together(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    full = [piece for piece in pieces if piece.num_rows]
    return full[0] if len(full) == 1 else pa.concat_batches(full)
