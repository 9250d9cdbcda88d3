"""Where a reader is in a view's log, and the token that says so.

A token is the place as JSON in base64: opaque to users, and small enough for the header `Last-Event-ID`. It
names the topic and its identity, so that one of another view, or of a topic that was made anew under the same
name, is noticed.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Any, Final

from headrace.feeds.errors import BadToken

VERSION: Final = 1
LONGEST: Final = 64_000
"""Characters of a token; one of a view with a thousand partitions has a quarter of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The point after one change."""

    topic: str
    identity: str
    """The id that the cluster gave to the topic; empty where it gives none."""
    offsets: tuple[int, ...]
    """For each partition the offset of the record that comes next, after the snapshot."""
    row: tuple[int, int] | None = None
    """Inside the snapshot: the partition and the offset of the row that was the last one."""

    @property
    def token(self) -> str:
        """The place as text."""
        fields: list[Any] = [VERSION, self.topic, self.identity, self.offsets]
        if self.row is not None:
            fields.append(self.row)
        document = json.dumps(fields, separators=(",", ":"))
        return urlsafe_b64encode(document.encode()).decode().rstrip("=")


def read_token(token: str, topic: str) -> Place:
    """The place that a token of this topic's feed says, or `BadToken`.

    >>> place = Place(topic="revenue", identity="", offsets=(3, 0))
    >>> read_token(place.token, "revenue") == place
    True
    """
    try:
        place = _parse(token)
    except (binascii.Error, UnicodeError, ValueError, TypeError, RecursionError) as fault:
        raise BadToken(
            f"{token[:80]!r} is no token of a change feed. Use `token` of a change as it is, or leave it out "
            "to begin with the current rows."
        ) from fault
    if place.topic != topic:
        raise BadToken(f"the token is one of the view {place.topic!r}, and this is the view {topic!r}.")
    return place


def _parse(token: str) -> Place:
    if len(token) > LONGEST:
        raise ValueError("too long")
    padded = token.encode("ascii") + b"=" * (-len(token) % 4)
    version, topic, identity, offsets, *rest = json.loads(
        binascii.a2b_base64(padded.translate(bytes.maketrans(b"-_", b"+/")), strict_mode=True)
    )
    row = rest[0] if rest else None
    numbers = [*offsets, *(row or ())]
    texts = (topic, identity)
    if version != VERSION or len(rest) > 1 or (row is not None and len(row) != 2):
        raise ValueError("of another version")
    if not all(isinstance(text, str) for text in texts) or not all(_is_offset(number) for number in numbers):
        raise TypeError("not a place")
    return Place(
        topic=topic, identity=identity, offsets=tuple(offsets), row=None if row is None else (row[0], row[1])
    )


def _is_offset(number: object) -> bool:
    return type(number) is int and 0 <= number < 1 << 63
