"""What PostgreSQL, Redis, the search index and the mailbox hold of the shop, each read by its own means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import redis

from headrace.demo.checks import Copies, product_of
from headrace.demo.database import PRODUCTS
from headrace.sinks.search import NoSuchIndex, SearchIndex

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.demo.database import ShopDatabase
    from headrace.demo.mailbox import Mailbox

_REVENUE: Final = "SELECT window_start, product, orders, revenue FROM revenue"
_STATUS: Final = "SELECT order_id, paid IS NOT NULL FROM order_status"
_PRODUCTS: Final = (
    "SELECT products.id, name, price, title FROM products JOIN categories ON category = categories.id"
)


class CopyReader:
    """Reads all of them, one after the other."""

    def __init__(self, database: ShopDatabase, cache: str, index: Path, mailbox: Mailbox) -> None:
        self._database = database
        self._cache = cache
        self._index = index
        self._mailbox = mailbox

    def read(self) -> Copies:
        """What they hold now; what is down holds nothing."""
        cached = self._cached("product:*")
        spend = self._cached("spend:*")
        return Copies(
            revenue={
                (start, product): (orders, cents)
                for start, product, orders, cents in self._database.read(_REVENUE)
            },
            status=dict(self._database.read(_STATUS)),
            indexed=self._indexed(),
            cached={int(row["id"]): product_of(row) for row in cached},
            spend={int(row["customer"]): int(row["spent"]) for row in spend},
            products={number: tuple(row) for number, *row in self._database.read(_PRODUCTS)},
            mails=frozenset(number.partition("@")[0] for number in list(self._mailbox.mails)),
        )

    def _indexed(self) -> dict[int, tuple[Any, ...]]:
        try:
            hits = SearchIndex(self._index).find("*", limit=len(PRODUCTS))
        except NoSuchIndex:
            return {}
        return {hit.row["id"]: product_of(hit.row) for hit in hits}

    def _cached(self, pattern: str) -> list[dict[str, str]]:
        with redis.Redis.from_url(self._cache, decode_responses=True) as client:
            try:
                return [row for key in client.scan_iter(pattern) if (row := client.hgetall(key))]
            except (redis.ConnectionError, redis.BusyLoadingError):
                return []
