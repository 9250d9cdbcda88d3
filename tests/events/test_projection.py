"""Read models that are kept by events, each of which counts once."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, Misuse
from headrace.events import Aggregate, Event, EventStore, Projection, RecordedEvent, UnknownEvent
from headrace.events.projection_runner import ProjectionUpdater
from tests.events.cart import Added, Cart, Removed

New = Callable[..., EventStore]
TABLE = "CREATE TABLE baskets (product TEXT PRIMARY KEY, quantity INT)"
PUT = "INSERT INTO baskets VALUES (?, ?) ON CONFLICT DO UPDATE SET quantity = quantity + excluded.quantity"


class Baskets(Projection):
    aggregates = (Cart,)
    tables = f"{TABLE}; CREATE TABLE changes (id TEXT, version INT, PRIMARY KEY (id, version));"

    def on_added(self, e: Added, about: RecordedEvent) -> None:
        self.db.execute(PUT, (e.product, e.quantity))
        self.db.execute("INSERT INTO changes VALUES (?, ?)", (about.id, about.version))

    def on_removed(self, e: Removed) -> None:
        self.db.execute(PUT, (e.product, -e.quantity))


def quantities(projection: Projection) -> dict[str, int]:
    return dict(projection.query("SELECT product, quantity FROM baskets"))


def follow(updater: ProjectionUpdater) -> None:
    """Continue until an error occurs."""
    while True:
        updater.step()


def test_a_caller_can_wait_until_a_projection_shows_its_command(store: EventStore, tmp_path: Path) -> None:
    baskets = Baskets(tmp_path / "baskets.db")
    store.project(baskets)
    for number in range(5):
        store.execute(Cart, f"c{number}", "add", product="tea", quantity=2, wait_for=baskets)
        assert quantities(baskets) == {"tea": 2 * number + 2}
    store.execute(Cart, "c1", "remove", product="tea", quantity=1, wait_for=Baskets(baskets.target))
    assert quantities(baskets) == {"tea": 9}


async def test_execute_async_waits_for_a_projection(store: EventStore, tmp_path: Path) -> None:
    baskets = Baskets(tmp_path / "baskets.db")
    store.project(baskets)
    await store.execute_async(Cart, "c", "add", product="tea", quantity=2, wait_for=baskets)
    assert quantities(baskets) == {"tea": 2}


def test_a_rebuild_fills_new_tables_and_switches_to_them(store: EventStore, tmp_path: Path) -> None:
    path = tmp_path / "baskets.db"
    baskets = Baskets(path)
    store.project(baskets)
    for _ in range(20):
        store.execute(Cart, "c", "add", product="tea", quantity=1, wait_for=baskets)

    class Doubled(Projection):
        aggregates = (Cart,)
        tables = f"{TABLE}; CREATE INDEX by_quantity ON baskets (quantity)"

        def on_added(self, e: Added) -> None:
            self.db.execute(PUT, (e.product, 2 * e.quantity))

    seen: list[tuple[int, int]] = []
    reader = sqlite3.connect(path)
    assert store.rebuild(Doubled(path), lambda done, total: seen.append((done, total))) == 20
    assert seen[-1][0] == seen[-1][1] > 0
    assert reader.execute("SELECT * FROM baskets").fetchall() == [("tea", 40)]
    names = {name for (name,) in reader.execute("SELECT name FROM sqlite_master WHERE sql IS NOT NULL")}
    assert names == {"baskets", "by_quantity", "headrace_progress"}
    reader.close()
    assert not Path(f"{path}.rebuild").exists()


def test_an_unknown_event_stops_a_projection_with_the_reason(new_store: New, tmp_path: Path) -> None:
    store = new_store()
    store.execute(Cart, "c", "add", product="tea", quantity=1)

    class Created(Event):
        pass

    def on_created(self: Aggregate, e: Created) -> None: ...

    older = type("Cart", (Aggregate,), {"on_created": on_created})
    kind = type("Older", (Projection,), {"aggregates": (older,), "tables": TABLE})
    projection = kind(tmp_path / "baskets.db")
    updater = ProjectionUpdater(store.broker, store.name, projection)
    with pytest.raises(UnknownEvent, match="an event 'Added' is in the log, and Cart has no applier"):
        follow(updater)
    updater.close()


def test_a_caller_that_waits_for_a_stopped_projection_gets_its_error(
    store: EventStore, tmp_path: Path
) -> None:
    class Failing(Projection):
        aggregates = (Cart,)

        def on_added(self, e: Added) -> None:
            self.db.execute("INSERT INTO nowhere VALUES (1)")

    failing = Failing(tmp_path / "failing.db")
    store.project(failing)
    with pytest.raises(HeadraceError, match="the projection stopped: no such table: nowhere"):
        store.execute(Cart, "c", "add", product="tea", quantity=1, wait_for=failing)


def test_waiting_for_a_projection_that_does_not_run_times_out(store: EventStore, tmp_path: Path) -> None:
    store.execute(Cart, "c", "create")
    baskets = Baskets(tmp_path / "b.db")
    with pytest.raises(HeadraceError, match=r"was executed.*check that the projection runs"):
        store.execute(Cart, "c", "add", product="tea", quantity=1, wait_for=baskets, timeout="2 seconds")


def test_a_method_without_an_event_is_refused(tmp_path: Path) -> None:
    class Misspelt(Projection):
        aggregates = (Cart,)

        def on_aded(self, e: Added) -> None: ...

    with pytest.raises(Misuse, match=r"on_aded is never called.*on_added"):
        Misspelt(tmp_path / "x.db")
    with pytest.raises(Misuse, match=r"aggregates = \(Cart,\)"):
        Projection(tmp_path / "x.db")
