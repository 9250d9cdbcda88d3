"""Captures that are stopped, dropped and restarted; captures in separate processes."""

import json
import os
import signal
import socket
from dataclasses import replace

import pytest

from headrace.capture.capture import Capture
from headrace.capture.process import CaptureProcess
from headrace.capture.registry import capture_status, drop_capture, find_capture, list_captures, stop_capture
from headrace.capture.source import CaptureFailed, UnknownCapture
from headrace.client.cluster import Cluster
from headrace.errors import Misuse
from headrace.testing.postgres import PostgresServer
from tests.capture.database import Database
from tests.cli.terminal import wait_until

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"
TOPIC = "shop.public.t"


def test_the_status_of_a_capture_shows_its_retained_wal(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    (progress,) = list_captures(database.bootstrap)
    status = capture_status(progress, database.url)
    assert (status.name, status.tables) == ("shop", {"public.t": TOPIC})
    assert status.retained_wal_bytes is not None
    with pytest.raises(UnknownCapture, match="Known captures: shop"):
        find_capture(database.bootstrap, "other")


def test_the_stored_address_is_not_connected_to(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0)
        address = f"postgres://operator@127.0.0.1:{trap.getsockname()[1]}/shop"
        forged = replace(find_capture(database.bootstrap, "shop"), address=address)
        status = capture_status(forged, None)
        assert "set its address with --url" in status.problem
        for act in (stop_capture, drop_capture):
            with pytest.raises(Misuse, match="was not queried: set its address"):
                act(database.bootstrap, forged, None)
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_a_slot_in_another_database_is_not_dropped(database: Database, postgres: PostgresServer) -> None:
    database.run(TABLE)
    database.capture("t")
    progress = find_capture(database.bootstrap, "shop")
    with pytest.raises(Misuse, match="is not the database of the capture 'shop'"):
        drop_capture(database.bootstrap, progress, postgres.url())
    assert database.slot() is not None


def test_the_name_of_the_slot_is_not_read_from_the_topic(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    progress = find_capture(database.bootstrap, "shop")
    document = json.loads(progress.to_bytes())
    assert "headrace_shop" not in json.dumps(document)
    assert progress.slot == "headrace_shop"


def test_a_capture_is_stopped_remotely_and_continues_after_a_start(database: Database) -> None:
    database.run(TABLE)
    process = CaptureProcess(database.settings("t"), database.bootstrap, on_message=database.messages.append)
    process.start()
    wait_until(lambda: process.is_active() and "streaming" in str(database.messages), "the capture to follow")
    assert stop_capture(database.bootstrap, find_capture(database.bootstrap, "shop"), database.url)
    wait_until(lambda: not process.is_active(), "its end")
    assert "was requested to stop" in database.messages[-1]
    database.run("INSERT INTO t VALUES (1)")
    assert database.capture("t") == 1
    assert not stop_capture(database.bootstrap, find_capture(database.bootstrap, "shop"), database.url)


def test_a_new_snapshot_corrects_existing_topics(database: Database) -> None:
    database.run(TABLE, "INSERT INTO t VALUES (1), (2)")
    database.capture("t")
    database.drop()
    assert database.slot() is None
    database.run("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3)")
    database.capture("t")
    assert sorted(map(str, database.table(TOPIC))) == ["2", "3"]
    assert ("1", "d") in [(key, op) for key, op, *_ in database.events(TOPIC)]


def test_a_process_stops_cleanly_at_the_end_of_its_input(database: Database) -> None:
    database.run(TABLE)
    process = CaptureProcess(database.settings("t"), database.bootstrap, on_message=database.messages.append)
    process.start()
    wait_until(lambda: process.is_active() and "streaming" in str(database.messages), "the capture to follow")
    assert process.is_settled()
    database.run("INSERT INTO t VALUES (1)")
    wait_until(lambda: list(database.table(TOPIC)) == ["1"], "the change")
    process.ask_to_stop()
    wait_until(lambda: not process.is_active(), "its end")
    assert database.capture("t") == 0


def test_the_topics_of_all_tables_exist_before_the_first_snapshot(database: Database) -> None:
    database.run(TABLE, "CREATE TABLE u (id int)", "ALTER TABLE u REPLICA IDENTITY FULL")
    found: list[set[str]] = []

    def ready() -> None:
        with Cluster.of(database.bootstrap) as cluster:
            found.append(set(cluster.topics([TOPIC, "shop.public.u"])))
        capture.stop()

    capture = Capture(database.settings("t", "u"), database.bootstrap, on_ready=ready)
    capture.run()
    assert found == [{TOPIC, "shop.public.u"}]


def test_a_process_reports_its_error_and_whether_a_retry_may_help(database: Database) -> None:
    process = CaptureProcess(
        database.settings("nothing"), database.bootstrap, on_message=database.messages.append
    )
    process.start()
    with pytest.raises(CaptureFailed, match=r"no table public\.nothing"):
        wait_until(lambda: not process.is_active(), "its end")


def test_a_killed_capture_releases_its_slot(database: Database) -> None:
    database.run(TABLE)
    process = CaptureProcess(database.settings("t"), database.bootstrap, on_message=database.messages.append)
    process.start()
    wait_until(lambda: process.is_active() and "streaming" in str(database.messages), "the capture to follow")
    os.kill(process.pid, signal.SIGKILL)
    database.run("INSERT INTO t VALUES (1)")
    assert database.capture("t") == 1
    process.stop()
