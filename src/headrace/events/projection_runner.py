"""Applies events to projections: a thread that follows the log, and a rebuild."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, OffsetOutOfRange, RequestRefused
from headrace.client.fetch import UnreadableRecords, committed_records, fetch_batches
from headrace.errors import HeadraceError
from headrace.events.errors import CommandTimeout, UnreadableEvent
from headrace.events.event import recorded_in
from headrace.events.topics import events_topic, find_topics, offset_ranges, topic_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.client.fetch import FetchedBatches
    from headrace.client.partition import TopicPartition
    from headrace.events.projection import Projection, ProjectionTarget
    from headrace.protocol.records import Record


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that shows progress (done, total) on a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as display:
        task = display.add_task(what, total=None)
        yield lambda done, total: display.update(task, completed=done, total=total)


FETCH_WAIT_MS: Final = 100
FETCH_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.002
MIN_RETRY_PAUSE_S: Final = 0.1
MAX_RETRY_PAUSE_S: Final = 10.0
"""Between two attempts to reach a database or a broker."""

logger = logging.getLogger(__name__)


class ProgressChanged(HeadraceError):
    """Another process has applied events to the tables, or rebuilt them."""


class ProjectionUpdater:
    """Applies committed events to the tables of a projection."""

    def __init__(
        self, broker: str, store: str, projection: Projection, target: ProjectionTarget | None = None
    ) -> None:
        self._projection = projection
        self._store = store
        self._target = target
        self._tables = projection.open(target)
        self._names = {events_topic(store, name): name for name in projection.schemas}
        with Cluster.of(broker) as cluster:
            self._partitions = [
                partition
                for name in projection.schemas
                for partition in topic_partitions(
                    events_topic(store, name), find_topics(cluster, store, name).partitions
                )
            ]
            ranges = offset_ranges(cluster, self._partitions)
        self._first = {partition: first for partition, (first, _) in ranges.items()}
        self._cluster = Cluster.of(broker, client_id="headrace-events", timeout_s=FETCH_TIMEOUT_S)
        self.positions: dict[TopicPartition, int] = {}
        self._resume()

    def step(self) -> int:
        """Apply the next events, waiting briefly for them; returns how many there were."""
        fetched = fetch_batches(self._cluster, self.positions, max_wait_ms=FETCH_WAIT_MS)
        if not fetched:
            return 0
        try:
            with self._tables.transaction():
                applied = self._apply(fetched)
        except ProgressChanged:
            self._resume()
            return 0
        return applied

    def reopen(self) -> None:
        """Open the tables again after an error, and resume at their position."""
        self._tables.close()
        self._tables = self._projection.open(self._target)
        self._resume()

    def close(self) -> None:
        """Close the connections to broker and database."""
        self._cluster.close()
        self._tables.close()

    def _resume(self) -> None:
        """Resume at the position of the tables."""
        known = self._tables.positions()
        self.positions = {each: known.get(each, self._first[each]) for each in self._partitions}

    def _apply(self, fetched: Sequence[FetchedBatches]) -> int:
        known = self._tables.positions()
        if any(known.get(each, self._first[each]) != offset for each, offset in self.positions.items()):
            raise ProgressChanged("the tables were changed")
        applied = sum(self._apply_batches(each) for each in fetched)
        moved = {each.partition: each.next_offset for each in fetched}
        self._tables.set_positions(moved)
        self.positions.update(moved)
        return applied

    def _apply_batches(self, fetched: FetchedBatches) -> int:
        """Apply the events of these batches; returns how many there were."""
        partition, position, applied = fetched.partition, self.positions[fetched.partition], 0
        for record in committed_records(*fetched[:3]):
            if isinstance(record, UnreadableRecords):
                self._skip(record)
            elif record.offset >= position:
                applied += self._apply_record(partition, record)
        return applied

    def _apply_record(self, partition: TopicPartition, record: Record) -> bool:
        found = recorded_in(self._names[partition.topic], partition, record)
        if not isinstance(found, UnreadableRecords):
            try:
                self._projection.apply(self._tables, found)
            except UnreadableEvent as error:
                found = UnreadableRecords(partition, record.offset, record.offset, str(error))
            else:
                return True
        self._skip(found)
        return False

    def _skip(self, records: UnreadableRecords) -> None:
        self._projection.skipped += records.last + 1 - records.first
        logger.warning("the projection %s skipped: %s", type(self._projection).__name__, records)


class RunningProjection:
    """A projection that a thread of this process keeps up to date."""

    def __init__(self, broker: str, store: str, projection: Projection) -> None:
        self.projection = projection
        self.error: BaseException | None = None
        """Why it stopped."""
        self._updater = ProjectionUpdater(broker, store, projection)
        self._stopping = threading.Event()
        name = f"projection-{type(projection).__name__}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the current transaction."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:  # a supervisor: callers that wait for the projection get the error
            logger.exception("the projection %s stopped", type(self.projection).__name__)
            self.error = error
        finally:
            self._updater.close()

    def _follow(self) -> None:
        """Apply events until `close`; while broker or database is unreachable, retry with backoff."""
        pause_s, must_open = 0.0, False
        while not self._stopping.wait(pause_s):
            try:
                if must_open:
                    self._updater.reopen()
                self._updater.step()
                pause_s, must_open = 0.0, False
            except Exception as error:
                if isinstance(error, OffsetOutOfRange):
                    raise HeadraceError(
                        f"events that the projection needs were deleted: {error} Rebuild it."
                    ) from error
                is_broker = isinstance(error, BrokerUnreachable | RequestRefused)
                if not (is_broker or self.projection.target.is_retryable(error)):
                    raise
                pause_s, must_open = min(max(2 * pause_s, MIN_RETRY_PAUSE_S), MAX_RETRY_PAUSE_S), True
                logger.warning(
                    "the projection %s retries in %g s: %s",
                    type(self.projection).__name__,
                    pause_s,
                    error,
                )


def wait_for_projection(
    projection: Projection,
    partition: TopicPartition,
    end: int,
    timeout_s: float,
    running: RunningProjection | None,
) -> None:
    """Return once a projection has applied all events of a partition before `end`."""
    deadline = time.monotonic() + timeout_s
    while not _has_applied(
        projection, partition, end, lambda: _check_waiting(projection, deadline, timeout_s, running)
    ):
        time.sleep(min(MIN_RETRY_PAUSE_S, max(deadline - time.monotonic(), 0)))


def _has_applied(
    projection: Projection, partition: TopicPartition, end: int, check: Callable[[], None]
) -> bool:
    """True once the projection has the events; False if its database became unreachable."""
    check()
    try:
        with closing(projection.open()) as opened:
            while opened.positions().get(partition, 0) < end:
                check()
                time.sleep(POLL_S)
    except Exception as error:
        if projection.target.is_retryable(error):
            return False
        raise
    return True


def _check_waiting(
    projection: Projection, deadline: float, timeout_s: float, running: RunningProjection | None
) -> None:
    """Raise an error after the deadline, or if the projection has stopped."""
    if running is not None and running.error is not None:
        raise HeadraceError(f"the projection stopped: {running.error}") from running.error
    if time.monotonic() > deadline:
        raise CommandTimeout(
            f"the command was executed, and {projection.target.name} does not show it after {timeout_s:g} s: "
            "check that the projection runs (store.project) and that its database is reachable.",
            command_id="",
        )


def rebuild_projection(
    broker: str, store: str, projection: Projection, progress: Callable[[int, int], None]
) -> int:
    """Build a projection in new tables, and replace the current ones; returns the number of events.

    `progress` is called with the number of offsets that were read, and their total.
    """
    fresh = projection.target.create_rebuild_target()
    updater = ProjectionUpdater(broker, store, projection, fresh)
    try:
        start = dict(updater.positions)
        with Cluster.of(broker) as cluster:
            ends = {each: end for each, (_, end) in offset_ranges(cluster, start).items()}
        applied, total = 0, _distance(start, ends)
        while any(updater.positions[each] < end for each, end in ends.items()):
            applied += updater.step()
            progress(min(_distance(start, updater.positions), total), total)
    finally:
        updater.close()
    projection.target.replace_with(fresh, projection.tables)
    return applied


def _distance(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    return sum(end[each] - start[each] for each in start)
