"""kill −9 of capture, broker and database at random moments: nothing is missing, nothing is doubled."""

import time
from pathlib import Path

import pytest

from tests.capture.storm import Storm
from tests.cli.terminal import wait_until


@pytest.mark.timeout(240)
def test_nothing_is_missing_or_doubled_after_kills(tmp_path: Path) -> None:
    with Storm(tmp_path) as storm:
        storm.start_load()
        storm.start_capture()
        # In the middle of the snapshot, as far as a moment can be hit.
        wait_until(lambda: storm.committed > 5, "the load")
        storm.kill_capture()
        for strike in (storm.kill_capture, storm.postgres.restart, storm.broker.restart, storm.kill_capture):
            storm.await_capture()
            strike()
        storm.end_load()
        storm.await_capture()
        storm.check()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_a_long_storm(tmp_path: Path, seed: int) -> None:
    with Storm(tmp_path, seed=seed) as storm:
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
