"""The join of a stream with a table in plain Python: what the version of a key was at a time."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

Row = dict[str, Any]


class Version(NamedTuple):
    """What a table says about a key since a time; None: nothing any more."""

    key: Any
    since: datetime
    row: Row | None


def join_as_of(
    events: Iterable[Row], versions: list[Version], *, key: str, time: str, columns: list[str]
) -> list[Row]:
    """Each event with the columns of the newest version of its key that is not newer than the event."""
    joined = []
    for event in events:
        known = [each for each in versions if each.key == event[key] and each.since <= event[time]]
        newest = (
            max(known, key=lambda each: each.since).row if known else None
        )  # of equals the first: none here
        joined.append(event | {name: None if newest is None else newest[name] for name in columns})
    return joined
