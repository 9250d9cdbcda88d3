"""Time in jobs: what moves it, what it closes, and that neither rest nor a backlog loses events."""

import doctest
import importlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, tumbling
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic
from headrace.durations import interval_of, milliseconds_of, seconds_of
from headrace.engine.logical import current_plan
from headrace.errors import Misuse
from headrace.spark.event_time import TimeHints
from headrace.spark.transactional_sink import Batch
from headrace.streams import stream as stream_module
from headrace.streams.job import Job
from headrace.streams.job_run import JobRun
from headrace.streams.rows import Rows
from headrace.streams.run_context import RunContext
from headrace.streams.source import EventTimeSkewMonitor
from headrace.streams.stream import Stream
from headrace.testing import EmbeddedBroker, run

pytestmark = pytest.mark.timeout(240)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = "product string, amount double, at timestamp"


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def order(minute: float, product: str = "tea", amount: float = 1.0) -> dict[str, Any]:
    return {"product": product, "amount": amount, "at": at(minute)}


def orders_of(app: App, **options: Any) -> Stream:
    return app.stream("orders", SCHEMA, event_time="at", watermark_delay="1 minute", **options)


def counted(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("at", "1 minute")).count()
    return counts.select(F.col("window.start").alias("start"), "count")


def minutes(rows: list[dict[str, Any]]) -> dict[float, int]:
    return {(row["start"] - NOON) / timedelta(minutes=1): row["count"] for row in rows}


