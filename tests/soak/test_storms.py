"""The long storms: minutes of kill −9."""

import random
from pathlib import Path

import pytest

from tests.broker.processes import BrokerProcess
from tests.soak.copying import Plan, assert_copied_exactly_once, copy_under_fire
from tests.soak.kill_storm import PARTITIONS, TOPIC, Storm, read_all, ride_out
from tests.soak.summary import RecordProperty

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("flush", ["os", "interval", "always"])
def test_every_acknowledged_record_is_read_back_once_and_in_order(
    tmp_path: Path, record_property: RecordProperty, flush: str
) -> None:
    storm = Storm(kills=60, longest_life=1.0, seed=random.randrange(2**32))
    record_property("seed", storm.seed)
    record_property("kills", storm.kills)
    with BrokerProcess(tmp_path / "data", "--flush", flush, "--partitions", str(PARTITIONS)) as kafka:
        writer = ride_out(storm, kafka)
        read = read_all(kafka.address, TOPIC, PARTITIONS)
    record_property("records", sum(writer.written))
    for partition, values in enumerate(read):
        assert [int(value) for value in values] == list(range(writer.written[partition])), storm


def test_a_copy_of_100_000_records_has_every_record_once_and_in_order(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    plan = Plan(records=100_000, bounces=80, seed=random.randrange(2**32), deadline_seconds=600)
    record_property("seed", plan.seed)
    record_property("kills", plan.bounces)
    with BrokerProcess(tmp_path / "data") as kafka:
        copy_under_fire(plan, kafka)
        assert_copied_exactly_once(kafka.address, plan.records)
