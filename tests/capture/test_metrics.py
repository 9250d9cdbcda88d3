"""The metrics of a capture of a real PostgreSQL."""

from headrace.capture.metrics import METRICS, CaptureMetricsSource
from headrace.capture.process import CaptureProcess
from headrace.metrics.server import MetricsServer
from tests.capture.database import Database
from tests.cli.terminal import wait_until
from tests.metrics.pages import FREE, get, scraped, value

NAME = {"capture": "shop"}
TABLE = {"capture": "shop", "table": "public.users"}


def test_a_capture_counts_its_snapshot_its_transactions_and_its_lag(database: Database) -> None:
    database.run("CREATE TABLE users (id bigint PRIMARY KEY)", "INSERT INTO users VALUES (1), (2)")
    with database.capturing("users") as capture:
        database.commit("INSERT INTO users VALUES (3)", "INSERT INTO users VALUES (4)")
        database.run("DELETE FROM users WHERE id = 1")
        wait_until(lambda: capture.metrics.transactions == 2, "two transactions")
        with MetricsServer(FREE, CaptureMetricsSource(capture.metrics)) as server:
            page = f"http://{server.address}"
            samples = scraped(page)
            ready, (_, _, text) = get(f"{page}/health/ready")[0], get(f"{page}/metrics")
    assert value(samples, "headrace_capture_snapshot_scanned_rows", **TABLE) == 2
    assert value(samples, "headrace_capture_snapshot_table_rows", **TABLE) == 2
    assert value(samples, "headrace_capture_snapshot_running", **NAME) == 0
    assert value(samples, "headrace_capture_committed_transactions_total", **NAME) == 2
    assert value(samples, "headrace_capture_events_total", **NAME) == 2 + 2 + 2  # a delete has a tombstone
    assert 0 <= (value(samples, "headrace_capture_behind_source_seconds", **NAME) or 0) < 1000
    assert (value(samples, "headrace_capture_connected", **NAME), ready) == (1, 200)
    assert not capture.metrics.is_connected
    assert all(f"# TYPE {metric.name} {metric.kind.value}" in text for metric in METRICS)


def test_the_wal_that_the_slot_retains_is_known_when_a_capture_starts_again(database: Database) -> None:
    database.run("CREATE TABLE users (id bigint PRIMARY KEY)")
    database.capture("users")
    with database.capturing("users") as capture:
        assert capture.metrics.retained_wal_bytes is not None
        assert capture.metrics.lag_bytes is not None


def test_a_capture_in_its_own_process_sends_its_metrics(database: Database) -> None:
    database.run("CREATE TABLE users (id bigint PRIMARY KEY)", "INSERT INTO users VALUES (1), (2)")
    process = CaptureProcess(
        database.settings("users"),
        database.bootstrap,
        on_message=database.messages.append,
        sends_metrics=True,
    )
    process.start()
    try:
        wait_until(lambda: process.is_active() and process.metrics.records == 2, "the metrics")
        assert process.metrics.snapshots["public.users"] in ((2, 2), [2, 2])
        assert process.metrics.is_connected
    finally:
        process.stop()
    assert not process.metrics.is_connected
