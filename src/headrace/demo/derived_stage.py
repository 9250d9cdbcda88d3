"""The table and its copies side by side, while they change; and who says what happens next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headrace.demo.copies import cached, indexed
from headrace.demo.stage import Phase, Stage
from headrace.demo.storekeeper import CATEGORIES, NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rich.console import Console, RenderableType

    from headrace.demo.copies import Viewed
    from headrace.demo.storekeeper import Store, Storekeeper
    from headrace.testing.redis import RedisServer

PATIENCE_S: Final = 120.0
DOWN_S: Final = 1.5
"""How long Redis is away."""


class DerivedStage(Stage):
    """The live picture of the act, and its director."""

    def __init__(
        self,
        console: Console,
        storekeeper: Storekeeper,
        store: Store,
        cache: RedisServer,
        *,
        index: Path,
        viewed: Viewed,
        seconds: float,
    ) -> None:
        self._storekeeper = storekeeper
        self._store = store
        self._cache = cache
        self._index = index
        self._viewed = viewed
        self._seconds = seconds
        self._look()
        super().__init__(console)  # last, because it draws the first picture

    def _look(self) -> None:
        # The copies first: what they have of a later moment than the table would look like a fault.
        self._copies: list[Mapping[int, Any] | None] = [indexed(self._index), cached(self._cache.url)]
        self._viewed_sums = dict(self._viewed.sums)
        self._products = self._store.products()
        self._sums = self._store.sums()

    @property
    def _is_complete(self) -> bool:
        return self._copies == [self._products] * 2 and self._viewed_sums == self._sums

    def _direct(self, passed_s: float) -> None:
        self._look()
        match self._phase:
            case Phase.WARMING if self._is_complete:
                self.say("The copies are there. Now the table changes, before your eyes.")
                self._storekeeper.start()
                self._enter(Phase.RUNNING)
            case Phase.WARMING if passed_s > PATIENCE_S:
                self._end("The copies did not come: the lines above should say why.")
            case Phase.RUNNING if passed_s > self._seconds / 2:
                self._cache.kill()
                self.say("Redis was killed (kill -9). The table goes on; the job waits for Redis.")
                self._enter(Phase.CRASHED)
            case Phase.CRASHED if passed_s > DOWN_S:
                self._cache.start()
                self.say("Redis is back.")
                self._enter(Phase.BACK)
            case Phase.BACK if passed_s > self._seconds / 2:
                self._storekeeper.close()
                self.say("Nothing changes any more; the copies catch up.")
                self._enter(Phase.DRAINING)
            case Phase.DRAINING if self._is_complete or passed_s > PATIENCE_S:
                self._end("Done.")

    def _picture(self) -> RenderableType:
        index, cache = self._copies
        products = _side_by_side(
            "product",
            dict(enumerate(NAMES, 1)),
            {"PostgreSQL": self._products, "search index": index, "Redis": cache},
            lambda row: f"{row[1]:5} {row[2]:>5}",
        )
        sums = _side_by_side(
            "category",
            dict(zip(CATEGORIES, CATEGORIES, strict=True)),
            {"PostgreSQL, GROUP BY": self._sums, "view assortment": self._viewed_sums},
            lambda row: f"{row[0]} products {row[1]:6.2f}",
        )
        return Group(super()._picture(), Text(self._storekeeper.last, style="bold"), products, sums)


def _side_by_side(
    heading: str,
    rows: Mapping[Any, str],
    columns: Mapping[str, Mapping[Any, Any] | None],
    shown: Callable[[Any], str],
) -> Table:
    """A table of one column for each copy; what is not as the first one has it stands out."""
    picture = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in (heading, *columns):
        picture.add_column(name, no_wrap=True)
    truth, *_ = columns.values()
    for key, name in rows.items():
        cells = [Text(name)]
        for copy in columns.values():
            row = None if copy is None else copy.get(key)
            text = "(down)" if copy is None else "-" if row is None else shown(row)
            is_same = copy is not None and truth is not None and row == truth.get(key)
            cells.append(Text(text, style="" if is_same else "yellow"))
        picture.add_row(*cells)
    return picture
