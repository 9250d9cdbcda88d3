"""A view over tables as plain Python has it: dicts of rows, computed from all rows after each batch."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Row = dict[str, Any]
Tables = dict[str, dict[int, Row]]
"""The newest rows, by topic and key."""


class Hop(NamedTuple):
    """A table that is joined: by which column so far, and its columns with their names in the view."""

    column: str
    topic: str
    shows: dict[str, str]
    how: Literal["left", "inner"]


class Said(NamedTuple):
    """A record: what a topic says about a key; nothing where the row is deleted."""

    topic: str
    key: int
    row: Row | None


def apply(tables: Tables, records: Sequence[Said]) -> None:
    """Let the tables be as the records say, one after the other."""
    for topic, key, row in records:
        tables[topic].pop(key, None)
        if row is not None:
            tables[topic][key] = row


def whole_view(tables: Tables, first: str, hops: Sequence[Hop]) -> dict[int, Row]:
    """The view from scratch."""
    view = {}
    for key, row in tables[first].items():
        made: Row | None = dict(row)
        for column, topic, shows, how in hops:
            if made is None:
                break
            found = tables[topic].get(made[column])
            if found is None and how == "inner":
                made = None
                break
            made |= {name: found and found[own] for own, name in shows.items()}
        if made is not None:
            view[key] = made
    return view


def differences(before: dict[int, Row], after: dict[int, Row]) -> list[Row]:
    """What changes one view into the other, by key; rows that are gone as they were, marked."""
    changes = {key: row | {"_deleted": False} for key, row in after.items() if before.get(key) != row}
    changes |= {key: row | {"_deleted": True} for key, row in before.items() if key not in after}
    return [changes[key] for key in sorted(changes)]
