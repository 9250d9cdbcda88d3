"""Headers that let a message wait for its time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from headrace.errors import Misuse

DELIVER_AT: Final = "headrace-deliver-at"
DELAY_MS: Final = "headrace-delay-ms"


def deliver_in(delay: timedelta | float) -> list[tuple[str, bytes]]:
    """The headers of a message that waits for `delay`, a time or a number of seconds, after it was sent.

    >>> deliver_in(90)
    [('headrace-delay-ms', b'90000')]
    """
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if seconds < 0:
        raise Misuse(f"a message cannot be delivered {-seconds} s before it was sent")
    return [(DELAY_MS, b"%d" % round(seconds * 1000))]


def deliver_at(time: datetime) -> list[tuple[str, bytes]]:
    """The headers of a message that waits until `time`.

    >>> deliver_at(datetime(2030, 1, 1, tzinfo=UTC))
    [('headrace-deliver-at', b'1893456000000')]
    """
    if time.tzinfo is None:
        raise Misuse(f"{time} says no time zone: write datetime(…, tzinfo=UTC)")
    since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return [(DELIVER_AT, b"%d" % (since // timedelta(milliseconds=1)))]
