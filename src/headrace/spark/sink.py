"""Rows into topics, at least once: `write` and `writeStream` with `format("headrace")`.

Columns are those of Spark's Kafka sink: `value`, and optionally `key`, `headers`, `topic` and `partition`.
Each task encodes its rows in bulk and returns when the brokers have stored them. A task that Spark runs again
writes its rows again; for exactly-once output use `headrace.App`.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Self

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from headrace.spark.errors import BadColumns, UnknownTopic
from headrace.spark.options import SECURITY_PROFILE, ClusterConnection, Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

KNOWN: Final = ("topic", "compression", "includeHeaders", SECURITY_PROFILE)
CODECS: Final = {name: name for name in ("none", "gzip", "snappy", "lz4", "zstd")}
ACKS: Final = {"all": -1, "-1": -1, "1": 1}
DEFAULT_BATCH_BYTES: Final = 1_000_000

BYTES: Final = (StringType, BinaryType)
COLUMN_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "value": BYTES,
    "key": BYTES,
    "topic": (StringType,),
    "partition": (IntegerType, ShortType, ByteType, LongType),
    "headers": (ArrayType,),
}


class Stored(WriterCommitMessage):
    """The report of a task whose rows are stored."""

    def __init__(self, records: int) -> None:
        self.records = records


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """The settings of a sink. Plain data that is sent to the tasks."""

    link: ClusterConnection
    topic: str | None
    compression: str
    acks: int
    batch_bytes: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """The sink that the options describe."""
        options = Options(given, known=KNOWN)
        by_client_name = options.text("kafka.compression.type") or "none"
        return cls(
            link=ClusterConnection.of(options),
            topic=(options.text("topic") or "").strip() or None,
            compression=options.choice("compression", CODECS, default=by_client_name),
            acks=options.choice("kafka.acks", ACKS, default="all"),
            batch_bytes=options.number("kafka.max.request.size") or DEFAULT_BATCH_BYTES,
        )

    def check(self, schema: StructType) -> None:
        """Refuse rows and topics that cannot be written, before the first task starts."""
        check_columns(schema, topic=self.topic)
        if self.topic is not None:
            self._partition_counts()

    def write(self, rows: Iterator[pa.RecordBatch]) -> Stored:
        """Return when the brokers have stored all rows."""
        # Imported here: only tasks need compiled code, and planner processes are started often.
        from headrace.client.partition import TopicPartition
        from headrace.client.produce import BatchProducer
        from headrace.columns.encoding import Encoder

        counts = self._partition_counts()
        encoder = Encoder(
            counts, topic=self.topic, compression=self.compression, max_batch_bytes=self.batch_bytes
        )
        producer = BatchProducer(self.link.cluster(), acks=self.acks)
        records = 0
        for piece in rows:
            for encoded in encoder.encode(piece):
                producer.send(TopicPartition(encoded.topic, encoded.partition), encoded.batch)
            records += piece.num_rows
        for encoded in encoder.flush():
            producer.send(TopicPartition(encoded.topic, encoded.partition), encoded.batch)
        producer.flush()
        return Stored(records)

    def _partition_counts(self) -> dict[str, int]:
        """The number of partitions of each topic that rows may go to."""
        topics = self.link.cluster().topics(None if self.topic is None else [self.topic])
        if self.topic is not None and self.topic not in topics:
            raise UnknownTopic(
                f"the topic {self.topic!r} does not exist: create it first, for example with "
                f"`headrace topic create {self.topic}`"
            )
        return {topic.name: len(topic.partitions) for topic in topics.values() if not topic.internal}


class TopicSinkWriter(DataSourceArrowWriter):
    """The sink of `df.write`."""

    def __init__(self, sink: TopicSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Write the rows of one task."""
        return self._sink.write(iterator)


class TopicStreamSinkWriter(DataSourceStreamArrowWriter):
    """The sink of `df.writeStream`."""

    def __init__(self, sink: TopicSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Write the rows of one task."""
        return self._sink.write(iterator)


def check_columns(schema: StructType, *, topic: str | None) -> None:
    """Refuse columns that cannot be records."""
    names = schema.names
    if "value" not in names:
        raise BadColumns(
            f"rows have no column value, only {', '.join(names)}: rename a column, or use to_json"
        )
    if topic is None and "topic" not in names:
        raise BadColumns("no topic was named: set the option topic, or give each row one in a column topic")
    for column in schema.fields:
        _check_column(column.name, column.dataType)


def _check_column(name: str, given: DataType) -> None:
    if name not in COLUMN_TYPES:
        close = get_close_matches(name, COLUMN_TYPES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"a record is made of {', '.join(COLUMN_TYPES)}"
        raise BadColumns(
            f"a column {name!r} has no place in a record: {hint} Drop it, or put it into the value"
        )
    right = isinstance(given, COLUMN_TYPES[name]) and (name != "headers" or _are_headers(given))
    if not right:
        wanted = {"headers": "array<struct<key string, value binary>>", "partition": "int", "topic": "string"}
        raise BadColumns(
            f"the column {name} is {given.simpleString()}: make it {wanted.get(name, 'string or binary')}"
        )


def _are_headers(given: DataType) -> bool:
    header = given.elementType if isinstance(given, ArrayType) else None
    return (
        isinstance(header, StructType)
        and header.names == ["key", "value"]
        and isinstance(header["key"].dataType, StringType)
        and isinstance(header["value"].dataType, BYTES)
    )
