"""Wherever a projection keeps its tables: each event counts once, and a rebuild is switched to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.errors import Misuse
from headrace.events import CommandTimeout, EventStore, Projection, projection_runner
from headrace.events.postgres import PostgresSchema
from headrace.events.projection import ProjectionTarget, SqliteFile
from headrace.events.projection_runner import ProjectionUpdater
from headrace.testing.postgres import PostgresServer
from tests.events.cart import Added, Cart, Removed


class Demand(Projection):
    aggregates = (Cart,)
    tables = "CREATE TABLE demand (product VARCHAR(20) PRIMARY KEY, quantity INT)"
    factor = 1
    fails = False

    def on_added(self, e: Added) -> None:
        mark = "%s" if isinstance(self.target, PostgresSchema) else "?"
        self.db.execute(
            f"INSERT INTO demand VALUES ({mark}, {mark}) "
            "ON CONFLICT (product) DO UPDATE SET quantity = demand.quantity + excluded.quantity",
            (e.product, self.factor * e.quantity),
        )

    def on_removed(self, e: Removed) -> None:
        self.on_added(Added(product=e.product, quantity=-e.quantity))
        if self.fails:
            raise RuntimeError("here the process dies")


class Doubled(Demand):
    tables = f"{Demand.tables}; CREATE TABLE more (id INT); CREATE INDEX by_quantity ON demand (quantity);"
    factor = 2


@pytest.fixture(params=["file", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ProjectionTarget:
    if request.param == "file":
        return SqliteFile(tmp_path / "demand.db")
    return PostgresSchema("demand", url=request.getfixturevalue("database"))


def demand(projection: Projection) -> dict[str, int]:
    return dict(projection.query("SELECT product, quantity FROM demand"))


def test_two_updaters_of_one_target_apply_each_event_once(store: EventStore, place: ProjectionTarget) -> None:
    for number in range(20):
        store.execute(Cart, f"c{number % 7}", "add", product="tea", quantity=1)
    updaters = [ProjectionUpdater(store.broker, store.name, Demand(place)) for _ in range(2)]
    while demand(Demand(place)).get("tea", 0) < 20:
        for updater in updaters:
            updater.step()
    store.execute(Cart, "c0", "add", product="cup", quantity=1)
    while "cup" not in demand(Demand(place)):
        for updater in updaters:
            updater.step()
    assert demand(Demand(place)) == {"tea": 20, "cup": 1}
    for updater in updaters:
        updater.close()


def test_events_and_positions_change_in_one_transaction(store: EventStore, place: ProjectionTarget) -> None:
    clumsy = Demand(place)
    clumsy.fails = True
    store.execute(Cart, "c", "add", product="tea", quantity=3)
    store.execute(Cart, "c", "remove", product="tea", quantity=1)
    updater = ProjectionUpdater(store.broker, store.name, clumsy)
    with pytest.raises(RuntimeError):
        _step_for_ever(updater.step)
    updater.close()
    again = Demand(place)
    store.project(again)
    store.execute(Cart, "c", "add", product="cup", quantity=1, wait_for=again)
    assert demand(again) == {"tea": 2, "cup": 1}


def _step_for_ever(step: Callable[[], Any]) -> None:
    while True:
        step()


def test_a_running_projection_continues_with_the_rebuilt_tables(
    store: EventStore, place: ProjectionTarget
) -> None:
    kept = Demand(place)
    store.project(kept)
    for _ in range(5):
        store.execute(Cart, "c", "add", product="tea", quantity=1, wait_for=kept)
    seen: list[tuple[int, int]] = []
    assert store.rebuild(Doubled(place), lambda done, total: seen.append((done, total))) == 5
    assert seen[-1][0] == seen[-1][1] > 0
    assert demand(kept) == {"tea": 10}
    store.execute(Cart, "c", "add", product="tea", quantity=1, wait_for=kept)
    assert demand(kept) == {"tea": 11}
    assert kept.query("SELECT * FROM more") == []
    assert store.rebuild(Demand(place)) == 6
    assert demand(kept) == {"tea": 6}


def test_a_schema_does_not_touch_other_tables_of_the_database(store: EventStore, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as others:
        others.execute("CREATE TABLE demand (mine text)")
        kept = Demand(PostgresSchema("carts", url=database))
        store.project(kept)
        store.execute(Cart, "c", "add", product="tea", quantity=1, wait_for=kept)
        assert others.execute("SELECT * FROM carts.demand").fetchall() == [("tea", 1)]
        assert others.execute("SELECT * FROM public.demand").fetchall() == []
        store.rebuild(kept)
        schemas = others.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'carts%'").fetchall()
        assert schemas == [("carts",)]


def test_an_invalid_schema_is_refused_without_showing_the_password() -> None:
    with pytest.raises(Misuse, match="'my carts' is not a valid schema name"):
        PostgresSchema("my carts", url="postgresql://h/d")
    with pytest.raises(Misuse, match="not a valid PostgreSQL URL") as refused:
        PostgresSchema("carts", url="postgresql://u:secret@h:port:99/d?x")
    assert "secret" not in str(refused.value)
    assert PostgresSchema("carts", url="postgresql://u:secret@h/d").name == "the schema 'carts' of h/d"


def test_a_projection_resumes_when_its_database_is_reachable_again(
    store: EventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection_runner, "MAX_RETRY_PAUSE_S", 0.5)
    with PostgresServer(tmp_path) as server:
        kept = Demand(PostgresSchema("demand", url=server.url()))
        store.project(kept)
        store.execute(Cart, "c", "add", product="tea", quantity=1, wait_for=kept)
        server.kill()
        store.execute(Cart, "c", "add", product="tea", quantity=2)
        with pytest.raises(CommandTimeout, match="does not show it after"):
            store.execute(Cart, "c", "add", product="tea", quantity=4, wait_for=kept, timeout="3 seconds")
        server.start()
        store.execute(Cart, "c", "add", product="tea", quantity=8, wait_for=kept)
        assert demand(kept) == {"tea": 15}
        server.restart()
        store.execute(Cart, "c", "add", product="tea", quantity=16, wait_for=kept)
        assert demand(kept) == {"tea": 31}
        store.close()
