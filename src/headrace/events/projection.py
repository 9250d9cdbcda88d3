"""Projections: tables in an SQLite file that are kept by events, each of which counts exactly once.

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

How far the projection has come is a table of the same file, written in the same transaction. Events of its
aggregates that it has no method for are passed over; one that the aggregates do not know stops it.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.errors import Misuse
from headrace.events.aggregate import Aggregate, aggregate_form
from headrace.events.event import Event, snake_case
from headrace.events.projection_file import ProjectionFile

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from headrace.events.recorded import Recorded


class Projection:
    """A read model in a file, filled by methods `on_<event>(self, e)` or `on_<event>(self, e, about)`."""

    of: ClassVar[tuple[type[Aggregate], ...]] = ()
    tables: ClassVar[str] = ""
    db: sqlite3.Connection
    """The file, in the transaction of the events that are being applied; for `on_…` methods only."""

    def __init__(self, path: str | Path) -> None:
        if not self.of:
            raise Misuse(f"{type(self).__name__} is to say whose events it reads: `of = (Cart,)`.")
        self.path = str(path)
        self.forms = {form.name: form for form in map(aggregate_form, self.of)}
        self._check_methods()
        with self.file():
            pass  # makes it: who reads it finds its tables from now on

    def query(self, sql: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that a query gives, on a connection of its own."""
        with self.file() as file:
            return file.db.execute(sql, tuple(parameters)).fetchall()

    def file(self, path: str | None = None) -> ProjectionFile:
        """The projection's file, or another one with the same tables, opened."""
        return ProjectionFile(path or self.path, self.tables)

    def apply(self, file: ProjectionFile, recorded: Recorded) -> None:
        """Let an event change the tables, within the transaction that is open."""
        self.db = file.db
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
