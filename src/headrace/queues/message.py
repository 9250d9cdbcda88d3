"""One message of a queue, how its worker acknowledges it, and headers that delay its delivery."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from headrace.durations import milliseconds_of, seconds_of
from headrace.errors import Misuse
from headrace.protocol.share import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from uuid import UUID

    from headrace.durations import Duration

log = logging.getLogger(__name__)

OnError = Literal["raise", "release", "reject"]
ON_ERROR: Final = ("raise", "release", "reject")
DELIVER_AT: Final = "headrace-deliver-at"
DELAY_MS: Final = "headrace-delay-ms"


@dataclass(slots=True, kw_only=True)
class Message:
    """A message that this worker has acquired.

    The end of the loop's body accepts it, an exception releases it. With `with message:` around the work, the
    loop continues after an exception, as the queue's `on_error` says.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    deliveries: int
    """How often it has been delivered, including this time."""
    topic_id: UUID = field(repr=False)
    acknowledgment: AcknowledgeType | None = None
    """How the body has acknowledged it; None if the end of the body decides."""
    traceparent: str | None = None
    """The span of the work on this message; without tracing, that of its producer."""
    delay_s: float | None = None
    """The delay before a released message is delivered again; None for the queue's backoff."""
    _renew: Callable[[Message], None] = field(repr=False)
    _on_error: OnError = field(default="raise", repr=False)

    def accept(self) -> None:
        """Accept it, even if the rest of the body raises."""
        self.acknowledgment = AcknowledgeType.ACCEPT

    def release(self, delay: Duration | None = None) -> None:
        """Release it: it is delivered again, to any worker, up to the group's delivery limit.

        `delay` is the time before that, such as `"30 seconds"`. By default the queue's backoff applies, which
        grows with each delivery.
        """
        self.delay_s = None if delay is None else seconds_of(delay, "delay")
        self.acknowledgment = AcknowledgeType.RELEASE

    def reject(self) -> None:
        """Reject it: it goes to the dead-letter topic."""
        self.acknowledgment = AcknowledgeType.REJECT

    def renew(self) -> None:
        """Renew its lock for the full lock duration, for work that takes long."""
        if self.acknowledgment is not None:
            raise Misuse(
                f"message {self.offset} cannot be renewed: it was already {_PAST[self.acknowledgment]}"
            )
        self._renew(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Handle an exception as the queue's `on_error` says; True if the loop continues."""
        if not isinstance(error, Exception):
            return False
        if self.acknowledgment is None:
            (self.reject if self._on_error == "reject" else self.release)()
        if self._on_error == "raise":
            return False
        log.error(
            "%s partition %d offset %d failed at delivery %d and is %s",
            self.topic,
            self.partition,
            self.offset,
            self.deliveries,
            _PAST[self.acknowledgment or AcknowledgeType.RELEASE],
            exc_info=error,
        )
        return True

    def json(self) -> Any:
        """The value decoded as JSON."""
        return json.loads(self.value or b"null")

    @property
    def time(self) -> datetime:
        """The timestamp of the message."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, UTC)

    def header(self, name: str) -> bytes | None:
        """The value of the last header with that name."""
        return next((value for key, value in reversed(self.headers) if key == name), None)


_PAST: Final = {
    AcknowledgeType.ACCEPT: "accepted",
    AcknowledgeType.RELEASE: "released",
    AcknowledgeType.REJECT: "rejected",
}


def deliver_in(delay: Duration) -> list[tuple[str, bytes]]:
    """Headers that delay the delivery of a message after its timestamp.

    >>> deliver_in("90 seconds")
    [('headrace-delay-ms', b'90000')]
    """
    return [(DELAY_MS, b"%d" % milliseconds_of(delay, "delay"))]


def deliver_at(time: datetime) -> list[tuple[str, bytes]]:
    """Headers that delay the delivery of a message until `time`.

    >>> deliver_at(datetime(2030, 1, 1, tzinfo=UTC))
    [('headrace-deliver-at', b'1893456000000')]
    """
    if time.tzinfo is None:
        raise Misuse(f"{time} has no time zone: use datetime(…, tzinfo=UTC)")
    since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return [(DELIVER_AT, b"%d" % (since // timedelta(milliseconds=1)))]
