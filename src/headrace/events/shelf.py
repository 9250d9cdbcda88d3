"""The aggregates of a partition: those used last in memory, the others in a file that ends with the handler.

The shelf also knows which aggregates have events that no snapshot covers, and since where.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from headrace.events.errors import Unkeepable
from headrace.events.state import read_state, write_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.events.aggregate import Aggregate, AggregateForm

_PUT_AWAY: Final = (
    "INSERT INTO kept VALUES (?, ?, ?, NULL) "
    "ON CONFLICT (id) DO UPDATE SET version = excluded.version, state = excluded.state"
)

logger = logging.getLogger(__name__)


class Shelf:
    """Every aggregate of a partition; one that is not there has no events. For one thread."""

    def __init__(self, form: AggregateForm, capacity: int) -> None:
        self._form = form
        self._capacity = capacity
        self._near: OrderedDict[str, Aggregate] = OrderedDict()
        # Without a name SQLite keeps it in a file that nobody sees and that does not outlive the process.
        self._far = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._far.execute(
            "CREATE TABLE kept (id TEXT PRIMARY KEY, version INT, state BLOB, command TEXT) WITHOUT ROWID"
        )
        self._is_far_empty = True
        self._uncovered: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._given_up: dict[str, int] = {}
        self._pinned: int | None = None
        self._warned = False

    def get(self, key: str) -> Aggregate:
        """The aggregate of that id, with all that has happened to it."""
        aggregate = self._near.get(key)
        if aggregate is None:
            aggregate = self._near[key] = self._fetch(key) or self._form.new(key)
        else:
            self._near.move_to_end(key)
        return aggregate

    def put(self, aggregate: Aggregate) -> None:
        """Have this aggregate in the place of what was there under its id."""
        self._near[aggregate.id] = aggregate

    def fill(self, snapshots: Iterable[tuple[str, int, bytes, str]]) -> None:
        """Take ids, versions, states and last commands as they were written."""
        self._far.execute("BEGIN")
        self._far.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", snapshots)
        self._far.execute("COMMIT")
        self._is_far_empty = self._far.execute("SELECT 1 FROM kept LIMIT 1").fetchone() is None

    def clear(self) -> None:
        """Forget all snapshots."""
        self._far.execute("DELETE FROM kept")
        self._is_far_empty = True

    def trim(self) -> None:
        """Put aggregates that were not used for long away."""
        for _ in range(len(self._near) - self._capacity):
            key, aggregate = self._near.popitem(last=False)
            state = self.state_of(aggregate)
            if state is None:
                self._near[key] = aggregate
            else:
                self._is_far_empty = False
                self._far.execute(_PUT_AWAY, (key, aggregate.version, state))

    def state_of(self, aggregate: Aggregate) -> bytes | None:
        """The state of an aggregate for a snapshot; nothing, and a warning, where it cannot be kept."""
        try:
            return write_state(self._form, aggregate)
        except Unkeepable as fault:
            if not self._warned:
                logger.warning("%s It stays in memory, and is replayed from its first event.", fault)
            self._warned = True
            return None

    def snapshot_command(self, key: str) -> str | None:
        """The command of the last event in the snapshot of an aggregate."""
        row = self._far.execute("SELECT command FROM kept WHERE id = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def changed(self, key: str, offset: int, command_id: str) -> None:
        """Note that the aggregate has an event of this command at or after `offset`."""
        if key not in self._given_up:
            first, _ = self._uncovered.get(key, (offset, ""))
            self._uncovered[key] = first, command_id

    def is_changed(self, key: str) -> bool:
        """Whether the aggregate has an event that no snapshot covers."""
        return key in self._uncovered

    def due(self, before: int, most: int) -> list[str]:
        """Ids of aggregates that have had no snapshot since an event before that offset."""
        due: list[str] = []
        for key, (offset, _) in self._uncovered.items():
            if offset >= before or len(due) == most:
                break
            due.append(key)
        return due

    def covered(self, key: str) -> str:
        """Note that there is a snapshot of the aggregate as it is; the command of its last event."""
        return self._uncovered.pop(key)[1]

    def give_up(self, key: str) -> None:
        """Note that there will be no snapshot of the aggregate: its events have to be replayed."""
        self._given_up[key] = self._uncovered.pop(key)[0]

    def set_aside(self, key: str, offset: int) -> None:
        """Drop an aggregate that the event at `offset` has spoilt; its events stay to be replayed."""
        first, _ = self._uncovered.pop(key, (offset, ""))
        self._given_up.setdefault(key, first)
        self._near.pop(key, None)

    def pin(self, offset: int) -> None:
        """Have the events from `offset` on replayed each time."""
        self._pinned = offset

    def through(self, end: int) -> int:
        """The offset before which every event is in a snapshot; `end` is where the log ends."""
        first, _ = next(iter(self._uncovered.values()), (end, ""))
        return min([first, end if self._pinned is None else self._pinned, *self._given_up.values()])

    def close(self) -> None:
        """Let go of the file."""
        self._far.close()

    def _fetch(self, key: str) -> Aggregate | None:
        if self._is_far_empty:  # most stores are small: a new aggregate should not cost a query
            return None
        row = self._far.execute("SELECT version, state FROM kept WHERE id = ?", (key,)).fetchone()
        return None if row is None else read_state(self._form, key, *row)
