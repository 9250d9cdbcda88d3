"""Workers in threads of one process, the same for all clients that block."""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from bench.queue.job import Job, Outcome

STAMP = struct.Struct(">q")
LONGEST_S = 60.0
WARM_UP = 50
"""Messages that are sent before those whose latencies count, so that workers have joined."""

Sample = tuple[int, float]
"""When a message was sent, in nanoseconds, and how many milliseconds later it was acknowledged."""


class Worker(Protocol):
    """One consumer."""

    def take(self) -> list[bytes]:
        """The next messages, or none if none arrived in a moment; the previous ones are acknowledged."""
        ...

    def acknowledge(self, index: int) -> None:
        """Accept one of the messages taken last, and send the acknowledgment."""
        ...

    def confirm(self) -> None:
        """Return when the broker has all acknowledgments."""
        ...


NewWorker = Callable[[Job], AbstractContextManager[Worker]]


class WorkerPool:
    """The workers of a job, each in a thread, from the first message to the last."""

    def __init__(self, job: Job, new_worker: NewWorker, messages: int) -> None:
        self._job = job
        self._new_worker = new_worker
        self._messages = messages
        self._done = 0
        self._changed = threading.Condition()
        self.samples: list[Sample] = []
        self.first_at = 0.0
        """When somebody got the first message."""
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(job.consumers)]
        for thread in self._threads:
            thread.start()

    def wait(self, count: int) -> float:
        """Wait until this many messages are acknowledged; returns the end time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._done >= count, LONGEST_S):
                raise TimeoutError(f"{self._done} of {count} messages were acknowledged")
            return time.perf_counter()

    def close(self) -> None:
        """Wait until all workers have left."""
        for thread in self._threads:
            thread.join(LONGEST_S)

    def _work(self) -> None:
        with self._new_worker(self._job) as worker:
            while self._done < self._messages:
                values = worker.take()
                if values:
                    self.first_at = self.first_at or time.perf_counter()
                    for index in range(len(values)):
                        worker.acknowledge(index)
                    worker.confirm()
                    self._count(values)

    def _count(self, values: list[bytes]) -> None:
        now_ns = time.perf_counter_ns()
        with self._changed:
            self._done += len(values)
            self.samples += [sample(value, now_ns) for value in values]
            self._changed.notify_all()


def sample(value: bytes, now_ns: int) -> Sample:
    """When a message was sent, and how many milliseconds ago."""
    (sent_ns,) = STAMP.unpack_from(value)
    return sent_ns, (now_ns - sent_ns) / 1e6


def steady(samples: list[Sample]) -> tuple[float, ...]:
    """The latencies without those of the first quarter, during which consumers still join."""
    return tuple(latency for _, latency in sorted(samples)[len(samples) // 4 :])


def payloads(job: Job, count: int) -> Iterator[bytes]:
    """Messages, each with the time at which it is sent; at the job's rate if latencies are measured."""
    filling = b"x" * (job.message_bytes - STAMP.size)
    begin = time.perf_counter()
    for number in range(count):
        if job.act == "latency":
            pause = begin + number / job.rate - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
        yield STAMP.pack(time.perf_counter_ns()) + filling


def run_pool(job: Job, new_worker: NewWorker, send: Callable[[Job, Iterator[bytes]], None]) -> Outcome:
    """Drain a full queue, or follow a slow producer after all workers have joined."""
    if job.act == "drain":
        send(job, payloads(job, job.messages))
        pool = WorkerPool(job, new_worker, job.messages)
        end = pool.wait(job.messages)
        pool.close()
        return Outcome(seconds=end - pool.first_at)
    pool = WorkerPool(job, new_worker, job.messages + WARM_UP)
    send(job, payloads(job, WARM_UP))
    pool.wait(WARM_UP)
    send(job, payloads(job, job.messages))
    pool.wait(job.messages + WARM_UP)
    pool.close()
    return Outcome(latencies_ms=steady(pool.samples))
