"""Rows that tasks stage and the driver commits: complete, once, and in bounded memory."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace import postgres, sqlite
from headrace.folders import LocalFolder
from headrace.sinks.delivery import SinkDelivery
from headrace.sinks.sink import RowsRejected, Sink, SinkContext, StagingContext
from headrace.sinks.staging import TOKENS, RowStaging, StagedBatch, StagedRowsLost, read_tokens
from headrace.testing.postgres import PostgresServer
from headrace.testing.sinks import stage

Contexts = Callable[..., SinkContext]


def numbers(start: int, end: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(start, end), pa.int64()), "n": pa.array(range(start, end), pa.int32())}
    )


def asked(database: str, query: str) -> list[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def staging_tables(database: str) -> int:
    (count,) = asked(database, "SELECT count(*) FROM pg_class WHERE relname ~ '^headrace_staging_'")[0]
    return int(count)


def committed(sink: Sink, context: SinkContext, batch: int, staged: StagedBatch) -> None:
    with closing(sink.open(context)) as writer:
        writer.commit(batch, staged)


def test_a_small_task_passes_its_rows_and_a_large_one_only_tokens(context: Contexts, tmp_path: Path) -> None:
    rows = numbers(0, 100_000)
    staging = RowStaging.of(
        (sqlite("t", file=tmp_path / "t.db"),),
        StagingContext(job="shop.t", generation=1, schema=rows.schema),
        inline_bytes=1_000,
        part_bytes=300_000,
    )

    def tokens(table: pa.Table) -> pa.Table:
        batches = table.to_batches(max_chunksize=10_000)
        return pa.Table.from_batches(staging.stage(batches, task=0, folder=str(tmp_path)), TOKENS)

    assert read_tokens(tokens(numbers(0, 10)), rows.schema).parts[0].table == numbers(0, 10)
    large = tokens(rows)
    assert large.num_rows == 5
    assert large.nbytes < 1_000
    staged = read_tokens(large, rows.schema)
    assert pa.concat_tables([chunk.read() for chunk in staged]) == rows
    assert max(len(chunk) for chunk in staged) <= 30_000


def test_rejected_rows_are_left_out_of_their_chunks(tmp_path: Path, context: Contexts) -> None:
    rows = numbers(0, 9)
    tasks = [rows.slice(0, 3), rows.slice(3, 3), rows.slice(6, 3)]
    sink = sqlite("t", file=tmp_path / "t.db")
    staged = stage(sink, context(rows), tmp_path / "staged", *tasks, small_tasks=(0, 1))
    rest = staged.without({1, 6, 7, 8})
    assert [chunk.ordinals.to_pylist() for chunk in rest] == [[0, 2, 3, 4, 5]]
    assert [chunk.read()["id"].to_pylist() for chunk in rest] == [[0, 2, 3, 4, 5]]
    assert rest.take([8, 1])["id"].to_pylist() == [1, 8]
    assert rest.whole.read()["id"].to_pylist() == [0, 2, 3, 4, 5]
    assert len(rest) == 5


def test_files_that_the_driver_does_not_see_are_named(tmp_path: Path, context: Contexts) -> None:
    sink = sqlite("t", file=tmp_path / "t.db")
    staged = stage(sink, context(numbers(0, 3)), tmp_path / "staged", numbers(0, 3))
    for file in (tmp_path / "staged").iterdir():
        file.unlink()
    with pytest.raises(StagedRowsLost, match=r"\.arrow is missing: .* all machines see"):
        committed(sink, context(numbers(0, 3)), 0, staged)


@pytest.mark.parametrize("key", ["id", ()])
def test_a_server_that_crashes_between_copy_and_commit_has_all_rows(
    postgres_server: PostgresServer, database: str, context: Contexts, tmp_path: Path, key: Any
) -> None:
    sink = postgres("numbers", key=key, url=database)
    rows = numbers(0, 4_000)
    staged = stage(sink, context(rows), tmp_path / "staged", rows.slice(0, 2_000), rows.slice(2_000))
    assert len(staged.tokens) == staging_tables(database) == 2
    postgres_server.kill()
    postgres_server.start()  # its recovery empties unlogged tables
    committed(sink, context(rows), 0, staged)
    assert asked(database, "SELECT count(*), sum(n) FROM numbers") == [(4_000, 7_998_000)]


def test_a_target_that_is_away_while_tasks_stage_gets_all_rows_later(
    postgres_server: PostgresServer, database: str, context: Contexts, tmp_path: Path
) -> None:
    sink = postgres("numbers", key="id", url=database)
    rows = numbers(0, 1_000)
    postgres_server.kill()
    try:
        staged = stage(sink, context(rows), tmp_path / "staged", rows.slice(0, 500), rows.slice(500))
        assert staged.tokens == []
    finally:
        postgres_server.start()
    committed(sink, context(rows), 0, staged)
    assert asked(database, "SELECT count(*) FROM numbers") == [(1_000,)]


def test_what_killed_and_repeated_tasks_leave_is_dropped_with_the_batch(
    database: str, context: Contexts, tmp_path: Path
) -> None:
    sink = postgres("numbers", key="id", url=database)
    rows = numbers(0, 1_000)
    place = context(rows)
    for _ in range(2):  # attempts whose tokens never arrived
        stage(sink, place, tmp_path / "staged", rows)
    staged = stage(sink, place, tmp_path / "staged", rows)
    other = postgres("numbers", key="id", url=database)
    stage(other, context(rows, job="shop.other"), tmp_path / "staged", rows)
    assert staging_tables(database) == 4
    delivery = SinkDelivery(sink, place, on_status=print, wait=lambda _: False)
    assert delivery.deliver(0, staged) == []
    assert staging_tables(database) == 1  # that of the other job
    assert delivery.deliver(0, stage(sink, place, tmp_path / "staged", rows)) == []  # the batch is repeated
    assert staging_tables(database) == 1
    delivery.close()
    assert asked(database, "SELECT count(*) FROM numbers") == [(1_000,)]


def test_rows_that_a_table_rejects_are_found_in_the_parts_of_tasks(
    database: str, context: Contexts, tmp_path: Path
) -> None:
    asked(database, "CREATE TABLE numbers (id bigint PRIMARY KEY, n smallint CHECK (n <> 70))")
    sink = postgres("numbers", key="id", url=database)
    rows = numbers(0, 300)
    wide = rows.set_column(1, "n", pa.array([100_000 if n == 130 else n for n in range(300)], pa.int32()))
    tasks = [wide.slice(0, 100), wide.slice(100, 100), wide.slice(200)]
    staged = stage(sink, context(rows), tmp_path / "staged", *tasks)
    assert len(staged.tokens) == 2  # COPY has refused the rows of one task
    with closing(sink.open(context(rows))) as writer:
        with pytest.raises(RowsRejected) as refusal:
            writer.commit(0, staged)
        assert sorted(refusal.value.rows) == [70, 130]
        writer.commit(0, staged.without(refusal.value.rows))
    assert asked(database, "SELECT count(*), count(*) FILTER (WHERE id IN (70, 130)) FROM numbers") == [
        (298, 0)
    ]


def test_deferred_constraints_are_checked_over_all_parts(
    database: str, context: Contexts, tmp_path: Path
) -> None:
    asked(database, "CREATE TABLE parts (id bigint PRIMARY KEY, n int)")
    reference = "FOREIGN KEY (n) REFERENCES parts (id) DEFERRABLE INITIALLY DEFERRED"
    asked(database, f"ALTER TABLE parts ADD {reference}")
    sink = postgres("parts", key="id", url=database)
    rows = pa.table({"id": pa.array([1, 2, 3, 4], pa.int64()), "n": pa.array([4, 3, 2, 1], pa.int32())})
    good = stage(sink, context(rows), tmp_path / "staged", rows.slice(0, 2), rows.slice(2))
    committed(sink, context(rows), 0, good)
    more = pa.table({"id": pa.array([5, 6], pa.int64()), "n": pa.array([1, 77], pa.int32())})
    with pytest.raises(RowsRejected, match="violates foreign key") as refusal:
        committed(sink, context(rows), 1, stage(sink, context(rows), tmp_path / "staged", more, rows))
    assert sorted(refusal.value.rows) == [1]
    assert asked(database, "SELECT count(*) FROM parts") == [(4,)]


def test_the_newest_row_of_a_key_wins_also_if_keys_are_equal_for_the_database_only(
    database: str, context: Contexts, tmp_path: Path
) -> None:
    asked(database, "CREATE TABLE zeros (k double precision PRIMARY KEY, v text)")
    sink = postgres("zeros", key="k", url=database)
    tables = [
        pa.table({"k": [first, second], "v": [f"{n}a", f"{n}b"]})
        for n, (first, second) in enumerate([(0.0, -0.0), (-0.0, 0.0)])
    ]
    committed(sink, context(tables[0]), 0, stage(sink, context(tables[0]), tmp_path / "staged", *tables))
    assert asked(database, "SELECT v FROM zeros") == [("1b",)]


def test_a_user_who_cannot_create_tables_writes_by_the_driver(
    database: str, context: Contexts, tmp_path: Path
) -> None:
    rows = numbers(0, 100)
    committed(postgres("numbers", key="id", url=database), context(rows), 0, StagedBatch.of(rows))
    user = f"writer_{database[-8:]}"
    asked(database, f"CREATE ROLE {user} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
    sink = postgres("numbers", key="id", url=database.replace("postgres@", f"{user}@"))
    staged = stage(sink, context(rows), tmp_path / "staged", rows)
    assert staged.tokens == []
    delivery = SinkDelivery(sink, context(rows), on_status=print, wait=lambda _: False)
    assert delivery.deliver(1, staged) == []
    delivery.close()


def test_a_table_in_a_schema_has_its_staging_tables_there(
    database: str, context: Contexts, tmp_path: Path
) -> None:
    asked(database, "CREATE SCHEMA crm")
    sink = postgres("crm.numbers", key="id", url=database)
    rows = numbers(0, 100)
    staged = stage(sink, context(rows), tmp_path / "staged", rows)
    tables = (
        "SELECT nspname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relname ~ 'staging'"
    )
    assert asked(database, tables) == [("crm",)]
    place = replace(context(rows), folder=LocalFolder(tmp_path / "own"))
    delivery = SinkDelivery(sink, place, on_status=print, wait=lambda _: False)
    assert delivery.deliver(0, staged) == []
    delivery.close()
    assert asked(database, tables) == []
    assert asked(database, "SELECT count(*) FROM crm.numbers") == [(100,)]
