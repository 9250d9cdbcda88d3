"""Captures that are stopped, dropped, and begun anew; captures in processes of their own."""

import json
import os
import signal
import socket
from dataclasses import replace

import pytest

from headrace.capture.capture import Capture
from headrace.capture.errors import CaptureFailed, UnknownCapture
from headrace.capture.process import CaptureProcess
from headrace.capture.registry import drop_capture, find_capture, list_captures, status_of, stop_capture
from headrace.client.cluster import Cluster
from headrace.errors import Misuse
from headrace.testing.postgres import PostgresServer
from tests.capture.database import Database
from tests.cli.terminal import wait_until

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"
TOPIC = "shop.public.t"


def test_a_capture_is_found_with_what_it_holds(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    (progress,) = list_captures(database.bootstrap)
    status = status_of(progress, database.url)
    assert (status.name, status.tables) == ("shop", {"public.t": TOPIC})
    assert status.wal_held_bytes is not None
    with pytest.raises(UnknownCapture, match="there are: shop"):
        find_capture(database.bootstrap, "other")


def test_the_address_that_the_topic_names_is_not_connected_to(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0)
        address = f"postgres://operator@127.0.0.1:{trap.getsockname()[1]}/shop"
        forged = replace(find_capture(database.bootstrap, "shop"), address=address)
        status = status_of(forged, None)
        assert "give its address with --url" in status.problem
        for act in (stop_capture, drop_capture):
            with pytest.raises(Misuse, match="was not asked: give its address"):
                act(database.bootstrap, forged, None)
        with pytest.raises(BlockingIOError):
            trap.accept()


def test_a_slot_is_not_dropped_in_another_database(database: Database, postgres: PostgresServer) -> None:
    database.run(TABLE)
    database.capture("t")
    progress = find_capture(database.bootstrap, "shop")
    with pytest.raises(Misuse, match="is not the database of the capture 'shop'"):
        drop_capture(database.bootstrap, progress, postgres.url())
    assert database.slot() is not None


def test_the_name_of_the_slot_is_not_taken_from_the_topic(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    progress = find_capture(database.bootstrap, "shop")
    document = json.loads(progress.to_bytes())
    assert "headrace_shop" not in json.dumps(document)
    assert progress.slot == "headrace_shop"


def test_a_capture_is_stopped_from_elsewhere_and_goes_on_when_it_is_started_again(database: Database) -> None:
    database.run(TABLE)
    process = CaptureProcess(database.settings("t"), database.bootstrap, tell=database.told.append)
    process.start()
    wait_until(lambda: process.is_active() and "follows" in str(database.told), "the capture to follow")
    assert stop_capture(database.bootstrap, find_capture(database.bootstrap, "shop"), database.url)
    wait_until(lambda: not process.is_active(), "its end")
    assert "was asked to stop" in database.told[-1]
    database.run("INSERT INTO t VALUES (1)")
    assert database.capture("t") == 1
    assert not stop_capture(database.bootstrap, find_capture(database.bootstrap, "shop"), database.url)


def test_a_capture_begun_anew_corrects_what_its_topics_hold(database: Database) -> None:
    database.run(TABLE, "INSERT INTO t VALUES (1), (2)")
    database.capture("t")
    database.drop()
    assert database.slot() is None
    database.run("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3)")
    database.capture("t")
    assert sorted(map(str, database.table(TOPIC))) == ["2", "3"]
    assert ("1", "d") in [(key, op) for key, op, *_ in database.events(TOPIC)]


def test_a_process_ends_cleanly_when_its_standard_input_does(database: Database) -> None:
    database.run(TABLE)
    process = CaptureProcess(database.settings("t"), database.bootstrap, tell=database.told.append)
    process.start()
    wait_until(lambda: process.is_active() and "follows" in str(database.told), "the capture to follow")
    assert process.is_settled()
    database.run("INSERT INTO t VALUES (1)")
    wait_until(lambda: list(database.table(TOPIC)) == ["1"], "the change")
    process.ask_to_stop()
    wait_until(lambda: not process.is_active(), "its end")
    assert database.capture("t") == 0


def test_the_topics_of_all_tables_are_there_before_the_first_snapshot(database: Database) -> None:
    database.run(TABLE, "CREATE TABLE u (id int)", "ALTER TABLE u REPLICA IDENTITY FULL")
    found: list[set[str]] = []

    def ready() -> None:
        with Cluster.of(database.bootstrap) as cluster:
            found.append(set(cluster.topics([TOPIC, "shop.public.u"])))
        capture.stop()

    capture = Capture(database.settings("t", "u"), database.bootstrap, ready=ready)
    capture.run()
    assert found == [{TOPIC, "shop.public.u"}]


def test_a_process_says_why_it_failed_and_whether_there_is_hope(database: Database) -> None:
    process = CaptureProcess(database.settings("nothing"), database.bootstrap, tell=database.told.append)
    process.start()
    with pytest.raises(CaptureFailed, match=r"no table public\.nothing"):
        wait_until(lambda: not process.is_active(), "its end")


def test_a_capture_that_is_killed_leaves_its_slot_to_the_next(database: Database) -> None:
    database.run(TABLE)
    process = CaptureProcess(database.settings("t"), database.bootstrap, tell=database.told.append)
    process.start()
    wait_until(lambda: process.is_active() and "follows" in str(database.told), "the capture to follow")
    os.kill(process.pid, signal.SIGKILL)
    database.run("INSERT INTO t VALUES (1)")
    assert database.capture("t") == 1
    process.stop()
