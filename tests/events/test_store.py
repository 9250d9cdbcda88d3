"""Commands and their replies, through a store as its users have it."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from headrace.client.errors import BrokerUnreachable
from headrace.errors import Misuse
from headrace.events import (
    Aggregate,
    CommandFailed,
    CommandTimeout,
    Event,
    EventStore,
    Limits,
    Rejected,
    UnreadableHistory,
    VersionConflict,
)
from headrace.events.history import ABSENT
from headrace.events.store import TIMEOUT_S
from headrace.testing import BrokerProcess
from tests.broker.processes import wait_until
from tests.events.cart import Added, Cart, CartCreated, Removed

New = Callable[..., EventStore]
HALF_OF_THE_USUAL_S = TIMEOUT_S / 2


def filled(store: EventStore, key: str = "cart-17") -> None:
    store.execute(Cart, key, "create")
    store.execute(Cart, key, "add", product="tea", quantity=2)
    store.execute(Cart, key, "add", product="cup", quantity=1)
    store.execute(Cart, key, "remove", product="tea", quantity=1)


def test_an_aggregate_is_the_result_of_its_events(store: EventStore) -> None:
    filled(store)
    cart = store.load(Cart, "cart-17")
    assert (cart.items, cart.version) == ({"tea": 1, "cup": 1}, 4)
    assert store.load(Cart, "cart-17", version=3).items == {"tea": 2, "cup": 1}
    assert store.load(Cart, "cart-18").version == 0


def test_an_aggregate_can_be_loaded_as_of_a_time(store: EventStore) -> None:
    filled(store)
    third = list(store.history(Cart, "cart-17"))[2]
    before = third.time - timedelta(milliseconds=1)
    assert store.load(Cart, "cart-17", as_of=datetime.now(UTC)).version == 4
    assert store.load(Cart, "cart-17", as_of=third.time).version >= 3
    assert store.load(Cart, "cart-17", as_of=before).version <= 3


def test_the_history_has_every_event_with_its_metadata(store: EventStore) -> None:
    store.execute(
        Cart,
        "c",
        "add",
        product="tea",
        quantity=2,
        actor="ann",
        correlation_id="order-1",
        causation_id="click-9",
    )
    store.execute(Cart, "c", "add", product="cup", quantity=1, command_id="second")
    first, second = store.history(Cart, "c")
    assert (first.type, first.type_version, first.version, first.fields) == (
        "Added", 1, 1, {"product": "tea", "quantity": 2},
    )  # fmt: skip
    assert (first.actor, first.correlation_id, first.causation_id) == ("ann", "order-1", "click-9")
    assert (second.actor, second.command_id, second.correlation_id) == (None, "second", "second")
    assert (first.event_id, second.event_id) == ("Cart/c/1", "Cart/c/2")
    assert first.time <= second.time <= datetime.now(UTC)


def test_steps_show_the_changes_of_each_event(store: EventStore) -> None:
    filled(store)
    changes = [
        (step.recorded.type, [tuple(each) for each in step.changes]) for step in store.steps(Cart, "cart-17")
    ]
    assert changes == [
        ("CartCreated", []),
        ("Added", [("items.tea", ABSENT, 2)]),
        ("Added", [("items.cup", ABSENT, 1)]),
        ("Removed", [("items.tea", 2, 1)]),
    ]


def test_any_kafka_client_can_read_the_events_as_cloud_events(store: EventStore) -> None:
    store.execute(Cart, "c", "add", product="tea", quantity=2, actor="ann")
    settings = {"bootstrap.servers": store.broker, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([f"{store.name}.Cart.events"])
    message = consumer.poll(100)
    assert message is not None
    headers = dict(message.headers() or ())
    time_text = headers.pop("ce_time")
    assert headers.pop("ce_commandid")
    assert (message.key(), message.value()) == (b"c", b'{"product":"tea","quantity":2}')
    assert headers == {
        "ce_specversion": b"1.0", "ce_type": b"Added", "ce_dataversion": b"1", "ce_sequence": b"1",
        "ce_id": b"Cart/c/1", "ce_source": store.name.encode(), "ce_subject": b"Cart/c", "ce_actor": b"ann",
        "content-type": b"application/json",
    }  # fmt: skip
    assert datetime.fromisoformat(time_text.decode()).timestamp() * 1000 == message.timestamp()[1]
    consumer.close()


def test_a_rejected_command_stores_no_events(store: EventStore) -> None:
    filled(store)
    store.execute(Cart, "cart-17", "check_out")
    with pytest.raises(Rejected, match="the cart is checked out"):
        store.execute(Cart, "cart-17", "add", product="tea", quantity=2)
    assert len(list(store.history(Cart, "cart-17"))) == 5


def test_a_command_may_yield_many_events_or_none(store: EventStore) -> None:
    assert store.execute(Cart, "c", "add_all", products=["tea", "cup", "tea"]) == 3
    assert store.execute(Cart, "c", Cart.add_all, products=[]) == 3
    assert store.load(Cart, "c").items == {"tea": 2, "cup": 1}


def test_an_expected_version_must_be_the_current_one(store: EventStore) -> None:
    assert store.execute(Cart, "c", "create", expected_version=0) == 1
    with pytest.raises(VersionConflict, match="has version 1, and 'create' expected version 0"):
        store.execute(Cart, "c", "create", expected_version=0)
    assert store.execute(Cart, "c", "add", product="tea", quantity=1, expected_version=1) == 2


def test_a_repeated_command_has_the_same_reply_and_no_second_effect(store: EventStore) -> None:
    def pay() -> int:
        return store.execute(Cart, "c", "add", product="tea", quantity=1, command_id="once")

    def empty() -> int:
        return store.execute(Cart, "c", "remove", product="cup", quantity=1, command_id="never")

    assert pay() == 1
    with pytest.raises(Rejected):
        empty()
    store.execute(Cart, "c", "add", product="cup", quantity=1)
    assert pay() == 1
    with pytest.raises(Rejected):
        empty()
    assert store.load(Cart, "c").version == 2
    assert store.execute(Cart, "d", "add", product="tea", quantity=1, command_id="once") == 1


def test_replies_survive_a_restart_up_to_the_limit(new_store: New) -> None:
    first = new_store(partitions=1, limits=Limits(replies=3))
    for number in range(5):
        first.execute(Cart, "c", "add", product="tea", quantity=1, command_id=f"n{number}")
    first.close()
    second = new_store(first.name, limits=Limits(replies=3))
    assert second.execute(Cart, "c", "add", product="tea", quantity=1, command_id="n2") == 3
    assert second.execute(Cart, "c", "add", product="tea", quantity=1, command_id="n0") == 6


def test_a_process_without_handlers_gets_replies_from_another_process(new_store: New) -> None:
    owner = new_store()
    filled(owner)
    caller = new_store(owner.name, handles=False)
    assert caller.execute(Cart, "cart-17", "add", product="tea", quantity=1) == 5
    with pytest.raises(Rejected, match="there are not 9"):
        caller.execute(Cart, "cart-17", "remove", product="tea", quantity=9)
    assert caller.execute(Cart, "cart-17", "add", product="tea", quantity=1, expected_version=5) == 6


def test_a_command_waits_in_the_topic_for_a_handler(new_store: New) -> None:
    caller = new_store(handles=False)
    with pytest.raises(CommandTimeout, match="no process handles its partition") as caught:
        caller.execute(Cart, "c", "add", product="tea", quantity=1, timeout="1 second")
    owner = new_store(caller.name)
    owner.handle(Cart)
    again = caller.execute(Cart, "c", "add", product="tea", quantity=1, command_id=caught.value.command_id)
    assert again == 1
    assert len(list(owner.history(Cart, "c"))) == 1


def test_partitions_are_reassigned_when_a_process_joins_and_when_it_leaves(new_store: New) -> None:
    first = new_store(partitions=4)
    ids = [f"cart-{number}" for number in range(12)]
    for key in ids:
        filled(first, key)
    second = new_store(first.name)
    second.handle(Cart)
    deadline = time.monotonic() + 20
    while (
        not second.handled_partitions(Cart)
        or len(first.handled_partitions(Cart)) + len(second.handled_partitions(Cart)) != 4
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for store in (first, second):
        assert {store.execute(Cart, key, "add", product="pot", quantity=1) for key in ids} <= {5, 6}
    first.close()
    assert {second.execute(Cart, key, "remove", product="pot", quantity=2) for key in ids} == {7}


def test_commands_of_many_callers_are_decided_one_at_a_time(store: EventStore) -> None:
    def add(_: int) -> int:
        return store.execute(Cart, "c", "add", product="tea", quantity=1)

    with ThreadPoolExecutor(16) as pool:
        versions = list(pool.map(add, range(200)))
    assert sorted(versions) == list(range(1, 201))
    assert store.load(Cart, "c").items == {"tea": 200}


async def test_execute_async_returns_versions_and_rejections(store: EventStore) -> None:
    async def add() -> int:
        return await store.execute_async(Cart, "c", "add", product="tea", quantity=1)

    assert sorted(await asyncio.gather(*[add() for _ in range(50)])) == list(range(1, 51))
    with pytest.raises(Rejected):
        await store.execute_async(Cart, "c", "remove", product="cup", quantity=1)


class Broken(Event):
    number: int


class Fragile(Aggregate):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def hit(self, numbers: list[int]):
        for number in numbers:
            yield Broken(number=number)

    def crash(self):
        yield Broken(number=1 // len(self.seen[:0]))

    def on_broken(self, e: Broken) -> None:
        self.seen.append(e.number)
        if e.number == 13:
            raise RuntimeError("unlucky")


def test_a_command_that_fails_stores_nothing_and_affects_no_other_command(store: EventStore) -> None:
    assert store.execute(Fragile, "f", "hit", numbers=[1, 2]) == 2
    with pytest.raises(CommandFailed, match="ZeroDivisionError"):
        store.execute(Fragile, "f", "crash")
    with pytest.raises(CommandFailed, match="unlucky"):
        store.execute(Fragile, "f", "hit", numbers=[3, 13])
    assert store.execute(Fragile, "f", "hit", numbers=[4], expected_version=2) == 3
    assert store.load(Fragile, "f").seen == [1, 2, 4]


def test_an_aggregate_whose_applier_fails_in_a_replay_refuses_commands_with_the_reason(
    new_store: New,
) -> None:
    before = new_store(partitions=1)
    before.execute(Cart, "c", "add", product="tea", quantity=1)
    before.close()

    def on_added(self: Aggregate, e: Added) -> None:
        raise ZeroDivisionError("no more")

    careless = type("Cart", (Aggregate,), {"on_added": on_added, "add": Cart.add})
    store = new_store(before.name)
    where = rf"partition 0 of {store.name}\.Cart\.events cannot be applied: ZeroDivisionError: no more"
    with pytest.raises(UnreadableHistory, match=where):
        store.execute(careless, "c", "add", product="tea", quantity=1)


async def test_a_caller_that_times_out_does_not_affect_the_handler(store: EventStore) -> None:
    store.execute(Cart, "c", "create")
    for _ in range(50):
        with contextlib.suppress(CommandTimeout):
            await store.execute_async(
                Cart, "c", "add", product="tea", quantity=1, timeout=timedelta(microseconds=100)
            )
    assert store.execute(Cart, "c", "add", product="tea", quantity=1) == store.load(Cart, "c").version


class Bag(Aggregate):
    def __init__(self) -> None:
        self.thing: object = object()

    def put(self):
        yield CartCreated()

    def on_cart_created(self, e: CartCreated) -> None:
        pass


def test_state_that_no_snapshot_can_hold_fails_at_the_first_command(store: EventStore) -> None:
    with pytest.raises(CommandFailed, match=r"Bag\.thing cannot be stored in a snapshot"):
        store.execute(Bag, "b", "put")


def test_misuse_is_refused_before_anything_is_sent(store: EventStore) -> None:
    with pytest.raises(Misuse, match="no command 'buy'"):
        store.execute(Cart, "c", "buy")
    with pytest.raises(Misuse, match="not a valid aggregate id"):
        store.execute(Cart, "", "create")
    with pytest.raises(Misuse, match="has no events of Cart"):
        store.load(Cart, "c")
    with pytest.raises(Misuse, match="not a valid store name"):
        EventStore("a shop", broker=store.broker)


WRONG_CALLS = [
    ((Cart, "c", "add", "tea", 2), r"Cart\.add\(product: str, quantity: int\): pass its parameters by name"),
    ((Cart, "c"), r"name a command of Cart \(add, add_all, check_out, create, remove\)"),
    ((Cart, "c", 5), "name a command of Cart"),
    (("Cart", "c", "add"), "'Cart' is not an aggregate class"),
    ((), "None is not an aggregate class"),
]


@pytest.mark.parametrize(("call", "message"), WRONG_CALLS, ids=[str(len(call)) for call, _ in WRONG_CALLS])
async def test_the_error_of_a_wrong_call_shows_the_command_and_its_parameters(
    store: EventStore, call: tuple[Any, ...], message: str
) -> None:
    execute: Any = store.execute
    with pytest.raises(Misuse, match=message):
        execute(*call)
    execute_async: Any = store.execute_async
    with pytest.raises(Misuse, match=message):
        await execute_async(*call)


def test_the_error_of_an_unknown_parameter_names_it(store: EventStore) -> None:
    with pytest.raises(Misuse, match=r"Cart\.add\(product: str, quantity: int\): .*'amount'"):
        store.execute(Cart, "c", "add", product="tea", quantity=1, amount=1)
    with pytest.raises(Misuse, match=r"Cart\.add\(product: str, quantity: int\): .*'quantity'"):
        store.execute(Cart, "c", "add", product="tea")


async def test_a_closed_store_refuses_commands_and_can_still_be_read(new_store: New, tmp_path: Path) -> None:
    store = new_store()
    store.execute(Cart, "c", "create")
    store.close()
    with pytest.raises(Misuse, match="is closed"):
        store.execute(Cart, "c", "create")
    with pytest.raises(Misuse, match="is closed"):
        await store.execute_async(Cart, "c", "create")
    with pytest.raises(Misuse, match="is closed"):
        store.handle(Cart)
    assert store.load(Cart, "c").version == 1
    store.close()


def test_a_timeout_is_kept_when_the_broker_is_not_running(closed_port: int) -> None:
    with EventStore("shop", broker=f"127.0.0.1:{closed_port}") as store:
        begin = time.monotonic()
        with pytest.raises(BrokerUnreachable):
            store.execute(Cart, "c", "create", timeout="300 ms")
        assert time.monotonic() - begin < HALF_OF_THE_USUAL_S


@pytest.mark.parametrize("handles", [True, False])
async def test_a_timeout_is_kept_when_the_broker_stops(tmp_path: Path, handles: bool) -> None:
    with BrokerProcess(tmp_path / "data") as kafka, ExitStack() as stack:
        owner = stack.enter_context(EventStore("shop", broker=kafka.bootstrap, partitions=1))
        owner.execute(Cart, "c", "create")
        store = owner
        if not handles:
            store = stack.enter_context(EventStore("shop", broker=kafka.bootstrap, handles=False))
            store.execute(Cart, "c", "add", product="tea", quantity=1)
            replies = store._dispatchers[Cart]._replies
            wait_until(lambda: not replies.is_reading, "the replies to be read no longer")
        kafka.kill()
        for _ in range(2):
            begin = time.monotonic()
            with pytest.raises((CommandTimeout, BrokerUnreachable)):
                store.execute(Cart, "c", "create", timeout="300 ms")
            with pytest.raises((CommandTimeout, BrokerUnreachable)):
                await store.execute_async(Cart, "c", "create", timeout="300 ms")
            assert time.monotonic() - begin < HALF_OF_THE_USUAL_S
        kafka.start()


def test_aggregates_of_different_classes_are_separate(store: EventStore) -> None:
    store.execute(Cart, "same", "add", product="tea", quantity=1)
    store.execute(Fragile, "same", "hit", numbers=[1])
    assert store.load(Cart, "same").version == 1
    assert [each.event_id for each in store.history(Fragile)] == ["Fragile/same/1"]
    assert [type(each.event(_schema())) for each in store.history(Cart)] == [Added]
    assert Removed(product="tea", quantity=1) != Added(product="tea", quantity=1)


def _schema():
    from headrace.events.aggregate import aggregate_schema

    return aggregate_schema(Cart)
