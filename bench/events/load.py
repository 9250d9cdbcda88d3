"""The load of every system: callers that execute one command after the other.

This module is imported in the environments of other systems too: it needs only Python.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

PRODUCTS = 50

Execute = Callable[[str, str, int], None]
"""Adds a quantity of a product to the cart of an id."""


def measure(execute: Execute, task: Mapping[str, Any]) -> dict[str, float]:
    """Commands per second and their durations, for a number of callers and aggregates."""
    callers, share = task["callers"], task["commands"] // task["callers"]
    times: list[list[float]] = [[] for _ in range(callers)]
    begin = threading.Barrier(callers + 1)

    def call(number: int) -> None:
        begin.wait()
        for count in range(share):
            key = f"{task['run']}-{(number + count * callers) % task['aggregates']}"
            started = time.perf_counter()
            execute(key, f"p{count % PRODUCTS}", 1)
            times[number].append(time.perf_counter() - started)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - started
    ordered = sorted(each for part in times for each in part)
    return {
        "rate": len(ordered) / took,
        "p50_ms": 1000 * _percentile(ordered, 50),
        "p99_ms": 1000 * _percentile(ordered, 99),
    }


def _percentile(ordered: list[float], percent: float) -> float:
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
