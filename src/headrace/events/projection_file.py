"""The file of a projection: its tables, and how far it has come, changed in one transaction.

A rebuild fills a second file. The switch copies it over the first one in one transaction: readers see the
old tables, and then the new ones. (To put the new file in the place of the old one would not do: a writer
that has the old one open would leave a journal beside the new one, and SQLite would play it back.)
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.client.partition import TopicPartition
from headrace.events.projection_place import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.events.projection_place import Place

BUSY_MS: Final = 30_000
_TEMPORARY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
_MAKE: Final = (
    f"CREATE TABLE IF NOT EXISTS {PROGRESS} (topic TEXT, partition INT, next_offset INT, "
    "PRIMARY KEY (topic, partition)) WITHOUT ROWID"
)


class FilePlace:
    """An SQLite file."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    @property
    def name(self) -> str:
        """What people call it."""
        return str(Path(self.path).absolute())

    def open(self, tables: str) -> ProjectionFile:
        """The file, which is made where it is not there."""
        return ProjectionFile(self.path, tables)

    def beside(self) -> FilePlace:
        """A file that is not there yet."""
        fresh = f"{self.path}.rebuild"
        Path(fresh).unlink(missing_ok=True)
        return FilePlace(fresh)

    def become(self, fresh: Place, tables: str) -> None:
        """Have what is in the fresh file, which is deleted."""
        assert isinstance(fresh, FilePlace)
        with closing(self.open(tables)) as file:
            file.replace_by(fresh.path)
        Path(fresh.path).unlink()

    def is_temporary(self, fault: BaseException) -> bool:
        """Whether another process holds the file, or the disk is full."""
        return isinstance(fault, sqlite3.Error) and getattr(fault, "sqlite_errorcode", 0) in _TEMPORARY


class ProjectionFile:
    """A connection to the file, made with the tables where they are not there. For one thread."""

    def __init__(self, path: str, tables: str) -> None:
        self.db = sqlite3.connect(path, timeout=BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            self._make(tables)
        except BaseException:
            self.db.close()
            raise

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next event of each partition; none of those that have none applied yet."""
        rows = self.db.execute(f"SELECT topic, partition, next_offset FROM {PROGRESS}")  # noqa: S608  a constant
        return {TopicPartition(topic, number): offset for topic, number, offset in rows}

    def move(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note how far events are applied, within the transaction that is open."""
        self.db.executemany(
            f"INSERT OR REPLACE INTO {PROGRESS} VALUES (?, ?, ?)",  # noqa: S608  a constant
            [(*place, offset) for place, offset in positions.items()],
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing of what happens inside; nobody else writes meanwhile."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def query(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""
        return self.db.execute(sql, parameters).fetchall()

    def replace_by(self, path: str) -> None:
        """Have what is in the file at `path`, tables and progress, instead of what is here."""
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
        """Let go of the file."""
        self.db.close()

    def _make(self, tables: str) -> None:
        if _has_progress(self.db):
            return
        with self.transaction():
            if not _has_progress(self.db):  # somebody else may have been faster
                for statement in _statements(tables):
                    self.db.execute(statement)
                self.db.execute(_MAKE)


def _has_progress(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (PROGRESS,)).fetchone() is not None


def _objects(db: sqlite3.Connection, schema: str) -> list[tuple[str, str, str]]:
    """Kind, name and definition of what a schema holds, tables first."""
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
