"""One message of a queue, and what becomes of it."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.client import share_messages
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.share_messages import Place


class Verdict(enum.IntEnum):
    """How a worker is done with a message."""

    ACCEPT = share_messages.ACCEPT
    RELEASE = share_messages.RELEASE
    REJECT = share_messages.REJECT


@dataclass(slots=True, kw_only=True)
class Message:
    """A message in your hands until its lock runs out: do what it asks, and leave the body of the loop.

    Nothing has to be called: the end of the body accepts it, an exception releases it.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    deliveries: int
    """For the how manieth time it is delivered; 1 is the first."""
    place: Place = field(repr=False)
    verdict: Verdict | None = None
    """What was said of it in the body; None lets the end of the body decide."""
    _renew: Callable[[Message], None] = field(repr=False)

    def accept(self) -> None:
        """Be done with it, whatever happens in the rest of the body."""
        self.verdict = Verdict.ACCEPT

    def release(self) -> None:
        """Give it back: it is delivered again, to anybody, until the group's limit is reached."""
        self.verdict = Verdict.RELEASE

    def reject(self) -> None:
        """Give it up: it goes to the dead letters now."""
        self.verdict = Verdict.REJECT

    def renew(self) -> None:
        """Ask for the whole time of the lock once more, for work that takes long."""
        if self.verdict is not None:
            raise Misuse(f"message {self.offset} cannot be kept longer: the body has decided about it")
        self._renew(self)

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
