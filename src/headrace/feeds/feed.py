"""A change feed: what a view holds, then every change to it, each exactly once, also across a restart.

    for change in ChangeFeed("revenue", "127.0.0.1:9092"):
        print(change.kind, change.key, change.row)

First come the rows that are there when the feed begins (`row`), then, as they are committed, rows that are
new or took another's place (`upsert`) and keys that went (`delete`). `change.token` names the point after the
change: a feed that is opened `since` it goes on there, with nothing twice and nothing left out. Where the
log no longer holds all that came after a token, the feed says so instead of leaving something out.

A record batch that cannot be read, or a record that is not a row of the view, does not end a feed: it is
skipped, a warning with topic, partition and offset is logged, and `feed.skipped` counts it.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from headrace.client.cluster import Cluster
from headrace.client.errors import OffsetsGone
from headrace.client.partition import TopicPartition
from headrace.feeds.catalogue import find_view
from headrace.feeds.errors import TokenGone
from headrace.feeds.log import ViewLog
from headrace.feeds.place import Place, read_token
from headrace.feeds.values import Codec, to_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
    from types import TracebackType

    from headrace.columns.cutting import UnreadableBatch
    from headrace.feeds.catalogue import ViewEntry
    from headrace.feeds.log import Entry

Kind = Literal["row", "upsert", "delete"]
LOOK_AGAIN_S: Final = 10.0
"""How often a feed looks whether its topic has more partitions, or is another one by now."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step in the life of a view."""

    kind: Kind
    """`row` of the current rows, `upsert` of a new or changed row, `delete` of a key."""
    key: dict[str, Any]
    """The key columns."""
    row: dict[str, Any] | None
    """All columns; None where the key was deleted."""
    place: Place
    """Where the log stands after this change."""
    value: bytes | None
    """The row as JSON, as the log has it."""

    @property
    def token(self) -> str:
        """The text by which a feed goes on right after this change."""
        return self.place.token

    def to_json(self) -> str:
        """The kind, the key and the row as a JSON document in one line."""
        return f'{{"kind":"{self.kind}","key":{self.key_json()},"row":{self.row_json()}}}'

    def row_json(self) -> str:
        """The row as a JSON document in one line; `null` where the key was deleted.

        In valid JSON a line break stands only between tokens, where a space means the same.
        """
        if self.value is None:
            return "null"
        return self.value.decode().replace("\r", " ").replace("\n", " ")

    def key_json(self) -> str:
        """The key as a JSON document in one line."""
        return json.dumps(self.key, default=to_json, ensure_ascii=False, separators=(",", ":"))


class ChangeFeed:
    """The changes of one view, for a `for` loop or an `async for` loop; it is read once.

    `since` is the token of a change; without it the feed begins with the current rows. With `follow=False` it
    ends where the view ended when the feed began. A reader that is slow holds up nobody, and a feed that is
    not read asks the broker for nothing.
    """

    def __init__(self, view: str, broker: str, *, since: str | None = None, follow: bool = True) -> None:
        self._view = view
        self._broker = broker
        self._since = since
        self._follow = follow
        self._batches: Generator[list[Change]] | None = None
        self.skipped = 0
        """Offsets that could not be read as rows of the view so far; the log of the program names each."""

    def __iter__(self) -> Iterator[Change]:
        with self:
            for batch in self.batches():
                yield from batch

    async def __aiter__(self) -> AsyncIterator[Change]:
        async for batch in self.async_batches():
            for change in batch:
                yield change

    def batches(self) -> Iterator[list[Change]]:
        """The changes as they come, in lists; an empty one now and then while there is nothing new."""
        self._batches = self._batches or self._read()
        return self._batches

    async def async_batches(self) -> AsyncGenerator[list[Change]]:
        """The same for `async for`; a thread of the feed's own does the waiting."""
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        loop = asyncio.get_running_loop()
        batches = self.batches()
        # A thread of its own: those that a loop has for everybody would be taken up by a few feeds that wait.
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"changes-{self._view}")
        try:
            while (batch := await loop.run_in_executor(thread, next, batches, None)) is not None:
                yield batch
        finally:
            thread.submit(self.close)
            thread.shutdown(wait=False)  # it may be waiting for the broker: the loop is not to

    def close(self) -> None:
        """Hang up; the feed gives nothing more."""
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
            cluster.any()  # an address where nobody answers is told at once
            try:
                reading = _Reading(cluster, find_view(cluster, self._view), self._since, self._skip)
                yield from reading.snapshot()
                yield from reading.changes(follow=self._follow)
            except OffsetsGone as fault:
                raise TokenGone(
                    f"the view {self._view!r} no longer has all changes after that point: {fault} Begin anew "
                    "without a token, from the current rows. (`keep` of app.view says how long they stay.)"
                ) from fault


