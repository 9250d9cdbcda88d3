"""Projections in PostgreSQL: each has a schema of its own.

    baskets = Baskets(PostgresSchema("baskets"))

Tables are found without naming the schema in `on_…` methods and in `query`; others write `baskets.demand`.
Who applies events, or switches to a rebuilt schema, has an advisory lock of the schema's name first: a lock
on a table would not do, because the switch takes the tables away.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from headrace.client.partition import TopicPartition
from headrace.errors import Misuse
from headrace.events.projection_place import PROGRESS
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.events.projection_place import Place

LONGEST_NAME: Final = 55
"""PostgreSQL cuts names after 63 bytes, and a rebuild has a longer one."""
_TEMPORARY_CLASSES: Final = frozenset({"08", "40", "53"})
"""Connection exceptions, rollbacks by conflict, and missing resources such as disk or connections."""
_TEMPORARY_STATES: Final = frozenset({"57P01", "57P02", "57P03", "25006"})
"""The server stops, crashed or starts; or it is a standby that takes no writes yet."""
_MAKE: Final = sql.SQL(
    "CREATE TABLE {} (topic text, partition int, next_offset bigint, PRIMARY KEY (topic, partition))"
).format(sql.Identifier(PROGRESS))
_MOVE: Final = sql.SQL(
    "INSERT INTO {} VALUES (%s, %s, %s) "
    "ON CONFLICT (topic, partition) DO UPDATE SET next_offset = excluded.next_offset"
).format(sql.Identifier(PROGRESS))
_POSITIONS: Final = sql.SQL("SELECT topic, partition, next_offset FROM {}").format(sql.Identifier(PROGRESS))


class PostgresSchema:
    """A schema of a PostgreSQL for the tables of one projection.

    Without `url` the database is the one that `HEADRACE_POSTGRES` or `headrace.toml` names, so that no
    program holds a password.
    """

    def __init__(self, schema: str, *, url: str | None = None) -> None:
        if not schema.isidentifier() or len(schema.encode()) > LONGEST_NAME:
            raise Misuse(
                f"{schema!r} is no name of a schema: use letters, digits and '_', "
                f"at most {LONGEST_NAME} bytes."
            )
        address = Settings.read().url("postgres", url)
        if address is None:
            raise Misuse(
                f"the schema {schema!r}: no database is named: set HEADRACE_POSTGRES in the environment (for "
                "example postgresql://user@host/shop), or url under [postgres] in headrace.toml, or give "
                "url=…."
            )
        self.schema = schema
        self._url = address
        self._database = _database(address)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"the schema {self.schema!r} of {self._database}"

    def open(self, tables: str) -> PostgresTables:
        """A connection to the schema, which is made where it is not there."""
        return PostgresTables(self._connect(), self.schema, tables)

    def beside(self) -> PostgresSchema:
        """A schema that is not there yet."""
        fresh = PostgresSchema(f"{self.schema}_rebuild", url=self._url)
        with self._connect() as db:
            db.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(fresh.schema)))
        return fresh

    def become(self, fresh: Place, tables: str) -> None:
        """Take the place of this schema by the fresh one, in one transaction."""
        assert isinstance(fresh, PostgresSchema)
        old, new = sql.Identifier(self.schema), sql.Identifier(fresh.schema)
        with closing(self.open(tables)) as opened, opened.transaction():
            opened.db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(old))
            opened.db.execute(sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(new, old))

    def is_temporary(self, fault: BaseException) -> bool:
        """Whether the connection was lost, or the server says that it cannot serve at the moment."""
        if not isinstance(fault, psycopg.Error):
            return False
        state = fault.sqlstate
        if state is None:  # libpq's own: no connection, or one that ended
            return isinstance(fault, psycopg.OperationalError)
        return state[:2] in _TEMPORARY_CLASSES or state in _TEMPORARY_STATES

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, autocommit=True, application_name="headrace events")


class PostgresTables:
    """A connection to a schema, made with the tables where they are not there. For one thread."""

    def __init__(self, db: psycopg.Connection[Any], schema: str, tables: str) -> None:
        self.db = db
        self._schema = schema
        try:
            self._make(tables)
        except BaseException:
            db.close()
            raise

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next event of each partition; none of those that have none applied yet."""
        return {
            TopicPartition(topic, number): offset for topic, number, offset in self.db.execute(_POSITIONS)
        }

    def move(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note how far events are applied, within the transaction that is open."""
        with self.db.cursor() as cursor:
            cursor.executemany(_MOVE, [(*place, offset) for place, offset in positions.items()])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing of what happens inside; nobody else applies events meanwhile."""
        with self.db.transaction():
            self.db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (self._schema,))
            yield

    def query(self, text: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""
        return self.db.execute(text.encode(), parameters).fetchall()

    def close(self) -> None:
        """Hang up."""
        self.db.close()

    def _make(self, tables: str) -> None:
        schema = sql.Identifier(self._schema)
        self.db.execute(sql.SQL("SET search_path TO {}, public").format(schema))
        if self._is_made():
            return
        with self.transaction():
            if not self._is_made():  # somebody else may have been faster
                self.db.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
                if tables.strip():
                    self.db.execute(tables.encode())
                self.db.execute(_MAKE)

    def _is_made(self) -> bool:
        there = self.db.execute("SELECT to_regclass(%s)", (f'"{self._schema}".{PROGRESS}',)).fetchone()
        return there is not None and there[0] is not None


def _database(url: str) -> str:
    """The database that an address names, without what nobody should see."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Without the text, and without what psycopg says of it: there may be a password in it.
        raise Misuse(
            "the url of a projection's database is none that PostgreSQL understands: write "
            "postgresql://user:password@host:5432/database."
        ) from None
    named = (given.get(each) for each in ("host", "port", "dbname"))
    return "/".join(str(each) for each in named if each) or "the usual database"
