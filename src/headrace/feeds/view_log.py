"""The log of a view: its offsets, its rows up to some offset, and the records that follow.

The records that follow must be complete. Offsets have no gaps until compaction or retention removes records,
so a gap after the position of a reader means that it missed a change, and is an error. (Transaction markers
have offsets too; so the check is for gaps between batches, not records.)

An unreadable batch is not a gap: it is reported as skipped, and the feed continues after it.

A `RowCodec` converts the JSON rows of a view to Python values: `datetime`, `Decimal`, `bytes` and so on. The
types are those of the view's schema, a Spark schema in JSON. Most columns need no conversion, and have no
function.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.types import TopicName

from headrace.client.errors import LEADER_CHANGED, OffsetOutOfRange, RequestRefused, UnknownPartition
from headrace.client.fetch import NO_END, PartitionReader, fetch_batches
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.columns.record_decoder import BatchHeaders, RecordDecoder, UnreadableBatch
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.kernels import octets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from headrace.client.cluster import Cluster
    from headrace.client.fetch import FetchedBatches

    Skip = Callable[[int, UnreadableBatch], None]
    """Called with the partition and each unreadable batch."""

INTEGERS: Final = frozenset({"byte", "short", "integer", "long"})
FRACTIONS: Final = frozenset({"float", "double"})
WAIT_MS: Final = 500
"""How long the broker holds back a response that would be empty."""
COLUMNS: Final = ("key", "value", "offset")

logger = logging.getLogger(__name__)


class RowCodec:
    """Converts the keys and rows of one view."""

    def __init__(self, schema: Mapping[str, Any], key: Sequence[str]) -> None:
        kinds = {field["name"]: field["type"] for field in schema["fields"]}
        self._key = tuple(key)
        self._key_kinds = {name: kinds[name] for name in self._key}
        self._converts = _changing(kinds)
        self._key_converts = _changing(self._key_kinds)
        # A decimal would lose digits as a float; views without decimals keep the faster parser.
        self._parse_float = Decimal if "decimal(" in json.dumps(schema) else None

    def row(self, value: bytes) -> dict[str, Any]:
        """The row in the value of a record; raises `ValueError` if it is none."""
        row = json.loads(value, parse_float=self._parse_float)
        if not isinstance(row, dict) or any(name not in row for name in self._key):
            raise ValueError("its value is not a JSON object with the key columns")
        return _convert(row, self._converts)

    def key_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The key of a row."""
        return {name: row[name] for name in self._key}

    def key(self, key: bytes) -> dict[str, Any]:
        """The key in the key of a record: a JSON object, or the text of the only column."""
        if len(self._key) == 1 and not _is_null_key(key, self._key[0]):
            (kind,) = self._key_kinds.values()
            return {self._key[0]: from_text(key, kind)}
        document = json.loads(key, parse_float=self._parse_float)
        if not isinstance(document, dict):
            raise TypeError("its key is not a JSON object")
        return _convert(document, self._key_converts)


def to_json(value: Any) -> Any:
    """The JSON value of other types; for `json.dumps(default=…)`."""
    match value:
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            from base64 import b64encode

            return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be represented in JSON")


def from_text(text: bytes, kind: Any) -> Any:
    """The value of the only key column, from the text of Spark's cast to string."""
    if kind == "binary":
        return text
    if isinstance(kind, dict):
        return _of_kind(json.loads(text), kind)
    word = text.decode()
    if kind in INTEGERS:
        return int(word)
    if kind == "boolean":
        return word == "true"
    return _of_kind(word, kind)


def _is_null_key(key: bytes, name: str) -> bool:
    if not key.startswith(b"{"):
        return False
    try:
        return bool(json.loads(key) == {name: None})
    except ValueError:
        return False