class Seen:
    """The batches of a job, as something that is done before each of them sees them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.watermarks: list[tuple[float, float]] = []
        """What is late and what is closed, in minutes after noon."""

    def watch(self) -> None:
        current_plan("a test").hooks.before(self._note)

    def _note(self, batch: Batch) -> None:
        noon_ms = NOON.timestamp() * 1000
        times = [(time_ms - noon_ms) / 60_000 for time_ms in (batch.late_ms, batch.watermark_ms)]
        self.watermarks.append((round(times[0], 3), round(times[1], 3)))
        assert batch.start is not None
        self.batches.append(batch)


def test_rows_that_a_filter_leaves_out_move_time_on_all_the_same(app: App) -> None:
    orders = orders_of(app)

    @app.job(into=app.topic("counts"))
    def counts() -> DataFrame:
        return counted(orders.df.filter("product = 'tea'"))

    assert minutes(run(counts, {"orders": [order(0), order(0.5), order(9, "cup")]})) == {0: 2}


def test_a_key_that_a_join_cannot_match_moves_time_on_all_the_same(app: App) -> None:
    orders = orders_of(app)
    payments = app.stream(
        "payments", "product string, paid_at timestamp", event_time="paid_at", watermark_delay="0 seconds"
    )

    @app.job(into=app.topic("paid"))
    def paid() -> DataFrame:
        near = "o.product = p.product and p.paid_at between o.at and o.at + interval 1 minute"
        joined = orders.df.alias("o").join(payments.df.alias("p"), F.expr(near), "left")
        return joined.select("o.at", F.col("p.paid_at").isNotNull().alias("is_paid"))

    moved_by_null = [order(0), {"product": None, "amount": 1.0, "at": at(9)}]
    beyond = [{"product": None, "paid_at": at(9)}]
    rows = run(paid, {"orders": moved_by_null, "payments": beyond})
    assert {"at": at(0), "is_paid": False} in rows


@pytest.fixture(scope="module")
def followed(spark: SparkSession) -> tuple[Seen, list[dict[str, Any]]]:
    """The batches and the rows of a job that follows a topic; it runs twice, over something new each time."""
    app = App("shop")
    orders, seen, users = orders_of(app), Seen(), [{"id": 1}, {"id": 2}]

    @app.job(into=app.topic("teas"))
    def teas() -> DataFrame:
        seen.watch()
        current_plan("a test").hooks.follow("users")
        return orders.df.filter("product = 'tea'")

    parts = [{"orders": [order(5)], "users": users}, {"orders": [order(3), order(8)], "users": users}]
    return seen, run(teas, parts, spark=spark)


def test_what_the_last_rows_close_is_closed_for_all_operators(
    followed: tuple[Seen, list[dict[str, Any]]],
) -> None:
    """A batch without rows follows, in which the watermark is that of the last rows."""
    seen, rows = followed
    assert [row["at"] for row in rows] == [at(5), at(3), at(8)]
    assert [closed for _, closed in seen.watermarks[1:]] == [4, 4, 7]
    assert [late for late, _ in seen.watermarks[2:]] == [4, 4]


def test_a_followed_topic_is_in_the_offsets_of_each_batch(
    followed: tuple[Seen, list[dict[str, Any]]],
) -> None:
    first, *_, last = followed[0].batches
    assert (first.start["users"], first.end["users"]) == ({"0": 0}, {"0": 2})
    assert last.start["users"] == last.end["users"]
    assert last.end == {"orders": {"0": 3}, "users": {"0": 4}}


def test_a_crash_in_the_batch_without_rows_changes_nothing(app: App) -> None:
    orders = orders_of(app)

    @app.job(into=app.topic("counts"))
    def counts() -> DataFrame:
        return counted(orders.df)

    assert minutes(run(counts, {"orders": [order(0), order(9)]}, crash=("written", 1))) == {0: 1}


def test_a_union_does_not_wait_for_a_stream_that_is_idle(app: App) -> None:
    orders = orders_of(app)
    returns = app.stream("returns", SCHEMA, event_time="at", watermark_delay="1 minute", idle_timeout="1 ms")

    @app.job(into=app.topic("counts"))
    def counts() -> DataFrame:
        return counted(orders.df.unionByName(returns.df))

    assert minutes(run(counts, {"orders": [order(0), order(9)], "returns": []})) == {0: 1}


def test_time_can_be_that_of_the_fastest_stream(app: App) -> None:
    orders = orders_of(app)
    returns = app.stream("returns", SCHEMA, event_time="at", watermark_delay="1 minute")
    parts = [{"orders": [order(0), order(10)], "returns": [order(0)]}, {"returns": [order(5)]}]

    @app.job(into=app.topic("counts"), watermark_policy="max")
    def fastest() -> DataFrame:
        return counted(orders.df.unionByName(returns.df))

    rows = run(fastest, parts)
    assert (minutes(rows), rows.dropped) == ({0: 2}, 1)  # an order at 10 closes what the returns are at


def test_a_quiet_stream_closes_its_windows_by_the_clock(app: App) -> None:
    orders = app.stream("orders", SCHEMA, event_time="at", watermark_delay="0 seconds", idle_timeout="1 ms")

    @app.job(into=app.topic("counts"))
    def counts() -> DataFrame:
        windows = orders.df.groupBy(F.window("at", "1 millisecond")).count()
        return windows.select(F.col("window.start").alias("start"), "count")

    rows = run(counts, {"orders": [order(0), order(0), b"no JSON"]})
    assert rows == [{"start": at(0), "count": 2}], "the heartbeat itself is in no window"
    assert [letter["value"] for letter in rows.dead] == [b"no JSON"]


def test_windows_of_the_time_of_records_close_when_the_input_stops(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "MIN_IDLE_MS", 1)
    orders = app.stream(
        "orders", SCHEMA, event_time="_timestamp", watermark_delay="0 s", metadata=["timestamp"]
    )

    @app.job(into=app.topic("counts"))
    def counts() -> Rows:
        return orders.window(tumbling("1 ms")).agg(F.count("*").alias("orders"))

    rows = run(counts, {"orders": [(None, order(0), at(0)), (None, order(1), at(0))]})
    assert [(row["window_start"], row["orders"]) for row in rows] == [(at(0), 2)]
    assert app.stream("clicks", SCHEMA, event_time="at", watermark_delay="1 ms").idles_after_ms is None


class Bench:
    """A broker with topics of several partitions, and jobs that run over what is there."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, state: Path) -> None:
        self.cluster = Cluster.of(broker.bootstrap)
        self.run_context = RunContext(
            spark=spark, bootstrap=broker.bootstrap, cluster=self.cluster, state=state
        )

    def write(self, topic: str, partitions: list[list[float]], *, records_at: float | None = None) -> None:
        """Events at these minutes after noon; the records have the times of their events, unless told."""
        kept = {"retention.ms": "-1"}  # the records are old, and the broker would be right to remove them
        self.run_context.provide([NewTopic(name=topic, partitions=len(partitions), configs=kept)])
        producer = Producer({"bootstrap.servers": self.run_context.bootstrap})
        for number, times in enumerate(partitions):
            for minute in times:
                value = json.dumps({"product": topic, "amount": 1.0, "at": at(minute).isoformat()})
                moment = at(minute if records_at is None else records_at)
                moment_ms = round(moment.timestamp() * 1000)
                producer.produce(topic, value, partition=number, timestamp=moment_ms)
        assert producer.flush(100) == 0

    def run(self, job: Job) -> JobRun:
        job_run = JobRun(job, self.run_context, once=True)
        job_run.start()
        while job_run.is_active():
            time.sleep(0.01)
        return job_run

    def read(self, topic: str) -> list[dict[str, Any]]:
        reader = self.run_context.spark.read.format("headrace").option("subscribe", topic)
        rows = reader.option("kafka.bootstrap.servers", self.run_context.bootstrap).load().collect()
        return [json.loads(row["value"]) for row in rows]


@pytest.fixture
def bench(spark: SparkSession, headrace_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(spark, headrace_broker, tmp_path)
    yield bench
    bench.cluster.close()


@contextmanager
def catching_up(app: App, name: str, topics: list[str], max_records: int) -> Iterator[Job]:
    streams = [
        app.stream(topic, SCHEMA, event_time="at", watermark_delay="10 seconds", max_records=max_records)
        for topic in topics
    ]

    @app.job(into=app.topic(name), name=name)
    def counts() -> DataFrame:
        frames = [stream.df for stream in streams]
        return counted(frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1]))

    yield counts


