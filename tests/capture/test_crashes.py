"""kill −9 of capture, broker and database at random moments: nothing is missing, nothing is doubled."""

import signal
import subprocess
import sys
import time

import pytest

from tests.capture.crashing import ROWS
from tests.capture.database import Database
from tests.capture.storm import Storm
from tests.cli.terminal import wait_until
from tests.soak.summary import RecordProperty


@pytest.mark.timeout(240)
def test_no_change_is_lost_or_duplicated_after_kills() -> None:
    with Storm() as storm:
        storm.start_load()
        storm.start_capture()
        # In the middle of the snapshot, as far as a moment can be hit.
        wait_until(lambda: storm.committed > 5, "the load")
        storm.kill_capture()
        storm.await_capture()
        storm.kill_capture()
        storm.await_capture()
        pid = storm.pid
        for restart in (storm.postgres.restart, storm.broker.restart):
            restart()
            storm.await_capture()
        assert storm.pid == pid, "a capture lives through restarts of others"
        storm.kill_capture()
        storm.end_load()
        storm.await_capture()
        storm.check()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_a_long_storm(record_property: RecordProperty, seed: int) -> None:
    record_property("kills", 40)
    with Storm(seed=seed) as storm:
        strikes = [storm.kill_capture, storm.postgres.restart, storm.broker.restart]
        storm.start_load()
        for _ in range(40):
            storm.start_capture()
            time.sleep(storm.random.uniform(0, 2.5))  # the moment of the next strike
            storm.random.choice(strikes)()
            storm.kill_capture()
        storm.end_load()
        storm.await_capture()
        storm.check()


def crash(database: Database, point: str, *tables: str) -> None:
    """Run a capture that is killed at some point."""
    command = [sys.executable, "-m", "tests.capture.crashing", database.url, database.bootstrap]
    done = subprocess.run([*command, ",".join(tables), point], check=False, timeout=100)
    assert done.returncode == -signal.SIGKILL


def test_a_killed_snapshot_continues_with_its_table(database: Database) -> None:
    database.run(
        "CREATE TABLE a_small (id int PRIMARY KEY)",
        "INSERT INTO a_small VALUES (1), (2)",
        "CREATE TABLE large (id int PRIMARY KEY, filler text)",
        f"INSERT INTO large SELECT g, repeat('x', 50) FROM generate_series(1, {ROWS + 1000}) g",
    )
    crash(database, "in the snapshot", "a_small", "large")
    assert database.records("shop.public.large") == []
    database.run(
        "DELETE FROM large WHERE id = 1",
        "UPDATE large SET filler = 'y' WHERE id = 2",
        f"INSERT INTO large VALUES ({ROWS + 1001}, 'z')",
        "INSERT INTO a_small VALUES (3)",
    )
    # The large table as it is now, and the one change to the table that was there already.
    assert database.capture("a_small", "large") == ROWS + 1000 + 1
    assert [(key, op) for key, op, *_ in database.events("shop.public.a_small")] == [
        ("1", "r"),
        ("2", "r"),
        ("3", "c"),
    ]
    large = database.table("shop.public.large")
    assert len(large) == ROWS + 1000
    assert "1" not in large
    assert large["2"]["filler"] == "y"


@pytest.mark.parametrize(("point", "left"), [("before the commit", 2), ("after the commit", 0)])
def test_a_transaction_is_written_once_wherever_the_capture_crashes(
    database: Database, point: str, left: int
) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    database.capture("t")
    database.commit("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    crash(database, point, "t")
    assert database.capture("t") == left
    assert [(key, op) for key, op, *_ in database.events("shop.public.t")] == [("1", "c"), ("2", "c")]
