"""One message of a queue, and how its worker is done with it."""

from __future__ import annotations

import enum
import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from headrace.client import share_messages
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from headrace.client.share_messages import Place

log = logging.getLogger(__name__)

OnError = Literal["raise", "release", "reject"]
ON_ERROR: Final = ("raise", "release", "reject")


class Verdict(enum.IntEnum):
    """How a worker is done with a message."""

    ACCEPT = share_messages.ACCEPT
    RELEASE = share_messages.RELEASE
    REJECT = share_messages.REJECT


@dataclass(slots=True, kw_only=True)
class Message:
    """A message that is locked for this worker: process it, and leave the body of the loop.

    Nothing has to be called: the end of the body accepts it, an exception releases it. `with message:` around
    the work lets the loop go on after an exception, as the queue's `on_error` says.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    deliveries: int
    """How often it has been delivered, this time included."""
    place: Place = field(repr=False)
    verdict: Verdict | None = None
    """What was said of it in the body; None lets the end of the body decide."""
    delay_s: float | None = None
    """After which time it is delivered again when it is released; None for the queue's back-off."""
    _renew: Callable[[Message], None] = field(repr=False)
    _on_error: OnError = field(default="raise", repr=False)

    def accept(self) -> None:
        """Be done with it, however the rest of the body ends."""
        self.verdict = Verdict.ACCEPT

    def release(self, delay: timedelta | float | None = None) -> None:
        """Give it back: it is delivered again, to any worker, until the group's delivery limit is reached.

        `delay` is the time until then, a `timedelta` or seconds. Without it the queue's back-off applies,
        which grows with each delivery.
        """
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if seconds is not None and not seconds >= 0:
            raise Misuse(f"message {self.offset} cannot be delivered again {-seconds} s ago")
        self.verdict, self.delay_s = Verdict.RELEASE, seconds

    def reject(self) -> None:
        """Give it up: it goes to the dead-letter topic now."""
        self.verdict = Verdict.REJECT

    def renew(self) -> None:
        """Ask for the whole time of the lock once more, for work that takes long."""
        if self.verdict is not None:
            raise Misuse(f"message {self.offset} cannot be kept longer: the body has decided about it")
        self._renew(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Do with an exception what the queue's `on_error` says; True when the loop goes on."""
        if not isinstance(error, Exception):
            return False
        if self.verdict is None:
            (self.reject if self._on_error == "reject" else self.release)()
        if self._on_error == "raise":
            return False
        log.error(
            "%s partition %d offset %d failed at delivery %d and is %s",
            self.topic,
            self.partition,
            self.offset,
            self.deliveries,
            _PAST[self.verdict or Verdict.RELEASE],
            exc_info=error,
        )
        return True

    def json(self) -> Any:
        """The value, which is JSON, as Python's data."""
        return json.loads(self.value or b"null")

    @property
    def time(self) -> datetime:
        """When it was sent."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    def header(self, name: str) -> bytes | None:
        """The last header of that name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


_PAST: Final = {Verdict.ACCEPT: "accepted", Verdict.RELEASE: "released", Verdict.REJECT: "rejected"}
