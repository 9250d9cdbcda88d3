"""Headrace's program: `python -m bench.events.program TASK` prints a reading as JSON."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.events.load import PRODUCTS, measure
from headrace.events import Aggregate, Event, EventStore, Limits

AT_ONCE = 1_000


class Added(Event):
    product: str
    quantity: int


class Cart(Aggregate):
    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    def add(self, product: str, quantity: int):
        yield Added(product=product, quantity=quantity)

    def add_many(self, count: int):
        for number in range(count):
            yield Added(product=f"p{number % PRODUCTS}", quantity=1)

    def on_added(self, e: Added) -> None:
        self.items[e.product] = self.items.get(e.product, 0) + e.quantity


def run_commands(task: dict[str, Any]) -> dict[str, float]:
    """Commands of several callers, after a warm-up that does not count."""
    with EventStore(task["run"], broker=task["broker"], partitions=task["partitions"]) as store:

        def execute(key: str, product: str, quantity: int) -> None:
            store.execute(Cart, key, "add", product=product, quantity=quantity)

        measure(execute, task | {"commands": max(task["commands"] // 4, task["callers"])})
        return measure(execute, task)


def run_rebuild(task: dict[str, Any]) -> dict[str, float]:
    """Events a second of a sum over all of them on Spark, with all columns and with those that it needs."""
    from headrace.spark.session import local_session

    limits = Limits(snapshot_events=1_000_000)
    with EventStore(task["run"], broker=task["broker"], partitions=4, limits=limits) as store:
        for number in range(task["events"] // AT_ONCE):
            store.execute(Cart, f"c{number % 1000}", "add_many", count=AT_ONCE, timeout="120 seconds")
        spark = local_session("rebuild")
        chosen = {"rate": None, "chosen": ["product", "quantity"]}
        rates = {
            name: _rebuild_rate(partial(store.df, Cart, Added, columns=columns, spark=spark), task)
            for name, columns in chosen.items()
        }
        spark.stop()
    return rates


def _rebuild_rate(events: Callable[[], Any], task: dict[str, Any]) -> float:
    """The median rate of the sum, after a pass that warms up."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    rates = []
    for _ in range(task["rounds"] + 1):
        started = time.perf_counter()
        sums = events().groupBy("product").agg(F.sum("quantity").alias("n")).collect()
        rates.append(task["events"] / (time.perf_counter() - started))
        assert sum(row.n for row in sums) == task["events"]
    return sorted(rates[1:])[len(rates[1:]) // 2]


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    print(json.dumps(run_rebuild(wanted) if wanted["work"] == "rebuild" else run_commands(wanted)))
