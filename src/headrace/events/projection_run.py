"""Events into a projection: a thread that follows the log, and the way to build one anew."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, OffsetsGone, RequestRefused
from headrace.client.follow import fetch_batches
from headrace.client.records import UnreadableRecords, committed_records
from headrace.errors import HeadraceError
from headrace.events.errors import Unanswered, UnreadableEvent
from headrace.events.log import extents
from headrace.events.recorded import recorded_in
from headrace.events.topics import events_topic, find_topics, places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.client.follow import FetchedBatches
    from headrace.client.partition import TopicPartition
    from headrace.events.projection import Projection
    from headrace.events.projection_place import Place
    from headrace.protocol.records import Record

WAIT_MS: Final = 100
FETCH_TIMEOUT_S: Final = 5.0
LOOK_S: Final = 0.002
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
"""Between two tries to reach a database or a broker that is away."""

logger = logging.getLogger(__name__)


class Moved(HeadraceError):
    """Somebody else has applied events to the tables, or built them anew."""


class Follower:
    """Applies events to the tables of a projection at one place, as they are committed."""

    def __init__(self, broker: str, store: str, projection: Projection, place: Place | None = None) -> None:
        self._projection = projection
        self._store = store
        self._place = place
        self._tables = projection.open(place)
        self._names = {events_topic(store, name): name for name in projection.forms}
        with Cluster.of(broker) as cluster:
            self._partitions = [
                place
                for name in projection.forms
                for place in places(events_topic(store, name), find_topics(cluster, store, name).partitions)
            ]
            self._first = {place: first for place, (first, _) in extents(cluster, self._partitions).items()}
            self._cluster = Cluster.of(broker, client_id="headrace-events", timeout_s=FETCH_TIMEOUT_S)
        self.positions: dict[TopicPartition, int] = {}
        self._begin()

    def step(self) -> int:
        """Apply what has come, waiting for it a little; how many events that were."""
        fetched = fetch_batches(self._cluster, self.positions, max_wait_ms=WAIT_MS)
        if not fetched:
            return 0
        try:
            with self._tables.transaction():
                applied = self._apply(fetched)
        except Moved:
            self._begin()
            return 0
        return applied

    def reopen(self) -> None:
        """Open the tables again after the database was away, and go on where they say."""
        self._tables.close()
        self._tables = self._projection.open(self._place)
        self._begin()

    def close(self) -> None:
        """Let go of the log and of the tables."""
        self._cluster.close()
        self._tables.close()

    def _begin(self) -> None:
        """Go on where the tables say."""
        known = self._tables.positions()
        self.positions = {place: known.get(place, self._first[place]) for place in self._partitions}

    def _apply(self, fetched: Sequence[FetchedBatches]) -> int:
        known = self._tables.positions()
        if any(known.get(place, self._first[place]) != offset for place, offset in self.positions.items()):
            raise Moved("the tables were changed")
        applied = sum(self._apply_batches(each) for each in fetched)
        moved = {each.partition: each.next_offset for each in fetched}
        self._tables.move(moved)
        self.positions.update(moved)
        return applied

    def _apply_batches(self, fetched: FetchedBatches) -> int:
        """Apply the events of these batches; how many there are. What cannot be read is counted."""
        place, position, applied = fetched.partition, self.positions[fetched.partition], 0
        for record in committed_records(*fetched[:3]):
            if isinstance(record, UnreadableRecords):
                self._skip(record)
            elif record.offset >= position:
                applied += self._apply_record(place, record)
        return applied

    def _apply_record(self, place: TopicPartition, record: Record) -> bool:
        found = recorded_in(self._names[place.topic], place, record)
        if not isinstance(found, UnreadableRecords):
            try:
                self._projection.apply(self._tables, found)
            except UnreadableEvent as fault:
                found = UnreadableRecords(place, record.offset, record.offset, str(fault))
            else:
                return True
        self._skip(found)
        return False

    def _skip(self, records: UnreadableRecords) -> None:
        self._projection.skipped += records.last + 1 - records.first
        logger.warning("the projection %s skipped: %s", type(self._projection).__name__, records)


class Running:
    """A projection that is kept by a thread of this process."""

    def __init__(self, broker: str, store: str, projection: Projection) -> None:
        self.projection = projection
        self.fault: BaseException | None = None
        """Why it stopped."""
        self._follower = Follower(broker, store, projection)
        self._stopping = threading.Event()
        name = f"projection-{type(projection).__name__}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop after the transaction that it is in."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as fault:  # a supervisor: it says why, and whoever waits is told too
            logger.exception("the projection %s stopped", type(self.projection).__name__)
            self.fault = fault
        finally:
            self._follower.close()

    def _follow(self) -> None:
        """Apply events until it is time to stop; while the database is away, try again with back-off."""
        pause_s, must_open = 0.0, False
        while not self._stopping.wait(pause_s):
            try:
                if must_open:
                    self._follower.reopen()
                self._follower.step()
                pause_s, must_open = 0.0, False
            except Exception as fault:
                if isinstance(fault, OffsetsGone):
                    raise HeadraceError(
                        f"events that the projection needs are gone: {fault} Rebuild it."
                    ) from fault
                is_broker = isinstance(fault, BrokerUnreachable | RequestRefused)
                if not (is_broker or self.projection.place.is_temporary(fault)):
                    raise
                pause_s, must_open = min(max(2 * pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S), True
                logger.warning(
                    "the projection %s tries again in %g s: %s",
                    type(self.projection).__name__,
                    pause_s,
                    fault,
                )


def wait(
    projection: Projection, place: TopicPartition, end: int, timeout_s: float, running: Running | None
) -> None:
    """Return when a projection has all events of a partition up to `end`."""
    deadline = time.monotonic() + timeout_s
    while not _shows(
        projection, place, end, lambda: _check_waiting(projection, deadline, timeout_s, running)
    ):
        time.sleep(min(FIRST_PAUSE_S, max(deadline - time.monotonic(), 0)))


def _shows(projection: Projection, place: TopicPartition, end: int, check: Callable[[], None]) -> bool:
    """True once the projection has the events; False when its database went away meanwhile."""
    check()
    try:
        with closing(projection.open()) as opened:
            while opened.positions().get(place, 0) < end:
                check()
                time.sleep(LOOK_S)
    except Exception as fault:
        if projection.place.is_temporary(fault):
            return False
        raise
    return True


def _check_waiting(
    projection: Projection, deadline: float, timeout_s: float, running: Running | None
) -> None:
    """Pass while there is time, and the projection has not stopped for good."""
    if running is not None and running.fault is not None:
        raise HeadraceError(f"the projection stopped: {running.fault}") from running.fault
    if time.monotonic() > deadline:
        raise Unanswered(
            f"the command is executed, and {projection.place.name} does not show it after "
            f"{timeout_s:g} s: is the projection running (store.project), and its database there?",
            command_id="",
        )


def rebuild_projection(
    broker: str, store: str, projection: Projection, progress: Callable[[int, int], None]
) -> int:
    """Build a projection anew beside the current one, and put it in its place; how many events that took.

    `progress` is told how many offsets of how many are read.
    """
    fresh = projection.place.beside()
    follower = Follower(broker, store, projection, fresh)
    try:
        start = dict(follower.positions)
        with Cluster.of(broker) as cluster:
            ends = {place: end for place, (_, end) in extents(cluster, start).items()}
        applied, total = 0, _distance(start, ends)
        while any(follower.positions[place] < end for place, end in ends.items()):
            applied += follower.step()
            progress(min(_distance(start, follower.positions), total), total)
    finally:
        follower.close()
    projection.place.become(fresh, projection.tables)
    return applied


def _distance(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    return sum(end[place] - start[place] for place in start)
