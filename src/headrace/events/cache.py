"""Caches of the aggregates and replies of one partition, and the state of aggregates as JSON for snapshots.

Recently used aggregates are in memory (hot), the others in a temporary SQLite file (spilled). The cache also
knows which aggregates have events that no snapshot covers, and since which offset.

A snapshot holds annotated attributes by their types. Other attributes may be JSON values, tuples, sets, dicts
with any keys, times, decimals, UUIDs and bytes; each is read back with its own type. Any other value is
refused, and with it the snapshot: state is never guessed.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from base64 import b64decode, b64encode
from collections import OrderedDict
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.events.aggregate import RESERVED
from headrace.events.codecs import read_with
from headrace.events.errors import StateNotSerializable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.events.aggregate import Aggregate, AggregateSchema
    from headrace.events.commands import Command, CommandReply

TAG: Final = "$"
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def write_state(schema: AggregateSchema, aggregate: Aggregate) -> bytes:
    """The attributes of an aggregate as JSON, or `StateNotSerializable`."""
    return _dumps(plain_state(schema, aggregate)).encode()


def plain_state(schema: AggregateSchema, aggregate: Aggregate) -> dict[str, Any]:
    """The attributes of an aggregate as JSON values, or `StateNotSerializable`."""
    state = {}
    for name, value in vars(aggregate).items():
        if name in RESERVED:
            continue
        try:
            state[name] = schema.state[name].write(value) if name in schema.state else _write(value)
        except (TypeError, ValueError) as error:
            raise StateNotSerializable(
                f"{schema.name}.{name} cannot be stored in a snapshot: {error}. Use the types that "
                f"headrace.events.cache lists, or annotate the attribute in the class: "
                f"`{name}: dict[str, Line]`."
            ) from None
    return state


def read_state(schema: AggregateSchema, key: str, version: int, state: bytes) -> Aggregate:
    """An aggregate with the attributes that were written."""
    aggregate = schema.kind.__new__(schema.kind)
    for name, value in json.loads(state).items():
        setattr(
            aggregate, name, read_with(schema.state[name], value) if name in schema.state else _read(value)
        )
    aggregate.id, aggregate.version = key, version
    return aggregate


def _write(value: Any) -> Any:
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if kind is list:
        return [_write(each) for each in value]
    if kind is dict:
        return _write_dict(value)
    if kind in _TAGGED:
        return {TAG: kind.__name__, "is": _TAGGED[kind][0](value)}
    raise TypeError(f"{value!r} is of type {kind.__name__}")


def _write_dict(value: dict[Any, Any]) -> dict[str, Any]:
    if TAG not in value and all(type(key) is str for key in value):
        return {key: _write(each) for key, each in value.items()}
    return {TAG: "dict", "is": [[_write(key), _write(each)] for key, each in value.items()]}


def _read(value: Any) -> Any:
    if type(value) is list:
        return [_read(each) for each in value]
    if type(value) is not dict:
        return value
    if TAG not in value:
        return {key: _read(each) for key, each in value.items()}
    return _READERS[value[TAG]](value["is"])


def _write_each(value: Any) -> list[Any]:
    return [_write(each) for each in value]


_JSON_TYPES: Final = frozenset({str, int, float, bool, type(None)})
_TAGGED: Final[Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    tuple: (_write_each, lambda value: tuple(map(_read, value))),
    set: (_write_each, lambda value: set(map(_read, value))),
    frozenset: (_write_each, lambda value: frozenset(map(_read, value))),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda value: timedelta(*value),
    ),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
    bytes: (lambda value: b64encode(value).decode(), b64decode),
}
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{kind.__name__: read for kind, (_, read) in _TAGGED.items()},
    "dict": lambda value: {_read(key): _read(each) for key, each in value},
}


_SPILL: Final = (
    "INSERT INTO spilled VALUES (?, ?, ?, NULL) "
    "ON CONFLICT (id) DO UPDATE SET version = excluded.version, state = excluded.state"
)

logger = logging.getLogger(__name__)


class AggregateCache:
    """All aggregates of a partition; one that it does not have has no events. For one thread."""

    def __init__(self, schema: AggregateSchema, capacity: int) -> None:
        self._schema = schema
        self._capacity = capacity
        self._hot: OrderedDict[str, Aggregate] = OrderedDict()
        # Without a name SQLite uses a temporary file, which it deletes when the connection closes.
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._file.execute(
            "CREATE TABLE spilled (id TEXT PRIMARY KEY, version INT, state BLOB, command TEXT) WITHOUT ROWID"
        )
        self._is_file_empty = True
        self._uncovered: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._excluded: dict[str, int] = {}
        self._replay_from: int | None = None
        self._warned = False

    def get(self, key: str) -> Aggregate:
        """The aggregate with that id, with all its events applied."""
        aggregate = self._hot.get(key)
        if aggregate is None:
            aggregate = self._hot[key] = self._read_spilled(key) or self._schema.new(key)
        else:
            self._hot.move_to_end(key)
        return aggregate

    def put(self, aggregate: Aggregate) -> None:
        """Replace the aggregate of the same id."""
        self._hot[aggregate.id] = aggregate

    def add_snapshots(self, snapshots: Iterable[tuple[str, int, bytes, str]]) -> None:
        """Add snapshots: id, version, state and last command of each."""
        self._file.execute("BEGIN")
        self._file.executemany("INSERT OR REPLACE INTO spilled VALUES (?, ?, ?, ?)", snapshots)
        self._file.execute("COMMIT")
        self._is_file_empty = self._file.execute("SELECT 1 FROM spilled LIMIT 1").fetchone() is None

    def drop_snapshots(self) -> None:
        """Remove all snapshots."""
        self._file.execute("DELETE FROM spilled")
        self._is_file_empty = True

    def spill(self) -> None:
        """Move the least recently used aggregates to the file."""
        for _ in range(len(self._hot) - self._capacity):
            key, aggregate = self._hot.popitem(last=False)
            state = self.state_of(aggregate)
            if state is None:
                self._hot[key] = aggregate
            else:
                self._is_file_empty = False
                self._file.execute(_SPILL, (key, aggregate.version, state))

    def state_of(self, aggregate: Aggregate) -> bytes | None:
        """The state of an aggregate for a snapshot; None, with a warning, if it cannot be serialized."""
        try:
            return write_state(self._schema, aggregate)
        except StateNotSerializable as error:
            if not self._warned:
                logger.warning("%s It stays in memory, and is replayed from its first event.", error)
            self._warned = True
            return None

    def snapshot_command(self, key: str) -> str | None:
        """The command of the last event in the snapshot of an aggregate."""
        row = self._file.execute("SELECT command FROM spilled WHERE id = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def note_event(self, key: str, offset: int, command_id: str) -> None:
        """Record that the aggregate has an event of this command at or after `offset`."""
        if key not in self._excluded:
            first, _ = self._uncovered.get(key, (offset, ""))
            self._uncovered[key] = first, command_id

    def has_uncovered_event(self, key: str) -> bool:
        """Whether the aggregate has an event that no snapshot covers."""
        return key in self._uncovered

    def due_snapshots(self, before: int, limit: int) -> list[str]:
        """Ids of aggregates with an event before that offset that no snapshot covers."""
        due: list[str] = []
        for key, (offset, _) in self._uncovered.items():
            if offset >= before or len(due) == limit:
                break
            due.append(key)
        return due

    def note_snapshot(self, key: str) -> str:
        """Record that a snapshot covers the current state; returns the command of its last event."""
        return self._uncovered.pop(key)[1]

    def exclude(self, key: str) -> None:
        """Record that the aggregate gets no snapshot: its events are replayed."""
        self._excluded[key] = self._uncovered.pop(key)[0]

    def discard(self, key: str, offset: int) -> None:
        """Remove an aggregate that the event at `offset` left invalid; its events are replayed."""
        first, _ = self._uncovered.pop(key, (offset, ""))
        self._excluded.setdefault(key, first)
        self._hot.pop(key, None)

    def replay_from(self, offset: int) -> None:
        """Let every successor replay the events from `offset` on."""
        self._replay_from = offset

    def covered_end(self, end: int) -> int:
        """The offset before which snapshots cover every event; `end` is the end of the log."""
        first, _ = next(iter(self._uncovered.values()), (end, ""))
        return min([first, end if self._replay_from is None else self._replay_from, *self._excluded.values()])

    def close(self) -> None:
        """Close and delete the file."""
        self._file.close()

    def _read_spilled(self, key: str) -> Aggregate | None:
        if self._is_file_empty:  # most stores are small, and a new aggregate should cost no query
            return None
        row = self._file.execute("SELECT version, state FROM spilled WHERE id = ?", (key,)).fetchone()
        return None if row is None else read_state(self._schema, key, *row)


class ReplyCache:
    """The newest replies of a partition, for repeated commands. Failures are not cached: they may pass."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._replies: OrderedDict[tuple[str, str], CommandReply] = OrderedDict()

    def add(self, reply: CommandReply) -> None:
        """Cache a reply; the first one to a command counts."""
        if reply.kind in ("failed", "unreadable"):
            return
        self._replies.setdefault(reply.key, reply)
        if len(self._replies) > self._limit:
            self._replies.popitem(last=False)

    def find(self, command: Command) -> CommandReply | None:
        """The reply to an earlier execution of the command."""
        return self._replies.get(command.key)
