"""Batches end where all captured tables hold whole transactions: what is moved is in one place at a time."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace import App
from headrace.client.cluster import Cluster
from headrace.client.fetch import PartitionReader
from headrace.client.partition import TopicPartition
from headrace.columns.record_decoder import RecordDecoder
from headrace.spark.offsets import Journal
from headrace.spark.source import HeadraceSource
from headrace.spark.stream_reader import StreamReader
from headrace.streams.runner import Runner, RunOptions
from tests.capture.database import Database, read_topic
from tests.capture.storm import ROWS, Storm
from tests.cli.terminal import wait_until
from tests.soak.pipeline_process import PipelineProcess
from tests.streams.workshop import Recorder

ACCOUNTS = 10
TOTAL = 2 * ACCOUNTS * 100
TABLES = {"checking": 3, "savings": 3}
"""The tables, and the number of partitions of each topic."""
SETUP = [
    "CREATE TABLE {table} (id bigint PRIMARY KEY, amount bigint)",
    f"INSERT INTO {{table}} SELECT g, 100 FROM generate_series(1, {ACCOUNTS}) g",
]


@contextmanager
def transfers(database: Database) -> Iterator[list[int]]:
    """Two connections that move money between accounts of both tables; the list counts their transactions."""
    stopped, committed = threading.Event(), [0]

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(database.url, autocommit=True) as connection:
            while not stopped.wait(0.001):
                amount = chance.randint(1, 50)
                sides = sorted([(chance.choice([*TABLES]), chance.randint(1, ACCOUNTS)) for _ in range(2)])
                with connection.transaction():
                    for (table, account), sign in zip(sides, (-1, 1), strict=True):
                        update = f"UPDATE {table} SET amount = amount + %s WHERE id = %s"
                        connection.execute(update, [sign * amount, account])
                committed[0] += 1

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield committed
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def set_up(database: Database) -> None:
    for table in TABLES:
        database.run(*(statement.format(table=table) for statement in SETUP))


@contextmanager
def source(bootstrap: str, whole_transactions: str = "true") -> Iterator[StreamReader]:
    """What plans the batches of a view."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": "shop.public.checking",
        "follow": "shop.public.savings",
        "startingOffsets": "earliest",
        "wholeTransactions": whole_transactions,
        "positionsOnly": "true",
        "columns": "partition",
    }
    made = HeadraceSource(options)
    schema = made.schema()
    assert not isinstance(schema, str)
    reader = made.streamReader(schema)
    assert isinstance(reader, StreamReader)
    try:
        yield reader
    finally:
        reader.stop()


class Accounts:
    """The accounts as batches leave them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.amounts: dict[tuple[str, str], int] = {}
        self._read: dict[tuple[str, str], int] = {}

    def read_to(self, end: Journal) -> None:
        for table in TABLES:
            topic = f"shop.public.{table}"
            for number, until in end.get(topic, {}).items():
                start = self._read.get((topic, number), 0)
                for key, value in self._records(TopicPartition(topic, int(number)), start, until):
                    if value is not None:
                        self.amounts[topic, key.decode()] = json.loads(value)["after"]["amount"]
                self._read[topic, number] = until

    def _records(self, partition: TopicPartition, start: int, end: int) -> Iterator[tuple[bytes, Any]]:
        if start == end:
            return
        decoder = RecordDecoder(partition, start, end, columns=("key", "value"))
        for fetched in PartitionReader(self._cluster, partition, start, end):
            for part in decoder.readable_parts(fetched.batches, fetched.aborted):
                columns = part.to_pydict()  # type: ignore[union-attr]
                yield from zip(columns["key"], columns["value"], strict=True)

    @property
    def total(self) -> int:
        return sum(self.amounts.values())


@pytest.mark.timeout(200)
def test_no_batch_ends_within_a_transaction(database: Database) -> None:
    set_up(database)
    with Cluster.of(database.bootstrap) as cluster, source(database.bootstrap) as reader:
        accounts, at, batches = Accounts(cluster), reader.initialOffset(), 0
        with transfers(database), database.capturing(*TABLES, partitions=3):
            while batches < 60:
                end = reader.latestOffset(at, ReadAllAvailable())
                if end != at:
                    accounts.read_to(end)
                    assert accounts.total == TOTAL, f"batch {batches}"
                    batches, at = batches + 1, end
        database.capture(*TABLES)
        reader.prepareForTriggerAvailableNow()
        accounts.read_to(reader.latestOffset(at, ReadAllAvailable()))
        found = [amount for table in TABLES for _, amount in database.rows(table)]
        assert sorted(accounts.amounts.values()) == sorted(found)


def bank_app() -> App:
    app = App("bank")
    checking, savings = (
        app.table(f"shop.public.{table}", "id long, amount long", key="id") for table in TABLES
    )

    @app.job(into=app.topic("total", partitions=1), output_mode="update")
    def total() -> DataFrame:
        rows = checking.join(savings, on="id").changelog.df
        both = F.expr("_weight * (amount + shop_public_savings_amount)")
        return rows.agg(F.sum(both).alias("total"))

    return app


@pytest.mark.timeout(240)
def test_a_total_over_captured_tables_never_changes(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    def run() -> None:
        recorder = Recorder()
        order = RunOptions(app=bank_app(), once=True, broker=database.bootstrap, state=tmp_path)
        assert Runner(order, recorder).run() == 0, recorder.news

    set_up(database)
    with transfers(database) as committed:
        for _ in range(2):  # the capture begins again where it was, while money moves
            with database.capturing(*TABLES, partitions=3):
                wait_until(lambda: committed[0] > 20, "transfers")
                run()
    assert {row["total"] for _, row in read_topic(database.bootstrap, "total")} == {TOTAL}


STORM = """
from pyspark.sql import functions as F
from headrace import App

app = App("bank")
accounts = app.table("bank.public.accounts", "id int, amount int", key="id")
moves = app.table("bank.public.moves", "id long, payer int, payee int", key="id")


@app.job(into=app.topic("balances", partitions=1), output_mode="update")
def balances():
    owned = accounts.changes.changelog.df.selectExpr("id AS account", "_weight * amount AS amount")
    moved = moves.changes.changelog.df.filter("id > 0").selectExpr(
        "stack(2, payer, _weight, payee, -_weight) AS (account, amount)"
    )
    return owned.unionAll(moved).groupBy("account").agg(F.sum("amount").alias("amount"))


@app.job(into=app.topic("total", partitions=1), output_mode="update")
def total():
    return accounts.changes.changelog.df.agg(F.sum(F.expr("_weight * amount")).alias("total"))
"""


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_balances_fit_to_transfers_while_everything_is_killed(tmp_path: Path) -> None:
    """In each batch of the jobs, an account holds what it had, and what was moved to it."""
    with Storm(partitions=3) as storm:
        pipeline = PipelineProcess(tmp_path, STORM, HEADRACE_BROKER=storm.broker.bootstrap)
        storm.start_load()
        storm.start_capture()
        storm.await_capture()
        for number in range(8):
            pipeline.start()
            pipeline.wait_until_running("balances", "total")
            time.sleep(storm.random.uniform(5, 20))  # the moment of the next strike
            (storm.kill_capture, storm.broker.restart)[number % 2]()
            pipeline.kill()
            storm.await_capture()
        storm.end_load()
        storm.await_capture()
        pipeline.finish()
        balances = [row for _, row in read_topic(storm.broker.bootstrap, "balances")]
        assert {row["amount"] for row in balances} == {100}
        assert len(balances) >= 2 * ROWS
        assert {row["total"] for _, row in read_topic(storm.broker.bootstrap, "total")} == {100 * ROWS}
