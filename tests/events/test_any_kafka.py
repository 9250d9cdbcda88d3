"""The store on Headrace's broker and, in the cluster suite, on Apache Kafka."""

import uuid
from pathlib import Path

import pytest

from headrace.events import EventStore, Rejected
from tests.events.cart import Cart
from tests.events.test_projection import Baskets, quantities


@pytest.mark.timeout(180)
def test_commands_repeats_moves_and_projections(bootstrap: str, tmp_path: Path) -> None:
    name = f"s{uuid.uuid4().hex[:8]}"
    with EventStore(name, broker=bootstrap, partitions=2) as first:
        for number in range(20):
            assert (
                first.execute(Cart, "c", "add", product="tea", quantity=1, command_id=f"n{number}")
                == number + 1
            )
        with pytest.raises(Rejected):
            first.execute(Cart, "c", "remove", product="tea", quantity=21)
        assert first.load(Cart, "c").items == {"tea": 20}
    with EventStore(name, broker=bootstrap) as second:
        assert second.execute(Cart, "c", "add", product="tea", quantity=1, command_id="n7") == 8
        baskets = Baskets(tmp_path / "baskets.db")
        second.project(baskets)
        with EventStore(name, broker=bootstrap, handles=False) as caller:
            assert caller.execute(Cart, "c", "remove", product="tea", quantity=5, wait_for=baskets) == 21
        assert quantities(baskets) == {"tea": 15}
        assert [each.version for each in second.history(Cart, "c")] == list(range(1, 22))
