"""Latencies from producer to consumer: records with a timestamp, sent at a constant rate."""

import struct
import threading
import time
from collections.abc import Iterator

from bench.broker.load.job import Job
from bench.readings import percentile

STAMP = struct.Struct("<q")
DRAIN_SECONDS = 10


class LostRecords(Exception):
    """Acknowledged records did not arrive in time."""


def stamped(record_bytes: int) -> bytes:
    """A record that contains its creation time."""
    return STAMP.pack(time.perf_counter_ns()) + bytes(record_bytes - STAMP.size)


def pace(job: Job) -> Iterator[float]:
    """The times, by `time.perf_counter`, at which the job's records are due.

    They are fixed in advance: a delayed client catches up instead of sending fewer records.
    """
    start = time.perf_counter()
    for index in range(count_sent(job)):
        yield start + index / job.rate


def sleep_until(due: float) -> None:
    """Return at that time of `time.perf_counter`, or at once if it has passed."""
    left = due - time.perf_counter()
    if left > 0:
        time.sleep(left)


def count_sent(job: Job) -> int:
    """The number of records that a paced job sends, including its warm-up."""
    return int((job.warm_up_seconds + job.seconds) * job.rate)


class Arrivals:
    """The latencies of the records that have arrived, without those of the warm-up."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._latencies_ns: list[int] = []
        self.complete = threading.Event()

    def add(self, record: bytes | memoryview) -> None:
        """Add a record that has just arrived."""
        self._latencies_ns.append(time.perf_counter_ns() - STAMP.unpack_from(record)[0])
        if len(self._latencies_ns) == count_sent(self._job):
            self.complete.set()

    def summary(self) -> dict[str, float]:
        """The percentiles in milliseconds, when all records have arrived."""
        if not self.complete.is_set():
            raise LostRecords(
                f"{len(self._latencies_ns)} of {count_sent(self._job)} records arrived: "
                "the broker lost some, or did not keep up; try a lower rate."
            )
        warm_up = int(self._job.warm_up_seconds * self._job.rate)
        ordered = sorted(latency / 1e6 for latency in self._latencies_ns[warm_up:])
        named = {f"p{percent:g}": percentile(ordered, percent) for percent in (50, 99, 99.9)}
        return {**named, "max": ordered[-1]}
