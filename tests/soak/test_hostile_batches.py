"""Minutes of record batches that lie, against one broker with share groups."""

import random
from pathlib import Path

import pytest

from tests.broker.processes import BrokerProcess
from tests.broker.shares.hostile_batches import besiege

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def test_hostile_batches_do_not_stop_a_queue_for_minutes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        for _ in range(60):
            besiege(kafka, rounds=200, seed=random.randrange(2**32))
        assert "Traceback" not in kafka.errors, kafka.errors[-4000:]
