"""Latencies from producer to consumer: stamped records, a steady pace, and what counts of them."""

import struct
import threading
import time
from collections.abc import Iterator

from bench.broker.load.job import Job
from bench.readings import percentile

STAMP = struct.Struct("<q")
DRAIN_SECONDS = 10


class LostRecords(Exception):
    """Records that were acknowledged did not arrive in time."""


def stamped(record_bytes: int) -> bytes:
    """A record that carries the time of its making."""
    return STAMP.pack(time.perf_counter_ns()) + bytes(record_bytes - STAMP.size)


def pace(job: Job) -> Iterator[float]:
    """The times, by `time.perf_counter`, at which the job's records are due.

    They are fixed beforehand: a client that was held up catches up, instead of sending less.
    """
    start = time.perf_counter()
    for index in range(count_sent(job)):
        yield start + index / job.rate


def sleep_until(due: float) -> None:
    """Return at that time of `time.perf_counter`, or at once when it has passed."""
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)


def count_sent(job: Job) -> int:
    """How many records a paced job sends, its warm-up included."""
    return int((job.warm_up_seconds + job.seconds) * job.rate)


class Arrivals:
    """The latencies of the records that have arrived; those of the warm-up are dropped at the end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._latencies_ns: list[int] = []
        self.complete = threading.Event()

    def add(self, record: bytes | memoryview) -> None:
        """Take a record that has arrived just now."""
        self._latencies_ns.append(time.perf_counter_ns() - STAMP.unpack_from(record)[0])
        if len(self._latencies_ns) == count_sent(self._job):
            self.complete.set()

    def summary(self) -> dict[str, float]:
        """The percentiles in milliseconds, once all records are there."""
        if not self.complete.is_set():
            raise LostRecords(
                f"{len(self._latencies_ns)} of {count_sent(self._job)} records arrived: "
                "the broker lost some, or did not keep up; try a lower rate."
            )
        warm_up = int(self._job.warm_up_seconds * self._job.rate)
        ordered = sorted(latency / 1e6 for latency in self._latencies_ns[warm_up:])
        named = {f"p{percent:g}": percentile(ordered, percent) for percent in (50, 99, 99.9)}
        return {**named, "max": ordered[-1]}
