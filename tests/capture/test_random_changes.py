"""Random transactions over several tables, with DDL in between: topics and tables agree at every step."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.testing import broker
from headrace.testing.postgres import PostgresServer
from tests.capture.database import Database

TABLES = ("a", "b", "c")
KEYS = st.integers(1, 5)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


def changes() -> st.SearchStrategy[tuple[Any, ...]]:
    table = st.sampled_from(TABLES)
    return st.one_of(
        st.tuples(st.just("put"), table, KEYS, TEXTS),
        st.tuples(st.just("put"), table, KEYS, TEXTS),
        st.tuples(st.just("delete"), table, KEYS),
        st.tuples(st.just("move"), table, KEYS, KEYS),
        st.tuples(st.just("truncate"), table),
        st.tuples(st.just("add column"), table),
        st.tuples(st.just("drop column"), table),
        st.tuples(st.just("identity"), table, st.sampled_from(["FULL", "DEFAULT"])),
    )


TRANSACTIONS = st.lists(
    st.tuples(
        st.lists(changes(), min_size=1, max_size=5), st.sampled_from(["commit", "commit", "roll back"])
    ),
    min_size=1,
    max_size=5,
)


class Model:
    """Tables that are changed at random."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._columns = 0
        for table in TABLES:
            database.run(
                f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} (id int PRIMARY KEY, v text)"
            )

    def transact(self, steps: list[tuple[Any, ...]], outcome: str) -> None:
        with self.database.connection.transaction(force_rollback=outcome == "roll back"):
            for step in steps:
                self._apply(*step)

    def _apply(self, act: str, table: str, *more: Any) -> None:
        execute = self.database.connection.execute
        match act:
            case "put":
                execute(
                    f"INSERT INTO {table} (id, v) VALUES (%s, %s) "
                    "ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                    more,
                )
            case "delete":
                execute(f"DELETE FROM {table} WHERE id = %s", more)
            case "move":
                old, new = more
                execute(
                    f"UPDATE {table} SET id = %s WHERE id = %s AND NOT EXISTS "
                    f"(SELECT FROM {table} WHERE id = %s)",
                    [new, old, new],
                )
            case "truncate":
                execute(f"TRUNCATE {table}")
            case "add column":
                self._columns += 1
                execute(f"ALTER TABLE {table} ADD n{self._columns} int DEFAULT {self._columns}")
            case "drop column":
                found = execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 2 "
                    "AND NOT attisdropped LIMIT 1",
                    [table],
                ).fetchone()
                if found is not None:
                    execute(f"ALTER TABLE {table} DROP {found[0]}")
            case "identity":
                execute(f"ALTER TABLE {table} REPLICA IDENTITY {more[0]}")

    def rows(self, table: str) -> dict[str, Any]:
        found = self.database.connection.execute(f"SELECT row_to_json(t)::text FROM {table} t")
        return {str(row["id"]): row for row in (json.loads(text) for (text,) in found)}

    def check(self, name: str) -> None:
        for table in TABLES:
            wanted, found = self.rows(table), self.database.table(f"{name}.public.{table}")
            assert {key: row["v"] for key, row in found.items()} == {
                key: row["v"] for key, row in wanted.items()
            }
            for key, row in wanted.items():
                # A column that came later, or is gone, is in the row when the row is next written.
                both = row.keys() & found[key].keys()
                assert {each: row[each] for each in both} == {each: found[key][each] for each in both}


@pytest.fixture(scope="module")
def shared(postgres: PostgresServer) -> Iterator[Database]:
    with broker() as embedded:
        database = Database(postgres.create_database("random"), "random", embedded.bootstrap)
        yield database
        database.close()


def check_transactions(database: Database, transactions: list[tuple[list[tuple[Any, ...]], str]]) -> None:
    model = Model(database)
    name = f"r{abs(hash(str(transactions))) % 10**9}"
    half = len(transactions) // 2
    for steps, outcome in transactions[:half]:
        model.transact(steps, outcome)
    database.capture(*TABLES, name=name)
    model.check(name)
    for steps, outcome in transactions[half:]:
        model.transact(steps, outcome)
    database.capture(*TABLES, name=name)
    model.check(name)
    assert database.capture(*TABLES, name=name) == 0
    database.drop(name)


FEW = settings(
    max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@FEW
@given(transactions=TRANSACTIONS)
def test_topics_equal_tables_after_random_transactions(
    shared: Database, transactions: list[tuple[Any, str]]
) -> None:
    check_transactions(shared, transactions)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(FEW, max_examples=150)
@given(transactions=TRANSACTIONS)
def test_topics_equal_tables_after_many_random_transactions(
    shared: Database, transactions: list[tuple[Any, str]]
) -> None:
    check_transactions(shared, transactions)
