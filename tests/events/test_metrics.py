"""The metrics of a process that handles commands."""

from collections.abc import Callable

import pytest

from headrace.errors import Misuse
from headrace.events import EventStore, VersionConflict
from headrace.events.handlers import METRICS
from tests.events.cart import Cart
from tests.metrics.pages import get, scraped, value


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
