"""Projections: tables that events keep up to date, each event applied exactly once.

    class Baskets(Projection):
        aggregates = (Cart,)
        tables = "CREATE TABLE baskets (product TEXT PRIMARY KEY, quantity INT)"

        def on_added(self, e: Added, recorded: RecordedEvent):
            self.db.execute(
                "INSERT INTO baskets VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET quantity = quantity + excluded.quantity",
                (e.product, e.quantity),
            )

    baskets = Baskets("baskets.db")
    store.project(baskets)

The tables are in an SQLite file or in PostgreSQL: `Baskets(PostgresSchema("baskets"))`. A table next to them
holds the position in the log, and changes in the same transaction. A rebuild fills a second target, which
then replaces the first: readers see the old tables until then.

Events without a method are ignored; an event that the aggregates do not know stops the projection. An
unreadable record is skipped with a warning, and counted in `skipped`.
"""

from __future__ import annotations

import inspect
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from headrace.client.partition import TopicPartition
from headrace.errors import Misuse
from headrace.events.aggregate import Aggregate, aggregate_schema
from headrace.events.event import Event, snake_case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from headrace.events.event import RecordedEvent

PROGRESS: Final = "headrace_progress"


class ProjectionTables(Protocol):
    """An open connection to the tables of a projection. For one thread."""

    db: Any
    """The connection of the database driver."""

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next event of each partition that has applied events."""
        ...

    def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store the offsets of the next events, within the open transaction."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """A transaction that excludes other processes which apply events."""
        ...

    def query(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class ProjectionTarget(Protocol):
    """The database that holds the tables of a projection."""

    @property
    def name(self) -> str:
        """The name in messages; targets of the same name are the same."""
        ...

    def open(self, tables: str) -> ProjectionTables:
        """A connection; missing tables are created by these statements."""
        ...

    def create_rebuild_target(self) -> ProjectionTarget:
        """An empty target, for a rebuild."""
        ...

    def replace_with(self, fresh: ProjectionTarget, tables: str) -> None:
        """Replace tables and positions by those of `fresh`, which is removed."""
        ...

    def is_retryable(self, error: BaseException) -> bool:
        """Whether an error of the database may pass: unreachable, starting, full, or a conflict."""
        ...


BUSY_MS: Final = 30_000
_TEMPORARY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
_CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {PROGRESS} (topic TEXT, partition INT, next_offset INT, "
    "PRIMARY KEY (topic, partition)) WITHOUT ROWID"
)


class SqliteFile:
    """An SQLite file."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    @property
    def name(self) -> str:
        """The name in messages."""
        return str(Path(self.path).absolute())

    def open(self, tables: str) -> SqliteTables:
        """A connection to the file, which is created if it does not exist."""
        return SqliteTables(self.path, tables)

    def create_rebuild_target(self) -> SqliteFile:
        """A file that does not exist yet."""
        fresh = f"{self.path}.rebuild"
        Path(fresh).unlink(missing_ok=True)
        return SqliteFile(fresh)

    def replace_with(self, fresh: ProjectionTarget, tables: str) -> None:
        """Replace tables and positions by those of the fresh file, which is deleted."""
        assert isinstance(fresh, SqliteFile)
        with closing(self.open(tables)) as file:
            file.copy_from(fresh.path)
        Path(fresh.path).unlink()

    def is_retryable(self, error: BaseException) -> bool:
        """Whether another process has locked the file, or the disk is full."""
        return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) in _TEMPORARY


