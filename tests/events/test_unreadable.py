"""Records that cannot be read: they stop neither the handler, nor a projection, nor other aggregates."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from headrace.client.cluster import Cluster
from headrace.client.fetch import UnreadableRecords
from headrace.client.partition import TopicPartition
from headrace.client.shared_transaction import new_identity
from headrace.events import EventStore, Limits, Projection, UnreadableHistory
from headrace.events.commands import Command
from headrace.events.event import write_event
from headrace.events.history import UnreadableHistories, ids_in
from headrace.protocol.batch import build_batch
from headrace.protocol.records import NewRecord, encode_batch, encode_records
from tests.broker.wire_client import WireClient, batch_of
from tests.events.cart import Added, Cart

New = Callable[..., EventStore]
OLD, NEW = "cart-1", "cart-2"


def add(store: EventStore, key: str, **options: object) -> int:
    return store.execute(Cart, key, "add", product="tea", quantity=1, **options)


def garbage(**fields: int) -> bytes:
    """A batch with a right checksum around a record that counts headers which are not there."""
    section = bytearray(encode_records([NewRecord(b"k", b"{}", 1)], 1))
    section[-1] = 2
    return bytes(build_batch(section, 1, base_timestamp=1, max_timestamp=1, **fields))


def write(store: EventStore, kind: str, *batches: bytes) -> None:
    with WireClient(store.broker) as client:
        for batch in batches:
            written = client.produce(f"{store.name}.Cart.{kind}", batch)
            assert written.error_code is ErrorCode.none, written.error_message


def garbage_of_a_producer(store: EventStore) -> bytes:
    """Garbage that carries a producer id, as every batch of an event store does."""
    with Cluster.of(store.broker) as cluster:
        identity = new_identity(cluster)
    return garbage(producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=0)


class Demand(Projection):
    aggregates = (Cart,)
    tables = "CREATE TABLE demand (id TEXT, version INT)"

    def on_added(self, e: Added, about: object) -> None:
        self.db.execute("INSERT INTO demand VALUES (?, ?)", (about.id, about.version))  # type: ignore[attr-defined]


def test_an_unreadable_batch_of_another_program_affects_no_aggregate(
    new_store: New, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = new_store(partitions=1)
    add(before, OLD)
    write(before, "events", garbage())
    before.close()
    store, demand = new_store(before.name), Demand(tmp_path / "demand.db")
    store.project(demand)
    assert add(store, OLD, wait_for=demand) == 2
    assert add(store, NEW, wait_for=demand) == 1
    assert store.load(Cart, OLD).version == 2
    assert [each.version for each in store.history(Cart, OLD)] == [1, 2]
    assert [step.recorded.version for step in store.steps(Cart, OLD)] == [1, 2]
    assert demand.query("SELECT * FROM demand") == [(OLD, 1), (OLD, 2), (NEW, 1)]
    assert demand.skipped == 1
    assert f"of partition 0 of '{before.name}.Cart.events' cannot be read" in caplog.text


def test_an_aggregate_with_an_unreadable_event_refuses_commands_and_the_others_accept_them(
    new_store: New, tmp_path: Path
) -> None:
    before = new_store(partitions=1)
    add(before, OLD)
    add(before, NEW)
    end = max(each.offset for each in before.history(Cart)) + 1
    write(before, "events", batch_of(b"nonsense", key=OLD.encode()))
    before.close()
    store, demand = new_store(before.name), Demand(tmp_path / "demand.db")
    store.project(demand)
    caller = new_store(before.name, handles=False)
    assert add(store, NEW, wait_for=demand) == 2
    where = f"offset {end} of partition 0 of '{store.name}.Cart.events' cannot be read: it is no event"
    for asked in (store, caller):
        with pytest.raises(UnreadableHistory, match=where):
            add(asked, OLD)
    with pytest.raises(UnreadableHistory, match=where):
        store.load(Cart, OLD)
    with pytest.raises(UnreadableHistory, match=where):
        list(store.steps(Cart, OLD))
    assert store.load(Cart, OLD, version=1).items == {"tea": 1}
    assert store.load(Cart, NEW).version == 2
    assert (demand.skipped, len(demand.query("SELECT * FROM demand"))) == (1, 3)


def test_an_event_that_is_not_json_affects_only_its_aggregate(new_store: New, tmp_path: Path) -> None:
    before = new_store(partitions=1)
    add(before, NEW)
    command = Command(aggregate_id=OLD, name="add", arguments={}, command_id="c")
    event = Added(product="tea", quantity=1)
    write(before, "events", bytes(encode_batch([write_event("s", "Cart", command, 1, 1, event, b"{")])))
    before.close()
    store, demand = new_store(before.name), Demand(tmp_path / "demand.db")
    store.project(demand)
    assert add(store, NEW, wait_for=demand) == 2
    with pytest.raises(UnreadableHistory, match="cannot be applied: its fields are no JSON"):
        add(store, OLD)
    assert demand.skipped == 1


def test_a_batch_that_may_hold_any_event_affects_aggregates_without_a_later_event(new_store: New) -> None:
    before = new_store(partitions=1)
    for key in (OLD, NEW):
        add(before, key)
    write(before, "events", garbage_of_a_producer(before))
    assert add(before, NEW) == 2  # the handler has its state in memory, and goes on
    for number in range(4):
        add(before, f"other-{number}")
    before.close()
    for _ in range(2):  # also when the first successor has written snapshots
        store = new_store(before.name, limits=Limits(snapshot_events=1))
        for key in (NEW, "other-1"):
            add(store, key)
        for key in (OLD, "never seen"):
            with pytest.raises(UnreadableHistory, match=r"Cart\.events' cannot be read: .* no later event"):
                add(store, key)
        store.close()


def test_unreadable_commands_and_replies_are_skipped(new_store: New) -> None:
    owner = new_store(partitions=1)
    owner.handle(Cart)
    caller = new_store(owner.name, handles=False)
    assert add(caller, OLD) == 1
    strange = (b"nonsense", b"[]", b'{"aggregate_id": 5, "name": [], "arguments": 0, "command_id": null}')
    for batch in (garbage(), *map(batch_of, strange), garbage_of_a_producer(owner)):
        write(owner, "commands", batch)
        write(owner, "replies", batch)
    assert add(caller, OLD) == 2
    owner.close()
    successor = new_store(owner.name)
    successor.handle(Cart)
    assert add(caller, OLD, command_id="again") == 3
    assert add(successor, OLD, command_id="again") == 3


def test_unreadable_replies_are_derived_from_the_events(new_store: New) -> None:
    owner = new_store(partitions=1, limits=Limits(snapshot_events=1))
    owner.handle(Cart)
    caller = new_store(owner.name, handles=False)
    for number in range(3):
        add(caller, OLD, command_id=f"c{number}")
    write(owner, "replies", garbage_of_a_producer(owner))
    for number in range(3, 6):
        add(caller, OLD, command_id=f"c{number}")
    owner.close()
    successor = new_store(owner.name, limits=Limits(snapshot_events=1))
    assert [add(successor, OLD, command_id=f"c{number}") for number in range(6)] == [1, 2, 3, 4, 5, 6]


def test_unreadable_snapshots_are_not_used(new_store: New) -> None:
    owner = new_store(partitions=1, limits=Limits(snapshot_events=1))
    for _ in range(5):
        add(owner, OLD)
        add(owner, NEW)
    write(owner, "snapshots", garbage_of_a_producer(owner), batch_of(b"nonsense", key=OLD.encode()))
    owner.close()
    successor = new_store(owner.name)
    assert (add(successor, OLD), add(successor, NEW)) == (6, 6)


@pytest.mark.parametrize("at", range(0, 300, 7))
def test_a_batch_with_a_flipped_bit_affects_the_aggregates_that_it_names(at: int) -> None:
    event = Added(product="tea", quantity=1)
    records = [
        write_event(
            "s", "Cart", Command(aggregate_id=key, name="", arguments={}, command_id="c"), 1, 1, event, b"{}"
        )
        for key in (OLD, NEW)
    ]
    batch = encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=0)
    batch[61 + at % (len(batch) - 61)] ^= 4
    found = ids_in(UnreadableRecords(TopicPartition("s.Cart.events", 0), 0, 1, "damaged", bytes(batch)))
    assert found is None or found >= {OLD, NEW}


def test_an_event_that_continues_the_versions_proves_that_none_is_missing() -> None:
    place = TopicPartition("s.Cart.events", 0)
    histories = UnreadableHistories()
    histories.add(UnreadableRecords(place, 3, 3, "no event", key=OLD.encode()))
    histories.add(UnreadableRecords(place, 4, 5, "damaged", garbage(producer_id=7)))
    assert histories.reason(OLD) is not None
    assert histories.reason(NEW) is not None
    histories.continued(OLD, 6)
    assert histories.reason(OLD) is None
    assert "offsets 4 to 5 of partition 0 of 's.Cart.events'" in (histories.reason(NEW) or "")
    assert histories.first_offset == 4
