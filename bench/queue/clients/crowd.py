"""Workers in threads of one process, the same for all clients that block."""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from bench.queue.job import Job, Outcome

STAMP = struct.Struct(">q")
LONGEST_S = 120.0

Sample = tuple[int, float]
"""When a message was sent, in nanoseconds, and how many milliseconds later it was acknowledged."""


class Worker(Protocol):
    """One consumer."""

    def take(self) -> list[bytes]:
        """Messages in its hands, none when none came for a moment; those of before are acknowledged."""
        ...

    def acknowledge(self, index: int, *, waits: bool) -> None:
        """Accept one of the messages that were taken last; with `waits`, hear it confirmed."""
        ...


NewWorker = Callable[[Job], AbstractContextManager[Worker]]


class Crowd:
    """As many workers as the job says, each in a thread, from their first message to the last one of all."""

    def __init__(self, job: Job, new_worker: NewWorker) -> None:
        self._job = job
        self._new_worker = new_worker
        self._lock = threading.Lock()
        self._left = job.messages
        self._waits = job.act == "latency"
        self._stop = threading.Event()
        self._ready = threading.Barrier(job.consumers + 1)
        self.samples: list[Sample] = []
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(job.consumers)]

    def start(self) -> float:
        """Let all workers join, and then begin; gives the time of the beginning."""
        for thread in self._threads:
            thread.start()
        self._ready.wait(LONGEST_S)
        return time.perf_counter()

    def finish(self) -> float:
        """Wait until every message is acknowledged; gives the time of the end."""
        if not self._stop.wait(LONGEST_S):
            raise TimeoutError(f"{self._left} of {self._job.messages} messages were not acknowledged")
        end = time.perf_counter()
        for thread in self._threads:
            thread.join(LONGEST_S)
        return end

    def _work(self) -> None:
        with self._new_worker(self._job) as worker:
            self._ready.wait(LONGEST_S)
            while not self._stop.is_set():
                for index, value in enumerate(worker.take()):
                    worker.acknowledge(index, waits=self._waits)
                    self._count(value)

    def _count(self, value: bytes) -> None:
        now_ns = time.perf_counter_ns()
        with self._lock:
            self._left -= 1
            if self._waits:
                self.samples.append(sample(value, now_ns))
            if self._left == 0:
                self._stop.set()


def sample(value: bytes, now_ns: int) -> Sample:
    """When a message was sent, and how many milliseconds ago."""
    (sent_ns,) = STAMP.unpack_from(value)
    return sent_ns, (now_ns - sent_ns) / 1e6


def steady(samples: list[Sample]) -> tuple[float, ...]:
    """The latencies without those of the first quarter: while it is sent, consumers still join."""
    return tuple(latency for _, latency in sorted(samples)[len(samples) // 4 :])


def payloads(job: Job) -> Iterator[bytes]:
    """The messages, each stamped when it is asked for; for latencies at the job's rate."""
    filling = b"x" * (job.message_bytes - STAMP.size)
    begin = time.perf_counter()
    for number in range(job.messages):
        if job.act == "latency":
            pause = begin + number / job.rate - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
        yield STAMP.pack(time.perf_counter_ns()) + filling


def run_crowd(job: Job, new_worker: NewWorker, send: Callable[[Job, Iterator[bytes]], None]) -> Outcome:
    """A full queue worked off, or a slow producer followed."""
    if job.act == "drain":
        send(job, payloads(job))
        crowd = Crowd(job, new_worker)
        begin = crowd.start()
        return Outcome(seconds=crowd.finish() - begin)
    crowd = Crowd(job, new_worker)
    crowd.start()
    send(job, payloads(job))
    crowd.finish()
    return Outcome(latencies_ms=steady(crowd.samples))
