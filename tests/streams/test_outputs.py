"""Jobs with outputs besides topics: each row once, whatever happens."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace import App, files, postgres
from headrace.errors import Misuse
from headrace.streams.pipeline import load_app
from headrace.streams.rebuild import Rebuild
from headrace.streams.run_context import RunContext
from headrace.streams.supervisor import State
from headrace.testing import run
from headrace.testing.postgres import PostgresServer
from tests.cli.terminal import wait_until
from tests.streams.workshop import Workshop

ORDERS = "product string, amount double"


def asked(database: str, query: str) -> list[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def orders(*amounts: float | None) -> dict[str, list[dict[str, Any]]]:
    return {"orders": [{"product": f"p{n % 3}", "amount": amount} for n, amount in enumerate(amounts)]}


def test_a_running_sum_is_kept_in_a_table(app: App, database: str) -> None:
    stream = app.stream("orders", ORDERS)

    @app.job(into=postgres("revenue", key="product", url=database))
    def revenue():
        return stream.df.groupBy("product").agg(F.sum("amount").alias("revenue"))

    assert run(revenue, [orders(1, 2, 3), orders(10, 20)]) == []
    assert asked(database, "SELECT product, revenue FROM revenue ORDER BY 1") == [
        ("p0", 11.0),
        ("p1", 22.0),
        ("p2", 3.0),
    ]


@pytest.mark.parametrize("step", ["delivered", pytest.param("committed", marks=pytest.mark.soak)])
def test_a_repeated_batch_that_its_only_sink_has_still_computes_its_state(
    app: App, database: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("headrace.streams.outputs.INLINE_BYTES", 0)  # tasks copy all rows
    stream = app.stream("orders", ORDERS)

    @app.job(into=postgres("revenue", key="product", url=database))
    def revenue():
        return stream.df.groupBy("product").agg(F.sum("amount").alias("revenue"))

    run(revenue, [orders(1, 2, 3), orders(10, 20)], crash=(step, 0))
    assert asked(database, "SELECT product, revenue FROM revenue ORDER BY 1") == [
        ("p0", 11.0),
        ("p1", 22.0),
        ("p2", 3.0),
    ]
    assert asked(database, "SELECT relname FROM pg_class WHERE relname ~ 'headrace_staging'") == []


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_files_have_each_row_once_and_spark_reads_them(
    app: App, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr("headrace.streams.outputs.INLINE_BYTES", inline_bytes)
    stream = app.stream("orders", "product string, amount double, at timestamp")
    lake = tmp_path / "lake"

    @app.job(into=files(lake, partition_by="product"))
    def archived():
        return stream.df

    at = "2026-01-01T12:00:00.000005Z"
    parts = [
        {"orders": [{"product": f"p{n % 2}", "amount": n, "at": at} for n in part]}
        for part in [(1, 2, 3), (4, 5)]
    ]
    run(archived, parts, crash=("delivered", 1))
    rows = spark.read.parquet(str(lake)).withColumn("at", F.col("at").cast("string"))
    rows = rows.orderBy("amount").collect()
    assert [(row.product, row.amount) for row in rows] == [(f"p{n % 2}", n) for n in range(1, 6)]
    assert {row["at"] for row in rows} == {"2026-01-01 12:00:00.000005"}


@dataclass(frozen=True)
class KillsItsTask:
    """A sink whose task is killed once, when its rows are copied and its token is not returned."""

    sink: Any
    killed: Path
    name: str = "postgres log"
    reads_staged_rows: bool = True

    def open(self, context: Any) -> Any:
        return self.sink.open(context)

    def discard(self, context: Any, keep: Any) -> None:
        self.sink.discard(context, keep)

    def open_stager(self, context: Any) -> Any:
        stager, killed = self.sink.open_stager(context), self.killed
        stage = stager.stage

        def stage_and_die(rows: Any) -> Any:
            token = stage(rows)
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return token

        stager.stage = stage_and_die
        return stager


@pytest.mark.timeout(240)
def test_a_task_that_is_killed_between_copy_and_token_leaves_each_row_once(
    workshop: Workshop, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.streams.outputs.INLINE_BYTES", 0)
    app = App("shop")
    numbers = app.stream("numbers", "n int")
    killed = workshop.state / "killed"
    sinks = [KillsItsTask(postgres("log", url=database), killed), postgres("second", url=database)]
    app.job(into=sinks, name="copied")(lambda: numbers.df)
    workshop.write("numbers", *({"n": n} for n in range(50)))

    def held(table: str) -> list[int]:
        if asked(database, f"SELECT to_regclass('{table}')") == [(None,)]:
            return []
        return sorted(n for (n,) in asked(database, f"SELECT n FROM {table}"))

    with workshop.running(app):
        wait_until(lambda: held("second") == list(range(50)), "the rows", deadline_s=200)
    assert killed.exists()
    assert held("log") == list(range(50))
    assert asked(database, "SELECT relname FROM pg_class WHERE relname ~ 'headrace_staging'") == []


SELDOM = [
    pytest.param(step, marks=pytest.mark.soak)
    for step in ("begun", "staged", "written", "marked", "committed")
]


@pytest.mark.parametrize("step", ["delivered", *SELDOM])
def test_a_crash_after_any_step_leaves_each_row_once_in_every_output(
    app: App, database: str, step: str
) -> None:
    asked(database, "CREATE TABLE log (product text, amount float8 CHECK (amount <> 4))")
    stream = app.stream("orders", ORDERS)

    @app.job(into=[app.topic("copy"), postgres("log", url=database), app.view("newest", key="product")])
    def copied():
        return stream.df

    result = run(copied, [orders(1, 2, 3), orders(4, 5)], crash=(step, 1))
    assert [row["amount"] for row in result] == [1, 2, 3, 4, 5]
    assert asked(database, "SELECT amount FROM log ORDER BY 1") == [(1,), (2,), (3,), (5,)]
    (letter,) = result.dead
    assert letter["target"] == "postgres log"
    assert letter["value"] == b'{"product": "p0", "amount": 4.0}'
    assert 'violates check constraint "log_amount_check"' in letter["reason"]


@pytest.mark.timeout(240)
def test_a_server_that_is_killed_is_waited_for_and_a_stop_does_not_wait(
    workshop: Workshop, postgres_server: PostgresServer, database: str
) -> None:
    app = App("shop")
    numbers = app.stream("numbers", "n int")
    log = postgres("log", url=database.replace("postgres@", "postgres:s3cret@"))
    app.job(into=[log, app.topic("copy", partitions=1)], name="copied")(lambda: numbers.df)

    def held() -> list[int]:
        return sorted(n for (n,) in asked(database, "SELECT n FROM log"))

    def waits() -> bool:
        return any(report.state == "held up" for report in workshop.recorder.reports)

    workshop.write("numbers", {"n": 1})
    with workshop.running(app):
        wait_until(lambda: bool(workshop.read("copy")), "the first row", deadline_s=100)
        postgres_server.kill()
        workshop.write("numbers", {"n": 2})
        wait_until(waits, "the job to wait", deadline_s=60)
        (report,) = workshop.recorder.reports
        assert report.reason.startswith("postgres log: ")
        assert "; retrying in " in report.reason
        assert "s3cret" not in report.reason
        postgres_server.start()
        wait_until(lambda: held() == [1, 2], "the second row", deadline_s=60)
        wait_until(lambda: not waits(), "the job to go on", deadline_s=60)
        postgres_server.kill()
        workshop.write("numbers", {"n": 3})
        wait_until(waits, "the job to wait again", deadline_s=60)
    postgres_server.start()
    assert workshop.run_once(app) == 0
    assert held() == [1, 2, 3]
    assert sorted(json.loads(value)["n"] for value in workshop.read("copy")) == [1, 2, 3]
    files = [file for file in workshop.state.rglob("*") if file.is_file()]
    assert any(file.name == "job.json" for file in files)
    assert not [file for file in files if b"s3cret" in file.read_bytes()]


NUMBERS = range(400)
PIPELINE = """
from headrace import App, postgres

