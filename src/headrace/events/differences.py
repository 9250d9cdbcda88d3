"""What each event changed: the state of an aggregate before and after, path by path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.events.history import advance, whole_history
from headrace.events.state import plain_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.client.records import UnreadableRecords
    from headrace.events.aggregate import AggregateForm
    from headrace.events.recorded import Recorded


class Absent:
    """Nothing is there; a value of its own, because None may be one."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = Absent()


class Difference(NamedTuple):
    """One place in the state that changed."""

    path: str
    before: Any
    after: Any


class Step(NamedTuple):
    """An event, and what it changed."""

    recorded: Recorded
    differences: tuple[Difference, ...]


def steps(form: AggregateForm, key: str, records: Iterable[Recorded | UnreadableRecords]) -> Iterator[Step]:
    """Each event of an aggregate with what it changed; `UnreadableHistory` where one may be missing."""
    aggregate = form.new(key)
    before = plain_state(form, aggregate)
    for recorded in whole_history(form, key, records):
        advance(form, aggregate, recorded)
        after = plain_state(form, aggregate)
        yield Step(recorded, tuple(differences(before, after)))
        before = after


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Where two states differ; objects are compared name by name, everything else as a whole.

    >>> list(differences({"items": {"tea": 2}}, {"items": {"tea": 1, "cup": 1}}))
    [Difference(path='items.tea', before=2, after=1), Difference(path='items.cup', before=absent, after=1)]
    """
    if not (isinstance(before, dict) and isinstance(after, dict)):
        if before != after or type(before) is not type(after):
            yield Difference(path, before, after)
        return
    for name in {**before, **after}:
        inner = f"{path}.{name}" if path else name
        yield from differences(before.get(name, ABSENT), after.get(name, ABSENT), inner)
