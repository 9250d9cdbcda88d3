"""The library `eventsourcing` with the same carts: `python -m bench.events.peers.library TASK`.

Its aggregates are cached, which is not its default and makes it faster. Writers retry after a conflict, as
its documentation recommends.
"""

import json
import sys
import time
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import AggregateNotFoundError, Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import IntegrityError

from bench.events.load import PRODUCTS, measure


class Cart(Aggregate):
    def __init__(self, name: str) -> None:
        self.name = name
        self.items: dict[str, int] = {}

    @staticmethod
    def create_id(name: str) -> UUID:
        return uuid5(NAMESPACE_URL, name)

    @event("Added")
    def add(self, product: str, quantity: int) -> None:
        self.items[product] = self.items.get(product, 0) + quantity


class Shop(Application):
    def add(self, name: str, product: str, quantity: int) -> None:
        while True:
            try:
                cart = self.repository.get(Cart.create_id(name))
            except AggregateNotFoundError:
                cart = Cart(name=name)
            cart.add(product, quantity)
            try:
                self.save(cart)
            except IntegrityError:
                continue
            return


def run_rebuild(shop: Shop, task: dict[str, Any]) -> dict[str, float]:
    """Events a second of a sum over all of them, in Python, as the library's projections read them."""
    for number in range(task["events"] // 1000):
        cart = Cart(name=f"c{number}")
        for count in range(1000):
            cart.add(f"p{count % PRODUCTS}", 1)
        shop.save(cart)
    totals: dict[str, int] = {}
    started, read, position = time.perf_counter(), 0, 0
    while found := shop.recorder.select_notifications(start=position + 1, limit=1000):
        for notification in found:
            happened = shop.mapper.to_domain_event(notification)
            if isinstance(happened, Cart.Added):
                totals[happened.product] = totals.get(happened.product, 0) + happened.quantity
        read += len(found)
        position = found[-1].id
    assert sum(totals.values()) == task["events"]
    return {"rate": read / (time.perf_counter() - started)}


def main() -> None:
    task = json.loads(sys.argv[1])
    shop = Shop(env={"AGGREGATE_CACHE_MAXSIZE": "1000", **task["environment"]})
    if task["work"] == "rebuild":
        reading = run_rebuild(shop, task)
    else:
        measure(shop.add, task | {"commands": max(task["commands"] // 4, task["callers"])})
        reading = measure(shop.add, task)
    shop.close()
    print(json.dumps(reading))


if __name__ == "__main__":
    main()
