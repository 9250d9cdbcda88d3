"""kill −9 with several processes: no decision on stale state, nothing lost, nothing twice."""

from pathlib import Path

import pytest

from tests.events.storm import storm
from tests.soak.summary import RecordProperty


def test_stock_is_never_negative_when_processes_are_killed(tmp_path: Path) -> None:
    assert storm(tmp_path, workers=2, orders=25, kills=1, broker_kills=0, seed=1) > 50


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_stock_is_never_negative_in_a_long_storm(
    tmp_path: Path, record_property: RecordProperty, seed: int
) -> None:
    record_property("kills", 15)
    assert storm(tmp_path, workers=4, orders=300, kills=12, broker_kills=3, seed=seed) > 1200
