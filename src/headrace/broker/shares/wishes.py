"""What a record's headers ask of a queue: when it is to be delivered, and to which group alone.

| header | meaning |
|---|---|
| `headrace-deliver-at` | not before this time, in milliseconds since 1970 |
| `headrace-delay-ms` | not before so many milliseconds after the record's own time |
| `headrace-group` | for this share group only: how a dead letter goes back to its queue |

A number that cannot be read asks for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.protocol.records import Record

DELIVER_AT: Final = "headrace-deliver-at"
DELAY_MS: Final = "headrace-delay-ms"
ONLY_GROUP: Final = "headrace-group"
MARK: Final = b"headrace-"
"""What the names have in common: records without these bytes need not be decoded."""


class Wish(NamedTuple):
    """One record as a queue sees it."""

    offset: int
    key: bytes | None
    due_ms: int
    is_ours: bool


def read_wish(record: Record, group: str) -> Wish:
    """What a record asks for."""
    due_ms, is_ours = 0, True
    for name, value in record.headers:
        if name == DELIVER_AT:
            due_ms = max(due_ms, _number(value))
        elif name == DELAY_MS:
            due_ms = max(due_ms, record.timestamp + _number(value))
        elif name == ONLY_GROUP:
            is_ours = value == group.encode()
    return Wish(record.offset, record.key, due_ms, is_ours)


def _number(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) < 19 else 0
