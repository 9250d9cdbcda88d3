"""Queues through long storms: of kills, and of arbitrary courses of events."""

import random
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.broker.processes import BrokerProcess
from tests.broker.shares.test_model import Model
from tests.soak.queue_storm import QueueStorm, ride_out
from tests.soak.summary import RecordProperty

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("flush", ["os", "always"])
@pytest.mark.parametrize("attempt", range(3))
def test_a_storm_of_kills_loses_no_message_and_doubles_no_letter(
    tmp_path: Path, record_property: RecordProperty, flush: str, attempt: int
) -> None:
    storm = QueueStorm(messages=5_000, kills=20, workers=5, seed=random.randrange(2**32))
    record_property("seed", storm.seed)
    record_property("kills", storm.kills)
    with BrokerProcess(tmp_path / "data", "--flush", flush) as broker:
        ride_out(storm, broker)


def test_a_share_partition_follows_its_model_through_many_courses() -> None:
    run_state_machine_as_test(
        Model, settings=settings(max_examples=1_500, stateful_step_count=60, deadline=None)
    )
