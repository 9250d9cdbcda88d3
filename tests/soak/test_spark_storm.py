"""The whole crash matrix: kills of driver, broker and tasks at every step, with state and without."""

import random
from pathlib import Path

import pytest

from tests.broker.processes import BrokerProcess
from tests.soak.summary import RecordProperty
from tests.spark.crash_jobs import CAPITALS, COUNTS
from tests.spark.crash_matrix import STEPS, Kill, Matrix, Victim

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


RECORDS_OF_A_LIFE = 200
"""Two batches: a process always reaches the second one."""


@pytest.mark.parametrize("victim", ["driver", "broker", "task"])
@pytest.mark.parametrize("job", [CAPITALS, COUNTS])
def test_kills_at_every_step_leave_no_duplicate_and_no_gap(
    tmp_path: Path, record_property: RecordProperty, victim: Victim, job: str
) -> None:
    kills = [Kill(victim=victim, job=job, step=step, batch=1) for step in STEPS]
    with BrokerProcess(tmp_path / "data") as kafka:
        matrix = Matrix(kafka, tmp_path)
        while left := [kill for kill in kills if kill not in matrix.struck]:
            matrix.fill(RECORDS_OF_A_LIFE)
            matrix.live(*left)
            assert set(left) & set(matrix.struck), f"no step of {left} was reached"
        record_property("kills", len(matrix.struck))
        matrix.live_to_the_end()
        matrix.check()


@pytest.mark.parametrize("attempt", range(3))
def test_a_storm_of_kills_leaves_no_duplicate_and_no_gap(
    tmp_path: Path, record_property: RecordProperty, attempt: int
) -> None:
    chance = random.Random(seed := random.randrange(2**32))
    record_property("seed", seed)
    victims: list[Victim] = ["driver", "broker", "task"]
    with BrokerProcess(tmp_path / "data") as kafka:
        matrix = Matrix(kafka, tmp_path)
        for _ in range(8):
            job, step = chance.choice([CAPITALS, COUNTS]), chance.choice(STEPS)
            matrix.fill(RECORDS_OF_A_LIFE)
            matrix.live(Kill(victim=chance.choice(victims), job=job, step=step, batch=chance.randrange(2)))
        record_property("kills", len(matrix.struck))
        matrix.live_to_the_end()
        matrix.check()
