"""A change feed: the rows of a view, then every change to it, each exactly once, also across a restart.

    for change in ChangeFeed("revenue", "127.0.0.1:9092"):
        print(change.kind, change.key, change.row)

First come the current rows (`row`), then, as they are committed, new or changed rows (`upsert`) and deleted
keys (`delete`). `change.token` is the position after the change: a feed opened with `since=token` continues
there, without duplicates and without gaps. If the log no longer holds all changes after a token, the feed
raises an error.

An unreadable record batch, or a record that is not a row of the view, is skipped: a warning names topic,
partition and offset, and `feed.skipped` counts it.
"""

from __future__ import annotations

import binascii
import json
import logging
import time
from base64 import urlsafe_b64encode
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from headrace.client.cluster import Cluster
from headrace.client.errors import OffsetOutOfRange
from headrace.client.partition import TopicPartition
from headrace.feeds.catalog import InvalidToken, TokenExpired, find_view
from headrace.feeds.view_log import RowCodec, ViewLog, to_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
    from types import TracebackType

    from headrace.columns.record_decoder import UnreadableBatch
    from headrace.feeds.catalog import ViewDescription
    from headrace.feeds.view_log import ViewRecord

VERSION: Final = 1
MAX_TOKEN_LENGTH: Final = 64_000
"""A token of a view with a thousand partitions has a quarter of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPosition:
    """A position in the log of a view: after one change.

    A token is the position as JSON in base64: opaque to users, and short enough for the header
    `Last-Event-ID`. It names the topic and its id, so that a token of another view, or of a recreated topic,
    is noticed.
    """

    topic: str
    topic_id: str
    """The id of the topic; empty if the cluster has no topic ids."""
    offsets: tuple[int, ...]
    """For each partition, the offset of the next record after the snapshot."""
    row: tuple[int, int] | None = None
    """Within the snapshot: partition and offset of the last row."""

    @property
    def token(self) -> str:
        """The position as a token."""
        fields: list[Any] = [VERSION, self.topic, self.topic_id, self.offsets]
        if self.row is not None:
            fields.append(self.row)
        document = json.dumps(fields, separators=(",", ":"))
        return urlsafe_b64encode(document.encode()).decode().rstrip("=")


def read_token(token: str, topic: str) -> FeedPosition:
    """The position of a token, or `InvalidToken`.

    >>> position = FeedPosition(topic="revenue", topic_id="", offsets=(3, 0))
    >>> read_token(position.token, "revenue") == position
    True
    """
    try:
        position = _parse(token)
    except (binascii.Error, UnicodeError, ValueError, TypeError, RecursionError) as fault:
        raise InvalidToken(
            f"{token[:80]!r} is not a token of a change feed: pass the `token` of a change, or none to start "
            "with the current rows."
        ) from fault
    if position.topic != topic:
        raise InvalidToken(f"the token belongs to the view {position.topic!r}, not to {topic!r}.")
    return position


def _parse(token: str) -> FeedPosition:
    if len(token) > MAX_TOKEN_LENGTH:
        raise ValueError("too long")
    padded = token.encode("ascii") + b"=" * (-len(token) % 4)
    version, topic, topic_id, offsets, *rest = json.loads(
        binascii.a2b_base64(padded.translate(bytes.maketrans(b"-_", b"+/")), strict_mode=True)
    )
    row = rest[0] if rest else None
    numbers = [*offsets, *(row or ())]
    texts = (topic, topic_id)
    if version != VERSION or len(rest) > 1 or (row is not None and len(row) != 2):
        raise ValueError("unknown version")
    if not all(isinstance(text, str) for text in texts) or not all(_is_offset(number) for number in numbers):
        raise TypeError("not a position")
    return FeedPosition(
        topic=topic, topic_id=topic_id, offsets=tuple(offsets), row=None if row is None else (row[0], row[1])
    )


def _is_offset(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 63


Kind = Literal["row", "upsert", "delete"]
REFRESH_S: Final = 10.0
"""How often a feed checks for new partitions and for a recreated topic."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a view."""

    kind: Kind
    """`row` for a current row, `upsert` for a new or changed row, `delete` for a deleted key."""
    key: dict[str, Any]
    """The key columns."""
    row: dict[str, Any] | None
    """All columns; None if the key was deleted."""
    position: FeedPosition
    """The position after this change."""
    value: bytes | None
    """The row as JSON, as stored in the log."""

    @property
    def token(self) -> str:
        """Continues a feed after this change: `ChangeFeed(…, since=token)`."""
        return self.position.token

    def to_json(self) -> str:
        """The kind, the key and the row as a JSON document in one line."""
        return f'{{"kind":"{self.kind}","key":{self.key_json()},"row":{self.row_json()}}}'

    def row_json(self) -> str:
        """The row as a JSON document in one line; `null` if the key was deleted.

        In valid JSON, line breaks occur only between tokens, where a space is equivalent.
        """
        if self.value is None:
            return "null"
        return self.value.decode().replace("\r", " ").replace("\n", " ")

    def key_json(self) -> str:
        """The key as a JSON document in one line."""
        return json.dumps(self.key, default=to_json, ensure_ascii=False, separators=(",", ":"))


