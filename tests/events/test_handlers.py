"""Which process handles which partition, also after errors in the consumer group; metrics of handlers."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from headrace.errors import HeadraceError, Misuse
from headrace.events import EventStore, VersionConflict, handlers
from headrace.events.commands import set_error, set_reply
from headrace.events.handlers import METRICS
from tests.broker.processes import wait_until
from tests.events.cart import Cart
from tests.metrics.pages import get, scraped, value

New = Callable[..., EventStore]


def failing_once(method: str, failed: threading.Event) -> type[Consumer]:
    """A consumer whose method fails the first time, as when another rebalance has overtaken the call."""

    def call(self: Any, *arguments: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise KafkaException(KafkaError(KafkaError._STATE))
        return getattr(Consumer, method)(self, *arguments)

    return type("FailingOnce", (Consumer,), {method: call})


@pytest.mark.parametrize("method", ["incremental_assign", "pause", "incremental_unassign"])
def test_a_process_joins_the_group_again_after_an_error_in_a_rebalance(
    new_store: New, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    failed = threading.Event()
    monkeypatch.setattr(handlers, "Consumer", failing_once(method, failed))
    first = new_store(partitions=2)
    assert first.execute(Cart, "c", "create") == 1
    second = new_store(first.name)
    second.handle(Cart)
    wait_until(lambda: len(second.handled_partitions(Cart)) == 1, "the second process to handle a partition")
    wait_until(lambda: len(first.handled_partitions(Cart)) == 1, "the first process to handle the other")
    assert failed.is_set()
    for key in ("c", "d", "e", "f"):
        assert first.execute(Cart, key, "create") == second.execute(Cart, key, "create") - 1


def test_a_reply_to_a_canceled_future_is_dropped() -> None:
    future: Future[Any] = Future()
    future.cancel()
    set_reply(future, None)  # type: ignore[arg-type]  # not looked at
    set_error(future, HeadraceError("too late"))
    assert future.cancelled()


def test_commands_are_counted_by_outcome_with_their_time(new_store: Callable[..., EventStore]) -> None:
    store = new_store(metrics="0")
    store.execute(Cart, "cart-1", "create")
    store.execute(Cart, "cart-1", "add", product="tea", quantity=2)
    with pytest.raises(VersionConflict):
        store.execute(Cart, "cart-1", "add", product="tea", quantity=2, expected_version=1)
    page = f"http://{store.metrics_address}"
    samples, where = scraped(page), {"store": store.name, "aggregate": "Cart"}
    assert value(samples, "headrace_events_commands_total", **where, outcome="done") == 2
    assert value(samples, "headrace_events_commands_total", **where, outcome="conflict") == 1
    assert value(samples, "headrace_events_command_seconds_count", **where) == 3
    handled = value(samples, "headrace_events_handled_partitions", **where)
    assert handled == len(store.handled_partitions(Cart))
    assert get(f"{page}/health/ready")[0] == 200
    _, _, text = get(f"{page}/metrics")
    assert all(f"# TYPE {metric.name} {metric.kind.value}" in text for metric in METRICS)


def test_the_environment_names_the_address(
    new_store: Callable[..., EventStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_METRICS_EVENTS", "127.0.0.1:0")
    assert new_store().metrics_address is not None
    assert new_store(handles=False).metrics_address is None
    monkeypatch.setenv("HEADRACE_METRICS_EVENTS", "0.0.0.0:0")
    with pytest.raises(Misuse, match="HEADRACE_METRICS_EVENTS in the environment"):
        new_store()
    monkeypatch.setenv("HEADRACE_METRICS_ALLOW_REMOTE", "true")
    assert new_store().metrics_address is not None
