"""The whole crash matrix: everyone dies at every step of a batch, of a job with state and of one without."""

import random
from pathlib import Path

import pytest

from tests.broker.processes import BrokerProcess
from tests.soak.summary import RecordProperty
from tests.spark.crash_jobs import CAPITALS, COUNTS
from tests.spark.crash_matrix import STEPS, Kill, Matrix, Victim

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("victim", ["driver", "broker", "task"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("job", [CAPITALS, COUNTS])
def test_a_kill_at_a_step_leaves_no_duplicate_and_no_gap(
    tmp_path: Path, record_property: RecordProperty, victim: Victim, step: str, job: str
) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        matrix = Matrix(kafka, tmp_path)
        matrix.live(Kill(victim=victim, job=job, step=step, batch=1))
        assert matrix.struck
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
            batch = chance.randrange(4)
            matrix.live(Kill(victim=chance.choice(victims), job=job, step=step, batch=batch))
        record_property("kills", len(matrix.struck))
        matrix.live_to_the_end()
        matrix.check()
