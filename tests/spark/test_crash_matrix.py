"""A few kills between the steps of a micro-batch; `tests/soak/test_spark_storm.py` has many more."""

from pathlib import Path

import pytest

from tests.broker.processes import BrokerProcess
from tests.spark.crash_jobs import CAPITALS, COUNTS
from tests.spark.crash_matrix import Kill, Matrix


@pytest.mark.timeout(600)
def test_what_dies_between_two_steps_leaves_no_duplicate_and_no_gap(tmp_path: Path) -> None:
    kills = [
        Kill(victim="driver", job=CAPITALS, step="written", batch=0),
        Kill(victim="broker", job=COUNTS, step="marked", batch=1),
    ]
    with BrokerProcess(tmp_path / "data") as kafka:
        matrix = Matrix(kafka, tmp_path)
        for kill in kills:
            matrix.live(kill)
        assert matrix.struck == kills
        matrix.live_to_the_end()
        matrix.check()
