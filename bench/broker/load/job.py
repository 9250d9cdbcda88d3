"""The job of a client program, and its outcome."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from bench.processes import cpu_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One load of one kind (`act`) on one topic.

    The client creates the topic before the measurement, and deletes it afterwards unless `keep` is set.
    """

    act: str
    address: str
    broker_pid: int
    topic: str
    record_bytes: int
    seconds: float
    partitions: int = 1
    records: int = 0  # how many there are to consume, or to write
    keys: int = 0  # over how many keys the records are spread
    in_flight: int = 1
    rate: int = 0  # records a second, where the load is paced
    warm_up_seconds: float = 0.0
    keep: bool = False
    ca: str = ""  # the certificate to trust, where the connection uses TLS
    settings: dict[str, str] = field(default_factory=dict)  # of the topic

    def to_json(self) -> str:
        """The job as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The job that `to_json` wrote."""
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a load and its cost; `records` are acknowledged or received records."""

    records: int
    record_bytes: int
    seconds: float
    broker_cpu_seconds: float
    client_cpu_seconds: float
    latencies_ms: dict[str, float] = field(default_factory=dict)

    @property
    def megabytes_per_second(self) -> float:
        """Payload a second; keys, headers and framing are not counted."""
        return self.records * self.record_bytes / 1e6 / self.seconds

    @property
    def records_per_second(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def broker_cpu_per_gigabyte(self) -> float:
        """CPU seconds of the broker for each GB of payload."""
        return self.broker_cpu_seconds / (self.records * self.record_bytes / 1e9)

    def to_json(self) -> str:
        """The outcome as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The outcome that `to_json` wrote."""
        return cls(**json.loads(line))


class Client(Protocol):
    """The loads that every client program offers."""

    def produce(self, job: Job) -> Outcome:
        """Produce as many records as possible in `seconds`, with the client's best batching."""
        ...

    def consume(self, job: Job) -> Outcome:
        """Consume the first `records` of the topic as fast as possible, for `seconds`."""
        ...

    def requests(self, job: Job) -> Outcome:
        """One record per request, with `in_flight` requests, for `seconds`."""
        ...

    def latency(self, job: Job) -> Outcome:
        """From producer to consumer at `rate` records a second, both in this process."""
        ...


class Window:
    """The measured part of a load: its seconds, and the CPU seconds of broker and client within it."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> Self:
        self._broker_cpu = cpu_seconds(self._job.broker_pid)
        self._client_cpu = _own_cpu_seconds()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = self.elapsed
        self._client_cpu = _own_cpu_seconds() - self._client_cpu
        self._broker_cpu = cpu_seconds(self._job.broker_pid) - self._broker_cpu

    @property
    def elapsed(self) -> float:
        """Seconds since the window opened."""
        return time.perf_counter() - self._started

    @property
    def is_open(self) -> bool:
        """Whether the job's time has not passed yet."""
        return self.elapsed < self._job.seconds

    def outcome(self, records: int, **more: Any) -> Outcome:
        """The outcome of a load with this number of records in this window."""
        return Outcome(
            records=records,
            record_bytes=self._job.record_bytes,
            seconds=self.seconds,
            broker_cpu_seconds=self._broker_cpu,
            client_cpu_seconds=self._client_cpu,
            **more,
        )


def _own_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