def _convert(row: dict[str, Any], converts: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    for name, convert in converts.items():
        value = row.get(name)
        if value is not None:
            row[name] = convert(value)
    return row


def _changing(kinds: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    return {name: convert for name, kind in kinds.items() if (convert := converter(kind)) is not None}


def _of_kind(value: Any, kind: Any) -> Any:
    convert = converter(kind)
    return value if convert is None else convert(value)


def converter(kind: Any) -> Callable[[Any], Any] | None:
    """The function that converts a value that is not null; None if none is needed."""
    if isinstance(kind, dict):
        return _nested(kind)
    if kind in FRACTIONS:
        return float  # also of "NaN" and "Infinity", which are texts in JSON
    if kind.startswith("decimal"):
        return lambda value: Decimal(str(value))
    return SCALARS.get(kind)


def _nested(kind: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    match kind["type"]:
        case "struct":
            converts = _changing({field["name"]: field["type"] for field in kind["fields"]})
            return (lambda value: _convert(value, converts)) if converts else None
        case "array":
            each = converter(kind["elementType"])
            return None if each is None else lambda value: [_maybe(each, item) for item in value]
        case "map":
            of_key, each = kind["keyType"], converter(kind["valueType"])
            return lambda value: {
                from_text(name.encode(), of_key): _maybe(each, item) for name, item in value.items()
            }
    return None


def _maybe(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _timestamp(text: str) -> datetime | str:
    """A time with its zone; a time after the year 9999, which Python cannot represent, stays text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _local_time(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _date(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text


SCALARS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "timestamp": _timestamp,
    "timestamp_ntz": _local_time,
    "date": _date,
    "binary": b64decode,
}


class ViewRecord(NamedTuple):
    """A record of a view: a row, or a deleted key."""

    offset: int
    key: bytes | None
    value: bytes | None


class PartitionRecords(NamedTuple):
    """The next records of a partition."""

    partition: int
    records: list[ViewRecord]
    next_offset: int


def refuse(_: int, batch: UnreadableBatch) -> None:
    """Raise an error for an unreadable batch."""
    raise CorruptBatch(batch.sentence)


def warn(partition: int, batch: UnreadableBatch) -> None:
    """Skip an unreadable batch with a warning."""
    logger.warning("skipped in partition %d: %s", partition, batch.sentence)


class ViewLog:
    """The log of one view. For one thread."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self.topic = topic

    def topic_id(self) -> str:
        """The id of the topic; empty if the cluster has no topic ids."""
        return self._cluster.retry(self._request_topic_id, LEADER_CHANGED)

    def partitions(self) -> int:
        """The number of partitions."""
        found = self._cluster.topics((self.topic,))
        if self.topic not in found:
            raise UnknownPartition(TopicPartition(self.topic, 0))
        return len(found[self.topic].partitions)

    def offset_ranges(self) -> tuple[tuple[int, int], ...]:
        """The first offset of each partition, and its last stable offset."""
        partitions = [TopicPartition(self.topic, number) for number in range(self.partitions())]
        first, end = (
            list_offsets(self._cluster, dict.fromkeys(partitions, which)) for which in (EARLIEST, LATEST)
        )
        return tuple((first[partition], end[partition]) for partition in partitions)

    def rows(self, partition: int, start: int, end: int, skip: Skip) -> list[ViewRecord]:
        """The newest record of each key before `end`, in order, without deleted keys."""
        topic_partition = TopicPartition(self.topic, partition)
        newest: dict[bytes | None, ViewRecord] = {}
        cutter = RecordDecoder(topic_partition, start, end, columns=COLUMNS)
        for fetched in PartitionReader(self._cluster, topic_partition, start, end):
            for rows in cutter.readable_parts(fetched.batches, fetched.aborted):
                if isinstance(rows, UnreadableBatch):
                    skip(partition, rows)
                    continue
                for record in _rows_of(rows):
                    newest.pop(record.key, None)  # so that keys have the order of their newest records
                    if record.value is not None:
                        newest[record.key] = record
        return list(newest.values())

    def follow(self, offsets: Sequence[int], skip: Skip) -> list[PartitionRecords]:
        """Wait briefly for the next records of the partitions; raises `OffsetOutOfRange` for a gap."""
        positions = {TopicPartition(self.topic, number): offset for number, offset in enumerate(offsets)}
        return [
            _read_fetched(fetched, positions[fetched.partition], skip)
            for fetched in fetch_batches(self._cluster, positions, max_wait_ms=WAIT_MS)
        ]

    def _request_topic_id(self) -> str:
        connection = self._cluster.any()
        if not connection.serves(MetadataRequest):
            return ""
        wanted = MetadataRequestTopic(topic_id=None, name=TopicName(self.topic))
        request = MetadataRequest(
            topics=(wanted,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        (found,) = connection.request(request, MetadataResponse).topics
        if found.error_code is not ErrorCode.none:
            raise RequestRefused(f"describe the topic {self.topic!r}", found.error_code)
        return "" if found.topic_id is None else found.topic_id.hex


def _read_fetched(fetched: FetchedBatches, position: int, skip: Skip) -> PartitionRecords:
    """The records from `position` on; raises `OffsetOutOfRange` for a gap."""
    topic_partition, batches, aborted, next_offset = fetched
    headers = BatchHeaders(octets(batches))
    bases, lasts = headers["base_offset"].tolist(), headers.last_offsets.tolist()
    expected = position
    for base, last in zip(bases, lasts, strict=True):
        if base > expected:
            raise OffsetOutOfRange(topic_partition, expected, base, lasts[-1] + 1)
        expected = max(expected, last + 1)
    seen = headers.visible(position, NO_END, aborted).tolist()
    missing = sum(lasts[index] + 1 - max(bases[index], position) for index in seen)
    records: list[ViewRecord] = []
    for rows in RecordDecoder(topic_partition, position, NO_END, columns=COLUMNS).readable_parts(
        batches, aborted
    ):
        if isinstance(rows, UnreadableBatch):
            missing -= rows.last + 1 - rows.first
            skip(topic_partition.partition, rows)
        else:
            missing -= rows.num_rows
            records += _rows_of(rows)
    if missing > 0:
        raise OffsetOutOfRange(topic_partition, position, next_offset, next_offset)
    return PartitionRecords(topic_partition.partition, records, next_offset)


def _rows_of(rows: pa.RecordBatch) -> Iterator[ViewRecord]:
    keys, values, offsets = (rows.column(name).to_pylist() for name in COLUMNS)
    return map(ViewRecord, offsets, keys, values)
