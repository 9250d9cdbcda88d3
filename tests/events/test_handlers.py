"""Which process handles which partition: also after errors in the consumer group."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from headrace.errors import HeadraceError
from headrace.events import EventStore, handlers
from headrace.events.commands import set_error, set_reply
from tests.broker.processes import wait_until
from tests.events.cart import Cart

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