def test_catching_up_makes_nothing_late(app: App, bench: Bench) -> None:
    """Partitions of very different size, one of them an hour ahead."""
    partitions: list[list[float]] = [
        [n / 10 for n in range(600)],
        [float(n) for n in range(60)],
        [60 + n / 2 for n in range(120)],
        [],
    ]
    bench.write("orders", partitions)
    with catching_up(app, "counts", ["orders"], 300) as job:
        done = bench.run(job)
    expected = Counter(int(minute) for times in partitions for minute in times)
    del expected[119]  # the last minute stays open
    found = {row["start"]: row["count"] for row in bench.read("counts")}
    assert found == {_text(minute): count for minute, count in expected.items()}
    assert done.metrics.late == 0
    assert done.metrics.batches >= 780 / 300


def test_catching_up_with_two_topics_makes_nothing_late(app: App, bench: Bench) -> None:
    bench.write("orders", [[n / 5 for n in range(300)], [n / 2 for n in range(120)]])
    bench.write("returns", [[n / 3 for n in range(180)]])
    with catching_up(app, "counts_of_two", ["orders", "returns"], 300) as job:
        done = bench.run(job)
    found = {row["start"]: row["count"] for row in bench.read("counts_of_two")}
    assert found == {_text(minute): 10 for minute in range(59)}
    assert done.metrics.late == 0


def _text(minute: int) -> str:
    return at(minute).strftime("%Y-%m-%dT%H:%M:%S.000000Z")


def test_event_times_that_stray_from_the_times_of_records_are_told_once(
    app: App, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write("imported", [[n / 10 for n in range(300)]], records_at=600.0)
    with (
        catching_up(app, "imports", ["imported"], 100) as job,
        caplog.at_level(logging.WARNING, "headrace.streams"),
    ):
        bench.run(job)
    assert caplog.text.count("the times of their records") == 1
    assert "event times (at) are behind" in caplog.text


@pytest.mark.parametrize(
    ("watermarks", "streams", "said"),
    [
        ((0, 9_000, 19_000, 29_000), 1, []),
        ((0, 10_001, 40_000, 60_000), 1, ["ahead of"]),
        ((0, 10_001, 40_000, 60_000), 2, ["ahead of"]),
        ((0, 7_000, 7_999, 7_999), 1, ["behind"]),
        # Of several streams the slowest has the watermark: which one is behind it does not say.
        ((0, 7_000, 7_999, 7_999), 2, []),
    ],
)
def test_event_times_stray_when_the_watermark_is_not_near_the_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, watermarks: list[int], streams: int, said: list[str]
) -> None:
    """Records are cut at 10, 20, 30 and 40 seconds, and events are waited for by one."""
    stream = App("shop").stream("orders", SCHEMA, event_time="at", watermark_delay="1 second")
    monitor = EventTimeSkewMonitor(stream, str(tmp_path), is_alone=streams == 1)
    with caplog.at_level(logging.WARNING, "headrace.streams"):
        for batch, watermark_ms in enumerate(watermarks):
            TimeHints(tmp_path).write("horizon.orders", {"time_ms": 10_000 * (batch + 1)})
            monitor.check(SimpleNamespace(watermark_ms=watermark_ms))  # type: ignore[arg-type]
    assert [record.args[2] for record in caplog.records if isinstance(record.args, tuple)] == said


def test_a_job_at_rest_stays_quiet(app: App, bench: Bench) -> None:
    bench.write("orders", [[0, 5]])
    with catching_up(app, "quiet_counts", ["orders"], 100) as job:
        offsets = Path(bench.run(job).folder.checkpoint) / "offsets"
        planned = {path.name for path in offsets.iterdir()}
        assert planned == {"0", "1"}, "the rows, and the batch that closes windows"
        bench.run(job)
        assert {path.name for path in offsets.iterdir()} == planned


@pytest.mark.parametrize("module", ["spark.event_time", "streams.source", "streams.clocks", "durations"])
def test_the_examples_of_a_module_hold(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"headrace.{module}"))
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_durations_are_read_in_one_way_everywhere() -> None:
    assert seconds_of("10 minutes") == 600
    assert milliseconds_of("1 hour 30 minutes") == 5_400_000
    assert milliseconds_of(" 2h, 3 Min 4s ") == 7_384_000
    assert interval_of("500 ms") == "500 milliseconds"
    for wrong in (
        "",
        "soon",
        "10",
        "minutes",
        "-1 minute",
        "1.5 hours",
        "1 month",
        "3 minutes or so",
        "2 aeons",
    ):
        with pytest.raises(Misuse, match='such as "10 minutes"'):
            milliseconds_of(wrong)
    with pytest.raises(Misuse, match="watermark_delay is '1 month'"):
        App("shop").stream("t", "at timestamp", event_time="at", watermark_delay="1 month")
    with pytest.raises(Misuse, match="more than a hundred years"):
        milliseconds_of("99999 weeks")


def test_idle_after_is_about_event_time() -> None:
    with pytest.raises(Misuse, match="declare event_time and watermark_delay too"):
        App("shop").stream("t", "a int", idle_timeout="1 minute")
