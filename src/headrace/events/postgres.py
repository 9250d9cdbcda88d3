"""Projections in PostgreSQL, each in its own schema.

    baskets = Baskets(PostgresSchema("baskets"))

Methods `on_…` and `query` use table names without the schema; other programs write `baskets.demand`. A
process that applies events or switches to a rebuilt schema first takes an advisory lock on the name of the
schema: a lock on a table would not do, because the switch replaces the tables.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from headrace.client.partition import TopicPartition
from headrace.errors import Misuse
from headrace.events.projection import PROGRESS
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.events.projection import ProjectionTarget

MAX_NAME_BYTES: Final = 55
"""PostgreSQL truncates names after 63 bytes, and the schema of a rebuild has a longer name."""
_RETRYABLE_CLASSES: Final = frozenset({"08", "40", "53"})
"""Connection exceptions, transaction rollbacks, and insufficient resources."""
_RETRYABLE_STATES: Final = frozenset({"57P01", "57P02", "57P03", "25006"})
"""The server shuts down, crashed or starts, or it is a read-only standby."""
_CREATE: Final = sql.SQL(
    "CREATE TABLE {} (topic text, partition int, next_offset bigint, PRIMARY KEY (topic, partition))"
).format(sql.Identifier(PROGRESS))
_SET_POSITION: Final = sql.SQL(
    "INSERT INTO {} VALUES (%s, %s, %s) "
    "ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset"
).format(sql.Identifier(PROGRESS))
_POSITIONS: Final = sql.SQL("SELECT topic, partition, next_offset FROM {}").format(sql.Identifier(PROGRESS))


class PostgresSchema:
    """A PostgreSQL schema for the tables of one projection.

    Without `url` the database is that of `HEADRACE_POSTGRES` or `headrace.toml`, so that no program contains
    a password.
    """

    def __init__(self, schema: str, *, url: str | None = None) -> None:
        if not schema.isidentifier() or len(schema.encode()) > MAX_NAME_BYTES:
            raise Misuse(
                f"{schema!r} is not a valid schema name: use letters, digits and '_', "
                f"at most {MAX_NAME_BYTES} bytes."
            )
        address = Settings.read().url("postgres", url)
        if address is None:
            raise Misuse(
                f"the schema {schema!r} has no database: set HEADRACE_POSTGRES (for example "
                "postgresql://user@host/shop), or url under [postgres] in headrace.toml, or pass url=…."
            )
        self.schema = schema
        self._url = address
        self._database = _database(address)

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"the schema {self.schema!r} of {self._database}"

    def open(self, tables: str) -> PostgresTables:
        """A connection to the schema, which is created if it does not exist."""
        return PostgresTables(self._connect(), self.schema, tables)

    def create_rebuild_target(self) -> PostgresSchema:
        """A schema that does not exist yet."""
        fresh = PostgresSchema(f"{self.schema}_rebuild", url=self._url)
        with self._connect() as db:
            db.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(fresh.schema)))
        return fresh

    def replace_with(self, fresh: ProjectionTarget, tables: str) -> None:
        """Replace this schema by the fresh one, in one transaction."""
        assert isinstance(fresh, PostgresSchema)
        old, new = sql.Identifier(self.schema), sql.Identifier(fresh.schema)
        with closing(self.open(tables)) as opened, opened.transaction():
            opened.db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(old))
            opened.db.execute(sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(new, old))

    def is_retryable(self, error: BaseException) -> bool:
        """Whether the connection was lost, or the server cannot serve at the moment."""
        if not isinstance(error, psycopg.Error):
            return False
        state = error.sqlstate
        if state is None:  # an error of libpq: no connection, or it ended
            return isinstance(error, psycopg.OperationalError)
        return state[:2] in _RETRYABLE_CLASSES or state in _RETRYABLE_STATES

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, autocommit=True, application_name="headrace events")


class PostgresTables:
    """A connection to a schema with the tables of a projection. For one thread."""

    def __init__(self, db: psycopg.Connection[Any], schema: str, tables: str) -> None:
        self.db = db
        self._schema = schema
        try:
            self._create(tables)
        except BaseException:
            db.close()
            raise

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next event of each partition that has applied events."""
        return {
            TopicPartition(topic, number): offset for topic, number, offset in self.db.execute(_POSITIONS)
        }

    def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store the offsets of the next events, within the open transaction."""
        with self.db.cursor() as cursor:
            cursor.executemany(_SET_POSITION, [(*place, offset) for place, offset in positions.items()])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that excludes other processes which apply events."""
        with self.db.transaction():
            self.db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (self._schema,))
            yield

    def query(self, text: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.db.execute(text.encode(), parameters).fetchall()

    def close(self) -> None:
        """Close the connection."""
        self.db.close()

    def _create(self, tables: str) -> None:
        schema = sql.Identifier(self._schema)
        self.db.execute(sql.SQL("SET search_path TO {}, public").format(schema))
        if self._exists():
            return
        with self.transaction():
            if not self._exists():  # another process may have created it meanwhile
                self.db.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
                if tables.strip():
                    self.db.execute(tables.encode())
                self.db.execute(_CREATE)

    def _exists(self) -> bool:
        there = self.db.execute("SELECT to_regclass(%s)", (f'"{self._schema}".{PROGRESS}',)).fetchone()
        return there is not None and there[0] is not None


def _database(url: str) -> str:
    """The database of a URL, without the password."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Without the URL and the message of psycopg, which may contain a password.
        raise Misuse(
            "the url of a projection's database is not a valid PostgreSQL URL: write "
            "postgresql://user:password@host:5432/database."
        ) from None
    named = (given.get(each) for each in ("host", "port", "dbname"))
    return "/".join(str(each) for each in named if each) or "the default database"
