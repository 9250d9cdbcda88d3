"""A dead letter as its readers see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A record that a job could not read, or a row that a target did not take."""

    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes] = field(repr=False)

    @property
    def reason(self) -> str:
        """Why it is here."""
        return self._text("reason")

    @property
    def topic(self) -> str | None:
        """The topic that it was read from; None of a row that a target did not take."""
        return self._text("topic") or None

    @property
    def target(self) -> str | None:
        """The sink that did not take it; None of a record that was not read."""
        return self._text("target") or None

    @property
    def table(self) -> str | None:
        """The captured outbox whose row cannot be a message; None of all others."""
        return self._text("table") or None

    @property
    def row(self) -> bytes:
        """The row as a stream of Arrow's."""
        return self.headers.get("row", b"")

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        if self.topic is not None:
            return f"{self.topic}/{self._text('partition')} at {self._text('offset')}"
        if self.table is not None:
            return f"{self.table} at {self._text('lsn')}"
        return f"{self.target or 'unknown'}, batch {self._text('batch')}"

    def _text(self, name: str) -> str:
        return self.headers.get(name, b"").decode(errors="replace")


def group_of(topic: str) -> str:
    """The consumer group whose offsets say up to where the letters of a topic were sent again."""
    return f"headrace.redrive.{topic}"
