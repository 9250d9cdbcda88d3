"""The committed records of a topic from a position on, for as long as the reader follows it.

The position is the next offset of each partition, and is written as `0:17,1:4`: the token of a record is the
position after it.
"""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.client.cluster import Cluster
from headrace.client.errors import UnknownTopic
from headrace.client.fetch import UnreadableRecords, committed_records, fetch_batches
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.gateway.errors import HttpError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping

    from headrace.protocol.records import Headers, Record

WAIT_MS: Final = 500
REFRESH_S: Final = 10.0
"""How often a reader checks for new partitions."""
MAX_OFFSET: Final = (1 << 63) - 1


class TopicRecord(NamedTuple):
    """A record of a topic, and the position after it."""

    partition: int
    record: Record
    token: str

    def to_json(self) -> str:
        """The record as JSON in one line; keys and values that are JSON are part of it."""
        offset, timestamp, key, value, headers = self.record
        return (
            f'{{"partition":{self.partition},"offset":{offset},"timestamp":{timestamp},'
            f'"key":{_text_json(key)},"value":{_value_json(value)},"headers":{_headers_json(headers)}}}'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """Where a reader starts."""

    timestamp: int = LATEST
    """`EARLIEST`, `LATEST`, or milliseconds since 1970."""
    offset: int | None = None
    """The same offset in each partition."""
    partition: int | None = None
    """The only partition to read; None for all."""
    offsets: Mapping[int, int] | None = None
    """The offsets of a token."""


def parse_start(query: Mapping[str, str], after: str | None) -> StartPosition:
    """The position that `from`, `partition` and the last event id name."""
    unknown = set(query) - {"from", "partition", "after"}
    if unknown:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"unknown parameter {min(unknown)!r}: use from and partition")
    try:
        partition = _number(query["partition"], (1 << 31) - 1) if "partition" in query else None
        token = after or query.get("after")
        if token:
            return StartPosition(partition=partition, offsets=_parse_token(token))
        start = query.get("from", "latest")
        if start.isdigit():
            return StartPosition(offset=_number(start, MAX_OFFSET), partition=partition)
        return StartPosition(timestamp=_timestamp(start), partition=partition)
    except (ValueError, OverflowError):
        raise HttpError(
            HTTPStatus.BAD_REQUEST,
            "the position is invalid: from is earliest, latest, an offset or a time such as "
            "2026-01-31T12:00:00Z, and partition is a number",
        ) from None


def _number(text: str, largest: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > largest:
        raise ValueError(text)
    return int(text)


def _timestamp(text: str) -> int:
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    moment = datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return max(int(moment.timestamp() * 1000), 0)


def _parse_token(token: str) -> dict[int, int]:
    pairs = [part.partition(":") for part in token[:64_000].split(",")]
    return {_number(number, (1 << 31) - 1): _number(offset, MAX_OFFSET) for number, _, offset in pairs}


class TopicReader:
    """The records of one topic, for one `async for` loop."""

    def __init__(self, bootstrap: str, topic: str, start: StartPosition) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._start = start
        self._offsets: dict[int, int] = {}
        self.skipped = 0
        """The number of unreadable offsets so far."""

    async def async_batches(self) -> AsyncGenerator[list[TopicRecord]]:
        """The records in lists; an empty list from time to time while there are none."""
        loop = asyncio.get_running_loop()
        batches = self._batches()
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"records-{self._topic}")
        try:
            while (batch := await loop.run_in_executor(thread, next, batches, None)) is not None:
                yield batch
        finally:
            thread.submit(batches.close)
            thread.shutdown(wait=False)  # it may wait for the broker: the event loop must not

    def _batches(self) -> Generator[list[TopicRecord]]:
        with Cluster.of(self._bootstrap, client_id="headrace-gateway") as cluster:
            self._offsets = self._first_offsets(cluster, self._partitions(cluster))
            yield []  # the topic exists, and may be read
            refreshed_at = time.monotonic()
            while True:
                positions = {TopicPartition(self._topic, number): at for number, at in self._offsets.items()}
                batch: list[TopicRecord] = []
                for fetched in fetch_batches(cluster, positions, max_wait_ms=WAIT_MS):
                    batch += self._decode(fetched)
                yield batch
                if time.monotonic() - refreshed_at > REFRESH_S:
                    refreshed_at = time.monotonic()
                    for number in self._partitions(cluster):
                        self._offsets.setdefault(number, 0)

    def _partitions(self, cluster: Cluster) -> tuple[int, ...]:
        found = cluster.topics((self._topic,))
        if self._topic not in found:
            raise UnknownTopic(self._topic)
        partitions = found[self._topic].partitions
        wanted = self._start.partition
        if wanted is None:
            return partitions
        if wanted not in partitions:
            raise HttpError(HTTPStatus.NOT_FOUND, f"the topic {self._topic!r} has no partition {wanted}")
        return (wanted,)

    def _first_offsets(self, cluster: Cluster, partitions: tuple[int, ...]) -> dict[int, int]:
        start = self._start
        if start.offsets is not None:
            return {number: start.offsets.get(number, 0) for number in partitions}
        if start.offset is not None:
            return dict.fromkeys(partitions, start.offset)
        keys = [TopicPartition(self._topic, number) for number in partitions]
        found = list_offsets(cluster, dict.fromkeys(keys, start.timestamp))
        missing = [partition for partition, offset in found.items() if offset < 0]
        found |= list_offsets(cluster, dict.fromkeys(missing, LATEST)) if missing else {}
        return {partition.partition: offset for partition, offset in found.items()}

    def _decode(self, fetched: Any) -> list[TopicRecord]:
        number = fetched.partition.partition
        position = self._offsets[number]
        records: list[TopicRecord] = []
        for record in committed_records(fetched.partition, fetched.batches, fetched.aborted):
            if isinstance(record, UnreadableRecords):
                self.skipped += record.last + 1 - max(record.first, position)
            elif record.offset >= position:
                self._offsets[number] = record.offset + 1
                records.append(TopicRecord(number, record, self._token()))
        self._offsets[number] = fetched.next_offset
        return records

    def _token(self) -> str:
        return ",".join(f"{number}:{offset}" for number, offset in self._offsets.items())


def _value_json(value: bytes | None) -> str:
    """A value that is JSON as it is, in one line; others as text, or as `{"base64": …}`."""
    if value is None:
        return "null"
    try:
        text = value.decode()
        json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _text_json(value)
    return text.replace("\r", " ").replace("\n", " ")


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _text_json(value: bytes | None) -> str:
    if value is None:
        return "null"
    try:
        return json.dumps(value.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps({"base64": b64encode(value).decode()})


def _headers_json(headers: Headers) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{_text_json(value)}" for name, value in headers) + "}"
