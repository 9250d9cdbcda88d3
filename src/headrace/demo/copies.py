"""The copies of the demo's table, each read by its own means: an index, a cache, a view, and the log."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Final

import redis

from headrace.errors import HeadraceError
from headrace.feeds.feed import ChangeFeed
from headrace.sinks.search_index import NoSuchIndex, SearchIndex

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.demo.storekeeper import Product, Sums

MANY: Final = 1000
LOOK_AGAIN_S: Final = 0.2


def indexed(folder: Path) -> dict[int, Product]:
    """The rows of the search index."""
    try:
        hits = SearchIndex(folder).find("*", limit=MANY)
    except NoSuchIndex:
        return {}
    return {hit.row["id"]: (hit.row["name"], hit.row["category"], hit.row["price"]) for hit in hits}


def cached(url: str) -> dict[int, Product] | None:
    """The rows in Redis; None while it is down."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        try:
            keys = list(client.scan_iter("product:*"))
            with client.pipeline(transaction=False) as asked:
                for key in keys:
                    asked.hgetall(key)
                rows = [row for row in asked.execute() if row]  # one may have gone meanwhile
        except redis.ConnectionError:
            return None
    return {int(row["id"]): (row["name"], row["category"], row["price"]) for row in rows}


class Viewed(threading.Thread):
    """The rows of the view, followed as a page in a browser would."""

    def __init__(self, bootstrap: str, view: str) -> None:
        super().__init__(name="viewed", daemon=True)
        self.sums: dict[str, Sums] = {}
        self._broker = bootstrap
        self._view = view
        self._closing = threading.Event()

    def run(self) -> None:
        """Follow until closed; a view that is not there yet is waited for."""
        while not self._closing.is_set():
            try:
                with closing(ChangeFeed(self._view, self._broker)) as feed:
                    self._follow(feed)
            except HeadraceError:
                self._closing.wait(LOOK_AGAIN_S)

    def close(self) -> None:
        """Stop following."""
        self._closing.set()
        self.join()

    def _follow(self, feed: ChangeFeed) -> None:
        for batch in feed.batches():
            for change in batch:
                category = change.key["category"]
                if change.row is None:
                    self.sums.pop(category, None)
                else:
                    self.sums[category] = (change.row["products"], change.row["value"])
            if self._closing.is_set():
                return
