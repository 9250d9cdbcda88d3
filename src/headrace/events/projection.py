"""Projections: tables that are kept by events, each of which counts exactly once.

    class Baskets(Projection):
        of = (Cart,)
        tables = "CREATE TABLE baskets (product TEXT PRIMARY KEY, quantity INT)"

        def on_added(self, e: Added, about: Recorded):
            self.db.execute(
                "INSERT INTO baskets VALUES (?, ?) "
                "ON CONFLICT DO UPDATE SET quantity = quantity + excluded.quantity",
                (e.product, e.quantity),
            )

    baskets = Baskets("baskets.db")
    store.project(baskets)

The tables are in an SQLite file, or in PostgreSQL: `Baskets(PostgresSchema("baskets"))`. How far
the projection has come is a table beside them, written in the same transaction. Events of its aggregates that
it has no method for are passed over; one that the aggregates do not know stops it. A record that cannot be
read is left out with a warning, and counted in `skipped`.
"""

from __future__ import annotations

import inspect
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.errors import Misuse
from headrace.events.aggregate import Aggregate, aggregate_form
from headrace.events.event import Event, snake_case
from headrace.events.projection_file import FilePlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.events.projection_place import Place, Tables
    from headrace.events.recorded import Recorded


class Projection:
    """A read model, filled by methods `on_<event>(self, e)` or `on_<event>(self, e, about)`."""

    of: ClassVar[tuple[type[Aggregate], ...]] = ()
    tables: ClassVar[str] = ""
    db: Any
    """A connection of `sqlite3` or `psycopg`, in the transaction of the events; for `on_…` methods only."""

    def __init__(self, place: str | Path | Place) -> None:
        if not self.of:
            raise Misuse(f"{type(self).__name__} is to say whose events it reads: `of = (Cart,)`.")
        self.place: Place = FilePlace(place) if isinstance(place, str | Path) else place
        self.skipped = 0
        """Offsets that this process could not read, and left out; the log of the program names each."""
        self.forms = {form.name: form for form in map(aggregate_form, self.of)}
        self._check_methods()
        self.open().close()  # makes them: who reads finds the tables from now on

    def query(self, sql: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that a query gives, on a connection of its own."""
        with closing(self.open()) as opened:
            return opened.query(sql, tuple(parameters))

    def open(self, place: Place | None = None) -> Tables:
        """The projection's tables, or others like them at another place, opened."""
        return (place or self.place).open(self.tables)

    def apply(self, opened: Tables, recorded: Recorded) -> None:
        """Let an event change the tables, within the transaction that is open."""
        self.db = opened.db
        event = recorded.event(self.forms[recorded.aggregate])
        method = self._method(type(event))
        if method is not None:
            method(event, recorded) if _wants_about(method) else method(event)

    def _method(self, kind: type[Event]) -> Callable[..., None] | None:
        return getattr(self, f"on_{snake_case(kind.__name__)}", None)

    def _check_methods(self) -> None:
        known = {
            f"on_{snake_case(event.name)}" for form in self.forms.values() for event in form.events.values()
        }
        strange = [name for name in dir(type(self)) if name.startswith("on_") and name not in known]
        if strange:
            raise Misuse(
                f"{type(self).__name__}.{strange[0]} will never be called: {', '.join(self.forms)} have no "
                f"such event. There are: {', '.join(sorted(known))}."
            )


def _wants_about(method: Callable[..., None]) -> bool:
    return len(inspect.signature(method).parameters) > 1
