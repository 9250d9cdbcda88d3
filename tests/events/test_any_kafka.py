"""The store on Headrace's broker and, in the cluster suite, on Apache Kafka, secured and not."""

import uuid
from pathlib import Path

import pytest

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerFenced
from headrace.events import EventStore, Limits, Rejected
from headrace.events.aggregate import aggregate_schema
from headrace.events.history import read_history
from headrace.events.partition_processor import PartitionProcessor
from headrace.events.topics import open_topics
from tests.events.cart import Cart
from tests.events.test_partition_processor import add, by_topic, rejected
from tests.events.test_projection import Baskets, quantities


@pytest.fixture
def bootstrap(any_bootstrap: str) -> str:
    return any_bootstrap


@pytest.mark.timeout(180)
def test_commands_repeats_rebalances_and_projections_work(bootstrap: str, tmp_path: Path) -> None:
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


@pytest.mark.timeout(180)
def test_plain_batches_and_transactions_follow_one_another_and_both_are_fenced(bootstrap: str) -> None:
    schema = aggregate_schema(Cart)
    with Cluster.of(bootstrap) as first, Cluster.of(bootstrap) as second:
        topics = open_topics(first, f"s{uuid.uuid4().hex[:8]}", "Cart", 1)
        old = PartitionProcessor.open(first, topics, 0, schema, Limits())
        # A plain batch of events, a plain batch of replies, a transaction, and plain ones in its new epoch.
        for envelope in (add("a"), rejected("a"), by_topic(add("a")), add("a"), rejected("a"), add("a")):
            old.handle([envelope])
        new = PartitionProcessor.open(second, topics, 0, schema, Limits())
        with pytest.raises(ProducerFenced):
            old.handle([add("a")])
        assert [reply.version for reply in new.handle([add("a"), by_topic(add("a"), 1)])] == [5, 6]
        assert [each.version for each in read_history(first, topics, "a")] == [1, 2, 3, 4, 5, 6]