class ChangeFeed:
    """The changes of one view, for one `for` or `async for` loop.

    `since` is the token of a change; without it the feed starts with the current rows. With `follow=False` it
    ends at the end that the view had at the start. A slow reader delays no one else, and a feed that is not
    read sends no requests.
    """

    def __init__(self, view: str, broker: str, *, since: str | None = None, follow: bool = True) -> None:
        self._view = view
        self._broker = broker
        self._since = since
        self._follow = follow
        self._batches: Generator[list[Change]] | None = None
        self.skipped = 0
        """The number of unreadable offsets so far; the log of the program names each."""

    def __iter__(self) -> Iterator[Change]:
        with self:
            for batch in self.batches():
                yield from batch

    async def __aiter__(self) -> AsyncIterator[Change]:
        async for batch in self.async_batches():
            for change in batch:
                yield change

    def batches(self) -> Iterator[list[Change]]:
        """The changes in lists; an empty list from time to time while there are none."""
        self._batches = self._batches or self._read()
        return self._batches

    async def async_batches(self) -> AsyncGenerator[list[Change]]:
        """Like `batches`, for `async for`; a separate thread waits for the broker."""
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        loop = asyncio.get_running_loop()
        batches = self.batches()
        # A separate thread: a few waiting feeds would occupy the shared threads of the event loop.
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"changes-{self._view}")
        try:
            while (batch := await loop.run_in_executor(thread, next, batches, None)) is not None:
                yield batch
        finally:
            thread.submit(self.close)
            thread.shutdown(wait=False)  # it may wait for the broker: the event loop must not

    def close(self) -> None:
        """Close the connection; the feed ends."""
        if self._batches is not None:
            self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _skip(self, where: str, count: int, reason: str) -> None:
        self.skipped += count
        logger.warning("the feed of the view %r skipped %s: %s", self._view, where, reason)

    def _read(self) -> Generator[list[Change]]:
        with Cluster.of(self._broker, client_id="headrace-changes") as cluster:
            cluster.any()  # an unreachable broker is an error at once
            try:
                reading = _Reading(cluster, find_view(cluster, self._view), self._since, self._skip)
                yield from reading.snapshot()
                yield from reading.changes(follow=self._follow)
            except OffsetOutOfRange as fault:
                raise TokenExpired(
                    f"the view {self._view!r} no longer has all changes after that token: {fault} "
                    "Start again without a token, with the current rows. (`change_retention` of app.view is "
                    "how long changes are kept.)"
                ) from fault


