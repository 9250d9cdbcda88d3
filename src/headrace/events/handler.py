"""The thread that handles the commands of one partition, as long as the partition is this process's.

It opens a desk, takes what has gathered in its inbox, decides on it, stores that in one step, and hands out
the answers: while one step is on its way, the commands of the next one gather. When it is fenced, or the
broker fails it, it goes back to the log. Commands that it had and did not answer travel by the topic then, to
whoever handles the partition; that they may have been executed does no harm, for they keep their ids.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.client.cluster import Cluster
from headrace.client.errors import Fenced
from headrace.errors import HeadraceError, Misuse
from headrace.events.command import fail, hand_over
from headrace.events.desk import Desk, Letter
from headrace.events.errors import BadEvent, UnknownEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from headrace.events.aggregate import AggregateForm
    from headrace.events.command import Answer, Command
    from headrace.events.limits import Limits
    from headrace.events.topics import StoreTopics

AT_ONCE: Final = 500
"""Commands that are stored in one step."""
FULL: Final = 2_000
"""With so many commands in its inbox a handler takes no more from the topic for now."""
PAUSE_S: Final = 0.5
WRITES: Final = 2
"""Of one process and one class of aggregates, on their way at once."""
LONGEST_TURN_S: Final = 0.02
PERMANENT: Final = (Misuse, BadEvent, UnknownEvent)
"""Faults of this program or of the log: they come again until the program is another one."""

logger = logging.getLogger(__name__)


class Post(NamedTuple):
    """A command in an inbox, and who waits for its answer in this process."""

    letter: Letter
    waiting: Future[Answer] | None = None


class Duty(NamedTuple):
    """What the handlers of one class of aggregates share."""

    broker: str
    topics: StoreTopics
    form: AggregateForm
    limits: Limits
    send: Callable[[Command, Future[Answer]], None]
    """Puts a command into the topic, for whoever handles it."""
    answered: Callable[[Answer], None]
    """Hears of every answer, for those who sent their commands by the topic."""
    turns: threading.Semaphore
    """Has as many places as writes are worth having on their way at once."""
    opened: Callable[[Handler, int, int], None]
    """Hears that a handler was opened for the nth time, and from which offset on it wants commands."""


class Handler:
    """The handler of one partition; it begins with `start`, and ends with `stop`."""

    def __init__(self, duty: Duty, partition: int) -> None:
        self.partition = partition
        self.fault: HeadraceError | None = None
        """Why it cannot serve, until the program is another one."""
        self._duty = duty
        self._inbox: deque[Post] = deque()
        self._changed = threading.Condition()
        self.is_open = False
        """Whether it takes commands."""
        self._openings = 0
        self._stopping = False
        name = f"events-{duty.topics.aggregate}-{partition}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to take the partition over."""
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end after the commands that it is at."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended within that time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def offer(self, post: Post, opening: int | None = None) -> bool:
        """Whether the handler took the command; it does while it has its partition.

        A command from the topic belongs to one `opening`: after another one the topic is read from another
        offset, and none may be passed over.
        """
        with self._changed:
            if not self.is_open or opening not in (None, self._openings):
                return False
            self._inbox.append(post)
            self._changed.notify()
            return True

    @property
    def is_full(self) -> bool:
        """Whether it has enough to do for now."""
        return len(self._inbox) >= FULL

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._serve()
            except Fenced:
                logger.info("%s: another process has taken over", self._thread.name)
            except PERMANENT as fault:
                logger.warning("%s cannot serve: %s", self._thread.name, fault)
                self.fault = fault
            except HeadraceError as fault:
                logger.warning("%s goes back to the log: %s", self._thread.name, fault)
            except Exception as fault:  # a supervisor: what nobody expected must not end the thread unseen
                logger.exception("%s cannot serve", self._thread.name)
                self.fault = BadEvent(
                    f"partition {self.partition} of {self._duty.topics.events} cannot be handled: "
                    f"{type(fault).__name__}: {fault}"
                )
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, PAUSE_S)

    def _serve(self) -> None:
        with Cluster.of(self._duty.broker, client_id="headrace-events") as cluster:
            desk = Desk.open(cluster, self._duty.topics, self.partition, self._duty.form, self._duty.limits)
            posts: list[Post] = []
            try:
                self._open(desk)
                while self._has_work():
                    with self._turn():
                        posts = self._take()
                        answers = desk.handle([post.letter for post in posts])
                    self._hand_out(posts, answers)
            finally:
                desk.close()
                self._leave(posts)

    def _open(self, desk: Desk) -> None:
        self.fault = None
        with self._changed:
            self._openings += 1
            self.is_open = not self._stopping
        if self.is_open:
            self._duty.opened(self, self._openings, desk.commands)

    def _has_work(self) -> bool:
        """Return when there is something to do, or when it is time to stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._stopping)
            return not self._stopping

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait a little for the handlers of other partitions: what gathers meanwhile is stored together.

        More writes at once would not be faster in one process of Python, only smaller. A broker that
        does not answer must not hold up those who write to others, so nobody waits for long.
        """
        has_turn = self._duty.turns.acquire(timeout=LONGEST_TURN_S)
        try:
            yield
        finally:
            if has_turn:
                self._duty.turns.release()

    def _take(self) -> list[Post]:
        with self._changed:
            inbox = self._inbox
            return [inbox.popleft() for _ in range(min(len(inbox), AT_ONCE))]

    def _hand_out(self, posts: list[Post], answers: list[Answer]) -> None:
        for post, answer in zip(posts, answers, strict=True):
            if post.waiting is None:
                self._duty.answered(answer)
            else:
                hand_over(post.waiting, answer)
        posts.clear()

    def _leave(self, posts: list[Post]) -> None:
        """Close the inbox; commands of this process that have no answer travel by the topic."""
        with self._changed:
            self.is_open = False
            rest = [*posts, *self._inbox]
            self._inbox.clear()
        for post in rest:
            if post.waiting is not None and not post.waiting.done():
                self._send(post.letter.command, post.waiting)

    def _send(self, command: Command, waiting: Future[Answer]) -> None:
        try:
            self._duty.send(command, waiting)
        except HeadraceError as fault:
            fail(waiting, fault)