class _Reading:
    """One pass over a view: the place that moves, and the changes on the way."""

    def __init__(
        self, cluster: Cluster, view: ViewEntry, since: str | None, skip: Callable[[str, int, str], None]
    ) -> None:
        self._view = view
        self._skip = skip
        self._codec = Codec(view.schema, view.key)
        self._log = ViewLog(cluster, view.topic)
        self._extents = self._log.extents()
        self._identity = self._log.identity()
        self._looked_at = time.monotonic()
        ends = tuple(end for _, end in self._extents)
        start = Place(topic=view.topic, identity=self._identity, offsets=ends, row=(0, -1))
        self._place = start if since is None else self._checked(read_token(since, view.topic))

    def snapshot(self) -> Iterator[list[Change]]:
        """The rows that were there at the beginning and that the place does not lie behind."""
        if self._place.row is None:
            return
        partition, offset = self._place.row
        for number in range(partition, len(self._place.offsets)):
            after = offset if number == partition else -1
            first, end = self._extents[number][0], self._place.offsets[number]
            entries = self._log.rows(number, first, end, self._skip_batch) if first < end else []
            yield self._made("row", number, (entry for entry in entries if entry.offset > after))
        self._stand_at(self._place.offsets)

    def changes(self, *, follow: bool) -> Iterator[list[Change]]:
        """What was committed after the place; an empty list where nothing was for a while."""
        ends = [end for _, end in self._extents]
        while follow or any(at < end for at, end in zip(self._place.offsets, ends, strict=False)):
            batch: list[Change] = []
            for news in self._log.follow(self._place.offsets, self._skip_batch):
                batch += self._made(None, news.partition, news.entries)
                self._move(news.partition, news.next_offset)
            yield batch
            self._look_again()

    def _made(self, kind: Kind | None, partition: int, entries: Iterable[Entry]) -> list[Change]:
        """The changes that these records are; the place moves with each of them."""
        changes: list[Change] = []
        for entry in entries:
            if kind is None:
                self._move(partition, entry.offset + 1)
            else:
                self._stand_at(self._place.offsets, (partition, entry.offset))
            try:
                changes.append(self._change(kind, entry))
            except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as fault:
                where = f"offset {entry.offset} of partition {partition} of {self._view.topic!r}"
                self._skip(
                    where, 1, f"it is no row of the view ({fault}). Only the view's job may write here"
                )
        return changes

    def _change(self, kind: Kind | None, entry: Entry) -> Change:
        row = None if entry.value is None else self._codec.row(entry.value)
        key = self._codec.key(entry.key or b"") if row is None else self._codec.key_of(row)
        chosen: Kind = kind or ("delete" if row is None else "upsert")
        return Change(kind=chosen, key=key, row=row, place=self._place, value=entry.value)

    def _skip_batch(self, partition: int, batch: UnreadableBatch) -> None:
        where = f"offsets {batch.first} to {batch.last} of partition {partition} of {self._view.topic!r}"
        self._skip(where, batch.last + 1 - batch.first, f"the record batch cannot be read: {batch.reason}")

    def _move(self, partition: int, offset: int) -> None:
        offsets = self._place.offsets
        self._stand_at((*offsets[:partition], offset, *offsets[partition + 1 :]))

    def _stand_at(self, offsets: tuple[int, ...], row: tuple[int, int] | None = None) -> None:
        # Once for each change; `dataclasses.replace` would take twice as long.
        self._place = Place(topic=self._view.topic, identity=self._identity, offsets=offsets, row=row)

    def _checked(self, place: Place) -> Place:
        """The place, if the log can go on from it; partitions that the topic got since then begin at 0."""
        missing = len(self._extents) - len(place.offsets)
        if place.identity != self._identity or missing < 0:
            raise TokenGone(
                f"the topic of the view {self._view.name!r} was made anew since that token was given. Begin "
                "anew without a token, from the current rows."
            )
        place = replace(place, offsets=(*place.offsets, *[0] * missing))
        for number, ((first, end), at) in enumerate(zip(self._extents, place.offsets, strict=True)):
            if not first <= at <= end and place.row is None:
                raise OffsetsGone(TopicPartition(place.topic, number), at, first, end)
        return place

    def _look_again(self) -> None:
        """Now and then: take up partitions that are new, and notice a topic that is another one."""
        if time.monotonic() - self._looked_at < LOOK_AGAIN_S:
            return
        self._looked_at = time.monotonic()
        self._extents = self._log.extents()
        self._identity = self._log.identity()
        self._place = self._checked(self._place)