app = App("shop")
numbers = app.stream("numbers", "n int", max_records=100)
app.job(into=[postgres("log"), app.topic("copy", partitions=1)], name="copied")(lambda: numbers.df)
"""


@pytest.mark.timeout(240)
def test_a_job_that_is_killed_as_a_whole_is_finished_by_the_next_run(
    workshop: Workshop, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_POSTGRES", database)
    asked(database, "CREATE TABLE log (n int)")
    workshop.write("numbers", *({"n": n} for n in NUMBERS))
    file = workshop.state / "pipeline.py"
    file.write_text(PIPELINE)
    command = [*(sys.executable, "-m", "headrace.cli", "run", str(file)), "--broker", workshop.bootstrap]
    with subprocess.Popen(
        [*command, "--state", str(workshop.state)], stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            wait_until(lambda: asked(database, "SELECT n FROM log LIMIT 1"), "a batch", deadline_s=100)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the Java process too
    left = len(NUMBERS) - len(asked(database, "SELECT n FROM log"))
    assert workshop.run_once(load_app(file)) == 0
    assert asked(database, "SELECT n FROM log ORDER BY n") == [(n,) for n in NUMBERS]
    assert sorted(json.loads(value)["n"] for value in workshop.read("copy")) == list(NUMBERS)
    assert left > 0  # it was killed on its way


def test_a_job_whose_table_cannot_take_its_rows_is_given_up_before_anything_is_written(
    workshop: Workshop, database: str
) -> None:
    asked(database, "CREATE TABLE numbers (n boolean)")
    app = App("shop")
    numbers = app.stream("numbers", "n int")
    app.job(into=[postgres("numbers", url=database), app.topic("copy")], name="copied")(lambda: numbers.df)
    workshop.write("numbers", {"n": 1})
    assert workshop.run_once(app) == 1
    news = workshop.recorder.news[-1]
    assert (news.state, news.wait_s) == (State.FAILED, None)
    assert "its column n is of type boolean, and the rows have integer" in news.text
    assert workshop.read("copy") == []


def test_a_view_that_is_not_the_only_output_cannot_be_rebuilt_beside_it(app: App, tmp_path: Path) -> None:
    stream = app.stream("orders", ORDERS)
    into = [app.view("newest", key="product"), postgres("newest", key="product")]
    job = app.job(into=into, name="newest")(lambda: stream.df)
    run_context = RunContext(spark=None, bootstrap="", cluster=None, state=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="writes newest, postgres newest, and not a view alone"):
        Rebuild(job, run_context, once=True)


def test_outputs_that_make_no_sense_are_refused_when_the_job_is_defined(app: App) -> None:
    for into, message in [
        ("revenue", "a job writes into a topic, a view or a sink, or a list of them"),
        ([], "a job writes into a topic, a view or a sink"),
        ([app.topic("a"), "b"], "into='b': a job writes"),
        ([app.topic("a"), app.view("a", key="x")], "'a' is there twice"),
    ]:
        with pytest.raises(Misuse, match=message):
            app.job(into=into)  # type: ignore[arg-type]  what is wrong with it