class SqliteTables:
    """A connection to an SQLite file with the tables of a projection. For one thread."""

    def __init__(self, path: str, tables: str) -> None:
        self.db = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            self._create(tables)
        except BaseException:
            self.db.close()
            raise

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next event of each partition that has applied events."""
        rows = self.db.execute(f"SELECT topic, partition, next_offset FROM {PROGRESS}")  # noqa: S608  a constant
        return {TopicPartition(topic, number): offset for topic, number, offset in rows}

    def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store the offsets of the next events, within the open transaction."""
        self.db.executemany(
            f"INSERT OR REPLACE INTO {PROGRESS} VALUES (?, ?, ?)",  # noqa: S608  a constant
            [(*place, offset) for place, offset in positions.items()],
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that excludes other writers."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def query(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.db.execute(sql, parameters).fetchall()

    def copy_from(self, path: str) -> None:
        """Replace tables and positions by those of the file at `path`.

        A renamed file would not do: a writer that has the old one open would leave a journal next to the new
        one, and SQLite would apply it.
        """
        self.db.execute("ATTACH ? AS fresh", (path,))
        try:
            with self.transaction():
                for kind, name, _ in _objects(self.db, "main"):
                    self.db.execute(f'DROP {kind} IF EXISTS main."{name}"')
                for kind, name, sql in _objects(self.db, "fresh"):
                    self.db.execute(sql)
                    if kind == "table":
                        self.db.execute(f'INSERT INTO main."{name}" SELECT * FROM fresh."{name}"')  # noqa: S608
        finally:
            self.db.execute("DETACH fresh")

    def close(self) -> None:
        """Close the connection."""
        self.db.close()

    def _create(self, tables: str) -> None:
        if _has_progress(self.db):
            return
        with self.transaction():
            if not _has_progress(self.db):  # another process may have created it meanwhile
                for statement in _statements(tables):
                    self.db.execute(statement)
                self.db.execute(_CREATE)


def _has_progress(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (PROGRESS,)).fetchone() is not None


def _objects(db: sqlite3.Connection, schema: str) -> list[tuple[str, str, str]]:
    """Type, name and definition of the objects of a schema, tables first."""
    return db.execute(
        f"SELECT type, name, sql FROM {schema}.sqlite_master "  # noqa: S608  a constant
        "WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
        "ORDER BY type != 'table', type != 'index'"
    ).fetchall()


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would end the transaction."""
    statement = ""
    for piece in script.split(";"):
        statement += f"{piece};"
        if sqlite3.complete_statement(statement):
            if statement.strip(" \n\t;"):
                yield statement
            statement = ""


class Projection:
    """A read model with methods `on_<event>(self, e)` or `on_<event>(self, e, recorded)`."""

    aggregates: ClassVar[tuple[type[Aggregate], ...]] = ()
    tables: ClassVar[str] = ""
    db: Any
    """The connection of `sqlite3` or `psycopg`, with an open transaction; for `on_…` methods only."""

    def __init__(self, target: str | Path | ProjectionTarget) -> None:
        if not self.aggregates:
            raise Misuse(f"{type(self).__name__} does not name its aggregates: write `aggregates = (Cart,)`.")
        self.target: ProjectionTarget = SqliteFile(target) if isinstance(target, str | Path) else target
        self.skipped = 0
        """The number of unreadable offsets that this process skipped; its log names each."""
        self.schemas = {schema.name: schema for schema in map(aggregate_schema, self.aggregates)}
        self._check_methods()
        self.open().close()  # creates the tables: queries work from now on

    def query(self, sql: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, on a separate connection."""
        with closing(self.open()) as opened:
            return opened.query(sql, tuple(parameters))

    def open(self, target: ProjectionTarget | None = None) -> ProjectionTables:
        """A connection to the tables of the projection, or to tables like them in another target."""
        return (target or self.target).open(self.tables)

    def apply(self, opened: ProjectionTables, recorded: RecordedEvent) -> None:
        """Apply an event to the tables, within the open transaction."""
        self.db = opened.db
        event = recorded.event(self.schemas[recorded.aggregate])
        method = self._method(type(event))
        if method is not None:
            method(event, recorded) if _takes_recorded(method) else method(event)

    def _method(self, kind: type[Event]) -> Callable[..., None] | None:
        return getattr(self, f"on_{snake_case(kind.__name__)}", None)

    def _check_methods(self) -> None:
        known = {
            f"on_{snake_case(event.name)}"
            for schema in self.schemas.values()
            for event in schema.events.values()
        }
        unknown = [name for name in dir(type(self)) if name.startswith("on_") and name not in known]
        if unknown:
            raise Misuse(
                f"{type(self).__name__}.{unknown[0]} is never called: {', '.join(self.schemas)} have no such "
                f"event. Possible methods: {', '.join(sorted(known))}."
            )


def _takes_recorded(method: Callable[..., None]) -> bool:
    return len(inspect.signature(method).parameters) > 1
