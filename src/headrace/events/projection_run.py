"""Events into a projection: a thread that follows the log, and the way to build one anew."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Assigned

from headrace.client.cluster import Cluster
from headrace.client.partition import TopicPartition
from headrace.errors import HeadraceError
from headrace.events.errors import Unanswered
from headrace.events.log import data_end, extents
from headrace.events.recorded import read_event
from headrace.events.topics import events_topic, find_topics, places

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import Message

    from headrace.events.projection import Projection
    from headrace.events.projection_place import Place

AT_ONCE: Final = 2_000
"""Events in one transaction."""
POLL_S: Final = 0.1
LOOK_S: Final = 0.002
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
"""Between two tries to reach a database that is away."""
_SILENT: Final = logging.Logger("librdkafka", level=logging.CRITICAL + 1)

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
        self.positions: dict[TopicPartition, int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker,
                "group.id": f"{store}.projections",  # librdkafka wants one; nothing is stored for it
                "client.id": "headrace-events",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.queue.backoff.ms": 1,
                "logger": _SILENT,
            }
        )
        self._begin()

    def step(self) -> int:
        """Apply what has come, waiting for it a little; how many events that were."""
        messages = self._gather()
        if not messages:
            return 0
        try:
            with self._tables.transaction():
                applied = self._apply(messages)
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
        self._consumer.close()
        self._tables.close()

    def _begin(self) -> None:
        """Go on where the tables say."""
        known = self._tables.positions()
        self.positions = {place: known.get(place, self._first[place]) for place in self._partitions}
        self._consumer.assign([Assigned(*place, offset) for place, offset in self.positions.items()])

    def _gather(self) -> list[Message]:
        message = self._consumer.poll(POLL_S)
        messages: list[Message] = []
        while message is not None:
            messages.append(message)
            message = self._consumer.poll(0) if len(messages) < AT_ONCE else None
        return messages

    def _apply(self, messages: list[Message]) -> int:
        known = self._tables.positions()
        if any(known.get(place, self._first[place]) != offset for place, offset in self.positions.items()):
            raise Moved("the tables were changed")
        moved: dict[TopicPartition, int] = {}
        applied = 0
        for message in messages:
            place = TopicPartition(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is None:
                self._apply_one(place, message)
                moved[place] = (message.offset() or 0) + 1
                applied += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                # The end lies behind the marker of the last transaction, which is no event.
                moved[place] = message.offset() or 0
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise HeadraceError(
                    f"events of {place} that the projection needs are gone: {error.str()}. Rebuild it."
                )
        self._tables.move(moved)
        self.positions.update(moved)
        return applied

    def _apply_one(self, place: TopicPartition, message: Message) -> None:
        recorded = read_event(
            self._names[place.topic],
            place.partition,
            message.offset() or 0,
            message.timestamp()[1],
            message.key(),
            message.value(),
            tuple(message.headers() or ()),  # type: ignore[arg-type]  # bytes, as nobody writes others
        )
        self._projection.apply(self._tables, recorded)


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
                if not self.projection.place.is_temporary(fault):
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
    """Return when a projection has all events of a partition up to `end`, as `data_end` gives it."""
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
            ends = {
                place: max(data_end(cluster, place, end), first)
                for place, (first, end) in extents(cluster, start).items()
            }
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