class _Reading:
    """One pass over a view: the current position, and the changes."""

    def __init__(
        self,
        cluster: Cluster,
        view: ViewDescription,
        since: str | None,
        skip: Callable[[str, int, str], None],
    ) -> None:
        self._view = view
        self._skip = skip
        self._codec = RowCodec(view.schema, view.key)
        self._log = ViewLog(cluster, view.topic)
        self._ranges = self._log.offset_ranges()
        self._topic_id = self._log.topic_id()
        self._refreshed_at = time.monotonic()
        ends = tuple(end for _, end in self._ranges)
        start = FeedPosition(topic=view.topic, topic_id=self._topic_id, offsets=ends, row=(0, -1))
        self._position = start if since is None else self._checked(read_token(since, view.topic))

    def snapshot(self) -> Iterator[list[Change]]:
        """The rows at the start that follow the position."""
        if self._position.row is None:
            return
        partition, offset = self._position.row
        for number in range(partition, len(self._position.offsets)):
            after = offset if number == partition else -1
            first, end = self._ranges[number][0], self._position.offsets[number]
            records = self._log.rows(number, first, end, self._skip_batch) if first < end else []
            yield self._made("row", number, (record for record in records if record.offset > after))
        self._set_position(self._position.offsets)

    def changes(self, *, follow: bool) -> Iterator[list[Change]]:
        """The changes after the position; an empty list if there were none for a while."""
        ends = [end for _, end in self._ranges]
        while follow or any(at < end for at, end in zip(self._position.offsets, ends, strict=False)):
            batch: list[Change] = []
            for fetched in self._log.follow(self._position.offsets, self._skip_batch):
                batch += self._made(None, fetched.partition, fetched.records)
                self._move(fetched.partition, fetched.next_offset)
            yield batch
            self._refresh()

    def _made(self, kind: Kind | None, partition: int, records: Iterable[ViewRecord]) -> list[Change]:
        """The changes of these records; the position moves with each of them."""
        changes: list[Change] = []
        for record in records:
            if kind is None:
                self._move(partition, record.offset + 1)
            else:
                self._set_position(self._position.offsets, (partition, record.offset))
            try:
                changes.append(self._change(kind, record))
            except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as fault:
                where = f"offset {record.offset} of partition {partition} of {self._view.topic!r}"
                self._skip(
                    where,
                    1,
                    f"it is not a row of the view ({fault}); only its job may write to the topic",
                )
        return changes

    def _change(self, kind: Kind | None, record: ViewRecord) -> Change:
        row = None if record.value is None else self._codec.row(record.value)
        key = self._codec.key(record.key or b"") if row is None else self._codec.key_of(row)
        chosen: Kind = kind or ("delete" if row is None else "upsert")
        return Change(kind=chosen, key=key, row=row, position=self._position, value=record.value)

    def _skip_batch(self, partition: int, batch: UnreadableBatch) -> None:
        where = f"offsets {batch.first} to {batch.last} of partition {partition} of {self._view.topic!r}"
        self._skip(where, batch.last + 1 - batch.first, f"the record batch cannot be read: {batch.reason}")

    def _move(self, partition: int, offset: int) -> None:
        offsets = self._position.offsets
        self._set_position((*offsets[:partition], offset, *offsets[partition + 1 :]))

    def _set_position(self, offsets: tuple[int, ...], row: tuple[int, int] | None = None) -> None:
        # Runs for each change; `dataclasses.replace` takes twice as long.
        self._position = FeedPosition(
            topic=self._view.topic, topic_id=self._topic_id, offsets=offsets, row=row
        )

    def _checked(self, position: FeedPosition) -> FeedPosition:
        """The position, if the log still has what follows; new partitions start at 0."""
        missing = len(self._ranges) - len(position.offsets)
        if position.topic_id != self._topic_id or missing < 0:
            raise TokenExpired(
                f"the topic of the view {self._view.name!r} was recreated after that token. Start again "
                "without a token, with the current rows."
            )
        position = replace(position, offsets=(*position.offsets, *[0] * missing))
        for number, ((first, end), at) in enumerate(zip(self._ranges, position.offsets, strict=True)):
            if not first <= at <= end and position.row is None:
                raise OffsetOutOfRange(TopicPartition(position.topic, number), at, first, end)
        return position

    def _refresh(self) -> None:
        """From time to time, add new partitions, and check that the topic was not recreated."""
        if time.monotonic() - self._refreshed_at < REFRESH_S:
            return
        self._refreshed_at = time.monotonic()
        self._ranges = self._log.offset_ranges()
        self._topic_id = self._log.topic_id()
        self._position = self._checked(self._position)
